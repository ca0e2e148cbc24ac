"""compare with a device: code for it is held against the two others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from retrograde.__main__ import main
from retrograde.comparison import Comparison
from retrograde.ir.errors import DeviceError
from retrograde.runtime.devices import packages

pytestmark = pytest.mark.cuda_emulated
EMU = "cuda:emu"
U = np.linspace(-1.0, 2.0, 12)


@pytest.fixture(autouse=True)
def brief(brief_timing: None) -> None:
    """Let timings be brief."""


def heat(u, a):
    u[1:-1] += a * (u[:-2] - 2 * u[1:-1] + u[2:])
    return u[::2], np.sum(u**2)


def picked(x, i):
    return np.sum(x[i] * x[1])


def modes(comparison: Comparison, what: str) -> set[str]:
    return {row.mode for row in comparison.rows if row.what == what}


def test_three_ways_agree_and_are_timed():
    u = U.copy()
    comparison = rg.compare(heat, u, 0.1, device=EMU)
    comparison.assert_ok()
    ways = {"eager", "compiled", "device"}
    for what in ("result[0]", "result[1]", "final u", "aliasing"):
        assert modes(comparison, what) == ways
    assert modes(comparison, "gradient of u") == {*ways, "both"}
    assert comparison.device == EMU
    assert comparison.device_time > 0
    head, *_, times = str(comparison).split("\nmemory")[0].splitlines()
    assert head.split() == ["heat", "eager", "compiled", EMU, "all", "equal"]
    assert f", {EMU} " in times
    np.testing.assert_array_equal(u, U)


def test_device_of_a_compiled_function_is_the_third_way():
    f = rg.compile(picked, device=EMU, deterministic=True)
    comparison = rg.compare(f, U, np.array([1, 2, 2]))
    comparison.assert_ok()
    assert comparison.device == EMU


def test_integers_alone_are_compared_too():
    rg.compare(lambda i: i * 2, np.arange(5), device=EMU).assert_ok()
    assert np.isnan(rg.compare(lambda i: i * 2, np.arange(5)).device_time)


def test_faults_of_the_device_are_found(monkeypatch: pytest.MonkeyPatch):
    right = rg.compile

    def wrong(f: Any, *, device: str | None = None) -> Any:
        if device is None:
            return right(f)
        return right(lambda x, i: picked(x, i) * (1 + 1e-7), device=device)

    monkeypatch.setattr(rg, "compile", wrong)
    comparison = rg.compare(picked, U, np.array([1, 2, 2]), device=EMU)
    failed = {(r.what, r.mode) for r in comparison.rows if r.status == "failed"}
    assert {("result", "device"), ("gradient of x", "both")} <= failed
    assert not any(mode in ("eager", "compiled") for _, mode in failed)


def test_missing_device_is_an_error_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(packages, "version", lambda package: "")

    def never(x: Any) -> Any:
        raise AssertionError("it runs")

    with pytest.raises(DeviceError, match="cuda-core is missing") as caught:
        rg.compare(never, U, device="cuda:7")
    assert "pip install 'retrograde[cuda]'" in caught.value.hint
    with pytest.raises(DeviceError, match="numba-cuda is missing") as caught:
        rg.compare(never, U, device=EMU)
    assert "pip install 'retrograde[cuda]'" in caught.value.hint
    with pytest.raises(DeviceError, match="unknown device 'gpu'"):
        rg.compare(never, U, device="gpu")
    file = tmp_path / "program.py"
    file.write_text("def f(x):\n    return x\n\ndef f_args():\n    return (1.0,)\n")
    assert main(["compare", f"{file}:f", "--device", "gpu"]) == 2
    assert "unknown device 'gpu'" in capsys.readouterr().err
