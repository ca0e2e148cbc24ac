"""The op record: everything the system knows about an op, in one place.

No file outside ``ir/ops`` branches on an op's name. What passes, emitters and the tape
need to know is a field here or follows from one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .dims import Dim
from .types import DType

if TYPE_CHECKING:
    from .build import Builder
    from .types import Type

OUT = -1  # the position of an op's own result among what a derivative reads


class Kind(StrEnum):
    """What an op does, as far as passes and emitters must tell ops apart."""

    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    VIEW = "view"
    SCATTER = "scatter"  # scatter or scatter_add twin of a view or of a gather
    GATHER = "gather"  # by integer arrays
    MASK = "mask"  # by a boolean array: the result's size is data
    CONTRACTION = "contraction"
    JOIN = "join"
    SCAN = "scan"
    SORT = "sort"
    CREATION = "creation"
    COPY = "copy"
    SIZE = "size"  # defines a symbol from a computed integer
    RANDOM = "random"
    ROUTINE = "routine"  # of a library, on matrices: `lower` is a Routine
    EXTERN = "extern"
    WRITE = "write"
    CHECK = "check"  # stops the program where a value is not what was assumed
    FOR = "for"
    WHILE = "while"
    COND = "cond"
    CHECKPOINT = "checkpoint"
    CUSTOM = "custom"  # values with a derivative of their own
    FUSED = "fused"


CONTROL = frozenset(
    {Kind.FOR, Kind.WHILE, Kind.COND, Kind.CHECKPOINT, Kind.CUSTOM, Kind.FUSED}
)


@dataclass(frozen=True, slots=True)
class Partial:
    """The partial derivative of an elementwise op in one operand.

    `rule(b, ...)` names what it reads: its parameters after `b` are operand names or
    `out`. It returns the factor of the cotangent; the numbers 1 and -1 cost nothing.
    """

    rule: Callable[..., Any]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.rule).parameters)[1:]


@dataclass(frozen=True, slots=True)
class Vjp:
    """The cotangent of one operand: `rule(b, ct, out, *operands, **attrs)`.

    `reads` names the operands, or "out", whose *values* the rule uses; of the others it
    may only ask for types and sizes. For a variadic op the rule is called as
    `rule(b, position, ct, out, *operands, **attrs)` for every operand.
    """

    rule: Callable[..., Any]
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Zero:
    """A derivative that is zero by nature: integer operands, rounding, comparisons."""

    reason: str = "the result does not vary continuously with this operand"


@dataclass(frozen=True, slots=True)
class NoDerivative:
    """No derivative is known: asking for it is an error that gives the reason."""

    reason: str


Derivative: TypeAlias = Partial | Vjp | Zero | NoDerivative
ZERO = Zero()


@dataclass(frozen=True, slots=True)
class Sample:
    """Arguments to try an op on; `differentiable=False` marks kinks."""

    args: tuple[Any, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    differentiable: bool = True


@dataclass(frozen=True, slots=True)
class Fold:
    """How a reduction or a scan is computed: a start value, and a step per element.

    `step` is a template over neutral scalar operations with the fields `{acc}` and one
    per operand name (`{x}`); operands are converted to `op.computes` first, and the
    accumulator has the dtype of the result. `start` is a number, or "first" for the
    first element: then an empty reduction is NumPy's ValueError, in a kernel too. The
    steps of a reduction may be taken in any order. A scan stores the accumulator after
    every step.
    """

    start: str
    step: str


@dataclass(frozen=True, slots=True)
class Routine:
    """A function of `runtime.linalg` that computes an op, one matrix of a stack a time.

    Targets without it have nests of the same name, in `codegen/factors.py`.

    It is called with the operands that it reads, the result, `sizes` of the operand
    types, and the attributes `flags`. The result starts as a copy of the operand
    `over`. Where the function returns anything but 0, `error` is the LinAlgError.
    """

    name: str
    sizes: Callable[..., Sequence[Dim]]
    reads: tuple[str, ...] = ()
    over: str = ""
    flags: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One of the views that a view consists of: of what, with which indices."""

    op: Op
    base: Type
    indices: tuple[Any, ...]
    attrs: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Op:
    """One op. There are no defaults for what an author must think about."""

    name: str
    kind: Kind
    operands: tuple[str, ...]  # names; a last one "*xs" takes any number
    infer: Callable[..., Any]  # (*Type, **attrs) -> Type or tuple of Types
    eager: Callable[..., Any]  # (*arrays, **attrs) -> array(s); NumPy's own meaning
    derivatives: tuple[Derivative, ...]  # one per operand; variadic: one for all
    lower: str | Fold | Routine | None  # scalar template, ...; None: the kind says all
    samples: Callable[[np.random.Generator], Iterator[Sample]]
    # Dtypes the operands are converted to before the scalar template, from their types.
    computes: Callable[..., Sequence[DType]] | None = None
    views: int | None = None  # the result aliases this operand
    scatter: str | None = None  # names of the pure twins of a view or gather
    scatter_add: str | None = None
    accumulates: bool = False  # a scatter that adds into its region
    of: str | None = None  # a scatter's view or gather
    decompose: Callable[..., Any] | None = None  # (b, *operands, **attrs) in other ops
    # What the attribute `count` counts: (b, *operands) -> a computed integer.
    counts: Callable[..., Any] | None = None
    # Views: (index, x: Type, *operands, **attrs) -> the index of `x` that is read at
    # `index` of the result; indices are dims over loop symbols.
    index_map: Callable[..., Sequence[Dim]] | None = None
    # A view made of views: (x: Type, *indices, **attrs) -> its steps, in order.
    steps: Callable[..., Sequence[Step]] | None = None
    overlapping: bool = False  # a view in which one element can appear twice
    decides_layout: bool = False  # a view only where strides allow it, else a copy
    arbitrary: bool = False  # a creation that leaves open what the elements are
    weak: bool = False  # an operator of Python: Python numbers in, Python number out
    cost: int = 1  # elementwise: about how many flops; 20 for a transcendental
    on_dims: Callable[..., Dim] | None = None  # elementwise: the same of sizes
    signs: tuple[int, ...] = ()  # a sum of its operands, with these signs
    multiplies: bool = False  # the product of its operands
    position: bool = False  # a reduction to the place of an element along the axes
    # How the op takes a new axis, where its kind does not say it (`ops/batch.py`).
    batch: Callable[..., Any] | None = None

    def __repr__(self) -> str:
        return f"Op({self.name!r})"

    @property
    def variadic(self) -> bool:
        return bool(self.operands) and self.operands[-1].startswith("*")

    def derivative(self, position: int) -> Derivative:
        """Return the derivative in the operand at `position`."""
        last = len(self.derivatives) - 1
        return self.derivatives[min(position, last) if self.variadic else position]

    def reads(self, position: int, count: int | None = None) -> tuple[int, ...]:
        """Return the positions (or OUT) whose values that derivative uses.

        `count` is the number of operands; a variadic op may need it.
        """
        match self.derivative(position):
            case Partial() as d:
                names = d.names
            case Vjp() as d:
                names = d.reads
            case _:
                return ()
        found: list[int] = []
        for name in names:
            if name == "out":
                found.append(OUT)
            elif name.startswith("*"):
                if count is None:
                    raise ValueError(f"op {self.name!r}: the number of operands?")
                found.extend(range(len(self.operands) - 1, count))
            else:
                found.append(self.operands.index(name))
        return tuple(found)

    def cotangent(
        self,
        b: Builder,
        position: int,
        ct: Any,
        out: Any,
        operands: Sequence[Any],
        attrs: Mapping[str, Any],
    ) -> Any:
        """Return the cotangent of one operand, or None where it is zero by nature."""
        match self.derivative(position):
            case Partial() as d:
                reads = [out if k == OUT else operands[k] for k in self.reads(position)]
                factor = d.rule(b, *reads)
                return b.unbroadcast(b.scale(ct, factor), operands[position])
            case Vjp() as d if self.variadic:
                return d.rule(b, position, ct, out, *operands, **attrs)
            case Vjp() as d:
                return d.rule(b, ct, out, *operands, **attrs)
            case NoDerivative(reason):
                from .errors import GradientError

                raise GradientError(
                    f"{self.name}: not differentiable in "
                    f"{self.operands[min(position, len(self.operands) - 1)]}",
                    rule=reason,
                    hint="detach the operand if its derivative is not needed",
                )
            case _:
                return None


OPS: dict[str, Op] = {}


def define(**fields: Any) -> Op:
    """Make an op record and enter it in OPS; a second definition is an error."""
    op = Op(**fields)
    if op.name in OPS:
        raise ValueError(f"op {op.name!r} is already defined")
    if not op.variadic and len(op.derivatives) != len(op.operands):
        raise ValueError(f"op {op.name!r}: one derivative per operand is needed")
    for d in op.derivatives:
        named = d.names if isinstance(d, Partial) else getattr(d, "reads", ())
        unknown = set(named) - set(op.operands) - {"out"}
        if unknown:
            raise ValueError(f"op {op.name!r}: derivative reads unknown {unknown}")
    OPS[op.name] = op
    return op
