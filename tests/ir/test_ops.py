"""Every op record against NumPy: types, values, derivatives, aliasing, templates."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grouped
import numpy as np
import pytest

from retrograde.ir import dims, interp
from retrograde.ir.build import ArrayBuilder, Builder, IRBuilder, Shaped
from retrograde.ir.errors import RetrogradeError
from retrograde.ir.func import Func, Value, type_of
from retrograde.ir.op import CONTROL, OPS, OUT, Fold, Kind, NoDerivative, Op, Sample
from retrograde.ir.text import parse, show
from retrograde.ir.types import Type, type_of_array
from retrograde.ir.verify import verify

STEP = 1e-6
TOLERANCE = 2e-6  # central differences of float64
SECOND_TOLERANCE = 2e-5
NOT_SAMPLED = {op.name for op in OPS.values() if op.kind in CONTROL}
NOT_SAMPLED |= {"write", "size", "expect"}


@dataclass(frozen=True)
class Case:
    op: Op
    number: int
    sample: Sample

    @property
    def args(self) -> tuple[Any, ...]:
        return self.sample.args

    @property
    def attrs(self) -> Mapping[str, Any]:
        return self.sample.attrs

    def eager(self, *args: Any) -> Any:
        with np.errstate(all="ignore"):
            return self.op.eager(*(args or self.args), **self.attrs)

    def inexact(self) -> list[int]:
        return [k for k, x in enumerate(self.args) if type_of_array(x).is_inexact]

    def differentiable(self) -> bool:
        return self.sample.differentiable and type_of_array(self.eager()).is_inexact


CASES = [
    Case(op, k, s)
    for op in OPS.values()
    for k, s in enumerate(op.samples(np.random.default_rng(7)))
]
SMOOTH = [c for c in CASES if c.differentiable() and c.inexact()]
VIEWS = [c for c in CASES if c.op.views is not None]


def every(cases: Sequence[Case]) -> Callable[[Callable[[Case], None]], Any]:
    return grouped.every([(c,) for c in cases], lambda c: str(c[0].op.name))


def test_every_op_has_samples() -> None:
    sampled = {c.op.name for c in CASES}
    assert set(OPS) - sampled == NOT_SAMPLED


def test_twins_and_families_exist() -> None:
    for op in OPS.values():
        for twin in (op.scatter, op.scatter_add):
            assert twin is None or OPS[twin].of == op.name
        assert (op.of is not None) == (op.kind is Kind.SCATTER)


# ---------------------------------------------------------------- values and types


def same(a: Any, b: Any) -> bool:
    return interp.equal_results([a], [b])


@every(CASES)
def test_inferred_type_is_that_of_the_result(case: Case) -> None:
    inferred = case.op.infer(*map(type_of_array, case.args), **case.attrs)
    out = type_of_array(case.eager())
    if inferred.weak:
        assert case.op.weak or case.op.name == "number"
        assert inferred.dtype == out.dtype
        assert not out.shape
    else:
        assert inferred == out


def build(case: Case, rule: Callable[[IRBuilder, list[Value]], Any]) -> Func:
    """Build a Func whose parameters are the operands of a case."""
    b = IRBuilder()
    params = [b.value(type_of_array(x), f"x{k}") for k, x in enumerate(case.args)]
    results = rule(b, params)
    return Func("f", "func", b.finish(params, results))


@every(CASES)
def test_interpreter_agrees_bit_for_bit(case: Case) -> None:
    f = build(case, lambda b, xs: [b.apply(case.op, xs, case.attrs)])
    verify(f)
    assert show(parse(show(f))) == show(f)
    with np.errstate(all="ignore"):
        (out,) = interp.run(f, *case.args)
    assert same(out, case.eager())


@every(VIEWS)
def test_view_aliases_its_operand(case: Case) -> None:
    x, out = case.args[0], case.eager()
    if case.op.name == "as_strided" and not x.flags.c_contiguous:
        assert not out.flags.writeable  # a copy, into which a write would be lost
    else:
        assert not out.size or np.shares_memory(x, out)


@every(CASES)
def test_operands_are_left_alone_and_not_shared(case: Case) -> None:
    before = [np.array(x) for x in case.args]
    out = case.eager()
    assert interp.equal_results(before, [np.asarray(x) for x in case.args])
    if case.op.views is None and isinstance(out, np.ndarray):
        for x in case.args:
            assert not isinstance(x, np.ndarray) or not np.shares_memory(x, out)


# ---------------------------------------------------------------- index maps, templates


@every(VIEWS)
def test_index_map_reads_the_same_elements(case: Case) -> None:
    x, *rest = case.args
    rest = [int(k) if k >= 0 else int(k) + x.shape[case.attrs["axis"]] for k in rest]
    out = case.eager()
    assert case.op.index_map is not None
    for index in np.ndindex(out.shape):
        at = case.op.index_map(index, type_of_array(x), *rest, **case.attrs)
        assert same(x[tuple(at)], out[index])


NEUTRAL: dict[str, Any] = {
    **{n: getattr(np, n) for n in dir(np) if isinstance(getattr(np, n), np.ufunc)},
    "abs": np.absolute,
    "where": np.where,
    "erf": lambda x: OPS["erf"].eager(x),
    "erfc": lambda x: OPS["erfc"].eager(x),
}


def evaluate(template: str, **fields: Any) -> Any:
    """Compute a scalar template with NumPy behind the neutral names."""
    named = {f"_{k}": v for k, v in fields.items()}
    text = template.format(**{k: f"_{k}" for k in fields})
    return eval(text, {**NEUTRAL, **named})


def converted(case: Case) -> list[Any]:
    assert case.op.computes is not None
    dtypes = case.op.computes(*map(type_of_array, case.args))
    return [np.asarray(x).astype(d) for x, d in zip(case.args, dtypes, strict=True)]


@every([c for c in CASES if c.op.kind is Kind.ELEMENTWISE and c.op.computes])
def test_scalar_template_computes_the_op(case: Case) -> None:
    template = case.op.lower
    assert isinstance(template, str)
    for k in range(len(case.args)):
        template = template.replace(f"{{{k}}}", f"{{x{k}}}")
    fields = {f"x{k}": x for k, x in enumerate(converted(case))}
    with np.errstate(all="ignore"):
        out = np.asarray(evaluate(template, **fields))
    want, out = np.asarray(case.eager()), out.astype(np.asarray(case.eager()).dtype)
    if want.dtype.kind == "f":
        np.testing.assert_allclose(out, want, rtol=4 * np.finfo(want.dtype).eps)
    else:
        np.testing.assert_array_equal(out, want)


@every([c for c in CASES if c.op.kind is Kind.REDUCTION and c.op.lower is not None])
def test_fold_computes_the_reduction(case: Case) -> None:
    fold = case.op.lower
    assert isinstance(fold, Fold)
    (x,) = converted(case)
    axis, want = case.attrs["axis"], np.asarray(case.eager())
    rest = [k for k in range(x.ndim) if k not in axis]
    lines = np.transpose(x, (*rest, *axis))
    lines = lines.reshape(*(x.shape[k] for k in rest), -1 if x.size else x.shape[0])
    out = np.zeros(lines.shape[:-1], want.dtype)
    for index in np.ndindex(out.shape):
        out[index] = run_fold(fold, [lines[index]])[-1]
    out = out.reshape(want.shape)
    if want.dtype.kind == "f":
        rtol = 1e-6 if want.dtype == np.float32 else 1e-14
        np.testing.assert_allclose(out, want, rtol=rtol, atol=rtol)
    else:
        np.testing.assert_array_equal(out, want)


def run_fold(fold: Fold, lines: Sequence[Any]) -> list[Any]:
    """Run a fold over one line per operand; returns every accumulator."""
    elements = list(zip(*lines, strict=True))
    if fold.start == "first":
        (acc,), *_ = elements
        start = 1
    else:
        acc = lines[0].dtype.type(eval(fold.start))
        start = 0
    out = [acc]
    for values in elements[start:]:
        fields = dict(zip("xy", values, strict=False))
        out.append(acc := evaluate(fold.step, acc=acc, **fields))
    return out


@every([c for c in CASES if c.op.kind is Kind.SCAN])
def test_fold_computes_the_scan(case: Case) -> None:
    fold = case.op.lower
    assert isinstance(fold, Fold)
    axis, want = case.attrs["axis"], case.eager()
    xs = [np.moveaxis(x, axis, -1) for x in converted(case)]
    out = np.moveaxis(np.zeros_like(want), axis, -1)
    started = fold.start != "first"  # with what is no element of the result
    for index in np.ndindex(out.shape[:-1]) if out.size else ():
        out[index] = run_fold(fold, [x[index] for x in xs])[started:]
    np.testing.assert_array_equal(np.moveaxis(out, -1, axis), want)


@every([c for c in CASES if c.op.decompose is not None])
def test_decomposition_computes_the_op(case: Case) -> None:
    assert case.op.decompose is not None
    out = case.op.decompose(ArrayBuilder(), *case.args, **case.attrs)
    want = case.eager()
    # Two libraries of linear algebra need not round alike.
    exact = case.op.kind is not Kind.ROUTINE
    tolerance = 0 if exact else 1e3 * np.finfo(want.dtype).eps
    np.testing.assert_allclose(out, want, rtol=tolerance, atol=tolerance)
    assert np.asarray(out).dtype == np.asarray(want).dtype


# ---------------------------------------------------------------- symbolic shapes

UNSIZED = {"full", "empty", "arange", "constant", "item", "number"}


def symbolic(case: Case, sized: bool) -> tuple[list[Type], dict[str, Any], Any]:
    """Give every size of at least 2 a symbol; with `sized`, in attributes too."""
    names: dict[int, Any] = {}

    def dim(d: int) -> Any:
        return names.setdefault(d, dims.symbol(f"n{d}")) if d >= 2 else d

    types = [type_of_array(x) for x in case.args]
    types = [t if t.scalar else t.with_shape(tuple(map(dim, t.shape))) for t in types]
    attrs = dict(case.attrs)
    if sized:
        for key in attrs.keys() & {"size", "count"}:
            attrs[key] = names.get(attrs[key], attrs[key])
        if "shape" in attrs and "strides" not in attrs:
            attrs["shape"] = tuple(names.get(d, d) for d in attrs["shape"])
    facts = dims.Facts().having(*(s - 2 for s in names.values()))
    sizes = {dims.as_symbol(s): d for d, s in names.items()}
    return types, attrs, (facts, sizes)


def symbolic_forms(case: Case) -> Iterator[tuple[Any, ...]]:
    """Yield the forms of a case with symbols for sizes that the op's rule accepts."""
    for sized in (False, True):
        types, attrs, (facts, sizes) = symbolic(case, sized)
        if not sizes or case.op.name in UNSIZED:
            continue
        with dims.deciding(dims.Strict(facts)):
            try:
                inferred = case.op.infer(*types, **attrs)
            except RetrogradeError:
                continue
        yield types, attrs, facts, sizes, inferred


