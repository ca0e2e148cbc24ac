"""Devices by their names, and what is said where there is none."""

import subprocess
import sys

import pytest

from retrograde.ir.errors import DeviceError, RetrogradeError
from retrograde.runtime import doctor
from retrograde.runtime.devices import device, packages


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:01", ""])
def test_unknown_name_is_an_error_that_lists_the_names(name: str):
    with pytest.raises(DeviceError) as caught:
        device(name)
    assert caught.value.what == f"unknown device {name!r}"
    assert "'cuda', which is 'cuda:0'" in caught.value.rule
    assert "'cuda:emu'" in caught.value.rule


def test_device_errors_are_errors_of_the_package():
    assert issubclass(DeviceError, RetrogradeError)
    assert issubclass(DeviceError, RuntimeError)


def child(script: str, **environment: str) -> str:
    """Run a script in a process of its own and return what it prints."""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout


def test_importing_devices_imports_no_package_of_cuda():
    script = "import sys, retrograde.runtime.devices, retrograde.codegen.cuda.target; "
    script += "print([n for n in ('numba', 'cuda') if n in sys.modules])"
    assert child(script) == "[]\n"


def test_missing_package_is_an_error_with_a_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packages, "version", lambda package: "")
    with pytest.raises(
        DeviceError, match=r"^the package cuda-core is missing"
    ) as error:
        device("cuda:7")
    assert "pip install 'retrograde[cuda]'" in error.value.hint


def test_doctor_names_what_is_missing(monkeypatch: pytest.MonkeyPatch):
    there = {"numba-cuda": "0.30.4", "nvidia-nvvm": "13.0.88"}
    monkeypatch.setattr(packages, "version", lambda name: there.get(name, ""))
    monkeypatch.setattr(packages, "toolkit", lambda: None)
    (line,) = (row for row in doctor.report().splitlines() if row.startswith("CUDA"))
    assert "numba-cuda 0.30.4, nvidia-nvvm 13.0.88, no nvidia-cublas: " in line
    assert "missing: cuda-core, nvidia-cuda-nvrtc, " in line
    assert line.endswith("nvidia-nvjitlink (pip install 'retrograde[cuda]')")


def test_toolkit_of_the_machine_is_found(tmp_path, monkeypatch: pytest.MonkeyPatch):
    library = tmp_path / "lib64" / "libnvJitLink.so.13"
    library.parent.mkdir()
    library.write_bytes(b"library")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(packages, "version", lambda package: "")
    before = packages.part(packages.LINKER)
    assert before.startswith(str(library))
    library.write_bytes(b"another library")
    assert packages.part(packages.LINKER) != before


@pytest.mark.parametrize("driver", [12080, 11040])
def test_driver_older_than_the_bindings_is_an_error(driver, monkeypatch):
    monkeypatch.setattr(packages, "version", lambda package: "13.5.0")
    packages.check_driver("cuda:0", 13000)
    packages.check_driver("cuda:0", 14000)
    major, minor = driver // 1000, driver % 1000 // 10
    with pytest.raises(DeviceError) as caught:
        packages.check_driver("cuda:0", driver)
    what = f"cuda:0: the driver is too old: it is for CUDA {major}.{minor}"
    assert caught.value.what == what
