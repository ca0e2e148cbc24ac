"""The compiler of kernels: generated source to PTX, and to a cubin.

Numba-cuda is used as a compiler only, with a pointer and sizes for an array, and no
other module but `device` imports it. What it makes is kept on disk: a process that
finds its kernels there does not import it at all.

Note [names of kernels]
Numba-cuda mangles the types into the name of a kernel, and a number that counts the
kernels of the process. The name is replaced by that of the Python function, so that the
same source is always the same PTX.

Note [operators]
Numba-cuda asks all templates of an operator, dozens for `+`, which of them takes the
types of its operands: when it infers types, again when it writes instructions, and anew
for each place in the source. That was a third of the time of compiling a kernel. What
it finds depends on the types alone, so it is kept while kernels are compiled. And where
an operator has no implementation for a literal, which is the rule, it registers all its
modules once more before it takes that of a variable.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import operator
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ir.errors import DeviceError, InternalError
from ...runtime import cache, progress
from ...runtime.devices import Code, packages
from ...runtime.devices.interface import ARCHITECTURE

PTX, CUBIN = ".ptx", ".cubin"
OPERATORS = (
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv),
    *(operator.iadd, operator.isub, operator.imul, operator.mod, operator.neg),
    *(operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift),
    *(operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne),
    *(operator.not_, operator.invert, operator.pos, min, max),
)
_lock = threading.RLock()
ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(")
STATIC = re.compile(
    r"^[ \t]*(?:\.visible |\.weak |\.common )?\.shared (?:\.align (\d+) )?"
    r"\.[bsuf](\d+) [\w$]+(?:\[(\d+)\])?;",
    re.MULTILINE,
)


def compile_kernel(
    source: str,
    name: str,
    kinds: Sequence[str],
    *,
    dtypes: Sequence[npt.DTypeLike] = (),
    fastmath: bool = False,
    architecture: tuple[int, int] = ARCHITECTURE,
    cubin: bool = True,
    bounds: tuple[int, int] | None = None,
) -> Code:
    """Compile the function `name` of a generated module into a kernel.

    `kinds` are those of its parameters, and `dtypes` those of what the pointers among
    them point to. `fastmath` trades accuracy for approximate instructions. Where the
    linker is missing, or no `cubin` is wanted, there is none, and a driver assembles
    the PTX. `bounds` are the most threads of a block, and how many such blocks shall
    fit on a multiprocessor at once, which limits the registers.
    """
    described = [np.dtype(dtype).str for dtype in dtypes]
    options = (name, tuple(kinds), described, fastmath, architecture, bounds)
    key = _key(source, options)
    make = functools.partial(
        _compile, source, name, kinds, dtypes, fastmath, architecture, bounds, key
    )
    ptx = _kept(key, PTX, make).decode()
    binary = b""
    if cubin and packages.can_link():
        binary = _kept(key, CUBIN, lambda: link(ptx, architecture)[0])
    return Code(name, tuple(kinds), ptx, binary, static_size(ptx))


def _key(source: str, options: tuple[object, ...]) -> str:
    what = (source, options, packages.surroundings(), _ours())
    return hashlib.sha256(repr(what).encode()).hexdigest()


@functools.cache
def _ours() -> str:
    """Return a digest of this package: what generated source imports, and the seam."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def _kept(key: str, suffix: str, make: Callable[[], bytes]) -> bytes:
    """Return an entry of the disk cache, made by one of the processes that want it."""
    data = cache.fetch(key, suffix)
    if data is not None:
        return data
    with cache.alone(key, "cuda"):
        data = cache.fetch(key, suffix)
        if data is None:
            progress.stage("code for the GPU")
            data = make()
            cache.store(key, suffix, data)
    return data


@functools.cache
def _numba_cuda() -> Any:
    """Return `numba.cuda`, if it is NVIDIA's and a version that is known."""
    packages.numba_cuda()
    from numba import cuda

    if getattr(cuda, "implementation", "") != "NVIDIA":
        raise DeviceError(
            "numba.cuda is the one that is built into Numba",
            rule="Kernels are compiled by numba-cuda, which takes its place by a .pth "
            "file; Python reads those of its site-packages only, and none under -S.",
            hint=f"{packages.INSTALL} into the environment of this Python",
        )
    return cuda


def _compile(
    source: str,
    name: str,
    kinds: Sequence[str],
    dtypes: Sequence[npt.DTypeLike],
    fastmath: bool,
    architecture: tuple[int, int],
    bounds: tuple[int, int] | None,
    key: str,
) -> bytes:
    """Compile a kernel to PTX."""
    cuda = _numba_cuda()
    filename = cache.show_source(key, source)
    module = {"__name__": f"_retrograde_{key}"}
    exec(compile(source, filename, "exec"), module)
    types = _types(kinds, dtypes)
    try:
        with _functions_for(architecture), _operators_resolved_once():
            ptx, _ = cuda.compile(
                module[name],
                types,
                device=False,
                abi="numba",
                cc=architecture,
                fastmath=fastmath,
                launch_bounds=bounds,
            )
    except Exception as error:
        raise _explained(error) from error
    return _renamed(ptx, name).encode()