@every(CASES)
def test_symbolic_type_becomes_the_concrete_one(case: Case) -> None:
    concrete = case.op.infer(*map(type_of_array, case.args), **case.attrs)
    for _, _, _, sizes, inferred in symbolic_forms(case):
        assert inferred.substitute(sizes) == concrete


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_op_accepts_symbolic_shapes(op: Op) -> None:
    if op.name not in NOT_SAMPLED | UNSIZED:
        cases = [c for c in CASES if c.op is op]
        assert any(list(symbolic_forms(c)) for c in cases)


# ---------------------------------------------------------------- derivatives


def random_like(x: Any, rng: np.random.Generator) -> Any:
    t = type_of_array(x)
    return np.asarray(rng.normal(size=t.shape), t.dtype)[() if t.scalar else ...]


def hidden(case: Case, position: int, args: Sequence[Any]) -> list[Any]:
    """Replace the operands whose values the derivative must not read."""
    reads = case.op.reads(position, len(args))
    return [
        x
        if k in reads or not isinstance(x, np.ndarray | np.generic)
        else Shaped(type_of_array(x))
        for k, x in enumerate(args)
    ]


def cotangent(case: Case, position: int, args: Sequence[Any], ct: Any) -> Any:
    """Apply a derivative rule with NumPy, showing it only what it declared."""
    out = case.eager(*args)
    reads = case.op.reads(position, len(args))
    shown = out if OUT in reads else Shaped(type_of_array(out))
    with np.errstate(all="ignore"):
        return case.op.cotangent(
            ArrayBuilder(),
            position,
            ct,
            shown,
            hidden(case, position, args),
            case.attrs,
        )


