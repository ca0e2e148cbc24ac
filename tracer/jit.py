"""The driver: calls of compiled functions, specialisations, and what they look like.

A call flattens its arguments to leaves and looks for a specialisation whose guards
hold; without one the function is captured again. Arrays, Tensors and Python floats are
inputs; ints are symbols; bools, strings, None and other objects belong to the program.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import MethodType
from typing import Any, NamedTuple

import numpy as np

from ..ir.dims import Symbol
from ..ir.errors import OpaqueError, OutcomeError, UncompiledWarning, UnsupportedError
from ..ir.func import Func
from ..runtime.devices import DeviceArray
from ..runtime.devices import device as device_of
from . import dispatch
from .containers import Tree, flatten_tree, map_tree
from .convert import convert, operators
from .devices import beside
from .fastcall import MISS, Flat, never
from .location import user_location
from .modes import Options, calling, capturing
from .operators import EagerOperators
from .outcomes import Answer, Path, Raised
from .placement import on_host
from .plans import MOST, Plan, kind_of, make_plan
from .record import array_of
from .specialisation import (
    Specialisation,
    identity_pattern,
    is_native,
    leaf_kind,
)
from .specialise import specialise
from .tensor import Tensor
from .values import transforming

LOCK = threading.RLock()
MOST_OUTCOMES = 16  # programs for one kind of arguments, see `outcomes.py`


class Failed(NamedTuple):
    """A program that a call could not use: a computed value was another one."""

    spec: Specialisation
    error: OutcomeError

    def excludes(self, other: Specialisation) -> bool:
        """Tell whether another program must fail, too."""
        n = self.error.number + 1
        if other is self.spec or not n:
            return other is self.spec
        return other.outcomes[:n] == self.spec.outcomes[:n]

    def disputed(self) -> Iterator[tuple[Path, Answer]]:
        """Yield the answer that the program has found, if there are only two."""
        n = self.error.number
        if n >= 0 and isinstance(self.spec.outcomes[n], bool):
            yield self.spec.outcomes[:n], not self.spec.outcomes[n]


class CacheInfo(NamedTuple):
    """Counts of one compiled function.

    `hits` and `misses` count calls that found a specialisation or had to capture one;
    `compiled` kernels were compiled by this process, `loaded` came from the disk cache.
    """

    hits: int
    misses: int
    specialisations: int
    compiled: int
    loaded: int


class Compiled:
    """A compiled function: call it as the function it was made from.

    A direct call changes its array arguments exactly as NumPy would, and its results
    alias arguments and each other as NumPy's would. NumPy in, NumPy out; Tensors in,
    Tensors out, with a `grad_fn` when something requires a gradient.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        options: Options = Options(),  # noqa: B008
    ) -> None:
        self.fn = fn
        self.options = options
        functools.update_wrapper(self, fn, updated=())
        if not _is_plain(fn):
            del self.__wrapped__
        self._specialisations: dict[Hashable, list[Specialisation]] = {}
        self._signature: tuple[list[Any], inspect.Signature] | None = None
        self._plans: dict[Hashable, Plan] = {}
        self._flat: Flat = never  # of the last kind of call
        self.derived: dict[Hashable, Any] = {}
        self._unsettled: set[Hashable] = set()  # kinds that get no more programs
        self._hits = 0
        self._misses = 0

    __wrapped__: Callable[..., Any]

    def __repr__(self) -> str:
        name = getattr(self.fn, "__name__", self.fn)
        return f"<compiled {getattr(self.fn, '__qualname__', name)!s}>"

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        return self if obj is None else MethodType(self, obj)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle as functions are, by name, or as what it was made from."""
        found: Any = sys.modules.get(self.__module__)
        name = getattr(self, "__qualname__", "")
        for part in name.split("."):
            found = getattr(found, part, None)
        return name if found is self else (type(self), (self.fn, self.options))

    def __rg_function__(self) -> Callable[..., Any]:
        """Return the function whose captured state is this one's."""
        return self.fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if dispatch.active_trace() is not None:
            with calling(self.options):
                return convert(self.fn)(*args, **kwargs)
        kind = None
        if not kwargs:
            out = self._flat(args)
            if out is not MISS:
                self._hits += 1
                return out
            leaves: list[Any] = []
            arrays: list[int] = []
            kind = kind_of(args, leaves, arrays)
            plan = self._plans.get(kind)
            if plan is not None and len(set(arrays)) == len(arrays):
                out = plan.run(args, leaves)
                if out is not MISS:
                    self._hits += 1
                    self._flat = plan.flattened(args)
                    return out
        return self._search(kind, args, kwargs)

    def _search(
        self, kind: Hashable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Find or make the specialisation of a call, run it, and keep a plan."""
        bound = self._bind(args, kwargs)
        leaves, tree = flatten_tree(bound)
        key = (tree, tuple(map(leaf_kind, leaves)), identity_pattern(leaves))
        failed: list[Failed] = []
        before = self._misses
        while True:
            ready = self._find(key, leaves, failed)
            if ready is None:
                if not all(map(is_native, leaves)):
                    return self.uncompiled(args, kwargs)
                try:
                    ready = self._specialise(key, leaves, tree, failed)
                except Raised:
                    ready = None
                except OpaqueError as error:
                    self._leave(key, error)
                    ready = None
                if ready is None:
                    return self.uncompiled(args, kwargs)
            spec, values, env = ready
            if spec.written and spec.overlapping(values):
                return self.uncompiled(args, kwargs)
            try:
                out = spec.run(bound, leaves, values, env)
            except OutcomeError as error:
                failed.append(Failed(spec, error))
                continue
            self._hits += before == self._misses
            if kind is not None and key[2] is None and _is_all(bound, args):
                self._plan(kind, spec, values, env)
            return out

    def _plan(
        self,
        kind: Hashable,
        spec: Specialisation,
        values: Sequence[Any],
        env: Mapping[Symbol, int],
    ) -> None:
        """Keep how calls of a kind run, unless each has to be looked at."""
        plan = make_plan(spec, values, env)
        if plan is not None:
            if len(self._plans) >= MOST:
                self._plans = {}
            self._plans[kind] = plan

    def uncompiled(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the function itself: NumPy's meaning for arguments that overlap."""
        leaves, tree = flatten_tree((tuple(args), dict(kwargs)))
        if any(isinstance(x, DeviceArray) for x in leaves):
            warnings.warn(
                f"{self!r} runs uncompiled, on copies on the host: it writes arguments "
                "that share memory, or has no program for them",
                UncompiledWarning,
                stacklevel=4,
            )
            return on_host(self.fn, leaves, tree)
        if any(isinstance(x, Tensor) for x in leaves):
            with operators(EagerOperators()), transforming(), beside(leaves):
                return convert(self.fn)(*args, **kwargs)
        return self.fn(*args, **kwargs)

    # Specialisations ----------------------------------------------------------------

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        defaults = _defaults(self.fn)
        known = self._signature
        if known is None or not _agree(known[0], defaults):
            known = self._signature = defaults, _signature(self.fn)
        try:
            bound = known[1].bind(*args, **kwargs)
        except TypeError as error:
            name = getattr(self.fn, "__name__", "f")
            raise TypeError(f"{name}: {error}") from None
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def _find(
        self, key: Hashable, leaves: Sequence[Any], failed: Sequence[Failed] = ()
    ) -> tuple[Specialisation, list[Any], dict[Symbol, int]] | None:
        for spec in self._specialisations.get(key, ()):
            if failed and any(f.excludes(spec) for f in failed):
                continue
            values = spec.values(leaves)
            if values is not None:
                env = spec.symbols(leaves, values)
                if env is not None:
                    return spec, values, env
        return None

    def _specialise(
        self,
        key: Hashable,
        leaves: Sequence[Any],
        tree: Tree,
        failed: Sequence[Failed] = (),
    ) -> tuple[Specialisation, list[Any], dict[Symbol, int]] | None:
        """Capture the function; None where its computed values want too much."""
        with LOCK:
            ready = self._find(key, leaves, failed)
            if ready is not None:
                return ready  # another thread made it meanwhile
            specs = self._specialisations.setdefault(key, [])
            if key in self._unsettled:
                return None
            if sum(s.decides for s in specs) >= MOST_OUTCOMES:
                self._give_up(key, f"{MOST_OUTCOMES} programs", failed)
                return None
            self._misses += 1
            disputed = dict(d for f in failed for d in f.disputed())
            with capturing(self.options):
                spec = specialise(self.fn, leaves, tree, disputed)
            if any(f.spec.outcomes == spec.outcomes for f in failed):
                self._give_up(key, "outcomes that depend on rounding", failed)
                return None
            specs.append(spec)
        values = spec.values(leaves)
        env = None if values is None else spec.symbols(leaves, values)
        if values is None or env is None:
            raise UnsupportedError(
                f"{self!r} changes its own assumptions while it runs",
                location=user_location(),
                hint="do not change captured ints or strings inside the function",
            )
        return spec, values, env

    def _leave(self, key: Hashable, error: OpaqueError) -> None:
        """Let calls of this kind run uncompiled, since a Function cannot be traced."""
        self._unsettled.add(key)
        warnings.warn(
            f"{self!r} runs uncompiled: {error}", UncompiledWarning, stacklevel=4
        )

    def _give_up(self, key: Hashable, what: str, failed: Sequence[Failed]) -> None:
        """Let other outcomes of this kind of arguments run uncompiled; warn once."""
        if not self._unsettled:
            where = failed[-1].error.location if failed else None
            at = f"\n  at {where}" if where is not None else ""
            warnings.warn(
                f"{self!r} has {what} because Python needs a computed value; calls "
                f"with other outcomes run uncompiled{at}\n"
                "  A computed value that decides what Python does is checked by the "
                "program, and each outcome is another program.\n"
                "  hint: use np.where or a mask, or pass the value as an argument",
                UncompiledWarning,
                stacklevel=5,
            )
        self._unsettled.add(key)

    def warmup(self, *args: Any, **kwargs: Any) -> Compiled:
        """Compile for arguments such as these, without calling; return the function.

        Arguments are not changed. For an array may stand an object with a shape and a
        dtype. Of a function that has been transformed it is the transform that is
        compiled: `value_and_grad(f).warmup(x)`. Raises what capturing the function
        raises.

        >>> f = compile(lambda x: 2 * x).warmup(np.ones(3))
        >>> f.cache_info().specialisations
        1
        """
        args, kwargs = map_tree(_stand_in, (args, kwargs))
        self._kernel(args, kwargs)
        return self

    def _kernel(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the kernel that a call would run."""
        spec, values, env = self._ready(args, kwargs)
        return spec.program.variant(list(map(array_of, values)), env)

    def specialisation(self, *args: Any, **kwargs: Any) -> Specialisation:
        """Return the specialisation that a call would use, without running it."""
        return self._ready(args, kwargs)[0]

    def _ready(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Specialisation, list[Any], dict[Symbol, int]]:
        leaves, tree = flatten_tree(self._bind(args, kwargs))
        key = (tree, tuple(map(leaf_kind, leaves)), identity_pattern(leaves))
        failed: list[Failed] = []
        while True:
            ready = self._find(key, leaves, failed)
            ready = ready or self._specialise(key, leaves, tree, failed)
            if ready is None:
                raise UnsupportedError(
                    f"{self!r} has no program for these arguments",
                    location=user_location(),
                    rule="Too many outcomes of computed values were seen.",
                )
            spec, values, env = ready
            error = spec.differs(values, env)
            if error is None:
                return ready
            failed.append(Failed(spec, error))

    # What it looks like -------------------------------------------------------------

    def ir(self, *args: Any, stage: str = "functionalize", **kwargs: Any) -> str:
        """Return the IR for these arguments after a stage.

        Stages are "capture", "functionalize", "vjp" (of transforms), and the passes of
        `passes.manager` from "simplify" to "reinplace". Raises ValueError for others.
        """
        stages = self.stages(*args, **kwargs)
        if stage not in stages:
            raise ValueError(f"there is no stage {stage!r}; there are {list(stages)}")
        return str(stages[stage])

    def stages(self, *args: Any, **kwargs: Any) -> dict[str, Func]:
        """Return the Funcs of all stages for these arguments, in order."""
        spec = self.specialisation(*args, **kwargs)
        spec.program.optimised()
        return {**spec.stages, **spec.program.stages}

    def source(self, *args: Any, **kwargs: Any) -> str:
        """Return the generated source for these arguments."""
        return str(self._kernel(args, kwargs).source)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Return the IR after each stage, the loop nests and the generated source."""
        return "\n".join(self.sections(*args, **kwargs).values())

    def sections(self, *args: Any, **kwargs: Any) -> dict[str, str]:
        """Return the parts of `explain`: every stage, "nests" and "source"."""
        stages = self.stages(*args, **kwargs).items()
        parts = {name: f"# after {name}\n{f}\n" for name, f in stages}
        kernel = self._kernel(args, kwargs)
        parts["nests"] = f"# nests\n{kernel.nests}\n"
        parts["source"] = f"# source\n{kernel.source}\n"
        return parts

    def scratch_bytes(self, *args: Any, **kwargs: Any) -> int:
        """Return how much memory a call takes for tapes and other temporaries.

        What only the run can size, what a mask selects, is not counted.

        >>> compile(lambda x: np.cumsum(np.sin(x)).sum()).scratch_bytes(np.ones(512))
        8192
        """
        spec, values, env = self._ready(args, kwargs)
        arrays = list(map(array_of, values))
        symbols = [env[s] for s in spec.program.func.symbols]
        return int(spec.program.variant(arrays, env).scratch(arrays, symbols))

    def cache_info(self) -> CacheInfo:
        """Return how often this function was captured, compiled and served."""
        specs = [s for group in self._specialisations.values() for s in group]
        builds = [s.program.builds() for s in specs]
        compiled, loaded = (sum(b[k] for b in builds) for k in range(2))
        return CacheInfo(self._hits, self._misses, len(specs), compiled, loaded)


def _stand_in(x: Any) -> Any:
    """Return an array for what has but its shape and dtype."""
    if isinstance(x, Tensor | np.ndarray | DeviceArray | np.generic | type):
        return x
    shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
    if not isinstance(shape, tuple) or dtype is None:
        return x
    return np.zeros(shape, dtype)  # memory that is never touched


def _is_all(bound: Any, args: tuple[Any, ...]) -> bool:
    """Tell whether a function got these arguments and nothing else, no defaults."""
    return len(bound[0]) == len(args) and not bound[1]


def _is_plain(fn: Any) -> bool:
    return not hasattr(fn, "__rg_function__")


def _defaults(fn: Callable[..., Any]) -> list[Any]:
    """Return the default values of a function: somebody may exchange them."""
    own = getattr(fn, "__kwdefaults__", None) or {}
    return [*(getattr(fn, "__defaults__", None) or ()), *own, *own.values()]


def _agree(old: Sequence[Any], new: Sequence[Any]) -> bool:
    return len(old) == len(new) and all(a is b for a, b in zip(old, new, strict=True))


def _signature(fn: Callable[..., Any]) -> inspect.Signature:
    try:
        if isinstance(fn, np.ufunc):  # its defaults exclude each other
            raise TypeError
        return inspect.signature(fn)
    except (TypeError, ValueError):
        kind = inspect.Parameter
        return inspect.Signature(
            [
                kind("args", kind.VAR_POSITIONAL),
                kind("kwargs", kind.VAR_KEYWORD),
            ]
        )


def compile(
    fn: Callable[..., Any] | None = None,
    *,
    memory_limit: int | None = None,
    precise: bool = False,
    device: str | None = None,
    fastmath: bool = False,
    deterministic: bool = False,
) -> Any:
    """Compile a function of NumPy arrays; also a decorator.

    The function is captured when it is first called with arguments of a new kind, and
    compiled. It may write into its arguments and through views; a call has the effects
    on arrays, containers and variables that NumPy's would have. Other effects, such as
    printing or writing files, happen when the function is captured, not at every call.

    The tapes of its gradients, what their loops save, take at most `memory_limit`
    bytes: where they would take more, loops go by blocks, of which each is computed
    once more. Raises MemoryLimitError where that is not enough.

    Elementary functions such as exp are vectorised, within 4 units in the last place.
    A `precise` function has the scalar ones of the C library, which `math` has, too;
    so have its gradients and what it is called in.

    Called with arrays of a device (`device_array`, or Tensors there) it runs there and
    returns such arrays; nothing is copied to or from the host. All arrays of a call are
    in one place: raises DeviceError, which names them, where they are not.

    With a `device`, "cuda", "cuda:1" or "cuda:emu", kernels run there whatever it is
    called with: NumPy arrays are copied to the device, results and what the function
    has written are copied back. "cuda:emu" interprets the kernels of a GPU, without
    one. Raises DeviceError where there is no such device, or what it needs is missing.

    On a device, `fastmath` allows approximations in float32, as a GPU has instructions
    for them: of exp, log, sin, cos, tan, tanh, divisions and square roots, with numbers
    below 2**-126 taken for zeros. Their errors are in docs/cuda.md; NaN and infinities
    are what they are without it. float64 and the processor know no such approximations,
    and sums keep their order: there it changes nothing. It is an option of the function
    that is called, for its gradients, too, and for what it calls. Raises ValueError
    beside `precise`.

    A `deterministic` function gives the same bits in every run on a device, too: floats
    that are added at computed places, as those of a gradient of ``x[i]`` and of
    ``np.add.at``, are added in a form that knows no order, which takes longer and more
    memory. All else always does so, and so does all on the processor. What it is called
    in is deterministic, too.

    >>> @compile
    ... def double_first_row(x):
    ...     y = x**2
    ...     v = y[0]
    ...     v *= 2
    ...     return y
    >>> double_first_row(np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([[ 2.,  8.],
           [ 9., 16.]])
    """
    _check_limit(memory_limit)
    if precise and fastmath:
        raise ValueError("compile: precise and fastmath exclude each other")
    options = Options(
        memory_limit, precise, _device_name(device), fastmath, deterministic
    )
    if fn is None:
        return functools.partial(compile, **options._asdict())
    if isinstance(fn, Compiled):
        options = fn.options.with_those(options)
        return fn if options == fn.options else Compiled(fn.fn, options)
    if isinstance(fn, staticmethod | classmethod):
        return type(fn)(Compiled(fn.__func__, options))
    if not callable(fn):
        raise TypeError(f"compile needs a function, not {type(fn).__name__}")
    return Compiled(fn, options)


def _device_name(name: Any) -> str | None:
    """Return the full name of a device; None for the processor."""
    if name is None:
        return None
    if not isinstance(name, str):
        raise TypeError(f"device is a name such as 'cuda', not {name!r}")
    return device_of(name).name


def _check_limit(limit: Any) -> None:
    if limit is None:
        return
    if not isinstance(limit, int) or isinstance(limit, bool):
        raise TypeError(f"memory_limit is a number of bytes, not {limit!r}")
    if limit < 0:
        raise ValueError(f"memory_limit is a number of bytes, not {limit}")
