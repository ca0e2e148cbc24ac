"""Turn generated source into native code, once per machine.

Note [native cache]
Numba's own disk cache is not used: it wants source files beside its entries, trusts
damaged ones (a changed byte in native code crashes the process), and loading from it
imports all of Numba's typing rules and parts of SciPy. An entry here is what that cache
would hold, a pickle of the `CompileResult` with the object code, under a digest and a
key of everything that the code depends on. To load it takes Numba's core, its run-time
symbols and the modules whose symbols the code calls.

The name of the generated module holds the key, so that symbols of two kernels never
meet, and must be importable: Numba looks it up when it makes an `Environment` again.
"""

import functools
import hashlib
import pickle
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import llvmlite
import numba
import numpy as np

from ..runtime import blas, cache, forkjoin, memory, progress, vecmath
from . import frontend, parts, split

NATIVE = ".native"
# What generated code sees as a change of Numba's behaviour, beside its version.
SETTINGS = "OPT LOOP_VECTORIZE SLP_VECTORIZE BOUNDSCHECK DEBUGINFO_DEFAULT".split()

# Numba's internals are untyped Python to mypy.
_compiler: Any = numba.core.compiler
_serialize: Any = numba.core.serialize
_registry: Any = numba.core.registry
_njit: Any = numba.njit
_runtime: Any = numba.core.runtime.nrt.rtsys


@dataclass(frozen=True, slots=True)
class Stats:
    """Count what `compile_entry` did in this process."""

    compiled: int = 0
    loaded: int = 0  # from the disk cache
    reused: int = 0  # from this process


@dataclass(frozen=True, slots=True)
class Compiled:
    """Hold a compiled entry.

    `call` is Numba's unboxing wrapper without its dispatcher: the cheapest call there
    is, and an unchecked one. Arrays must be ndarrays of the signature's dtype, ndim and
    layout, integers Python or NumPy ints; the caller has to see to it.
    """

    call: Callable[..., Any]
    source: str
    filename: str
    loaded: bool
    result: Any  # numba's CompileResult

    def assembly(self) -> str:
        """Return the native code as text."""
        return str(self.result.library.get_asm_str())


_lock = threading.RLock()
_entries: dict[str, Compiled] = {}
_stats = Stats()


def stats() -> Stats:
    """Return what has been compiled and loaded so far."""
    return _stats


def forget() -> None:
    """Drop the entries of this process; those on disk stay."""
    global _stats
    with _lock:
        _entries.clear()
        _stats = Stats()


def _count(**more: int) -> None:
    global _stats
    names = ("compiled", "loaded", "reused")
    _stats = Stats(*(getattr(_stats, name) + more.get(name, 0) for name in names))


@functools.cache
def surroundings() -> str:
    """Describe everything but the source that native code depends on."""
    codegen = _registry.cpu_target.target_context.codegen()
    # Whatever generated code may call is part of it, imported here or not.
    runtime = sorted(Path(memory.__file__).parent.glob("*.py"))
    ours_too = (__file__, frontend.__file__, parts.__file__, split.__file__)
    files = [*runtime, *map(Path, ours_too)]
    ours = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    settings = [getattr(numba.core.config, name, None) for name in SETTINGS]
    versions = (numba.__version__, llvmlite.__version__, np.__version__, sys.version)
    return repr((versions, codegen.magic_tuple(), vecmath.symbols(), settings, ours))


def key_of(
    source: str,
    entry: str,
    signature: tuple[Any, ...],
    contract: bool,
    kernel: bool = False,
) -> str:
    """Return the key of native code: equal keys mean interchangeable code."""
    parts = (source, entry, repr(signature), repr((contract, kernel)), surroundings())
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _module(key: str, filename: str) -> ModuleType:
    """Make the module that native code is of; only compiling it takes its source."""
    module = ModuleType(f"_retrograde_{key}")
    module.__file__ = filename
    sys.modules[module.__name__] = module
    return module


def _fill(module: ModuleType, source: str, filename: str, entry: str | None) -> None:
    """Run the source of a module; `entry` is a kernel, of which it gets the syntax."""
    try:
        if entry is None:
            exec(compile(source, filename, "exec"), vars(module))
        else:
            tree, syntax = frontend.stubbed(source, entry)
            own = parts.parts_of(tree, syntax)
            exec(compile(tree, filename, "exec"), vars(module))
            getattr(module, entry).syntax = syntax
            vars(module).update(own)
    except BaseException:
        del sys.modules[module.__name__]
        raise