def slope(f: Callable[[Any], Any], x: Any, direction: Any, ct: Any) -> float:
    """Return the central difference of sum(ct * f(x)) along a direction."""
    h = STEP
    up, down = f(x + h * direction), f(x - h * direction)
    return float(np.sum(ct * (np.asarray(up) - np.asarray(down))) / (2 * h))


def replaced(args: Sequence[Any], position: int, x: Any) -> list[Any]:
    return [x if k == position else a for k, a in enumerate(args)]


def double(args: Sequence[Any]) -> list[Any]:
    return [
        x.astype(np.float64) if getattr(x, "dtype", None) == np.float32 else x
        for x in args
    ]


@every(SMOOTH)
def test_cotangent_agrees_with_differences(case: Case) -> None:
    rng = np.random.default_rng(case.number)
    args = double(case.args)
    if "dtype" in case.attrs and case.attrs["dtype"] == np.float32:
        return  # differences need float64
    ct = random_like(case.eager(*args), rng)
    for k in case.inexact():
        direction = np.asarray(rng.normal(size=np.shape(args[k])))
        want = slope(
            lambda x, k=k: case.eager(*replaced(args, k, x)),
            np.asarray(args[k])[()],
            direction,
            ct,
        )
        got = cotangent(case, k, args, ct)
        got = 0.0 if got is None else float(np.sum(got * direction))
        assert got == pytest.approx(want, rel=TOLERANCE, abs=TOLERANCE)