@contextlib.contextmanager
def _functions_for(architecture: tuple[int, int]) -> Iterator[None]:
    """Compile what kernels call for an architecture, without asking a driver.

    Numba-cuda compiles a kernel for the one that it is given, but a function of Python
    that it calls for the device of the process, which there need not be.
    """
    dispatcher: Any = importlib.import_module("numba.cuda.dispatcher")
    with _lock:
        before = dispatcher.get_current_device
        device = SimpleNamespace(compute_capability=architecture)
        dispatcher.get_current_device = lambda: device
        try:
            yield
        finally:
            dispatcher.get_current_device = before


class _Resolved:
    """How an operator is called with operands of some types; see Note [operators]."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.resolve: Callable[..., Any] = function.get_call_type
        self.known: dict[tuple[Any, ...], Any] = {}

    def __call__(self, context: Any, args: Sequence[Any], kws: dict[str, Any]) -> Any:
        key = (*args, *kws.items())
        if key not in self.known:
            self.known[key] = self.resolve(context, args, kws)
        return self.known[key]


_resolved: dict[Any, _Resolved] = {}


@contextlib.contextmanager
def _operators_resolved_once() -> Iterator[None]:
    """Keep what operators are resolved to; see Note [operators]."""
    descriptor: Any = importlib.import_module("numba.cuda.descriptor")
    context = descriptor.cuda_target.typing_context
    context.refresh()  # after which operators have their templates
    target = type(descriptor.cuda_target.target_context)
    with _lock:
        functions = {f: context.resolve_value_type(f) for f in OPERATORS}
        find = target.get_function

        def found(self: Any, fn: Any, sig: Any, _firstcall: bool = True) -> Any:
            again = _firstcall and getattr(fn, "typing_key", None) not in OPERATORS
            return find(self, fn, sig, again)

        for f, t in functions.items():
            if f not in _resolved or _resolved[f].function is not t:
                _resolved[f] = _Resolved(t)
            t.get_call_type = _resolved[f]
        target.get_function = found
        try:
            yield
        finally:
            del target.get_function  # which is that of a base class
            for t in functions.values():
                del t.get_call_type


def _types(kinds: Sequence[str], dtypes: Sequence[npt.DTypeLike]) -> tuple[Any, ...]:
    """Return Numba's types of a kernel's parameters."""
    types: Any = importlib.import_module("numba.cuda.types")
    numpy_support: Any = importlib.import_module("numba.cuda.np.numpy_support")
    if kinds.count("pointer") != len(dtypes):
        raise InternalError(f"{len(dtypes)} dtypes for the pointers of {list(kinds)}")
    pointed = iter(dtypes)
    return tuple(
        types.CPointer(numpy_support.from_dtype(np.dtype(next(pointed))))
        if kind == "pointer"
        else numpy_support.from_dtype(np.dtype(kind))
        for kind in kinds
    )


def _explained(error: Exception) -> Exception:
    """Return the error of a toolkit that is incomplete, or the error itself."""
    if type(error).__name__ != "DynamicLibNotFoundError":
        return error
    missing = [part.package for part in packages.PARTS if not packages.part(part)]
    return DeviceError(
        f"a library of the CUDA toolkit is missing: {str(error).splitlines()[0]}",
        rule="Kernels are compiled by libnvvm, which needs libnvrtc beside it"
        + (f"; not found: {', '.join(missing)}." if missing else "."),
        hint=packages.LOCAL,
    )


def _renamed(ptx: str, name: str) -> str:
    """Give the kernel its own name; see Note [names of kernels]."""
    found = ENTRY.search(ptx)
    if found is None:
        raise InternalError(f"the PTX of {name} has no entry")
    mangled = found[1]
    symbol = mangled.removeprefix("_Z")
    return ptx.replace(mangled, name).replace(
        f"_ZN08NumbaEnv{symbol[1:]}", f"{name}_env"
    )


def static_size(ptx: str) -> int:
    """Return the bytes of shared memory that PTX declares.

    >>> static_size(".visible .shared .align 4 .b8 a[6];\\n.shared .align 8 .f64 b;")
    16
    """
    size = 0
    for align, bits, count in STATIC.findall(ptx):
        width = int(bits) // 8
        step = int(align or width)
        size = -(-size // step) * step + width * int(count or 1)
    return size


def link(
    ptx: str, architecture: tuple[int, int], *, verbose: bool = False
) -> tuple[bytes, str]:
    """Return the cubin of PTX, and what the assembler says about it if it is asked."""
    from cuda.core import Linker, LinkerOptions, ObjectCode

    options = LinkerOptions(
        arch="sm_{}{}".format(*architecture),
        ptxas_options=["-v"] if verbose else None,
    )
    linker = Linker(ObjectCode.from_ptx(ptx.encode()), options=options)
    try:
        return bytes(linker.link("cubin").code), str(linker.get_info_log())
    finally:
        linker.close()
