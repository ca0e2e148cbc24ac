"""What there is of CUDA's packages, libraries and driver, and how to get the rest.

The only place that knows which packages CUDA takes. Nothing here imports them.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from ...ir.errors import DeviceError

INSTALL = "pip install 'retrograde[cuda]'"
LOCAL = f"{INSTALL}, or 'retrograde[cuda-local]' where a CUDA toolkit is installed"
DRIVER = (
    "install NVIDIA's driver (nvidia-smi shows it), or use device='cuda:emu', which "
    "runs the same kernels without one"
)
DRIVERS = ("libcuda.so.1", "nvcuda.dll")
NUMBA_CUDA = ((0, 30, 4), (0, 31))  # from the first, below the second


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the toolkit: its package, and its library in an installed toolkit."""

    package: str
    library: str


LINKER = Part("nvidia-nvjitlink", "lib64/libnvJitLink.so*")
PARTS = (
    Part("nvidia-nvvm", "nvvm/lib64/libnvvm.so*"),
    Part("nvidia-cuda-nvrtc", "lib64/libnvrtc.so*"),
    LINKER,
)


# Products of matrices are computed without it, too.
BLAS = Part("nvidia-cublas", "lib64/libcublas.so*")


def version(package: str) -> str:
    """Return the version of a package, empty where it is missing."""
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def require(package: str, purpose: str) -> str:
    """Return the version of a package, without which nothing does what it is for."""
    found = version(package)
    if not found:
        raise DeviceError(
            f"the package {package} is missing", rule=f"It {purpose}.", hint=LOCAL
        )
    return found


def numba_cuda() -> str:
    """Return the version of numba-cuda, one that this package was made for."""
    found = require("numba-cuda", "compiles kernels for 'cuda' and 'cuda:emu'")
    first, end = NUMBA_CUDA
    if not first <= _numbers(found) < end:
        bounds = f">={'.'.join(map(str, first))},<{'.'.join(map(str, end))}"
        raise DeviceError(
            f"numba-cuda {found} is not supported",
            rule=f"Kernels are compiled by numba-cuda{bounds}.",
            hint=f"pip install 'numba-cuda{bounds}'",
        )
    return found


def _numbers(text: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version."""
    numbers = []
    for part in text.split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)


def toolkit() -> Path | None:
    """Return the folder of an installed CUDA toolkit."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            return Path(os.environ[name])
    usual = Path("/usr/local/cuda")
    return usual if usual.is_dir() else None


def part(which: Part) -> str:
    """Say where a part of the toolkit comes from; another one has another text."""
    found = version(which.package)
    if found:
        return f"{which.package} {found}"
    folder = toolkit()
    for library in sorted(folder.glob(which.library)) if folder else ():
        status = library.stat()
        return f"{library.resolve()} ({status.st_size} bytes, {status.st_mtime_ns})"
    return ""


@functools.cache
def can_link() -> bool:
    """Tell whether PTX can be assembled without a driver."""
    return bool(version("cuda-core") and part(LINKER))


@functools.cache
def surroundings() -> str:
    """Describe all that turns generated source into code for a GPU."""
    packages = [version(name) for name in ("numba-cuda", "numba", "llvmlite")]
    return repr((packages, [part(which) for which in PARTS], sys.version))


def disassembler() -> str | None:
    """Return the path of nvdisasm, None where it is not installed."""
    program = "nvdisasm.exe" if sys.platform == "win32" else "nvdisasm"
    import importlib.metadata

    try:
        files = importlib.metadata.files("nvidia-cuda-nvdisasm") or ()
    except importlib.metadata.PackageNotFoundError:
        files = ()
    for file in files:
        if file.name == program:
            return str(file.locate())
    folder = toolkit()
    local = shutil.which(program, path=str(folder / "bin")) if folder else None
    return local or shutil.which(program)


def check_driver(name: str, number: int) -> None:
    """Raise an error for a driver that is older than the bindings to it.

    `number` is its version, 13010 for CUDA 13.1.
    """
    bindings = version("cuda-bindings")
    if number // 1000 >= _numbers(bindings)[0]:
        return
    major, minor = number // 1000, number % 1000 // 10
    raise DeviceError(
        f"{name}: the driver is too old: it is for CUDA {major}.{minor}",
        rule=f"cuda-bindings {bindings} takes one for the same CUDA or a newer one.",
        hint=f"update the driver, or pip install 'cuda-bindings=={major}.*'",
    )


def describe(driver: bool) -> str:
    """Say what there is of CUDA and what is missing, for the doctor's report."""
    names = ("numba-cuda", "cuda-core")
    there = [f"{name} {version(name)}" for name in names if version(name)]
    missing = [name for name in names if not version(name)]
    for which in PARTS:
        found = part(which)
        if found:
            there.append(found.split(" (")[0])
        else:
            missing.append(which.package)
    facts = ["driver found" if driver else "no driver (see nvidia-smi)", *there]
    facts.append(part(BLAS).split(" (")[0] or "no nvidia-cublas: products by tiles")
    if missing:
        facts.append(f"missing: {', '.join(missing)} ({INSTALL})")
    return ", ".join(facts)
