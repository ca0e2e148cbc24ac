"""compile(f, memory_limit=...): whom the limit belongs to, and what it guards."""

from typing import Any

import numpy as np
import pytest

import retrograde as rg
from retrograde.ir.dims import Symbol
from retrograde.ir.errors import MemoryLimitError
from retrograde.ir.func import Func, walk
from retrograde.ir.op import Kind
from retrograde.ir.text import parse
from retrograde.tracer.modes import Options
from retrograde.tracer.program import Program


def logistic(x: Any, r: Any, steps: int) -> Any:
    x = x * 1.0
    for _ in range(steps):
        x[:] = np.sin(x * (1 - x) * r)
    return np.sum(x)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run programs without compiling them: what counts is which ones there are."""
    monkeypatch.setenv("RETROGRADE_INTERP", "1")


def data(n: int) -> tuple[Any, Any]:
    return np.linspace(0.1, 0.9, n), np.linspace(1.0, 2.0, n)


def loops(f: Func) -> int:
    return sum(n.op.kind is Kind.FOR for n in walk(f.body))


def depths(f: Any, *args: Any) -> int:
    return loops(f.stages(*args)["vjp"])


ENTRY = 8 * 16  # bytes of a carry


def test_a_limit_costs_no_bits_and_saves_memory() -> None:
    args = (*data(16), 100)
    both = [rg.compile(logistic), rg.compile(logistic, memory_limit=20 * ENTRY)]
    plain, less = (rg.value_and_grad(f, argnums=(0, 1)) for f in both)
    value, grads = less(*args)
    want, expected = plain(*args)
    assert value == want == pytest.approx(logistic(*args))
    for a, b in zip(grads, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert plain.scratch_bytes(*args) > 100 * ENTRY
    assert less.scratch_bytes(*args) < 35 * ENTRY


@pytest.mark.usefixtures("interpreted")
def test_a_program_serves_other_trip_counts() -> None:
    f = rg.grad(rg.compile(logistic, memory_limit=20 * ENTRY))
    plain = rg.grad(rg.compile(logistic))
    x, r = data(16)
    for steps in (100, 21, 99, 50):
        np.testing.assert_array_equal(f(x, r, steps), plain(x, r, steps))
    assert f.cache_info().specialisations == 1
    f(x, r, 20)  # fits as it is
    f(x, r, 5)
    assert f.cache_info().specialisations == 2
    f(x, r, 101)  # three levels
    f(x, r, 200)
    assert f.cache_info().specialisations == 3
    assert depths(f, x, r, 20) == 2


@pytest.mark.usefixtures("interpreted")
def test_a_limit_that_cannot_be_kept_names_the_line() -> None:
    f = rg.grad(rg.compile(logistic, memory_limit=3 * ENTRY))
    with pytest.raises(MemoryLimitError) as caught:
        f(*data(16), 100)
    error = caught.value
    assert error.what == (
        f"memory_limit: {3 * ENTRY} bytes are too few for the tape of this loop: it "
        f"takes {100 * ENTRY} bytes"
    )
    assert error.location is not None
    assert error.location.text == "for _ in range(steps):"
    least = int(error.hint.split()[3])
    assert least < 14 * ENTRY
    rg.grad(rg.compile(logistic, memory_limit=least))(*data(16), 100)


@pytest.mark.usefixtures("interpreted")
def test_the_limit_goes_with_the_function_into_transforms() -> None:
    args = (*data(16), 100)
    f = rg.compile(logistic, memory_limit=20 * ENTRY)
    _, pullback = rg.vjp(f, *args)
    want = rg.grad(rg.compile(logistic))(*args)
    np.testing.assert_array_equal(pullback(1.0)[0], want)

    @rg.compile
    def outer(x: Any, r: Any, steps: int) -> Any:
        value, pull = rg.vjp(f, x, r, steps)
        return rg.grad(f)(x, r, steps) + pull(value)[0]

    assert loops(outer.stages(*args)["dce"]) == 11  # 5 by grad, 1 + 5 by vjp
    assert loops(rg.compile(rg.grad(logistic)).stages(*args)["dce"]) == 2


@pytest.mark.usefixtures("interpreted")
def test_backward_inside_keeps_the_limit() -> None:
    @rg.compile(memory_limit=20 * ENTRY)
    def f(x: Any, r: Any, steps: int) -> Any:
        t = rg.tensor(x, requires_grad=True)
        logistic(t, r, steps).backward()
        return t.grad

    args = (*data(16), 100)
    want = rg.grad(rg.compile(logistic))(*args)
    np.testing.assert_array_equal(f(*args), want)
    assert loops(f.stages(*args)["dce"]) == 5


@pytest.mark.usefixtures("interpreted")
def test_backward_keeps_the_limit_too() -> None:
    f = rg.compile(logistic, memory_limit=20 * ENTRY)
    x, r = data(16)
    for steps in (100, 50, 10):
        t = rg.tensor(x, requires_grad=True)
        f(t, r, steps).backward()
        np.testing.assert_array_equal(
            t.grad, rg.grad(rg.compile(logistic))(x, r, steps)
        )
    (spec,) = f._specialisations.popitem()[1]
    ((_, few), (_, many)) = next(iter(spec.program._vjps.values()))
    assert (loops(few.func), loops(many.func)) == (5, 2)


def test_the_pullback_of_a_program_is_chosen_by_sizes() -> None:
    f = parse("""
    func @f[t](%x: f64[n]) -> f64[n] where n - 2 >= 0 {
      %r: f64[n] = for i in 0..t carry(%c: f64[n] = %x) {
        %d: f64[n] = sin %c
        yield %d
      }
      return %r
    }""")
    program = Program(f, Options(160))
    t, n = Symbol("t"), Symbol("n")
    few, many = ({t: k, n: 2} for k in (10, 25))
    assert program.vjp((0,), (0,), few) is program.vjp((0,), (0,), {t: 4, n: 2})
    assert program.vjp((0,), (0,), many) is not program.vjp((0,), (0,), few)
    assert program.vjp((0,), (0,), many) is program.vjp((0,), (0,), {t: 20, n: 2})
    assert Program(f).vjp((0,), (0,), many).options.memory_limit is None


def test_limits_are_checked() -> None:
    with pytest.raises(TypeError, match="memory_limit is a number of bytes, not True"):
        rg.compile(logistic, memory_limit=True)
    with pytest.raises(ValueError, match="memory_limit is a number of bytes, not -1"):
        rg.compile(logistic, memory_limit=-1)


def test_compile_with_a_limit_decorates() -> None:
    @rg.compile(memory_limit=100)
    def f(x: Any) -> Any:
        return x * 2

    assert f(1.5) == 3.0
    assert f.options.memory_limit == 100
    assert rg.compile(f).options.memory_limit == 100
    assert rg.compile(f, memory_limit=50).options.memory_limit == 50
    assert rg.grad(f).options.memory_limit == 100
