"""Errors name what went wrong, where, and a way out; nothing has happened by then."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import retrograde as rg


def _view(x: Any) -> Any:
    return x.view(np.int64)


def _out(x: Any) -> Any:
    return np.add(x, 1.0, out=np.zeros(2))


def _sum(x: Any) -> Any:
    return x + np.ones(2)


def _int(x: Any) -> Any:
    return int(x)


CASES: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (_view, AttributeError, "Tensor has no attribute 'view'"),
    (_out, ValueError, r"write: f64\[n\] does not fit its target f64\[2\]"),
    (_sum, ValueError, r"add: cannot take f64\[n\], f64\[2\]"),
    (_int, TypeError, r"int: only 0-dimensional .* not f64\[n\]"),
]


@pytest.mark.parametrize(("f", "kind", "message"), CASES, ids=lambda x: str(x)[:20])
def test_compiled_errors_name_the_op_and_the_line(
    f: Callable[[Any], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        rg.compile(f)(np.arange(3.0))
    assert isinstance(caught.value, rg.RetrogradeError)
    assert f"in {f.__name__}" in str(caught.value)


def test_shape_errors_of_compiled_code_tell_the_sizes_of_the_call() -> None:
    cases: list[tuple[Callable[[Any, Any], Any], str]] = [
        (lambda a, b: a + b, r"cannot take f64\[n\], f64\[m\]"),
        (lambda a, b: a[:, None] @ b[:, None], "inner sizes differ"),
    ]
    for f, message in cases:
        with pytest.raises(ValueError, match=message) as caught:
            rg.compile(f)(np.ones(4), np.ones(3))
        assert "here m = 3, n = 4" in str(caught.value)


class Foreign:
    """An array of another library."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.ones(2)


@pytest.mark.parametrize("mode", [lambda f: f, rg.compile], ids=["eager", "compiled"])
def test_errors_of_a_call_name_the_function_and_the_argument(mode: Any) -> None:
    def cube(x: Any) -> Any:
        return np.sum(np.asarray(x) ** 3)

    f = mode(cube)
    with pytest.raises(TypeError, match="argument 0 of cube is a Python int, which"):
        rg.grad(f)(3)
    with pytest.raises(TypeError, match="is a container without floats, which"):
        rg.grad(f)([1, 2])
    with pytest.raises(TypeError, match=r"Foreign, .*\n.*\n.*\n.*np.asarray\(x\)"):
        rg.grad(f)(Foreign())
    with pytest.raises(TypeError, match="hvp: primals must be a tuple"):
        rg.hvp(f, np.ones(2), np.ones(2))
    with pytest.raises(TypeError, match=r"cube(: too many|\(\) takes 1) positional"):
        f(1.0, 2.0)


def test_what_can_be_done_about_a_function_depends_on_the_mode() -> None:
    x = np.ones(3)
    with pytest.raises(rg.RetrogradeError, match="call it outside the compiled"):
        rg.compile(lambda x: np.unwrap(x))(x)
    with pytest.raises(rg.RetrogradeError, match=r"\.detach\(\)\.numpy\(\)"):
        np.unwrap(rg.tensor(x))


def test_a_repeated_view_is_read_only() -> None:
    def f(x: Any) -> Any:
        y = np.broadcast_to(x, (2, 3))
        y[0] = 1.0
        return x

    for run in (f, rg.compile(f), lambda x: rg.vjp(f, x)):
        x = np.arange(3.0)
        with pytest.raises(ValueError, match="read-only"):
            run(x)
        np.testing.assert_array_equal(x, np.arange(3.0))


def test_tensors_format_and_round_as_numbers() -> None:
    x = rg.tensor(np.array([1.25, 2.5]), requires_grad=True)
    assert f"{x.sum():.1f}" == f"{3.75:.1f}"
    assert float(round(x[0], 1).detach()) == round(np.float64(1.25), 1)
    with pytest.raises(rg.RetrogradeError, match="format"):
        rg.compile(lambda a: f"{a.sum():.3f}")(np.ones(2))


def test_type_of_an_array_is_ndarray() -> None:
    def f(x: Any) -> Any:
        return x * 2 if type(x) is np.ndarray else x

    x = np.ones(2)
    np.testing.assert_array_equal(rg.compile(f)(x), [2.0, 2.0])
    np.testing.assert_array_equal(rg.vjp(f, x)[0], [2.0, 2.0])


def test_a_0d_array_stays_an_array_under_second_derivatives() -> None:
    def f(a: Any) -> Any:
        a *= 2.0
        a[...] += a
        return a[()] ** 3

    second = rg.grad(rg.grad(f))(np.array(1.0))
    assert second == pytest.approx(6 * 64.0)


def _put(x: Any) -> None:
    x[[0, 1]] = 1j


def _fill(x: Any) -> None:
    x.fill(1j)


def _masked(x: Any) -> None:
    x[x > 0] = 1j


@pytest.mark.parametrize("f", [_put, _fill, _masked])
def test_real_arrays_take_no_complex_number(f: Callable[[Any], None]) -> None:
    with pytest.raises(TypeError):
        f(np.ones(3))
    for call, x in ((f, rg.tensor(np.ones(3))), (rg.compile(f), np.ones(3))):
        with pytest.raises(TypeError, match="a complex number into f64"):
            call(x)
        assert np.all(np.asarray(x) == 1.0)


@pytest.mark.parametrize("data", [[1.0, None], ["a"]])
def test_arrays_of_objects_have_no_gradient(data: Any) -> None:
    x = np.array(data)
    with pytest.raises(TypeError, match=f"an array of dtype {x.dtype}, which has no"):
        rg.grad(np.sum)(x)
