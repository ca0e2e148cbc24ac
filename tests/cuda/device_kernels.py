"""Kernels of source text, compiled by numba-cuda and run by the interpreter of PTX."""

from typing import Any

import numba
import numpy as np

from retrograde.runtime.devices import machine

FLOATS = ["float32", "float64"]
SIGNED = ["int8", "int16", "int32", "int64"]
UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]
DTYPES = [*FLOATS, *SIGNED, *UNSIGNED, "bool"]
HEADER = (
    "from retrograde.codegen.cuda.device import *\n"
    "from numpy import bool_, float32, float64, int8, int16, int32, int64\n"
    "from numpy import uint8, uint16, uint32, uint64\n"
)


def pointer(dtype: Any) -> Any:
    return numba.types.CPointer(numba.from_dtype(np.dtype(dtype)))


def compiled(source: str, *dtypes: Any) -> str:
    """Return the PTX of `kernel`, whose parameters are pointers to these dtypes."""
    from numba import cuda

    module: dict[str, Any] = {}
    exec(HEADER + source, module)
    signature = tuple(map(pointer, dtypes))
    ptx, _ = cuda.compile(
        module["kernel"], signature, device=False, abi="numba", cc=(9, 0)
    )
    return str(ptx)


def launch(ptx: str, grid: int, block: int, *arrays: np.ndarray) -> None:
    """Run PTX on copies of arrays, and write what it makes of them back."""
    module, space = machine.parse(ptx), machine.Space()
    addresses = [space.allocate(a.nbytes) for a in arrays]
    for address, a in zip(addresses, arrays, strict=True):
        space.write(address, a)
    machine.launch(module, module.entries[0], grid, block, addresses, space)
    for address, a in zip(addresses, arrays, strict=True):
        space.read(address, a)


def run(source: str, *arrays: np.ndarray, grid: int = 1, block: int = 32) -> str:
    """Compile and run a kernel on arrays; return its PTX."""
    ptx = compiled(source, *(a.dtype for a in arrays))
    launch(ptx, grid, block, *arrays)
    return ptx


def drawn(dtype: str, size: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=size) * 40).astype(dtype)


def type_name(dtype: str) -> str:
    """Return the name that kernels have for a dtype."""
    return "bool_" if dtype == "bool" else dtype
