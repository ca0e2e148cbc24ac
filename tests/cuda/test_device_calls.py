"""Compiled functions of arrays of a device, against those of NumPy arrays."""

import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from retrograde.ir.errors import (
    DeviceError,
    IndexRangeError,
    MutationError,
    UncompiledWarning,
    UnsupportedError,
)
from retrograde.runtime.devices import device

pytestmark = pytest.mark.cuda_emulated

EMU = "cuda:emu"
CALLS = 5  # the first captures, later ones have a plan, and then a flat function


def on_device(x: Any) -> Any:
    if isinstance(x, dict):
        return {k: on_device(v) for k, v in x.items()}
    if isinstance(x, tuple | list):
        return type(x)(map(on_device, x))
    return rg.device_array(x, EMU) if isinstance(x, np.ndarray) else x


def to_host(x: Any) -> Any:
    if isinstance(x, dict):
        return {k: to_host(v) for k, v in x.items()}
    if isinstance(x, tuple | list):
        return type(x)(map(to_host, x))
    return x.numpy() if isinstance(x, rg.DeviceArray) else x


def assert_close(found: Any, expected: Any, dtype: Any = np.float64) -> None:
    rtol = 1e-5 if np.dtype(dtype) == np.float32 else 1e-12
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for k in expected:
            assert_close(found[k], expected[k], dtype)
    elif isinstance(expected, tuple | list):
        assert len(found) == len(expected)
        for f, e in zip(found, expected, strict=True):
            assert_close(f, e, dtype)
    elif isinstance(expected, np.ndarray | np.generic | float):
        assert isinstance(found, rg.DeviceArray)
        assert found.device == EMU
        assert found.shape == np.shape(expected)
        assert found.dtype == np.asarray(expected).dtype
        np.testing.assert_allclose(found.numpy(), expected, rtol=rtol, atol=1e-12)
    else:
        assert found == expected


def check(f: Callable[..., Any], *args: Any) -> None:
    """Compare calls with arrays of a device with calls of the function itself."""
    compiled = rg.compile(f)
    for _ in range(CALLS):
        mine = [np.array(x) if isinstance(x, np.ndarray) else x for x in args]
        theirs = on_device(mine)
        assert_close(compiled(*theirs), f(*mine))
        for a, b in zip(theirs, mine, strict=True):
            np.testing.assert_allclose(to_host(a), b, rtol=1e-12)


