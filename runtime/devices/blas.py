"""Products of matrices by cuBLAS, called through ctypes.

cuBLAS counts columns first and kernels count rows first: a matrix in rows is its
transpose to cuBLAS. So what is asked for is the transpose of the product, with the
operands exchanged: `C = A @ B` is gemm(N, N) of B and A.

Note [queue and workspace]
A call enters kernels into a stream, that of the device or that of the graph which is
being recorded, and needs memory between them. To set the stream takes the memory away
that was set before, so both are set anew for each call. The memory belongs to the call
of a compiled function, as its arena does: nothing is allocated while a graph is
recorded, and no other thread gets the same.

Products of float32 are those of float32: without TF32, which rounds operands to 11
bits.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product as every_index
from typing import Any

from ...ir.errors import DeviceError
from .interface import SCRATCH
from .products import Product, Steps

LARGEST = 2**31 - 1  # of sizes and steps
CALLS = 16  # for one product; with more, kernels of the project's own are quicker
DEFAULT_MATH = 0  # of CUBLAS_..._MATH: no TF32
NORMAL, TRANSPOSED = 0, 1
LETTER = {"float32": "S", "float64": "D"}
FLOAT = {"float32": ctypes.c_float, "float64": ctypes.c_double}
HANDLE = POINTER = ctypes.c_void_p
INT, LONG = ctypes.c_int, ctypes.c_longlong
SETUP: dict[str, list[Any]] = {
    "cublasCreate_v2": [ctypes.POINTER(HANDLE)],
    "cublasSetMathMode": [HANDLE, INT],
    "cublasSetStream_v2": [HANDLE, POINTER],
    "cublasSetWorkspace_v2": [HANDLE, POINTER, ctypes.c_size_t],
}
GEMM: list[Any] = [
    HANDLE,
    *[INT] * 5,
    POINTER,
    *[POINTER, INT] * 2,
    *[POINTER] * 2,
    INT,
]
STRIDED: list[Any] = [
    *[HANDLE, *[INT] * 5, POINTER, *[POINTER, INT, LONG] * 2],
    *[POINTER] * 2,
    *[INT, LONG, INT],
]


@dataclass(frozen=True, slots=True)
class Calls:
    """A product as calls of gemm: what follows the addresses, and these in elements.

    `sizes` are transa, transb, m, n and k. Operands and the result, in cuBLAS' order,
    have the steps `lead` between columns, and `strides` along a batch of `count`.
    """

    turned: bool  # whether left and right are exchanged once more
    sizes: tuple[int, int, int, int, int]
    lead: tuple[int, int, int]
    strides: tuple[int, int, int]
    count: int
    offsets: tuple[tuple[int, ...], ...]  # of result, left and right, for each call


def _lines(steps: Steps, rows: int, columns: int) -> tuple[int, int] | None:
    """Return how cuBLAS is to take a matrix, and the step between lines; None: not.

    >>> _lines((7, 1), 3, 5), _lines((1, 4), 3, 5), _lines((1, 2), 3, 5)
    ((0, 7), (1, 4), None)
    """
    down, right = steps
    if rows == 1:
        down = max(columns, 1)
    if columns == 1:
        right = 1
    if right == 1 and columns <= down <= LARGEST:
        return NORMAL, down
    if (down == 1 or rows == 1) and rows <= right <= LARGEST and columns > 1:
        return TRANSPOSED, right
    return None


@functools.lru_cache(1024)
def calls_of(p: Product) -> Calls | None:
    """Return a product as calls of gemm; None where cuBLAS does not take it."""
    out = _lines(p.out, p.rows, p.columns)
    if out is None or max(p.rows, p.columns, p.terms) > LARGEST:
        return None
    if out[0] == TRANSPOSED:
        found = calls_of(p.turned)
        return None if found is None else _exchanged(found)
    left = _lines(p.left, p.rows, p.terms)
    right = _lines(p.right, p.terms, p.columns)
    if left is None or right is None or any(min(axis) < 0 for axis in p.stack):
        return None
    inner, *others = p.stack or ((1, 0, 0, 0),)
    offsets = tuple(
        tuple(
            sum(i * axis[which] for i, axis in zip(index, others, strict=True))
            for which in (1, 2, 3)
        )
        for index in every_index(*(range(axis[0]) for axis in others))
    )
    if len(offsets) > CALLS or inner[0] > LARGEST:
        return None
    count, c, a, b = inner
    sizes = right[0], left[0], p.columns, p.rows, p.terms
    lead, strides = (right[1], left[1], out[1]), (b, a, c)
    return Calls(False, sizes, lead, strides, count, offsets)


def _exchanged(x: Calls) -> Calls:
    """Return calls for the product whose left operand was taken for the right one."""
    offsets = tuple((c, b, a) for c, a, b in x.offsets)
    return Calls(not x.turned, x.sizes, x.lead, x.strides, x.count, offsets)


class Blas:
    """cuBLAS for one device; whoever calls it has the device for itself."""

    def __init__(self, library: Any, name: str) -> None:
        self.name = name
        self._library = library
        self._handle = HANDLE()
        self._set_up("cublasCreate_v2", ctypes.byref(self._handle))
        self._set_up("cublasSetMathMode", self._handle, DEFAULT_MATH)
        self._set_stream = self._function("cublasSetStream_v2", SETUP)
        self._set_workspace = self._function("cublasSetWorkspace_v2", SETUP)
        kinds: dict[tuple[str, bool], tuple[str, list[Any]]] = {}
        for dtype, letter in LETTER.items():
            kinds[dtype, False] = f"cublas{letter}gemm_v2", GEMM
            kinds[dtype, True] = f"cublas{letter}gemmStridedBatched", STRIDED
        self._gemm = {
            key: self._function(called, {called: args})
            for key, (called, args) in kinds.items()
        }
        # The product's factor and that of what is there, by dtype and sign.
        self._factors = {
            (dtype, sign): (kind(-1.0 if sign < 0 else 1.0), kind(float(sign != 0)))
            for dtype, kind in FLOAT.items()
            for sign in (-1, 0, 1)
        }

    @staticmethod
    def opened(name: str) -> Blas | None:
        """Return cuBLAS for the device of this name; None where it is not installed."""
        library = find()
        return None if library is None else Blas(library, name)

    def _function(self, name: str, kinds: dict[str, list[Any]]) -> Callable[..., int]:
        function: Any = getattr(self._library, name)
        function.argtypes, function.restype = kinds[name], INT
        return function  # type: ignore[no-any-return]

    def _set_up(self, name: str, *args: object) -> None:
        self._checked(self._function(name, SETUP)(*args), name)

    def _checked(self, status: int, what: str) -> None:
        if status:
            raise DeviceError(
                f"{self.name}: cuBLAS: {what}: status {status}",
                rule="Large products of matrices are computed by cuBLAS.",
                hint="install the nvidia-cublas of the driver's CUDA, or remove it: "
                "products are computed without it, too",
            )

    def multiply(
        self, p: Product, places: tuple[int, int, int], queue: int, scratch: int
    ) -> None:
        """Enter a product that `calls_of` knows into a stream.

        `places` are the addresses of result, left and right.
        """
        calls = calls_of(p)
        assert calls is not None
        handle = self._handle
        self._checked(self._set_stream(handle, queue), "stream")
        self._checked(self._set_workspace(handle, scratch, SCRATCH), "workspace")
        many, item = calls.count > 1, ctypes.sizeof(FLOAT[p.dtype])
        gemm = self._gemm[p.dtype, many]
        factor, old = map(ctypes.byref, self._factors[p.dtype, p.sign])
        one, two, three = calls.lead
        for offsets in calls.offsets:
            c, a, b = (x + item * k for x, k in zip(places, offsets, strict=True))
            x, y = (a, b) if calls.turned else (b, a)
            rest: tuple[Any, ...] = (x, one, y, two, old, c, three)
            if many:
                s, t, u = calls.strides
                rest = (x, one, s, y, two, t, old, c, three, u, calls.count)
            self._checked(gemm(handle, *calls.sizes, factor, *rest), "gemm")


def find() -> Any:
    """Return cuBLAS as ctypes has it, None where it is not installed."""
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError:
        return None
    try:
        found = load_nvidia_dynamic_lib("cublas")
    except DynamicLibNotFoundError:
        return None
    return ctypes.CDLL(found.abs_path, handle=found._handle_uint)
