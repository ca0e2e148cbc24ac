"""Ops with regions or effects: the control ops, write, size, expect.

Their types, text and meaning are those of their kind; what they share with other ops is
only that passes find them by record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..errors import IRError, OutcomeError, ShapeError
from ..op import ZERO, Kind, Op, Sample, define
from ..types import Type


def _no_samples(rng: np.random.Generator) -> Iterator[Sample]:
    return iter(())


def _by_regions(*args: Any, **attrs: Any) -> Any:
    raise IRError("the types of a control op are those of its regions")


def _control(name: str, kind: Kind) -> Op:
    return define(
        name=name,
        kind=kind,
        operands=("*inits",),
        infer=_by_regions,
        eager=_by_regions,
        derivatives=(ZERO,),
        lower=None,
        samples=_no_samples,
    )


FOR = _control("for", Kind.FOR)
WHILE = _control("while", Kind.WHILE)
COND = _control("cond", Kind.COND)
CHECKPOINT = _control("checkpoint", Kind.CHECKPOINT)
CUSTOM = _control("custom", Kind.CUSTOM)
FUSED = _control("fused", Kind.FUSED)


def _write(target: np.ndarray[Any, Any], new: Any) -> tuple[()]:
    target[...] = new
    return ()


WRITE = define(
    name="write",
    kind=Kind.WRITE,
    operands=("target", "new"),
    infer=lambda target, new: (),
    eager=_write,
    derivatives=(ZERO, ZERO),
    lower=None,
    samples=_no_samples,
)


def _size_type(x: Type, *, count: Any, checked: bool = False) -> Type:
    if x.dtype.kind not in "iu" or x.shape:
        raise IRError(f"size: a 0-d integer is needed, not {x}")
    return x


def _size(x: Any, *, count: Any, checked: bool = False) -> Any:
    if checked and x < 0:
        raise ShapeError("negative dimensions are not allowed")
    return x


SIZE = define(
    name="size",  # makes the symbol `count` stand for a computed integer
    kind=Kind.SIZE,  # `checked`: it has to be at least 0
    operands=("x",),
    infer=_size_type,
    eager=_size,
    counts=lambda b, x: x,
    derivatives=(ZERO,),
    lower="{0}",
    samples=_no_samples,
)


def _expect_type(x: Type, *, value: bool | int, number: int) -> tuple[()]:
    kinds = "b" if isinstance(value, bool) else "iu"
    if x.dtype.kind not in kinds or x.shape:
        raise IRError(f"expect: {x} cannot be {value}")
    return ()


def _expect(x: Any, value: bool | int, number: int) -> tuple[()]:
    if x != value:
        raise OutcomeError(f"expect: outcome {number} is not {value}", number=number)
    return ()


EXPECT = define(
    name="expect",  # the program is right only where x is `value`
    kind=Kind.CHECK,
    operands=("x",),
    infer=_expect_type,
    eager=_expect,
    derivatives=(ZERO,),
    lower=None,
    samples=_no_samples,
)
