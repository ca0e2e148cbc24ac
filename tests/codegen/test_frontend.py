"""Kernels compiled without Numba's front end do what their source says."""

import itertools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
from numba import types
from numba.core.errors import TypingError

from retrograde.codegen.compile import compile_entry
from retrograde.runtime import memory

HEAD = "from numpy import empty, float32, float64\n"
HEAD += f"from retrograde.runtime.memory import {', '.join(memory.__all__)}\n\n"
NUMBERS = itertools.count()


def compiled(body: str, signature: tuple[Any, ...], args: str) -> Callable[..., Any]:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    source = f"{HEAD}N = {next(NUMBERS)}\ndef entry({args}):\n{lines}"
    return compile_entry(source, "entry", signature, kernel=True).call


LOOPS = """
total = 0
last = -1
for i in range(n):
    for j in range(i, n):
        total += i * j
        last = j
    k = i
for i in range(n - 1, -1, -2):
    total = total - i // 2
return total, last
"""


def loops(n: int) -> tuple[int, int]:
    total, last = 0, -1
    for i in range(n):
        for j in range(i, n):
            total += i * j
            last = j
    for i in range(n - 1, -1, -2):
        total -= i // 2
    return total, last


@pytest.mark.parametrize("n", [0, 1, 6])
def test_loops_run_up_and_down_and_not_at_all(n: int):
    assert compiled(LOOPS, (types.int64,), "n")(n) == loops(n)


BRANCHES = """
count = 0
y = x
while True:
    y = y / 2.0
    if not y >= 1.0:
        break
    count = count + 1
if count > 3:
    many = True
else:
    if count == 0:
        return -1, 0.5, False
    many = False
return count, y, many
"""


@pytest.mark.parametrize(
    ("x", "expected"),
    [(64.0, (6, 0.5, True)), (5.0, (2, 0.625, False)), (1.5, (-1, 0.5, False))],
)
def test_a_kernel_leaves_where_it_breaks_or_returns(x: float, expected: Any):
    assert compiled(BRANCHES, (types.float64,), "x")(x) == expected


ARRAYS = """
a = empty(2, float32)
b = empty(2, float32)
p_a, p_b = pointer(a), pointer(b)
c = float32(0.1)
for i in range(n):
    if i >= size(a, 0):
        a = grown(a, i + 1)
        p_a = pointer(a)
    store(p_a, i, c * float32(i), -1, 2)
    b = empty(max(i, 1), float32)
    p_b = pointer(b)
    if i == stop:
        return 1, b
for i in range(0, min(n, 3)):
    p_a, p_b = p_b, p_a
store(p_b, 0, 7.5, -1, 2)
return 0, a
"""


@pytest.mark.parametrize("stop", [-1, 5])
def test_memory_is_given_back_once(stop: int):
    run = compiled(ARRAYS, (types.int64, types.int64), "n, stop")
    counters = numba.core.runtime._nrt_python
    stats = numba.core.runtime.rtsys.get_allocation_stats
    run(9, stop)
    counters.memsys_enable_stats()
    before = stats()
    status, a = run(9, stop)
    if stop < 0:
        assert (status, a.size) == (0, 16)
        expected = np.float32(0.1) * np.arange(9, dtype="f4")
        expected[0] = 7.5  # the pointers have changed places three times
        np.testing.assert_array_equal(a[:9], expected)
    else:
        assert (status, a.size) == (1, 5)
    del a
    after = stats()
    counters.memsys_disable_stats()
    assert after.alloc - before.alloc == after.free - before.free > 0


@pytest.mark.parametrize(
    "body",
    [
        "return n[0]",
        "return [n]",
        "return n if n else 1",
        "return 0 < n < 3",
        "n = n + 1\nreturn n",
        "x = 1\nx = 0.5\nreturn x",
        "while n > 0:\n    pass\nreturn n",
        "for i in [1, 2]:\n    pass\nreturn n",
        "for i in range(n):\n    pass\nreturn i",
        "return size(empty(n, float64), 0)",
        "return print(n)",
    ],
)
def test_what_is_not_in_the_language_is_refused(body: str):
    with pytest.raises((TypeError, KeyError, TypingError)):
        compiled(body, (types.int64,), "n")