@contextmanager
def nothing_copied(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let copies between the host and the device fail."""

    def refuse(*args: Any) -> None:
        raise AssertionError("a copy to or from the host")

    with monkeypatch.context() as patch:
        patch.setattr(device(EMU), "read", refuse)
        patch.setattr(device(EMU), "write", refuse)
        yield


def step(x: Any, y: Any) -> Any:
    x[0] = 2.0
    z = np.exp(-x) * y
    return z, z.sum(), np.cumsum(z)[-1]


X, Y = np.linspace(0, 1, 50), np.linspace(2, 3, 50)


def test_results_are_arrays_of_the_device():
    check(step, X, Y)


def test_function_with_a_device_takes_its_arrays_and_those_of_numpy():
    f = rg.compile(step, device=EMU)
    for _ in range(CALLS):
        assert_close(f(rg.device_array(X, EMU), rg.device_array(Y, EMU)), step(+X, Y))
        z, loss, _ = f(+X, Y)
        assert type(z) is np.ndarray
        assert type(loss) is np.float64


@pytest.mark.parametrize("options", [{}, {"device": EMU}])
def test_nothing_is_copied_to_or_from_the_host(
    monkeypatch: pytest.MonkeyPatch, options: Any
):
    f = rg.value_and_grad(rg.compile(lambda w, x: np.tanh(x @ w).sum(), **options))
    w, x = on_device((np.ones((4, 3)), np.ones((5, 4))))
    f(w, x)
    with nothing_copied(monkeypatch):
        for _ in range(CALLS):
            loss, g = f(w, x)
    assert (loss.shape, g.shape) == ((), (4, 3))


def test_arguments_are_written_in_place(monkeypatch: pytest.MonkeyPatch):
    @rg.compile
    def f(x: Any) -> Any:
        x *= 2
        return x

    x = rg.device_array([1.0, 2.0], EMU)
    for k in range(CALLS):
        assert f(x) is x
        assert x.tolist() == [2.0 ** (k + 1), 2.0 ** (k + 2)]


@pytest.mark.parametrize(
    "key",
    [
        np.s_[:, 1],
        np.s_[::2],
        np.s_[1:],
        np.s_[::-1, ::-2],
        np.s_[1:3, 1:4],
        np.s_[:, :, None],
        np.s_[2],
        np.s_[2, 3, ...],
        np.s_[:0],
    ],
    ids=str,
)
def test_views_are_read_and_written(key: Any):
    def f(x: Any, y: Any) -> Any:
        x += 2 * y
        return x.sum()

    a = np.arange(24.0).reshape(4, 6)
    compiled = rg.compile(f)
    d, mine = rg.device_array(a, EMU), a.copy()
    for _ in range(CALLS):
        y = np.array(mine[key])
        assert_close(compiled(d[key], rg.device_array(y, EMU)), f(mine[key], y))
        np.testing.assert_allclose(d.numpy(), mine)


def test_results_that_are_views_share_memory():
    def f(x: Any) -> Any:
        return x[1:], x.T, x.reshape(-1), x, x[::2, None]

    x = rg.device_array(np.arange(12.0).reshape(4, 3), EMU)
    compiled = rg.compile(f)
    for _ in range(CALLS):
        found = compiled(x)
        assert_close(found, f(x.numpy()))
        assert found[3] is x
        assert all(y.memory is x.memory for y in found)
    found[0][0, 0] = 100.0
    assert x.numpy()[1, 0] == 100


def test_layout_decides_whether_a_reshape_is_a_view():
    f = rg.compile(lambda x: x.reshape(-1))
    x = rg.device_array(np.arange(12.0).reshape(4, 3), EMU)
    assert f(x).memory is x.memory
    assert f(x[:, ::2]).memory is not x.memory
    assert f(x[:, ::2]).tolist() == x.numpy()[:, ::2].reshape(-1).tolist()


def test_broadcast_results_are_read_only():
    f = rg.compile(lambda x: np.broadcast_to(x, (3, 2)))
    found = f(rg.device_array([1.0, 2.0], EMU))
    assert found.tolist() == [[1, 2]] * 3
    with pytest.raises(MutationError):
        found[0] = 1.0


@pytest.mark.parametrize("dtype", "?bBhHiIqQfd")
def test_dtypes(dtype: str):
    def f(x: Any, y: Any) -> Any:
        z = x + y
        y[...] = x
        return z, z.sum(), z > 1, z.astype(np.float32)

    x = np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype)
    check(f, x, x[::-1].copy())


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (1, 1)])
def test_empty_and_single_arrays(shape: tuple[int, ...]):
    def f(x: Any) -> Any:
        x *= 3
        return np.sin(x), x.sum(), x + 1

    check(f, np.full(shape, 2.0))


def test_numbers_go_with_anything():
    def f(x: Any, a: Any, b: Any, c: Any, n: int) -> Any:
        return x * a + b, c * x, n, x[:n] / n

    check(f, X, 2.0, np.float64(0.5), np.array(3.0), 7)
    check(lambda x, a: x * a, X.astype(np.float32), np.float32(3))


@pytest.mark.parametrize("dtype", "?bBhHiIqQfd")
def test_numpys_numbers_of_any_dtype(dtype: str):
    a = np.dtype(dtype).type(1 if dtype == "?" else 200 if dtype in "BHIQ" else -3)
    check(lambda x, a: (x * a, a * a if a < 0 else a), np.ones(3, np.int8), a)


def test_containers_of_arrays():
    def f(p: Any, x: Any) -> Any:
        p["b"] -= 1
        return {"y": x @ p["w"] + p["b"], "more": [p["b"].sum(), (x,)]}

    p = {"w": np.ones((4, 3)), "b": np.arange(3.0)}
    x = np.arange(8.0).reshape(2, 4)
    compiled = rg.compile(f)
    theirs = on_device(p), on_device(x)
    for _ in range(CALLS):
        assert_close(compiled(*theirs), f(p, x))
    assert_close(theirs[0], p)


W = np.arange(3.0)


def test_captured_arrays_are_read_and_written():
    class Model:
        def __init__(self, w: Any) -> None:
            self.w = w
            self.count = 0

        def step(self, x: Any) -> Any:
            self.w -= 0.1 * x
            self.count += 1
            return self.w * x

    theirs, mine = Model(rg.device_array(W, EMU)), Model(W.copy())
    compiled = rg.compile(theirs.step)
    for k in range(CALLS):
        x = np.full(3, k + 1.0)
        assert_close(compiled(rg.device_array(x, EMU)), mine.step(x))
    assert_close(theirs.w, mine.w)
    assert theirs.count == CALLS


def test_captured_arrays_alone_decide_where_a_function_runs():
    w = rg.device_array(W, EMU)
    f = rg.compile(lambda: (w * w).sum())
    for _ in range(CALLS):
        assert_close(f(), np.float64(5.0))


def test_captured_array_that_moves_is_another_program():
    state = {"w": W.copy()}
    f = rg.compile(lambda x: x * state["w"])
    assert type(f(W)) is np.ndarray
    state["w"] = rg.device_array(W, EMU)
    for _ in range(CALLS):
        assert_close(f(rg.device_array(W, EMU)), W * W)
    state["w"] = W
    with pytest.raises(DeviceError, match="the variable"):
        f(rg.device_array(W, EMU))
    np.testing.assert_array_equal(f(W), W * W)


def test_large_constants_are_copied_once(monkeypatch: pytest.MonkeyPatch):
    f = rg.compile(lambda x: x + np.linspace(0, 1, 5000))
    x = rg.device_array(np.ones(5000), EMU)
    f(x)
    with nothing_copied(monkeypatch):
        found = f(x)
    np.testing.assert_allclose(found.numpy(), 1 + np.linspace(0, 1, 5000))


# Arguments that do not fit --------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"device": EMU}])
def test_mixed_arguments_are_an_error_that_names_them(options: Any):
    def f(x: Any, y: Any, *, z: Any = None) -> Any:
        x += 1
        return x + y + z

    compiled = rg.compile(f, **options)
    d = rg.device_array(W, EMU)
    for _ in range(2):
        with pytest.raises(DeviceError) as caught:
            compiled(d, W, z=d)
        message = str(caught.value)
        assert "argument 0 (x), argument z on cuda:emu" in message
        assert "argument 1 (y) on the processor" in message
        assert "rg.device_array(x, 'cuda:emu') for argument 1 (y)" in message
    np.testing.assert_array_equal(d.numpy(), W)


def test_arrays_of_another_device_are_an_error():
    f = rg.compile(lambda x: x + 1)
    f.options = f.options._replace(device="cuda:0")
    with pytest.raises(DeviceError) as caught:
        f(rg.device_array(W, EMU))
    message = str(caught.value)
    assert "argument 0 (x) is on cuda:emu, but" in message
    assert "compiled for cuda:0" in message


def test_captured_numpy_array_beside_arrays_of_a_device_is_an_error():
    w = W.copy()
    f = rg.compile(lambda x: x * w)
    with pytest.raises(DeviceError, match="the variable w on the processor"):
        f(rg.device_array(W, EMU))
    np.testing.assert_array_equal(f(W), W * W)


def test_read_only_arguments_are_not_written():
    @rg.compile
    def f(x: Any) -> None:
        x += 1

    d = rg.device_array(W, EMU)
    d.writable = False
    with pytest.raises(MutationError, match="argument x is written"):
        f(d)
    np.testing.assert_array_equal(d.numpy(), W)


def test_failed_check_writes_nothing():
    @rg.compile
    def f(x: Any, k: Any) -> Any:
        x += 1
        return x[k]

    d = rg.device_array(np.arange(6.0), EMU)
    for view in (d, d[::2]):
        before = d.numpy()
        for _ in range(CALLS):
            with pytest.raises(IndexRangeError):
                f(view, rg.device_array([7], EMU))
        np.testing.assert_array_equal(d.numpy(), before)
    assert f(d[::2], rg.device_array([2], EMU)).tolist() == [5.0]


# Memory that is shared ------------------------------------------------------------

OVERLAPS = [
    (np.s_[0:20], np.s_[20:40], True),
    (np.s_[0:40:2], np.s_[1:40:2], True),
    (np.s_[20:0:-1], np.s_[40:20:-1], True),
    (np.s_[0:20], np.s_[10:30], False),
    (np.s_[0:40:2], np.s_[0:20], False),
    (np.s_[0:20], np.s_[19::-1], False),
]


@pytest.mark.parametrize(("one", "other", "apart"), OVERLAPS, ids=str)
def test_arguments_that_overlap(one: slice, other: slice, apart: bool):
    def f(x: Any, y: Any) -> Any:
        for k in range(1, 20):
            x[k] = x[k - 1] + y[k]
        return x + y, x[2:4]

    d, mine = rg.device_array(np.arange(60.0), EMU), np.arange(60.0)
    compiled = rg.compile(f)
    for _ in range(CALLS):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = compiled(d[one], d[other])
        assert_close(found, f(mine[one], mine[other]))
        np.testing.assert_allclose(d.numpy(), mine)
        assert found[1].memory is d.memory
        assert apart is not any(w.category is UncompiledWarning for w in caught)


def test_same_array_twice_is_one_array():
    def f(x: Any, y: Any) -> Any:
        x += 1
        return x * y

    d, mine = rg.device_array(W, EMU), W.copy()
    compiled = rg.compile(f)
    for _ in range(CALLS):
        assert_close(compiled(d, d), f(mine, mine))


def test_overlap_with_a_captured_array_is_an_error():
    w = rg.device_array(np.arange(6.0), EMU)

    @rg.compile
    def f(x: Any) -> None:
        x += w

    f(rg.device_array(np.ones(6), EMU))
    with pytest.warns(UncompiledWarning), pytest.raises(UnsupportedError):
        f(w[...])
    assert w.tolist() == list(range(6))


# What the host must know -----------------------------------------------------------


def test_sizes_that_the_program_computes():
    def f(x: Any) -> Any:
        y = x[x > 0.5]
        return y, len(y), y.sum()

    check(f, X)


def test_values_that_python_asks_for():
    def f(x: Any) -> Any:
        return x * 2 if x[0] > 0 else x - 1

    compiled = rg.compile(f)
    for x in (X - 1, X + 1, X - 1):
        for _ in range(CALLS):
            assert_close(compiled(rg.device_array(x, EMU)), f(x))


def test_ints_of_an_array_become_guards():
    def f(x: Any, shape: Any) -> Any:
        return x.reshape(int(shape[0]), -1).sum(0)

    compiled = rg.compile(f)
    for n in (2, 5, 2):
        for _ in range(CALLS):
            found = compiled(rg.device_array(X, EMU), rg.device_array([n, 0], EMU))
            assert_close(found, f(X, np.array([n, 0])))


def test_shapes_make_no_new_program():
    f = rg.compile(lambda x: np.cumsum(x)[-1])
    for n in (5, 9, 17, 5):
        for _ in range(CALLS):
            assert_close(f(rg.device_array(np.ones(n), EMU)), np.float64(n))
    assert f.cache_info().specialisations == 1


def test_warmup_compiles_and_changes_nothing():
    @rg.compile
    def f(x: Any) -> Any:
        x += 1
        return x.sum()

    d = rg.device_array(W, EMU)
    assert f.warmup(d).cache_info().specialisations == 1
    assert "store" in f.source(d)
    np.testing.assert_array_equal(d.numpy(), W)
    assert_close(f(d), (W + 1).sum())
    assert f.cache_info().specialisations == 1


# Transforms ------------------------------------------------------------------------


def loss(w: Any, x: Any) -> Any:
    h = np.tanh(x @ w)
    for k in range(1, h.shape[0]):
        h[k] += 0.5 * h[k - 1] ** 2
    return (h**2).sum()


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "grad": lambda f, w, x: rg.grad(f)(w, x),
    "both": lambda f, w, x: rg.grad(f, argnums=(0, 1))(w, x),
    "value_and_grad": lambda f, w, x: rg.value_and_grad(f)(w, x),
    "vjp": lambda f, w, x: (lambda v, pull: (v, pull(2.0)))(*rg.vjp(f, w, x)),
    "jvp": lambda f, w, x: rg.jvp(f, (w, x), (w, x)),
    "hvp": lambda f, w, x: rg.hvp(f)(w, x, v=w),
    "hessian": lambda f, w, x: rg.hessian(f)(w, x),
    "jacobian": lambda f, w, x: rg.jacobian(f)(w, x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str):
    apply = TRANSFORMS[name]
    if name == "hvp":
        apply = lambda f, w, x: rg.hvp(f, (w, x), (w, x))  # noqa: E731
    w, x = np.random.default_rng(0).standard_normal((2, 3, 3))
    f = rg.compile(loss)
    expected = apply(f, w, x)
    theirs = on_device((w, x))
    for _ in range(CALLS):
        assert_close(apply(f, *theirs), expected)
    assert_close(theirs, (w, x))


def test_vjp_keeps_arguments_and_captured_arrays_as_they_were():
    w = rg.device_array(W, EMU)
    f = rg.compile(lambda x: x * x * w)
    x = rg.device_array(W + 1, EMU)
    _, pull = rg.vjp(f, x)
    x[...] = 0.0
    w[...] = 0.0
    assert_close(pull(rg.device_array(np.ones(3), EMU)), (2 * (W + 1) * W,))
    assert w.tolist() == [0, 0, 0]


def test_functions_in_each_other():
    inner = rg.compile(lambda x: np.sin(x), device=EMU)
    outer = rg.compile(lambda x: inner(x) * 2)
    assert_close(outer(rg.device_array(X, EMU)), 2 * np.sin(X))
    with pytest.raises(DeviceError):
        outer(X)


# Memory and threads ----------------------------------------------------------------


def test_calls_leave_no_memory_behind():
    emulator: Any = device(EMU)
    f = rg.value_and_grad(rg.compile(lambda x: np.cumsum(np.exp(x[::2]))[-1]))
    x = rg.device_array(X, EMU)
    used = []
    for _ in range(CALLS):
        f(x)
        f(x[::-1])
        gc.collect()
        used.append(emulator.in_use())
    assert used[0] == used[-1]


def test_number_does_not_keep_the_memory_of_its_call():
    emulator: Any = device(EMU)
    x = rg.device_array(np.ones(10000), EMU)
    f = rg.compile(lambda x: (np.cumsum(np.sin(x)) * np.cumsum(np.cos(x))).sum())
    f(x)
    gc.collect()
    before = emulator.in_use()
    found = f(x)
    gc.collect()
    assert emulator.in_use() - before <= 256
    assert found.shape == ()


def test_threads_call_at_the_same_time():
    f = rg.compile(step)
    expected = step(+X, Y)
    failures = []

    def work() -> None:
        for _ in range(8):
            try:
                assert_close(f(*on_device((X, Y))), expected)
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
