"""Ops compute on a device what they compute in NumPy.

Samples of many ops share a Func, since a kernel takes long to compile.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import retrograde as rg
import retrograde.ir.ops
from retrograde.codegen import build_for
from retrograde.ir.build import IRBuilder
from retrograde.ir.errors import UnsupportedError
from retrograde.ir.func import Func
from retrograde.ir.interp import run
from retrograde.ir.op import CONTROL, OPS, Kind, Op, Sample
from retrograde.ir.types import type_of_array
from retrograde.passes.fuse import fuse
from retrograde.passes.reinplace import reinplace
from retrograde.passes.simplify import simplify
from retrograde.runtime.devices import device

pytestmark = pytest.mark.cuda_emulated
ULPS = 4
TOGETHER = 24  # samples of a Func
MOST = 14  # samples of an op
ROUTINES = [op for op in OPS.values() if op.kind is Kind.ROUTINE]
TRIED = [
    op
    for op in OPS.values()
    if op.kind not in {*CONTROL, Kind.WRITE, Kind.ROUTINE} and not op.arbitrary
]


def is_number(x: Any) -> bool:
    return type(x) in (bool, int, float)


def raises(op: Op, sample: Sample) -> bool:
    try:
        op.eager(*sample.args, **sample.attrs)
    except (ValueError, IndexError):
        return True
    return False


def samples(op: Op) -> Iterator[Sample]:
    """Yield samples of an op, elementwise ones one for each kind of operands."""
    seen = set()
    given = list(op.samples(np.random.default_rng(0)))
    for sample in (
        given[:: -(-len(given) // MOST)] if op.kind is Kind.SCATTER else given
    ):
        kinds = tuple((np.ndim(a), np.asarray(a).dtype) for a in sample.args)
        is_like_another = op.kind is Kind.ELEMENTWISE and kinds in seen
        seen.add(kinds)
        if not is_like_another and not raises(op, sample):
            yield sample


def of_kinds(*kinds: Kind) -> list[tuple[Op, Sample]]:
    return [(op, s) for op in TRIED if op.kind in kinds for s in samples(op)]


def batches(chosen: list[tuple[Op, Sample]]) -> Iterator[list[tuple[Op, Sample]]]:
    for k in range(0, len(chosen), TOGETHER):
        yield chosen[k : k + TOGETHER]


def apply(b: IRBuilder, op: Op, sample: Sample) -> tuple[list[Any], Any]:
    """Append an op; return its parameters and the result."""
    operands = [
        a if is_number(a) else b.value(type_of_array(a), "x") for a in sample.args
    ]
    return [p for p in operands if not is_number(p)], b.apply(
        op, operands, sample.attrs
    )


def program(chosen: list[tuple[Op, Sample]]) -> tuple[Func, list[Any]]:
    """Return a Func with the result of each sample, and its arguments."""
    b = IRBuilder()
    params, results = [], []
    for op, sample in chosen:
        more, out = apply(b, op, sample)
        params += more
        results.append(out)
    args = [a for _, s in chosen for a in s.args if not is_number(a)]
    return Func("ops", "func", b.finish(params, results)), args


def assert_same(got: Any, want: Any, what: str) -> None:
    """Compare type, dtype, shape and elements."""
    assert type(got) is type(want), what
    a, b = np.asarray(got), np.asarray(want)
    assert (a.dtype, a.shape) == (b.dtype, b.shape), what
    if a.dtype.kind == "f":
        close = ULPS * np.finfo(a.dtype).eps
        np.testing.assert_allclose(a, b, rtol=close, atol=close, err_msg=what)
    else:
        np.testing.assert_array_equal(a, b, err_msg=what)


def check(f: Func, args: list[Any], names: list[str]) -> None:
    with np.errstate(all="ignore"):
        want = run(f, *args)
    got = build_for(device("cuda:emu"), f)(args)
    for x, y, name in zip(got, want, names, strict=True):
        assert_same(x, y, name)


PARTS = [
    part
    for kinds in (
        (Kind.ELEMENTWISE,),
        (Kind.REDUCTION, Kind.SCAN),
        (Kind.SCATTER, Kind.MASK),
        (Kind.VIEW, Kind.COPY, Kind.CREATION, Kind.GATHER, Kind.JOIN, Kind.SIZE),
        (Kind.CONTRACTION, Kind.CHECK),
    )
    for part in batches(of_kinds(*kinds))
]


@pytest.mark.parametrize(
    "part", PARTS, ids=lambda part: f"{part[0][0].name}-{part[-1][0].name}"
)
def test_ops_of_a_segment(part: list[tuple[Op, Sample]]) -> None:
    f, args = program(part)
    check(f, args, [f"{op.name}, {s}" for op, s in part])


@pytest.mark.parametrize("kind", [Kind.ELEMENTWISE, Kind.REDUCTION, Kind.SCAN])
def test_passes_keep_what_ops_compute(kind: Kind) -> None:
    """Samples of float64 are fused and share memory."""
    chosen = [
        (op, s)
        for op, s in of_kinds(kind)
        if all(np.asarray(a).dtype == np.float64 for a in s.args)
    ]
    chosen = chosen[:: len(chosen) // TOGETHER + 1]
    f, args = program(chosen)
    check(reinplace(fuse(f)), args, [op.name for op, _ in chosen])


@pytest.mark.parametrize("op", ROUTINES, ids=lambda op: op.name)
def test_routine_of_the_processor_is_an_error(op: Op) -> None:
    sample = next(s for s in op.samples(np.random.default_rng(0)) if not raises(op, s))
    f = simplify(program([(op, sample)])[0])  # some are made of others
    with pytest.raises(UnsupportedError) as caught:
        build_for(device("cuda:emu"), f)
    name, rest = caught.value.what.split(" ", 1)
    assert name in {node.op.name for node in f.body.nodes if node.op in ROUTINES}
    assert rest == "has no form for a GPU yet"
    assert caught.value.hint.startswith("compile the function without device=")


def test_error_has_the_line_and_comes_before_anything_runs() -> None:
    def program(x: Any) -> Any:
        x *= 2.0
        return np.linalg.inv(x)  # this line

    x = np.array([[3.0, 1.0], [0.0, 1.0]])
    before = x.copy()
    with pytest.raises(UnsupportedError, match="has no form for a GPU") as caught:
        rg.compile(program, device="cuda:emu")(x)
    location = caught.value.location
    assert location is not None
    assert location.text.endswith("# this line")
    np.testing.assert_array_equal(x, before)
