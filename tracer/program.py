"""A pure Func that can be run: the pipeline from functionalized IR to a kernel."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .. import codegen
from ..ir import dims, interp
from ..ir.build import IRBuilder, names_in
from ..ir.dims import Expr, Symbol
from ..ir.errors import RetrogradeError
from ..ir.func import Block, Copier, Func, Operand, Value, walk
from ..ir.op import OPS, Kind
from ..ir.text import show
from ..ir.types import Type
from ..passes import manager
from ..passes.activity import declares_derivative
from ..passes.limit import Known, limited_vjp
from ..runtime import devices, env, progress
from .location import user_location
from .modes import Options

TEXT = (bool, int, float, complex, str, np.dtype, Expr, Symbol)
STAGES = (*manager.PIPELINES["optimize"], "vectorize", *manager.PIPELINES["lower"])


def run_pass(f: Func, name: str) -> Func:
    """Run one pass as the environment asks: verified, printed."""
    f = manager.run(f, (name,), verify=env.verify())
    if env.dump() in ("all", name):
        print(f"# after {name}\n{f}\n")
    return f


def vectorized(f: Func) -> Func:
    """Return what is to be differentiated: `f` with independent loops vectorized.

    Where there are none, it is `f` as it was. So it is where a node says itself what
    its derivative is, too: `simplify` keeps no more than values.
    """
    f = run_pass(f, "chains")
    nodes = list(walk(f.body))
    if any(map(declares_derivative, nodes)):
        return f
    if not any(n.op.kind is Kind.FOR for n in nodes):
        return f
    simple = f
    for name in manager.PIPELINES["optimize"]:
        simple = run_pass(simple, name)
    after = run_pass(simple, "vectorize")
    return f if after is simple else after


def _stages() -> tuple[str, ...]:
    """Return the passes to run: all, or those up to where the environment says."""
    last = env.stop_after()
    if not last:
        return STAGES
    if last not in manager.PASSES:
        known = ", ".join(manager.PASSES)
        raise ValueError(f"RETROGRADE_STOP_AFTER: no pass {last!r}; there are {known}")
    return STAGES[: STAGES.index(last) + 1] if last in STAGES else ()


_BUILDING = threading.RLock()


class Program:
    """A pure Func with its stages, its kernel and its derivative, made when needed.

    The options are those of its derivatives, too.
    """

    def __init__(self, func: Func, options: Options = Options()) -> None:  # noqa: B008
        self.func = func
        self.options = options
        self.stages: dict[str, Func] = {}
        self._kernel: Callable[..., list[Any]] | None = None
        self._source: Any = None  # of the variants of the kernel
        self._lifted: dict[tuple[int, ...], Program] = {}
        # The facts about sizes that each holds for, and the derivative.
        self._vjps: dict[Any, list[tuple[Sequence[Expr], Program]]] = {}

    def optimised(self) -> Func:
        """Return the Func that code is generated from."""
        f = self.func
        for name in _stages():
            if name not in self.stages:
                progress.stage(f"pass {name}")
                self.stages[name] = run_pass(f, name)
            f = self.stages[name]
        return f

    @property
    def kernel(self) -> Any:
        """The compiled kernel."""
        return self.kernel_for(None)

    def kernel_for(self, sizes: Mapping[Symbol, int] | None) -> Any:
        """Return the kernel, compiled for such sizes first."""
        if self._kernel is None:
            with _BUILDING:
                if self._kernel is None:
                    with progress.compiling(_described(self.func)):
                        self._kernel = self._build(sizes)
        return self._kernel

    def _build(self, sizes: Mapping[Symbol, int] | None) -> Callable[..., list[Any]]:
        if env.interp():
            return _Interpreter(self.optimised())
        try:
            kernel = self._compiled(sizes)
        except RetrogradeError as error:
            error.location = error.location or user_location()
            raise
        if env.dump() in ("all", "source"):
            print(kernel.source)
        return kernel  # type: ignore[no-any-return]

    def _compiled(self, sizes: Mapping[Symbol, int] | None) -> Any:
        _, precise, device, fastmath, deterministic = self.options
        if device is not None:
            return codegen.build_for(
                devices.device(device),
                self.optimised(),
                fastmath=fastmath,
                deterministic=deterministic,
            )
        key = _key(self.func, precise=precise)
        self._source = codegen.source(self.optimised, precise=precise, key=key)
        return self._source.first(sizes)

    def variant(self, args: Sequence[Any], symbols: Mapping[Symbol, int]) -> Any:
        """Return the kernel that runs for these arguments."""
        values = [symbols[s] for s in self.func.symbols]
        return self.kernel_for(symbols).variant(args, values)

    def builds(self) -> tuple[int, int]:
        """Return how many kernels were compiled, and how many came from the disk."""
        counts = [0, 0]
        for kernel in self._source.kernels() if self._source is not None else ():
            counts[bool(kernel.compiled.loaded)] += 1
        for variants in self._vjps.values():
            for _, derived in variants:
                for k, n in enumerate(derived.builds()):
                    counts[k] += n
        return counts[0], counts[1]

    def run(self, args: Sequence[Any], symbols: Mapping[Symbol, int]) -> list[Any]:
        """Run on arrays and numbers; updates are written into the arguments."""
        kernel = self.kernel_for(symbols)
        return kernel(args, [symbols[s] for s in self.func.symbols])  # type: ignore[no-any-return]

    def taking_arrays(self, positions: tuple[int, ...]) -> Program:
        """Return this program with 0-d arrays for some of the scalars that it takes.

        Arrays of a device that hold numbers need not be read back then.
        """
        if not positions:
            return self
        with _BUILDING:
            if positions not in self._lifted:
                func = with_arrays(self.func, positions)
                self._lifted[positions] = Program(func, self.options)
            return self._lifted[positions]

    def vjp(
        self,
        wrt: tuple[int, ...],
        cotangents: tuple[int, ...],
        symbols: Mapping[Symbol, int],
    ) -> Program:
        """Return the program (params, cotangents of results) -> cotangents of `wrt`.

        `symbols` are the sizes of the call, which decide how a memory limit is kept.
        Second derivatives are those of that program. Nothing is updated by it.
        """
        with _BUILDING:
            variants = self._vjps.setdefault((wrt, cotangents), [])
            for facts, program in variants:
                if all(dims.evaluate(e, symbols) >= 0 for e in facts):
                    return program
            func = vectorized(without_checks(self.func))
            sizes, limit = Known(symbols), self.options.memory_limit
            joint = limited_vjp(func, wrt, cotangents, limit=limit, sizes=sizes)
            derived = only_results(joint, len(self.func.results))
            program = Program(derived, self.options)
            variants.append((tuple(sizes.facts), program))
            return program


def _described(f: Func) -> str:
    """Return the name of a Func and the place in the user's source."""
    at = next((n.loc for n in f.nodes if n.loc is not None), None)
    return f.name if at is None else f"{f.name} ({at.file}:{at.line})"


