"""Loop nests as data: what `kernels` builds and an emitter prints.

A *scalar* is an expression tree over registers, literals, dims and loads; every node
knows its dtype. A *statement* binds a register, stores, loops, branches or checks.
Offsets into buffers are dims, in elements, over sizes, loop indices and integers that a
`Bind` computed; buffers are C-contiguous. Nothing here knows a target language.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ..ir.dims import Dim, Facts, Symbol
from ..ir.errors import Location, RetrogradeError
from ..ir.types import DType, short

# ---------------------------------------------------------------- buffers


@dataclass(eq=False, slots=True)
class Buffer:
    """A piece of memory.

    `place` says who owns it: "param" and "result" are arrays of the caller, "arena" a
    part of the call's scratch memory, "local" an allocation in the middle of the
    program because its size is not known before, "stack" a few elements, "constant"
    data of the program.
    """

    name: str
    dtype: DType
    size: Dim
    place: str
    scope: int = -1  # number of its alias scope; -1: may share memory with others
    kin: Buffer | None = None  # one that it exchanges memory with
    private: bool = False
    common: int = -1  # scope of all that have the same memory at some time; -1: its own

    def __repr__(self) -> str:
        place = f"{self.place} row" if self.private else self.place
        return f"{self.name}: {place} {short(self.dtype)}[{self.size}]"

    @property
    def alias(self) -> int:
        """The scope that its loads and stores bear: one for all that share memory."""
        eldest = self.eldest()
        return eldest.scope if eldest.common < 0 else eldest.common

    def eldest(self) -> Buffer:
        return self if self.kin is None else self.kin.eldest()


OTHER = -1  # what a kernel returns whose sizes are those of its other variant

# ---------------------------------------------------------------- scalars


@dataclass(frozen=True, slots=True)
class Lit:
    """A number."""

    value: Any
    dtype: DType

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class At:
    """A dim as an int64."""

    dim: Dim
    dtype: DType

    def __str__(self) -> str:
        return f"[{self.dim}]"


@dataclass(frozen=True, slots=True)
class Reg:
    """A register: bound once by `Let`, or a variable changed by `Set`."""

    name: str
    dtype: DType

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Load:
    """An element of a buffer."""

    buffer: Buffer
    offset: Dim
    dtype: DType

    def __str__(self) -> str:
        return f"{self.buffer.name}[{self.offset}]"


@dataclass(frozen=True, slots=True)
class Apply:
    """A template of neutral functions; the arguments have the dtypes it needs."""

    template: str
    args: tuple[Scalar, ...]
    dtype: DType

    def __str__(self) -> str:
        return self.template.format(*self.args)


@dataclass(frozen=True, slots=True)
class Cast:
    """A conversion as `astype` does it."""

    arg: Scalar
    dtype: DType

    def __str__(self) -> str:
        return f"{short(self.dtype)}({self.arg})"


Scalar: TypeAlias = Lit | At | Reg | Load | Apply | Cast

# ---------------------------------------------------------------- statements


@dataclass(eq=False, slots=True)
class Let:
    """Bind a register, once."""

    name: str
    value: Scalar


@dataclass(eq=False, slots=True)
class Set:
    """Give a variable a value; `plus` adds to it, in an order the target may choose."""

    name: str
    value: Scalar
    plus: bool = False


@dataclass(eq=False, slots=True)
class Bind:
    """Make a symbol stand for a computed integer."""

    symbol: Symbol
    value: Scalar


@dataclass(eq=False, slots=True)
class Store:
    """Write one element, or combine it with the value by "add" or "maximum".

    Elements are combined whoever else does so at the same time.
    """

    buffer: Buffer
    offset: Dim
    value: Scalar
    combine: str = ""


@dataclass(eq=False, slots=True)
class Loop:
    """Count from start to stop; `block` > 0 runs the inner loop in blocks.

    With blocks, the statements of `opening` and `closing` surround each block: partial
    sums are started and added there. So many `vectors` are computed in turn; 0: the
    compiler decides.
    """

    index: Symbol
    start: Dim
    stop: Dim
    step: Dim
    body: list[Statement]
    block: int = 0
    opening: list[Statement] = field(default_factory=list)
    closing: list[Statement] = field(default_factory=list)
    ordered: bool = False  # a loop of the program, not of a nest
    vectors: int = 0


@dataclass(eq=False, slots=True)
class Parallel:
    """Run the body for index 0 to count - 1, in any order and several at once.

    Registers that the body sets are its own, and so are the buffers `own`; it returns
    nothing but through other memory.
    """

    index: Symbol
    count: Dim
    body: list[Statement]
    own: list[Buffer] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class While:
    """Run `test`, stop where `condition` is false, run `body`, repeat."""

    test: list[Statement]
    condition: Scalar
    body: list[Statement]


@dataclass(eq=False, slots=True)
class If:
    """Run one of two lists."""

    condition: Scalar
    then: list[Statement]
    orelse: list[Statement]


@dataclass(eq=False, slots=True)
class Check:
    """Leave the kernel with an error code where `bad` is true."""

    bad: Scalar
    code: int


@dataclass(eq=False, slots=True)
class Move:
    """Copy `size` elements, from offset to offset; the two may not overlap."""

    target: Buffer
    target_offset: Dim
    source: Buffer
    source_offset: Dim
    size: Dim


@dataclass(eq=False, slots=True)
class Rotate:
    """Give every buffer the memory of the next one, the last one that of the first."""

    buffers: list[Buffer]


@dataclass(eq=False, slots=True)
class Fill:
    """Set `size` elements to one value."""

    buffer: Buffer
    offset: Dim
    size: Dim
    value: Scalar


@dataclass(eq=False, slots=True)
class Allocate:
    """Make a local buffer, whose size is known only here."""

    buffer: Buffer


@dataclass(eq=False, slots=True)
class Grow:
    """Make room for `size` elements in a local buffer; those that it has are kept."""

    buffer: Buffer
    size: Dim


@dataclass(eq=False, slots=True)
class Call:
    """Call a library routine; arguments are buffers with offsets, dims and flags."""

    function: str
    args: tuple[Argument, ...]
    result: str = ""  # the variable that takes what is returned


Pointer: TypeAlias = tuple[Buffer, Dim]
Argument: TypeAlias = Pointer | Dim | bool | Scalar
Statement: TypeAlias = (
    Let
    | Set
    | Bind
    | Store
    | Loop
    | Parallel
    | While
    | If
    | Check
    | Move
    | Rotate
    | Fill
    | Allocate
    | Grow
    | Call
)


@dataclass(frozen=True, slots=True)
class Failure:
    """What a failed check raises."""

    error: type[RetrogradeError]
    message: str
    location: Location | None
    rule: str = ""
    more: tuple[tuple[str, object], ...] = ()  # other arguments of the error


@dataclass(eq=False, slots=True)
class Program:
    """A whole kernel: buffers in the order of its arguments, statements, results."""

    name: str
    params: list[Buffer | Reg]
    symbols: list[Symbol]
    sizes: list[tuple[Symbol, int, int]]  # symbol, parameter, axis
    buffers: list[Buffer]
    constants: list[tuple[Buffer, Any]]
    body: list[Statement]
    failures: list[Failure]
    results: list[Result]
    scopes: int = 0
    steps: list[Step] = field(default_factory=list)
    layouts: dict[int, str] = field(default_factory=dict)  # of parameters not packed
    facts: Facts = field(default_factory=Facts)  # of its symbols
    # Units of work, a number of them, and whether there must be as many: else the
    # kernel returns OTHER at once.
    limit: tuple[Dim, int, bool] | None = None
    scalars: str = "scalar"  # the module of `runtime` with its scalar functions
    deterministic: bool = False  # no addition of floats may be in any order


@dataclass(frozen=True, slots=True)
class Step:
    """The symbol of a parameter's step along an axis.

    It is at least `least`, and `packed` where the array fills its memory in C order.
    """

    symbol: Symbol
    param: int
    axis: int
    least: Dim
    packed: Dim


@dataclass(frozen=True, slots=True)
class Result:
    """How a result leaves: as a register or as a buffer of a shape.

    `updates` is the position of the parameter whose memory takes the value.
    """

    what: Reg | Buffer
    shape: tuple[Dim, ...]
    dtype: DType
    scalar: bool = False
    weak: bool = False
    updates: int | None = None


def inner(s: Statement) -> Sequence[list[Statement]]:
    """Return the lists of statements inside a statement."""
    match s:
        case Loop():
            return (s.opening, s.body, s.closing)
        case Parallel():
            return (s.body,)
        case While():
            return (s.test, s.body)
        case If():
            return (s.then, s.orelse)
        case _:
            return ()


def copied(s: Statement) -> Statement:
    """Return a copy of a statement and of those inside it."""
    s = replace(s)
    match s:
        case Loop():
            s.opening, s.body, s.closing = (list(map(copied, x)) for x in inner(s))
        case Parallel():
            s.body = list(map(copied, s.body))
        case While():
            s.test, s.body = (list(map(copied, x)) for x in inner(s))
        case If():
            s.then, s.orelse = (list(map(copied, x)) for x in inner(s))
    return s


def every(body: list[Statement]) -> Iterator[Statement]:
    """Yield all statements, nested ones too."""
    for s in body:
        yield s
        for part in inner(s):
            yield from every(part)


def scalars_of(s: Statement) -> Sequence[Scalar]:
    """Return the scalar trees which a statement evaluates by itself."""
    match s:
        case Let() | Set() | Bind() | Store() | Fill():
            return (s.value,)
        case While() | If():
            return (s.condition,)
        case Check():
            return (s.bad,)
        case Call():
            return tuple(a for a in s.args if isinstance(a, Reg | Lit))
        case _:
            return ()


def leaves(x: Scalar) -> Iterator[Scalar]:
    """Yield every node of a tree."""
    yield x
    match x:
        case Apply():
            for a in x.args:
                yield from leaves(a)
        case Cast():
            yield from leaves(x.arg)
        case _:
            pass


def rewrite(x: Scalar, change: Callable[[Scalar], Scalar]) -> Scalar:
    """Replace the leaves of a tree: what is no operation and no conversion."""
    match x:
        case Apply():
            args = tuple(rewrite(a, change) for a in x.args)
            return Apply(x.template, args, x.dtype)
        case Cast():
            return Cast(rewrite(x.arg, change), x.dtype)
        case _:
            return change(x)


def rewrite_dims(x: Scalar, change: Callable[[Dim], Dim]) -> Scalar:
    """Replace the dims of a tree."""

    def leaf(y: Scalar) -> Scalar:
        match y:
            case At():
                return At(change(y.dim), y.dtype)
            case Load():
                return Load(y.buffer, change(y.offset), y.dtype)
            case _:
                return y

    return rewrite(x, leaf)


def rewrite_loads(x: Scalar, loads: Mapping[Buffer, Load]) -> Scalar:
    """Replace the loads of some buffers in a tree."""
    return rewrite(x, lambda y: loads.get(y.buffer, y) if isinstance(y, Load) else y)


def rewrite_registers(x: Scalar, values: Mapping[str, Scalar]) -> Scalar:
    """Replace registers of a tree."""
    return rewrite(x, lambda y: values.get(y.name, y) if isinstance(y, Reg) else y)


def drop_unused(p: Program) -> None:
    """Remove registers that nobody reads; scalars have no effects."""
    used = {r.what.name: 1 for r in p.results if isinstance(r.what, Reg)}
    body = p.body
    statements = list(every(body))
    for s in statements:
        for x in scalars_of(s):
            for leaf in leaves(x):
                if isinstance(leaf, Reg):
                    used[leaf.name] = used.get(leaf.name, 0) + 1
    dead: set[int] = set()
    for s in reversed(statements):
        if isinstance(s, Let) and not used.get(s.name):
            dead.add(id(s))
            for leaf in leaves(s.value):
                if isinstance(leaf, Reg):
                    used[leaf.name] -= 1
    if dead:
        _filter(body, dead)


def _filter(body: list[Statement], dead: set[int]) -> None:
    body[:] = [s for s in body if id(s) not in dead]
    for s in body:
        for part in inner(s):
            _filter(part, dead)


# ---------------------------------------------------------------- listing


def listing(p: Program) -> str:
    """Print the nests for people.

    Buffers come first, then statements, one a line.
    """
    lines = [f"kernel {p.name}"]
    lines += [f"  {b!r}" for b in p.buffers]
    lines += _lines(p.body, "  ")
    return "\n".join(lines)


def _lines(body: list[Statement], indent: str) -> Iterator[str]:
    deeper = indent + "  "
    for s in body:
        match s:
            case Let():
                yield f"{indent}{s.name} = {s.value}"
            case Set():
                yield f"{indent}{s.name} {'+=' if s.plus else ':='} {s.value}"
            case Bind():
                yield f"{indent}size {s.symbol} = {s.value}"
            case Store():
                sign = f"{s.combine}=".replace("add=", "+=")
                yield f"{indent}{s.buffer.name}[{s.offset}] {sign} {s.value}"
            case Loop():
                step = "" if s.step == 1 else f" step {s.step}"
                block = f" blocks of {s.block}" if s.block else ""
                yield f"{indent}for {s.index} in {s.start}..{s.stop}{step}{block}"
                if s.block:
                    yield from _lines(s.opening, deeper)
                yield from _lines(s.body, deeper)
                if s.block:
                    yield f"{indent}  per block"
                    yield from _lines(s.closing, deeper + "  ")
            case Parallel():
                yield f"{indent}parallel {s.index} in 0..{s.count}"
                yield from _lines(s.body, deeper)
            case While():
                yield f"{indent}while"
                yield from _lines(s.test, deeper)
                yield f"{indent}test {s.condition}"
                yield from _lines(s.body, deeper)
            case If():
                yield f"{indent}if {s.condition}"
                yield from _lines(s.then, deeper)
                if s.orelse:
                    yield f"{indent}else"
                    yield from _lines(s.orelse, deeper)
            case Check():
                yield f"{indent}check not {s.bad}"
            case Move():
                yield (
                    f"{indent}move {s.size}: {s.target.name}[{s.target_offset}] = "
                    f"{s.source.name}[{s.source_offset}]"
                )
            case Rotate():
                yield f"{indent}rotate {', '.join(b.name for b in s.buffers)}"
            case Fill():
                yield (
                    f"{indent}fill {s.size}: {s.buffer.name}[{s.offset}] = {s.value}"
                )
            case Allocate():
                yield f"{indent}allocate {s.buffer!r}"
            case Grow():
                yield f"{indent}grow {s.buffer.name} to {s.size}"
            case Call():
                shown = ", ".join(
                    f"{a[0].name}[{a[1]}]" if isinstance(a, tuple) else str(a)
                    for a in s.args
                )
                left = f"{s.result} = " if s.result else ""
                yield f"{indent}{left}{s.function}({shown})"