@every([c for c in CASES if c.inexact() and type_of_array(c.eager()).is_inexact])
def test_cotangent_has_the_type_of_its_operand(case: Case) -> None:
    rng = np.random.default_rng(case.number)
    ct = random_like(case.eager(), rng)
    for k in case.inexact():
        if isinstance(case.op.derivative(k), NoDerivative):
            continue
        got = cotangent(case, k, case.args, ct)
        if got is not None:
            t, want = type_of_array(got), type_of_array(case.args[k])
            assert (t.dtype, t.shape) == (want.dtype, want.shape)


def joint(case: Case, position: int, types: Sequence[Type], out: Type) -> Func:
    """Build a Func of the op and one of its cotangents."""
    b = IRBuilder()
    xs = [b.value(t, f"x{k}") for k, t in enumerate(types)]
    ct = b.value(out, "ct")
    y = b.apply(case.op, xs, case.attrs)
    d = case.op.cotangent(b, position, ct, y, xs, case.attrs)
    return Func("joint", "func", b.finish([*xs, ct], [y] if d is None else [y, d]))


@every(SMOOTH)
def test_rule_means_the_same_in_ir(case: Case) -> None:
    rng = np.random.default_rng(case.number)
    out = case.eager()
    ct = random_like(out, rng)
    types = [type_of_array(x) for x in case.args]
    for k in case.inexact():
        f = joint(case, k, types, type_of_array(out))
        verify(f)
        assert show(parse(show(f))) == show(f)
        with np.errstate(all="ignore"):
            results = interp.run(f, *case.args, ct)
        want = cotangent(case, k, case.args, ct)
        assert (len(results) == 1) == (want is None)
        if want is not None:
            np.testing.assert_array_equal(results[1], want)


@every([c for c in SMOOTH if "dtype" not in c.attrs])
def test_single_precision_stays_single(case: Case) -> None:
    arrays = [x for x in case.args if type_of_array(x).dtype.kind == "f"]
    if not any(x.dtype == np.float32 for x in arrays if hasattr(x, "dtype")):
        return
    if any(x.dtype == np.float64 for x in arrays if hasattr(x, "dtype")):
        return
    out = type_of_array(case.eager())
    if out.dtype == np.float64:  # float_power
        return
    for k in case.inexact():
        f = joint(case, k, [type_of_array(x) for x in case.args], out)
        cast_back = f.results[1:] if type(case.args[k]) is float else ()
        numbers = {p for p in f.params if p.type.weak}  # and what comes from them
        for node in f.nodes:
            if all(x in numbers or not isinstance(x, Value) for x in node.operands):
                numbers.update(node.results)
                continue
            for v in node.results:
                is_double = v.type.dtype == np.float64 and not v.type.weak
                assert not is_double or v in cast_back, str(f)


@every(SMOOTH)
def test_rule_holds_for_symbolic_shapes(case: Case) -> None:
    rng = np.random.default_rng(case.number)
    ct = random_like(case.eager(), rng)
    for types, attrs, facts, _, inferred in symbolic_forms(case):
        same_attrs = Case(case.op, case.number, Sample(case.args, attrs))
        for k in case.inexact():
            with dims.deciding(dims.Strict(facts)):
                f = joint(same_attrs, k, types, inferred)
            f = Func(f.name, f.stage, f.body, (), facts)
            verify(f)
            with np.errstate(all="ignore"):
                results = interp.run(f, *case.args, ct)
            want = cotangent(case, k, case.args, ct)
            if want is not None:
                assert type_of(f.results[1]).array() == types[k].array()
                np.testing.assert_array_equal(results[1], want)


