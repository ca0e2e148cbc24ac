"""NumPy functions inside a trace: the traced Func, interpreted, against NumPy."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grouped import every

from retrograde.ir import dims, interp
from retrograde.tracer import dispatch
from retrograde.tracer.functions import BUILTINS, FUNCTIONS, INTERCEPTS
from retrograde.tracer.symbols import SymInt
from retrograde.tracer.tensor import Tensor
from retrograde.tracer.trace import Trace


def _cases() -> Any:
    """Return the module of the eager tests, whose cases are run here again."""
    path = Path(__file__).with_name("test_functions.py")
    spec = importlib.util.spec_from_file_location("function_cases", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


EAGER = _cases()
CASES = [c for c in EAGER.CASES if EAGER.arrays_in(c[1])]


def with_parameters(x: Any, trace: Trace, arrays: list[Any]) -> Any:
    if isinstance(x, np.ndarray):
        arrays.append(x)
        return trace.inputs.argument(x, "x")
    if isinstance(x, list | tuple):
        return type(x)(with_parameters(e, trace, arrays) for e in x)
    return x


def tensors_in(x: Any) -> Iterator[Any]:
    if isinstance(x, Tensor | SymInt):
        yield x
    elif isinstance(x, list | tuple):
        for e in x:
            yield from tensors_in(e)


def replaced(x: Any, values: Iterator[Any]) -> Any:
    if isinstance(x, Tensor | SymInt):
        return next(values)
    if isinstance(x, list | tuple):
        return type(x)(replaced(e, values) for e in x)
    return x


def traced_call(function: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Trace a call; return its result computed by the interpreter, and the arrays."""
    trace = Trace()
    arrays: list[Any] = []
    with dispatch.tracing(trace):
        params = with_parameters(args, trace, arrays)
        named = {k: with_parameters(x, trace, arrays) for k, x in kwargs.items()}
        out = function(*params, **named)
        found = list(tensors_in(out))
        operands = [trace.operand(t) for t in found]
    f = trace.finish(operands)
    values = interp.run(f, *arrays)
    return replaced(out, iter(values)), arrays


def assert_same(want: Any, got: Any) -> None:
    if isinstance(want, list | tuple):
        assert isinstance(got, type(want))
        assert len(want) == len(got)
        for w, g in zip(want, got, strict=True):
            assert_same(w, g)
        return
    if not isinstance(want, np.ndarray | np.generic):
        assert want == got
        return
    assert isinstance(got, np.ndarray) == isinstance(want, np.ndarray)
    assert np.asarray(got).dtype == want.dtype
    small = want.dtype.itemsize <= 4
    np.testing.assert_allclose(got, want, rtol=1e-6 if small else 1e-12, atol=1e-14)


