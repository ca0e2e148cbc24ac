"""Options of compiled functions on a device: approximations, and sums in any order."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from retrograde.codegen.cuda import plan
from retrograde.runtime.devices import Code, device
from retrograde.runtime.devices.emulator import Emulator

EMU = "cuda:emu"
Array = np.ndarray[Any, Any]
emulated = pytest.mark.cuda_emulated


def compiled_for(f: Callable[..., Any], **options: Any) -> Any:
    return rg.compile(f, device=EMU, **options)


# Approximations ---------------------------------------------------------------------


def elementary(x, y):
    return (
        np.exp(x),
        np.log(x),
        np.sin(x),
        np.tanh(x),
        np.sqrt(x),
        x / y,
        1 / x,
        x**-0.5,
        np.log2(x),
        np.exp2(x),
        np.cos(x),
        np.log10(x),
        np.tan(x),
    )


INSTRUCTIONS = "ex2 lg2 sin cos tanh sqrt rcp".split()
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 3e38, -1e30, 2.5, 0.3])


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Code]:
    """Return the list of what is loaded from now on."""
    found: list[Code] = []
    load = Emulator.load

    def keep(place: Emulator, code: Code) -> Any:
        found.append(code)
        return load(place, code)

    monkeypatch.setattr(Emulator, "load", keep)
    return found


def ptx_of(loaded: list[Code], f: Any, *args: Any) -> str:
    loaded.clear()
    f(*args)
    return "\n".join(code.ptx for code in loaded)


@emulated
def test_approximations_are_instructions_of_float32_only(loaded: list[Code]):
    x = np.linspace(0.1, 2, 40)
    short = x.astype("f4"), x[::-1].astype("f4")
    fast = ptx_of(loaded, compiled_for(elementary, fastmath=True), *short)
    assert all(f"{name}.approx" in fast for name in INSTRUCTIONS)
    assert "div.full.ftz.f32" in fast
    assert "div.approx" not in fast  # 0 where the divisor is above 2**126
    usual = ptx_of(loaded, compiled_for(elementary), *short)
    assert "tanh.approx" not in usual
    assert "div.rn.f32" in usual
    long = x, x[::-1].copy()
    results = [compiled_for(elementary, fastmath=m)(*long) for m in (True, False)]
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


@emulated
def test_nan_and_infinities_are_what_they_were():
    x = np.repeat(SPECIAL, len(SPECIAL)).astype("f4")
    y = np.tile(SPECIAL, len(SPECIAL)).astype("f4")
    with np.errstate(all="ignore"):
        expect = elementary(x, y)
    for got, want in zip(
        compiled_for(elementary, fastmath=True)(x, y), expect, strict=True
    ):
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
        normal = np.isfinite(want) & ((np.abs(want) > 1e-37) | (want == 0))
        np.testing.assert_allclose(got[normal], want[normal], 2e-6, 1e-6)


def softmax(x):
    e = np.exp(x - np.max(x, axis=1, keepdims=True))
    return e / np.sum(e, axis=1, keepdims=True)


def loss(x):
    return np.sum(softmax(x) ** 2)


@emulated
def test_gradients_are_fast_too_and_sums_keep_their_order(loaded: list[Code]):
    x = np.random.default_rng(0).normal(size=(5, 70)).astype("f4")
    x[:, 3] = -np.inf
    f = rg.grad(compiled_for(loss, fastmath=True))
    assert "ex2.approx.ftz.f32" in ptx_of(loaded, f, x)
    np.testing.assert_allclose(f(x), rg.grad(rg.compile(loss))(x), 2e-5, 1e-7)
    total = np.random.default_rng(1).normal(size=30000).astype("f4")
    sums = [compiled_for(np.sum, fastmath=m)(total) for m in (False, True)]
    assert sums[0].tobytes() == sums[1].tobytes()


@rg.compile(fastmath=True)
def fast_inner(x):
    return np.tanh(x)


@rg.compile(precise=True)
def precise_inner(x):
    return np.tanh(x)


@emulated
def test_the_function_that_is_called_decides_about_approximations(loaded: list[Code]):
    x = np.ones(9, "f4")
    usual = compiled_for(lambda x: fast_inner(x) + 1)
    assert "tanh.approx" not in ptx_of(loaded, usual, x)
    fast = compiled_for(lambda x: fast_inner(x) + 1, fastmath=True)
    assert "tanh.approx" in ptx_of(loaded, fast, x)
    precise = compiled_for(lambda x: precise_inner(x) + 1, fastmath=True)
    assert "tanh.approx" not in ptx_of(loaded, precise, x)


def test_options_of_a_device_change_nothing_on_the_processor():
    x = np.linspace(-2, 2, 50).astype("f4")
    usual, other = (
        rg.compile(lambda x: np.tanh(x) / x, **options)
        for options in ({}, {"fastmath": True, "deterministic": True})
    )
    np.testing.assert_array_equal(usual(x), other(x))
    assert usual.source(x) == other.source(x)


def test_precise_and_fast_exclude_each_other():
    with pytest.raises(ValueError, match="precise and fastmath exclude each other"):
        rg.compile(softmax, precise=True, fastmath=True)
    both = rg.compile(precise_inner, fastmath=True)
    assert both.options.precise
    assert not both.options.fastmath


# Sums at computed places --------------------------------------------------------------


def binned(v, i):
    out = np.zeros(60, v.dtype)
    np.add.at(out, i, v)
    return out


def gathered(x, i, j):
    return np.sum(x[i, j] * np.sin(x[j, i]))


def embedded(x, i, j):
    return np.sum(x[i] ** 2 * x[j, 3:5].sum())


N = 6000
RNG = np.random.default_rng(0)
ROWS, COLUMNS = RNG.integers(0, 60, (2, N))


def in_any_order(monkeypatch: pytest.MonkeyPatch, call: Callable[[], Array]) -> Array:
    """Return the results of three runs in different orders, as rows."""
    found = []
    for seed in range(3):
        monkeypatch.setattr(device(EMU), "order", np.random.default_rng(seed))
        found.append(np.array(call()))
    return np.stack(found)


@emulated
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("cut", ["grid", "block"])
def test_deterministic_sums_are_the_same_in_any_order(
    dtype: str, cut: str, monkeypatch: pytest.MonkeyPatch
):
    if cut == "block":
        monkeypatch.setattr(plan.Planner, "nest", lambda *args: None)
    v, size = RNG.normal(size=N), N if cut == "grid" else 400
    args = v[:size].astype(dtype), ROWS[:size]
    exact = binned(args[0].astype(np.longdouble), args[1]).astype("f8")
    rows = in_any_order(monkeypatch, lambda: compiled_for(binned)(*args))
    assert (rows != rows[0]).any()  # the orders differ
    f = compiled_for(binned, deterministic=True)
    rows = in_any_order(monkeypatch, lambda: f(*args))
    np.testing.assert_array_equal(rows, rows[:1].repeat(3, 0))
    np.testing.assert_allclose(rows[0], exact, 0, 30 * np.finfo(dtype).eps)
    assert ("quanta" in f.source(*args)) == (cut == "grid")


@emulated
@pytest.mark.parametrize("program", [gathered, embedded])
def test_deterministic_gradients(program: Any, monkeypatch: pytest.MonkeyPatch):
    x = RNG.normal(size=(60, 60))
    f = rg.grad(compiled_for(program, deterministic=True))
    rows = in_any_order(monkeypatch, lambda: f(x, ROWS[:600], COLUMNS[:600]))
    np.testing.assert_array_equal(rows, rows[:1].repeat(3, 0))
    expect = rg.grad(rg.compile(program))(x, ROWS[:600], COLUMNS[:600])
    np.testing.assert_allclose(rows[0], expect, 1e-10, 1e-10)


@rg.compile(deterministic=True)
def inner_sum(v, i):
    return binned(v, i)


@emulated
def test_what_calls_a_deterministic_function_is_deterministic():
    v = RNG.normal(size=N)
    f = compiled_for(lambda v, i: inner_sum(v, i) + binned(v * 2, i))
    targets = set(re.findall(r"atomic_add\((\w+),", f.source(v, ROWS)))
    assert targets
    assert all(name.endswith("_sum") for name in targets)


@emulated
def test_eager_mode_is_deterministic_where_it_is_switched_on(
    monkeypatch: pytest.MonkeyPatch,
):
    x = RNG.normal(size=(60, 60)).astype("f4")
    t = rg.tensor(x, device=EMU, requires_grad=True)
    weights = rg.tensor(RNG.normal(size=N).astype("f4"), device=EMU)
    total = (np.sin(t[ROWS, COLUMNS % 2]) * weights).sum()

    def gradient() -> Array:
        t.grad = None
        total.backward(retain_graph=True)
        assert t.grad is not None
        return np.asarray(t.grad.cpu())

    rows = in_any_order(monkeypatch, gradient)
    assert (rows != rows[0]).any()
    with rg.set_deterministic(True):
        rows = in_any_order(monkeypatch, gradient)
    np.testing.assert_array_equal(rows, rows[:1].repeat(3, 0))
    u = rg.tensor(x, requires_grad=True)
    (np.sin(u[ROWS, COLUMNS % 2]) * weights.cpu()).sum().backward()
    assert u.grad is not None
    np.testing.assert_allclose(rows[0], u.grad.numpy(), 1e-4, 1e-4)


def extremes(dtype: str) -> tuple[Array, Array]:
    """Return numbers of all sizes, infinities and NaN, and places for them."""
    info = np.finfo(dtype)
    tiny, small, large = info.smallest_subnormal, info.tiny, info.max
    inf, nan = np.inf, np.nan
    groups = [
        [inf, 1.0],
        [-inf, 2.0, -inf],
        [inf, -inf],
        [nan, 1.0],
        [nan, inf],
        [tiny, tiny, -tiny, 3 * tiny],
        [small, tiny, -small],
        [large, 1.0, -large],
        [large, large],
        [1.0, float(info.eps), -1.0],
        [1e30, 3.0, -1e30],
        [0.0, -0.0],
        [-3.25],
        [large / 2, -tiny, large / 4],
    ]
    v = np.concatenate(groups)
    places = np.repeat(np.arange(len(groups)), list(map(len, groups)))
    return v.astype(dtype), places


@emulated
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_sums_of_numbers_of_all_sizes(dtype: str):
    v, places = extremes(dtype)
    again = 400
    f = compiled_for(binned, deterministic=True)
    got = f(np.tile(v, again), np.tile(places, again))
    assert "quanta" in f.source(v, places)
    once = f(v, places)
    for k in range(places[-1] + 1):
        terms = v[places == k].astype(np.longdouble)
        with np.errstate(all="ignore"):
            exact = terms.sum()
            allowed = np.abs(terms[np.isfinite(terms)]).max(initial=0)
            allowed = float(allowed * np.finfo(dtype).eps)
        for found, want in ((once[k], exact), (got[k], exact * again)):
            with np.errstate(over="ignore"):
                want = np.dtype(dtype).type(want)
            np.testing.assert_allclose(found, want, 1e-6, allowed, err_msg=str(terms))
