"""compare must notice every kind of fault; the modes here are fakes that have one.

The fakes run NumPy and take gradients by differences, so nothing of the compiler is
needed to test the comparison itself.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from retrograde.compare import compare
from retrograde.comparison import Comparison
from retrograde.leaves import (
    copy_apart,
    copy_sharing,
    is_array,
    is_float,
    leaves,
    rebuild,
)

Function = Callable[..., Any]


class FakeTensor:
    """Takes the place of Tensor; nothing here makes one."""


class FakeCompiled:
    """A compiled function whose direct call may have a fault."""

    def __init__(self, plain: Function, faulty: Function | None = None) -> None:
        self.__wrapped__ = plain
        self.run = faulty or plain

    def __call__(self, *args: Any) -> Any:
        return self.run(*args)

    def source(self) -> str:
        return ""

    def cache_info(self) -> str:
        return ""


def run(f: Function, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    args = copy_apart(args)
    value = f(*args)
    return value, args


def weighed(f: Function, args: tuple[Any, ...], cotangents: Any) -> float:
    outputs = [leaf for _, leaf in leaves(run(f, args))]
    weights = [leaf for _, leaf in leaves(cotangents)]
    pairs = zip(outputs, weights, strict=True)
    return sum(float(np.sum(np.asarray(o) * w)) for o, w in pairs if w is not None)


def differences(f: Function, args: tuple[Any, ...], cotangents: Any) -> tuple[Any, ...]:
    def partial(leaf: Any) -> Any:
        if not is_float(leaf):
            return None
        if not is_array(leaf):
            return 0.0  # no fake program depends on a float that is not an array
        grad = np.zeros(leaf.shape)
        for index in np.ndindex(*leaf.shape):
            kept = leaf[index]
            for step in (1e-5, -1e-5):
                leaf[index] = kept + step
                grad[index] += weighed(f, args, cotangents) / (2 * step)
            leaf[index] = kept
        return grad

    return tuple(rebuild(arg, partial) for arg in args)


def fake_vjp(f: Function, *args: Any, finals: bool = False) -> Any:
    plain = getattr(f, "__wrapped__", f)
    args = copy_apart(args)
    return run(plain, args), lambda ct: differences(plain, args, ct)


def fake_value_and_grad(f: Function, argnums: tuple[int, ...]) -> Function:
    plain = getattr(f, "__wrapped__", f)

    def both(*args: Any) -> Any:
        args = copy_apart(args)
        value, finals = run(plain, args)
        zeros = rebuild(finals, lambda leaf: None)
        grads = differences(plain, args, (1.0, zeros))
        return value, tuple(grads[i] for i in argnums)

    return both


@pytest.fixture(autouse=True)
def modes(monkeypatch: pytest.MonkeyPatch, brief_timing: None) -> SimpleNamespace:
    """Install the fakes; a test replaces one of them to plant a fault."""
    monkeypatch.setattr(rg, "Tensor", FakeTensor, raising=False)
    monkeypatch.setattr(rg, "tensor", np.array, raising=False)
    monkeypatch.setattr(rg, "compile", FakeCompiled, raising=False)
    monkeypatch.setattr(rg, "vjp", fake_vjp, raising=False)
    monkeypatch.setattr(rg, "value_and_grad", fake_value_and_grad, raising=False)

    def install(name: str, function: Any) -> None:
        monkeypatch.setattr(rg, name, function)

    return SimpleNamespace(install=install)


def square(x: np.ndarray) -> Any:
    y = x**2
    v = y[0]
    v *= 2
    return np.sum(y)


def writes(x: np.ndarray, y: np.ndarray) -> Any:
    x[1:] += y * x[:-1]
    return x[::2], y.sum()


X = np.arange(1.0, 7.0).reshape(2, 3)
A = np.array([0.5, -1.0, 2.0, 3.0])
B = np.array([1.5, 2.0, -0.5])


def failed(comparison: Comparison) -> set[tuple[str, str]]:
    return {(r.what, r.mode) for r in comparison.rows if r.status == "failed"}


def test_right_modes_pass() -> None:
    comparison = compare(square, X)
    assert failed(comparison) == set()
    assert comparison.ok
    assert comparison.speedup > 0
    assert {r.what for r in comparison.rows} == {
        "result",
        "final x",
        "aliasing",
        "gradient of x",
    }
    assert X[0, 0] == 1.0


def test_writes_and_aliases_pass() -> None:
    compare(writes, A, B).assert_ok()


def test_containers_keywords_and_integers_pass() -> None:
    def f(params: Any, n: int, *, scale: float) -> Any:
        params["w"][0] *= n
        return {"loss": params["w"].sum() * scale, "n": n}

    compare(f, {"w": A.copy(), "b": [B]}, 3, scale=2.0).assert_ok()


def test_wrong_value_is_found(modes: SimpleNamespace) -> None:
    comparison = compare(FakeCompiled(square, lambda x: square(x) * (1 + 1e-8)), X)
    assert failed(comparison) == {("result", "compiled")}
    with pytest.raises(AssertionError, match="off by 1e-08"):
        comparison.assert_ok()


def test_lost_write_is_found() -> None:
    def keeps(x: np.ndarray, y: np.ndarray) -> Any:
        return writes(x.copy(), y)

    assert failed(compare(FakeCompiled(writes, keeps), A, B)) == {
        ("final x", "compiled"),
        ("aliasing", "compiled"),
    }


def test_array_for_scalar_is_found() -> None:
    def wrapped(x: np.ndarray) -> Any:
        return np.asarray(square(x))

    comparison = compare(FakeCompiled(square, wrapped), X)
    assert failed(comparison) == {("result", "compiled")}


def test_wrong_gradient_of_one_mode_is_found(modes: SimpleNamespace) -> None:
    def wrong(f: Function, *args: Any, finals: bool = False) -> Any:
        value, pullback = fake_vjp(f, *args, finals=finals)
        factor = 1 + 1e-4 if isinstance(f, FakeCompiled) else 1.0
        return value, lambda ct: tuple(g * factor for g in pullback(ct))

    modes.install("vjp", wrong)
    assert failed(compare(square, X)) == {
        ("gradient of x", "compiled"),
        ("gradient of x", "both"),
    }


def test_gradient_wrong_in_both_modes_is_found(modes: SimpleNamespace) -> None:
    def wrong(f: Function, *args: Any, finals: bool = False) -> Any:
        value, _ = fake_vjp(f, *args, finals=finals)
        return value, lambda ct: (2 * args[0],)  # as if v *= 2 had not been

    modes.install("vjp", wrong)
    assert failed(compare(square, X)) == {
        ("gradient of x", "eager"),
        ("gradient of x", "compiled"),
    }


def test_forgotten_cotangent_of_a_changed_argument_is_found(
    modes: SimpleNamespace,
) -> None:
    def wrong(f: Function, *args: Any, finals: bool = False) -> Any:
        value, pullback = fake_vjp(f, *args, finals=finals)
        return value, lambda ct: pullback((ct[0], rebuild(ct[1], np.zeros_like)))

    modes.install("vjp", wrong)
    assert ("gradient of x", "eager") in failed(compare(writes, A, B))


def test_wrong_value_and_grad_is_found(modes: SimpleNamespace) -> None:
    def wrong(f: Function, argnums: tuple[int, ...]) -> Function:
        both = fake_value_and_grad(f, argnums)
        factor = 2.0 if isinstance(f, FakeCompiled) else 1.0
        return lambda *args: rebuild(both(*args), lambda leaf: leaf * factor)

    modes.install("value_and_grad", wrong)
    assert failed(compare(square, X)) == {
        ("value and gradient[0]", "both"),
        ("value and gradient[1][0]", "both"),
    }


def test_error_in_one_mode_is_a_row() -> None:
    def refuses(x: np.ndarray) -> Any:
        raise NotImplementedError("square: not today\nmore")

    comparison = compare(FakeCompiled(square, refuses), X)
    assert failed(comparison) == {("call", "compiled")}
    assert "NotImplementedError: square: not today" in str(comparison)


def test_error_in_numpy_is_a_row() -> None:
    comparison = compare(lambda x: x @ np.ones(7), X)
    assert failed(comparison) == {("call", "numpy")}


def test_function_that_changes_between_runs_fails() -> None:
    state = [0.0]

    def counts(x: np.ndarray) -> Any:
        state[0] += 1.0
        return np.sum(x) * state[0]

    assert failed(compare(counts, X)) == {("repeatable", "numpy")}


def test_kink_is_a_note() -> None:
    comparison = compare(lambda x: np.sum(np.abs(x)), np.array([0.0, 1.0]))
    assert comparison.ok
    notes = [r.detail for r in comparison.rows if r.status == "note"]
    assert len(notes) == 2
    assert all("one-sided slopes differ" in note for note in notes)


def test_overlapping_arguments_are_called_as_they_are() -> None:
    def shift(a: np.ndarray, b: np.ndarray) -> Any:
        a *= 2.0
        return a + b

    base = np.arange(5.0)
    compare(shift, base[:4], base[1:]).assert_ok()

    def apart(a: np.ndarray, b: np.ndarray) -> Any:
        b = b.copy()
        return shift(a, b)

    wrong = compare(FakeCompiled(shift, apart), base[:4], base[1:])
    assert ("result", "compiled") in failed(wrong)
    assert base.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_argument_without_floats_in_argnums_is_refused() -> None:
    with pytest.raises(TypeError, match="argument n holds no floats"):
        compare(lambda x, n: x * n, A, 3, argnums=1)


def test_transform_of_compiled_function_is_refused() -> None:
    transform = SimpleNamespace(cache_info=None, source=None)
    with pytest.raises(TypeError, match="pass the function itself"):
        compare(transform, A)


def test_plain_text_has_no_escapes() -> None:
    text = str(compare(square, X))
    assert "\x1b" not in text
    assert text.splitlines()[0].split()[:3] == ["square", "eager", "compiled"]


@pytest.mark.parametrize("order", ["C", "F"])
def test_copies_share_memory_as_the_arrays_do(order: Any) -> None:
    base = np.array(np.arange(24.0).reshape(4, 6), order=order)
    views = [base, base[1:3, ::-2], base.T[2]]
    views[2].flags.writeable = False
    twins = copy_sharing({"views": views, "again": base})
    for view, twin in zip(views, twins["views"], strict=True):
        assert (view == twin).all()
        assert view.strides == twin.strides
        assert view.flags.writeable == twin.flags.writeable
        assert not np.shares_memory(view, twin)
    twins["again"][...] = 0.0
    assert not any(twin.any() for twin in twins["views"])
    assert base.any()