@every(CASES, lambda case: str(case[0]))
def test_traced_function_gives_what_numpy_gives(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    function = EAGER.numpy_function(name)
    theirs, mine = EAGER.copied(args), EAGER.copied(args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = function(*theirs, **kwargs)
        got, arrays = traced_call(FUNCTIONS[function], mine, kwargs)
    assert_same(want, got)
    arrays = arrays[: len(EAGER.arrays_in(mine))]  # without those of keywords
    wanted, given = EAGER.arrays_in(want), EAGER.arrays_in(got)
    for w, g in zip(wanted, given, strict=True):
        alias = [np.shares_memory(w, x) for x in EAGER.arrays_in(theirs) if x.size]
        ours = [np.shares_memory(g, x) for x in arrays if x.size]
        assert not w.size or alias == ours


@pytest.mark.parametrize("n", [2, 3, 5, 6])
def test_one_trace_serves_every_size_that_its_facts_allow(n: int) -> None:
    def program(x: Any) -> Any:
        mean, padded = FUNCTIONS[np.mean], FUNCTIONS[np.pad]
        joined = FUNCTIONS[np.concatenate]([x[1:], x[:-1] * 2])
        return mean(x, 0), padded(x[:, 0], 1), joined, x[::-1].T

    trace = Trace()
    with dispatch.tracing(trace):
        out = program(trace.inputs.argument(np.ones((4, 7)), "x"))
        f = trace.finish([trace.operand(t) for t in out])
    x = np.random.default_rng(n).normal(size=(n, n + 1))
    want = np.mean(x, 0), np.pad(x[:, 0], 1), np.concatenate([x[1:], x[:-1] * 2])
    for w, g in zip((*want, x[::-1].T), interp.run(f, x), strict=True):
        np.testing.assert_allclose(g, w)


# ---------------------------------------------------------------- Python's functions


def number_call(function: Any, *xs: Any) -> Any:
    trace = Trace()
    with dispatch.tracing(trace):
        params = [trace.inputs.argument(x, "x") for x in xs]
        out = INTERCEPTS[function](*params)
        f = trace.finish([trace.operand(out)])
    (value,) = interp.run(f, *xs)
    return value


X, Y = np.float64(0.3), np.float64(-0.7)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (float, (np.float32(0.5),)),
        (int, (np.float64(-1.7),)),
        (bool, (X,)),
        (round, (np.float64(2.5),)),
        (abs, (Y,)),
        (math.sin, (X,)),
        (math.atan2, (X, Y)),
        (math.log, (X,)),
        (math.log, (X, np.float64(2.0))),
        (math.hypot, (X, Y)),
        (math.floor, (Y,)),
        (math.ceil, (Y,)),
        (math.isnan, (X,)),
        (math.sqrt, (X,)),
        (math.pow, (X, np.float64(2.0))),
        (math.isclose, (X, Y)),
        (math.isclose, (X, X * (1 + 1e-12))),
        (np.float64, (np.float32(0.5),)),
        (np.float32, (X,)),
        (np.int64, (Y,)),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_traced_number_is_what_python_gives(function: Any, args: Any) -> None:
    want, got = function(*args), number_call(function, *args)
    assert type(got) is type(want)
    assert got == pytest.approx(want, rel=1e-15)


@pytest.mark.parametrize("function", [min, max])
def test_traced_extremum_of_several_is_computed(function: Any) -> None:
    assert number_call(function, X, Y) == function(X, Y)
    assert number_call(function, Y, X) == function(X, Y)
    assert number_call(function, np.array([3.0, 1.0, 2.0])) == function([3.0, 1.0, 2.0])


def test_length_stays_symbolic() -> None:
    trace = Trace()
    with dispatch.tracing(trace):
        n = BUILTINS[len](trace.inputs.argument(np.ones(5), "x"))
    assert isinstance(n, SymInt)
    assert dims.symbols_of(trace.operand(n))


def test_functions_of_sizes_stay_symbolic() -> None:
    def program(x: Any) -> Any:
        n = x.shape[0]
        exact = [BUILTINS[f](n) for f in (int, round, abs, math.floor)]
        assert all(isinstance(k, SymInt) for k in exact)
        assert BUILTINS[bool](n)
        return BUILTINS[math.sqrt](n), BUILTINS[float](n), INTERCEPTS[np.float64](n)

    trace = Trace()
    with dispatch.tracing(trace):
        out = program(trace.inputs.argument(np.ones(5), "x"))
        f = trace.finish([trace.operand(t) for t in out])
    root, number, scalar = interp.run(f, np.ones(9))
    assert (root, number, scalar) == (3.0, 9.0, 9.0)
    assert [type(k) for k in (root, number, scalar)] == [float, float, np.float64]


def test_isinstance_answers_for_what_a_tensor_stands_for() -> None:
    is_a = BUILTINS[isinstance]
    trace = Trace()
    with dispatch.tracing(trace):
        x = trace.inputs.argument(np.ones(5), "x")
        assert is_a(x, np.ndarray)
        assert is_a(x, Tensor)
        assert not is_a(x, float)
        assert is_a(x[0], np.floating)
        assert is_a(x[0], float)  # a float64 scalar is a Python float
        assert is_a(x.shape[0], int)
    assert is_a(1, int)
    assert not is_a("x", int)


@pytest.mark.parametrize("original", list(BUILTINS), ids=lambda f: f.__name__)
def test_builtins_are_the_originals_for_plain_arguments(original: Any) -> None:
    arguments: dict[Any, tuple[Any, ...]] = {
        isinstance: (1, int),
        divmod: (7, 3),
        pow: (2, 3),
        len: ([1, 2],),
        sum: ([1, 2], 3),
        any: ([0, 1],),
        all: ([0, 1],),
        min: (3, 1),
        max: ([3, 1],),
        math.fsum: ([0.1] * 10,),
        math.prod: ([2, 3],),
        range: (1, 7, 2),
        enumerate: ("ab",),
        zip: ("ab", "cd"),
        reversed: ("ab",),
        np.ndindex: (2, 3),
        np.ndenumerate: (np.eye(2),),
        np.nditer: (np.eye(2),),
        next: (iter("aa"),),
    }
    two = (math.isclose, math.atan2, math.pow, math.fmod, math.copysign, math.remainder)
    arguments |= dict.fromkeys(two, (0.5, 0.25))
    arguments[math.ldexp] = (0.5, 2)
    arguments[math.acosh] = (1.5,)
    args = arguments.get(original, (0.5,))
    want, got = original(*args), BUILTINS[original](*args)
    if isinstance(want, Iterator):
        assert list(got) == list(want)
    else:
        assert got == want
    assert type(got) is type(want)


def test_creation_makes_tensors_in_a_trace_and_arrays_outside() -> None:
    zeros = INTERCEPTS[np.zeros]
    assert isinstance(zeros(3), np.ndarray)
    with dispatch.tracing(Trace()):
        assert isinstance(zeros(3), Tensor)
        assert isinstance(INTERCEPTS[np.arange](3), Tensor)


def test_functions_of_plain_arrays_stay_plain_outside() -> None:
    assert isinstance(INTERCEPTS[np.concatenate]([np.ones(2), np.ones(1)]), np.ndarray)