class Recorder(ArrayBuilder):
    """Notes which objects are passed to an op."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def apply(self, op: Op, operands: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        self.seen.extend(operands)
        return super().apply(op, operands, attrs)


def used(case: Case, position: int) -> set[int]:
    """Return the positions that a rule really read on one sample."""
    builder, out = Recorder(), case.eager()
    ct = random_like(out, np.random.default_rng(0))
    with np.errstate(all="ignore"):
        got = case.op.cotangent(builder, position, ct, out, case.args, case.attrs)
    seen = [*builder.seen, got]
    operands = {k for k, x in enumerate(case.args) if any(x is s for s in seen)}
    return operands | ({OUT} if any(out is s for s in seen) else set())


@pytest.mark.parametrize(
    "op",
    [op for op in OPS.values() if any(c.op is op for c in SMOOTH)],
    ids=lambda op: op.name,
)
def test_declared_reads_are_used(op: Op) -> None:
    cases = [c for c in SMOOTH if c.op is op and np.size(c.args[0])]
    for k in {k for c in cases for k in c.inexact()}:
        mine = [c for c in cases if k in c.inexact()]
        found = set[int]().union(*(used(c, k) for c in mine))
        declared = set[int]().union(*(op.reads(k, len(c.args)) for c in mine))
        assert declared <= found


# ---------------------------------------------------------------- second derivatives


class Tape(Builder):
    """Computes with NumPy and remembers, for a reverse sweep over a rule itself."""

    def __init__(self) -> None:
        self.steps: list[tuple[Op, list[Any], Mapping[str, Any], Any]] = []

    def type_of(self, x: Any) -> Type:
        return x.type if isinstance(x, Shaped) else type_of_array(x)

    def apply(self, op: Op, operands: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        out = ArrayBuilder().apply(op, operands, attrs)
        self.steps.append((op, list(operands), attrs, out))
        return out

    def pullback(self, result: Any, ct: Any, wanted: Any) -> Any:
        b, cts = ArrayBuilder(), {id(result): ct}
        for op, operands, attrs, out in reversed(self.steps):
            if id(out) not in cts or not type_of_array(out).is_inexact:
                continue
            for k, x in enumerate(operands):
                if type_of_array(x).is_inexact and type(x) is not float:
                    d = op.cotangent(b, k, cts[id(out)], out, operands, attrs)
                    if d is None:
                        continue
                    cts[id(x)] = b.add_cotangents(cts.get(id(x)), d)
        return cts.get(id(wanted))


def second(
    case: Case, position: int, wrt: int, args: Sequence[Any], ct: Any, u: Any
) -> Any:
    """Return the cotangent, in operand `wrt`, of the rule for operand `position`."""
    tape = Tape()
    out = tape.apply(case.op, args, case.attrs)
    d = case.op.cotangent(tape, position, ct, out, args, case.attrs)
    return None if d is None else tape.pullback(d, u, args[wrt])


@every([c for c in SMOOTH if "dtype" not in c.attrs])
def test_second_derivative_agrees_with_differences(case: Case) -> None:
    rng = np.random.default_rng(case.number)
    args = [np.asarray(x)[()] if type(x) is float else x for x in double(case.args)]
    args = [np.array(x) if isinstance(x, np.ndarray) else x for x in args]
    ct = random_like(case.eager(*args), rng)
    for k, j in itertools.product(case.inexact(), case.inexact()):
        u = random_like(args[k], rng)
        direction = np.asarray(rng.normal(size=np.shape(args[j])))
        with np.errstate(all="ignore"):
            got = second(case, k, j, args, ct, u)
        if cotangent(case, k, args, ct) is None:
            continue
        want = slope(
            lambda x, k=k, j=j: cotangent(case, k, replaced(args, j, x), ct),
            args[j],
            direction,
            u,
        )
        got = 0.0 if got is None else float(np.sum(got * direction))
        assert got == pytest.approx(want, rel=SECOND_TOLERANCE, abs=SECOND_TOLERANCE)