def _options(contract: bool) -> dict[str, Any]:
    return {
        "nogil": True,
        "error_model": "numpy",
        "no_cfunc_wrapper": True,
        "fastmath": {"contract"} if contract else False,
    }


def _compile(
    module: ModuleType,
    entry: str,
    signature: tuple[Any, ...],
    contract: bool,
    kernel: bool,
) -> Any:
    """Compile the entry; the module's other functions become its helpers."""
    options = _options(contract)
    for name, value in list(vars(module).items()):
        own = isinstance(value, FunctionType) and value.__module__ == module.__name__
        if own and name != entry:
            helper = _njit(**options, no_cpython_wrapper=True)(value)
            setattr(module, name, helper)
    if kernel:
        options["pipeline_class"] = frontend.Compiler
    dispatcher = _njit(**options)(getattr(module, entry))
    dispatcher.compile(signature)
    return dispatcher.overloads[signature]


def _load(key: str) -> Any:
    """Return the compile result on disk, None where there is none that works."""
    data = cache.fetch(key, NATIVE)
    if data is None:
        return None
    context = _registry.cpu_target.target_context
    _runtime.initialize(context)
    try:
        return _compiler.CompileResult._rebuild(context, *pickle.loads(data))
    except Exception:
        # Whole, but not what this Numba writes. The cache must never be the reason
        # that a program fails; the entry is written anew.
        cache.discard(key, NATIVE)
        return None


def _is_portable(result: Any) -> bool:
    """Tell whether another process may load the code; see Note [native cache].

    It may not hold addresses of this process, nor name the one symbol that only
    Numba's typing rules bind, the secret of string hashes.
    """
    if result.library.has_dynamic_globals or result.lifted:
        return False
    names = (v.name for v in result.library._final_module.global_variables)
    return not any("hashsecret" in name for name in names)


def _save(key: str, result: Any) -> None:
    if _is_portable(result):
        cache.store(key, NATIVE, _serialize.dumps(result._reduce()))


def compile_entry(
    source: str,
    entry: str,
    signature: tuple[Any, ...],
    *,
    uses_blas: bool = False,
    contract: bool = False,
    kernel: bool = False,
) -> Compiled:
    """Compile the function `entry` of a generated module for one signature.

    The other functions of the module are its helpers. `contract` lets LLVM fuse
    multiplications and additions, after which ``x*x - y*y`` of equal x and y need not
    be zero. A `kernel` is written in the language of kernels, which compiles faster;
    see `frontend`.
    """
    key = key_of(source, entry, signature, contract, kernel)
    with _lock:
        known = _entries.get(key)
        if known is not None:
            _count(reused=1)
            return known
        if uses_blas:
            blas.register()
        if kernel and parts.has_parts(source):
            forkjoin.register()
        filename = cache.show_source(key, source)
        module = _module(key, filename)
        result = _load(key)
        loaded = result is not None
        if not loaded:
            with cache.alone(key, "native"):
                result = _load(key)  # another process may have made it meanwhile
                loaded = result is not None
                if not loaded:
                    progress.stage("native code")
                    _fill(module, source, filename, entry if kernel else None)
                    result = _compile(module, entry, signature, contract, kernel)
                    _save(key, result)
        _count(**{"loaded" if loaded else "compiled": 1})
        compiled = Compiled(result.entry_point, source, filename, loaded, result)
        _entries[key] = compiled
        return compiled


def compile_source(
    source: str,
    entry: str,
    signature: tuple[Any, ...],
    *,
    uses_blas: bool = False,
    contract: bool = False,
) -> Callable[..., Any]:
    """Return the compiled function `entry` of a generated module; see `Compiled`.

    >>> from numba import types
    >>> source = "def entry(n):" + chr(10) + "    return n + 1"
    >>> compile_source(source, "entry", (types.int64,))(41)
    42
    """
    return compile_entry(
        source, entry, signature, uses_blas=uses_blas, contract=contract
    ).call
