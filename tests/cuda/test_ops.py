"""Ops compute on a device what they compute in NumPy.

Samples of many ops share a Func, since a kernel takes long to compile.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from retrograde.codegen import build_for
from retrograde.ir.build import IRBuilder
from retrograde.ir.func import Func
from retrograde.ir.interp import run
from retrograde.ir.op import CONTROL, OPS, Kind, Op, Routine, Sample
from retrograde.ir.types import type_of_array
from retrograde.passes.fuse import fuse
from retrograde.passes.reinplace import reinplace
from retrograde.passes.simplify import simplify
from retrograde.runtime.devices import device

pytestmark = pytest.mark.cuda_emulated
ULPS = 4
TOGETHER = 24  # samples of a Func
MOST = 14  # samples of an op
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
    f = Func("ops", "func", b.finish(params, results))
    if any(n.op.kind is Kind.REDUCTION and n.op.lower is None for n in f.nodes):
        f = simplify(f)  # some reductions are made of others
    return f, args


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


def test_factorisations_and_solutions_of_matrices() -> None:
    """Each routine of a processor's library is nests; a sample of each kind."""
    chosen: dict[tuple[Any, ...], tuple[Op, Sample]] = {}
    for op in OPS.values():
        for s in samples(op) if isinstance(op.lower, Routine) else ():
            t = [type_of_array(a) for a in s.args]
            is_small = t[-1].size == 0, t[0].ndim > 2, t[0].dtype
            key = op, *is_small, *sorted(s.attrs.items())
            chosen.setdefault(key, (op, s))
    assert len({op for op, *_ in chosen}) == 7
    f, args = program(list(chosen.values()))
    check(f, args, [f"{op.name}, {s}" for op, s in chosen.values()])