def _key(f: Func, **options: object) -> str | None:
    """Return the key of the kernel of a Func; None where its passes have to be run.

    `options` are what `codegen.build` is told besides. It is None where the environment
    asks to see the passes, or where an attribute is an object that its text does not
    tell.
    """
    if env.verify() or env.dump() or env.stop_after():
        return None
    nodes = list(walk(f.body))
    if not all(_is_text(a) for n in nodes for a in n.attrs.values()):
        return None
    return codegen.key_of(
        show(f), repr([n.loc for n in nodes]), repr(STAGES), repr(options)
    )


def _is_text(a: Any) -> bool:
    """Tell whether all that an attribute is stands in its text."""
    if isinstance(a, tuple):
        return all(map(_is_text, a))
    return a is None or isinstance(a, TEXT)


def without_checks(f: Func) -> Func:
    """Return `f` without its `expect` nodes: they have passed."""
    nodes = tuple(n for n in f.nodes if n.op.kind is not Kind.CHECK)
    return replace(f, body=replace(f.body, nodes=nodes))


def with_arrays(f: Func, positions: Sequence[int]) -> Func:
    """Return `f` with 0-d arrays for some of the scalars that it takes."""
    b = IRBuilder(list(names_in(f)))
    params = list(f.params)
    numbers: dict[Value, Operand] = {}
    with b.block() as made:
        for j in positions:
            params[j] = b.value(Type(params[j].type.dtype, ()), params[j].name)
            numbers[f.params[j]] = b.apply(OPS["item"], (params[j],), {})
    copier = Copier(values=numbers)
    nodes = tuple(map(copier.node, f.nodes))
    results = tuple(map(copier.operand, f.results))
    return replace(f, body=Block(tuple(params), (*made, *nodes), results))


def only_results(f: Func, start: int) -> Func:
    """Return `f` with its results from `start` on; nothing is updated."""
    body = replace(f.body, results=f.results[start:])
    return replace(f, body=body, updates=())


class _Interpreter:
    """Stands in for a kernel: tells a wrong pass from wrong code generation."""

    source = "# interpreted: RETROGRADE_INTERP is set\n"
    scratch = staticmethod(lambda args, symbols: 0)
    nests = "interpreted\n"

    def __init__(self, func: Func) -> None:
        self.func = func

    def variant(self, args: Sequence[Any], symbols: Sequence[int]) -> _Interpreter:
        return self

    def __call__(self, args: Sequence[Any], symbols: Sequence[int]) -> list[Any]:
        given = dict(zip(self.func.symbols, symbols, strict=True))
        copies = [np.array(x) if isinstance(x, np.ndarray) else x for x in args]
        out = interp.run(self.func, *copies, symbols=given)
        out = [np.array(x) if isinstance(x, np.ndarray) else x for x in out]
        for i, j in self.func.updates:
            np.copyto(args[j], out[i])
            out[i] = args[j]
        return out
