"""Kernels in pieces compute what they do as a whole."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inplace_programs import CASES, Case

import retrograde as rg
from retrograde.codegen import compile as codegen
from retrograde.codegen import split
from retrograde.codegen.compile import compile_entry
from retrograde.codegen.frontend import types


@pytest.fixture
def pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let kernels have tiny pieces; return the names that each of them is about."""
    monkeypatch.setenv("RETROGRADE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(split, "MOST", 0)
    monkeypatch.setattr(split, "SIZE", 3)
    made: list[str] = []
    piece = split._piece

    def counted(lower: Any, run: Any, uses: Any) -> None:
        made.append(f"{len(run)} statements")
        piece(lower, run, uses)

    monkeypatch.setattr(split, "_piece", counted)
    codegen.forget()
    return made


SOURCE = """
from retrograde.runtime.memory import load, pointer, store

def entry(x, y, n):
    p = pointer(x)
    q = pointer(y)
    total = 0.0
    most = n + 1
    for i in range(n):
        total = total + load(p, i, 0, 2)
    mean = total / n
    for i in range(n):
        t = load(p, i, 0, 2) - mean
        store(q, i, t * t, 1, 2)
    for i in range(n):
        total = total + load(q, i, 1, 2)
    if total > 1e9:
        return 1, total
    for i in range(n):
        if load(p, i, 0, 2) < 0.0:
            return 2, mean
    k = 0
    while True:
        if k * k >= most:
            break
        k = k + 1
    for i in range(n):
        for j in range(k):
            total += mean
    one = total * 0.0 + 1.0
    for i in range(k):
        for j in range(2):
            total += one
    return 0, total
"""


def test_values_go_in_and_out_of_pieces(pieces: list[str]) -> None:
    vector = types.Array(types.float64, 1, "C")
    given = (vector, vector, types.int64)
    call = compile_entry(SOURCE, "entry", given, kernel=True).call
    assert len(pieces) == 2
    x, y = np.array([1.0, 2.0, 6.0]), np.empty(3)
    status, total = call(x, y, 3)
    assert y.tolist() == [4.0, 1.0, 9.0]
    assert (status, total) == (0, 9.0 + 14.0 + 3.0 * 2 * 3 + 4.0)
    assert call(np.array([1.0, -2.0, 4.0]), y, 3) == (2, 1.0)
    assert call(np.array([1.0, 1e6, 4.0]), y, 3)[0] == 1


@pytest.mark.usefixtures("brief_timing")
@pytest.mark.parametrize("case", CASES[::4], ids=lambda case: case.name)
def test_programs_agree_in_pieces(pieces: list[str], case: Case) -> None:
    rg.compare(case.function, *case.args(), **case.kwargs).assert_ok()


def long(x: Any, y: Any) -> Any:
    for _ in range(3):
        x = x * y / (1.0 + (x * x).sum())
        x[1:] += x[:-1]
        y = y - y.max() * x
    return x.sum(), y


def test_long_kernels_come_in_pieces(
    pieces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = np.linspace(0, 1, 9), np.linspace(1, 2, 9)
    total, rest = rg.compile(long)(x.copy(), y)
    assert pieces
    made = len(pieces)
    monkeypatch.setattr(split, "MOST", 1000)
    codegen.forget()
    monkeypatch.setenv("RETROGRADE_CACHE_DIR", "")
    monkeypatch.setattr("retrograde.runtime.cache.folder", lambda: None)
    want, other = rg.compile(long)(x.copy(), y)
    assert len(pieces) == made
    np.testing.assert_allclose(total, want, rtol=1e-14)
    np.testing.assert_allclose(rest, other, rtol=1e-14)
