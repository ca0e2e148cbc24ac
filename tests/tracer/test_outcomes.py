"""Computed values that Python needs: each outcome is a program, and checked."""

import operator
import warnings

import numpy as np
import pytest

import retrograde as rg
from retrograde.codegen.compile import stats
from retrograde.ir.errors import GradientBreakError, UncompiledWarning

UP = np.array([3.0, -1.0, 2.0, 5.0, -2.0])
DOWN = -UP


def differences(f, x, step=1e-6):
    out = np.zeros_like(x)
    for k in np.ndindex(x.shape):
        a, b = x.copy(), x.copy()
        a[k] += step
        b[k] -= step
        out[k] = (f(a) - f(b)) / (2 * step)
    return out


def assert_same(got, want):
    if isinstance(want, list | tuple):
        assert type(got) is type(want)
        for a, b in zip(got, want, strict=True):
            assert_same(a, b)
    elif isinstance(want, np.ndarray | np.generic | float):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    else:
        assert got == want


def check(f, *calls):
    """Call `f` and the compiled `f` alike; return the compiled one."""
    compiled = rg.compile(f)
    for args in calls:
        mine, theirs = [[np.copy(x) for x in args] for _ in range(2)]
        assert_same(compiled(*mine), f(*theirs))
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)
    return compiled


# ---------------------------------------------------------------- bools


def branch(x):
    x[0] += 1.0
    if x.sum() > 0:
        x *= 2
        return "up", x.max()
    x[1] = 5.0
    return "down", x.min()


def test_a_write_through_a_name_that_a_condition_chose():
    def f(x, z, flag):
        v = x[1:] if flag[0] else x[:-1]
        v *= 2.0
        a, b = (x, z) if x[0] > z[0] else (z, x)
        for _ in range(3):
            if a[1] > b[1]:
                a, b = b, a
            a += 0.5 * b
        return x * v[0]

    calls = [(u, v, np.full(5, s)) for u, v in ((UP, DOWN), (DOWN, UP)) for s in (0, 1)]
    check(f, *calls)


def test_both_branches_are_compiled_once():
    compiled = check(branch, (UP,), (DOWN,), (UP,), (DOWN,), (UP,))
    info = compiled.cache_info()
    assert (info.hits, info.misses, info.specialisations) == (3, 2, 2)


def test_known_outcomes_compile_nothing():
    compiled = check(branch, (UP,), (DOWN,))
    before = stats()
    for x in (UP, DOWN, UP):
        compiled(x.copy())
    assert compiled.cache_info().misses == 2
    assert stats() == before


def test_conditions_with_and_or_not_and_chains():
    def f(x):
        a, b = x.sum(), x.max()
        if (0 < a < 20 and not b < 4) or a < -100:
            return "yes"
        return "no" if a else "zero"

    check(f, (UP,), (DOWN,), (UP * 0,), (UP / 2,), (DOWN * 100,))


def test_a_while_loop_over_computed_values_is_a_chain_of_outcomes():
    def f(x):
        rounds = 0
        while x.max() < 100 and rounds < 20:
            x *= 2
            rounds += 1
        return rounds, x.sum()

    check(f, (UP,), (np.abs(UP) + 1,), (UP * 8,))


def test_a_condition_is_asked_once():
    def f(x):
        positive = x.sum() > 0
        names = ["up"] if positive else ["down", "no"]
        return names, "up" if positive else "down"

    compiled = check(f, (UP,), (DOWN,))
    assert compiled.ir(UP, stage="capture").count("expect") == 1


def test_arrays_of_one_element_have_a_truth_value():
    check(lambda x: "a" if x[:1] > 0 else "b", (UP,), (DOWN,))
    with pytest.raises(ValueError, match="truth value of an array with more than one"):
        rg.compile(lambda x: "a" if x > 0 else "b")(UP)


def test_assert_is_checked_at_every_call():
    @rg.compile
    def f(x):
        assert x.sum() > 0, "negative"
        x += 1
        return x.sum()

    f(UP.copy())
    with pytest.raises(AssertionError, match="negative"):
        f(DOWN.copy())
    f(UP.copy())
    assert f.cache_info().specialisations == 1


def test_an_error_of_the_function_leaves_what_numpy_leaves():
    def f(x):
        x[0] = 7.0
        if np.any(np.isnan(x)):
            raise ValueError("nan")
        return np.sqrt(x).sum()

    compiled = check(f, (np.abs(UP),))
    for _ in range(2):
        x = np.array([1.0, np.nan])
        with pytest.raises(ValueError, match="nan"):
            compiled(x)
        assert x[0] == 7.0


# ---------------------------------------------------------------- ints


def test_an_int_chooses_an_object():
    names = ["a", "b", "c", "d", "e"]

    def f(x):
        k = int(np.argmax(x))
        return names[k], x[k]

    compiled = check(f, (UP,), (DOWN,), (UP,))
    assert compiled.cache_info().misses == 2


def test_an_int_fixes_a_shape_and_repeats_a_list():
    def f(x):
        k = np.count_nonzero(x > 0)
        return np.zeros(k) + x.sum(), [0] * k, "ab" * int(k)

    check(f, (UP,), (DOWN,), (UP + 10,))


def test_an_int_as_the_key_of_a_dict():
    def f(x):
        return {operator.index(np.argmax(x)): x.sum()}

    check(f, (UP,), (DOWN,))
    with pytest.raises(GradientBreakError, match="as the key of a dict"):
        rg.compile(lambda x: {int(v): v for v in x})(UP)


def test_only_integers_are_indices():
    with pytest.raises(TypeError, match="only integer scalar arrays can be converted"):
        rg.compile(lambda x: [1, 2, 3][x.sum()])(UP)


def test_int_of_what_is_no_number_raises_as_python_does():
    f = rg.compile(lambda x: [1, 2, 3][operator.index(int(x[0] / x[1]))])
    assert f(np.array([2.0, 1.0])) == 3


def test_a_float_is_never_guarded():
    with pytest.raises(GradientBreakError, match="needed as a Python float"):
        rg.compile(lambda x: "%.3f" % x.sum())(UP)  # noqa: UP031


# ---------------------------------------------------------------- sizes from data


def test_what_a_mask_selects_has_a_size_of_its_own():
    def f(x):
        y = x[x > 0]
        return y, y.sum(), y * 2 + 1, len(y)

    compiled = check(f, (UP,), (DOWN,), (UP - 10,), (UP + 10,))
    assert compiled.cache_info().misses == 1


def test_nonzero_is_a_value():
    def f(x):
        (i,) = np.nonzero(x > 0)
        rows, columns = np.nonzero(np.outer(x, x) > 2)
        return i, x[i] * 2, np.flatnonzero(x < 0), rows + columns

    compiled = check(f, (UP,), (DOWN,), (UP + 10,))
    assert compiled.cache_info().misses == 1


def test_a_size_that_python_asks_for_is_an_outcome():
    def f(x):
        return [v**2 for v in x[x > 0]]

    compiled = check(f, (UP,), (DOWN,), (UP,))
    assert compiled.cache_info().misses == 2


def test_a_size_decides():
    def f(x):
        y = x[x > 0]
        if len(y) > 2:
            return y.mean()
        return y.sum() * 10

    check(f, (UP,), (DOWN,), (UP - 10,), (UP,))


def test_a_prefix_of_a_buffer_is_filled():
    def f(x):
        keep = x[x > 0.0]
        y = np.zeros(8)
        y[: len(keep)] = keep
        return np.cumsum(y)

    check(f, (UP,), (DOWN,), (UP - 10,))


def test_bounds_of_slices_are_computed():
    def f(x):
        k = np.argmax(x)
        x[k:] += 1
        return x[:k].sum(), x[k:], x[::-1][:k]

    check(f, (UP,), (DOWN,))


def test_two_sizes_in_one_result():
    def f(x):
        a, b = x[x > 0], x[x < 0]
        return np.concatenate([a, b]), a.sum() * b.sum()

    assert check(f, (UP,), (DOWN,)).cache_info().misses == 1


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x[x[:, 0] > 0, np.array([1])],
        lambda x: x[x[0] > 0][:, x[:, 0] > 0],
        lambda x: x[np.nonzero(x[:, 0] > 0)[0], x[:, 0] > 0],
        lambda x: x[x.sum() > 0],
    ],
)
def test_masks_beside_other_indices(f):
    check(f, (np.outer(UP, UP),), (np.outer(UP, DOWN),))


# ---------------------------------------------------------------- nothing has happened


def test_a_failed_check_has_changed_nothing():
    seen = np.zeros(5)
    count = [0.0]

    def f(x, y):
        nonlocal seen
        x += 1
        y *= 2
        seen += x
        count[0] = count[0] + 1.0
        if seen.sum() > 30:
            seen[:] = 0
            x[0] = seen.max()
            y += x
            return "reset", y.sum()
        return "go", y.sum()

    compiled = rg.compile(f)
    state = []
    for run in (f, compiled):
        seen[:], count[0] = 0, 0.0
        x, y = UP.copy(), DOWN.copy()
        results = [run(x, y) for _ in range(6)]
        state.append((results, x, y, seen.copy(), list(count)))
    np.testing.assert_equal(state[0], state[1])
    assert compiled.cache_info().misses == 2


def test_what_fails_after_a_check_is_not_found_before_it():
    def f(x, k):
        if k[0] * 1 < len(x):
            return x[k[0] * 1]
        return -1.0

    compiled = rg.compile(f)
    assert compiled(UP, np.array([3])) == 5.0
    assert compiled(UP, np.array([30])) == -1.0
    assert compiled(UP, np.array([1])) == -1.0


def test_arguments_that_overlap_run_uncompiled():
    def f(x, y):
        x += y
        return "up" if x.sum() > 0 else "down"

    compiled = rg.compile(f)
    for sign in (1, -1, 1):
        a, b = np.arange(6.0) * sign, np.arange(6.0) * sign
        assert compiled(a[1:], a[:-1]) == f(b[1:], b[:-1])
        np.testing.assert_array_equal(a, b)


# ---------------------------------------------------------------- derivatives


def smooth(x):
    y = x * 1.0
    kind = "chain" if y.sum() > 0 else "sine"
    if kind == "chain":
        y[1:] *= y[:-1]
        return np.sum(y**2)
    return np.sum(np.sin(y))


@pytest.mark.parametrize(
    "make",
    [
        lambda f: rg.grad(rg.compile(f)),
        lambda f: rg.compile(rg.grad(f)),
        lambda f: rg.compile(rg.grad(rg.compile(f))),
    ],
)
def test_gradients_of_both_outcomes(make):
    g = make(smooth)
    for x in (UP, DOWN - 1, UP, DOWN - 1):
        np.testing.assert_allclose(g(x), differences(smooth, x), rtol=1e-6, atol=1e-6)
    assert g.cache_info().misses == 2


def test_second_derivatives_of_both_outcomes():
    def f(x):
        return np.sum(rg.grad(smooth)(x) ** 2)

    g = rg.compile(rg.grad(f))
    for x in (UP, DOWN - 1, UP):
        np.testing.assert_allclose(g(x), differences(f, x), rtol=1e-5, atol=1e-4)


def test_pullbacks_keep_their_outcome():
    compiled = rg.compile(smooth)
    _, up = rg.vjp(compiled, UP)
    _, down = rg.vjp(compiled, DOWN)
    for pullback, x in ((up, UP), (down, DOWN), (up, UP)):
        want = differences(smooth, x)
        np.testing.assert_allclose(pullback(1.0)[0], want, rtol=1e-6, atol=1e-6)


def test_tensors_get_gradients_of_both_outcomes():
    compiled = rg.compile(smooth)
    for x in (UP, DOWN, UP):
        t = rg.tensor(x, requires_grad=True)
        compiled(t).backward()
        want = differences(smooth, x)
        np.testing.assert_allclose(t.grad.numpy(), want, rtol=1e-6, atol=1e-6)
    assert compiled.cache_info().misses == 2


def test_an_inner_function_decides_by_outer_values():
    def f(x, k):
        w = x * k

        def inner(z):
            kind = "product" if np.dot(z, w) > 0 else "cubes"
            if kind == "product":
                return np.sum(z * w)
            return np.sum(z**3)

        g = rg.grad(inner)(x)
        factors = [x, x] if g.sum() > 0 else [x]
        return np.sum(g * sum(factors))

    compiled, gradient = rg.compile(f), rg.compile(rg.grad(f))
    for x, k in ((UP, 1.0), (UP, -1.0), (DOWN, -1.0), (DOWN, 1.0), (UP, 1.0)):
        np.testing.assert_allclose(compiled(x, k), f(x, k), rtol=1e-12)
        want = differences(lambda x, k=k: f(x, k), x)
        np.testing.assert_allclose(gradient(x, k), want, rtol=1e-6, atol=1e-6)
    assert compiled.cache_info().misses == 3


def test_gradients_through_sizes_that_python_asks_for():
    def f(x):
        y = x[x > 0]
        if len(y) > 2:
            return np.sum(y**2)
        for v in y:
            return v**3
        return np.sum(x)

    g = rg.compile(rg.grad(f))
    for x in (UP, DOWN, UP - 10, UP):
        np.testing.assert_allclose(g(x), differences(f, x), rtol=1e-6, atol=1e-6)


# ---------------------------------------------------------------- bounds and errors


def test_many_outcomes_end_in_uncompiled_calls_with_one_warning():
    def f(x):
        k = int(x[0] * 1.0)
        x[1] = k
        return [x[1]] * k

    compiled = rg.compile(f)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for call in range(44):
            x = np.array([call % 22, 1.0])
            assert compiled(x) == [call % 22] * (call % 22)
            assert x[1] == call % 22
    (warning,) = seen
    assert warning.category is UncompiledWarning
    assert warning.filename == __file__
    text = str(warning.message)
    assert "has 16 programs because Python needs a computed value" in text
    assert "in f:    return [x[1]] * k" in text
    assert "hint: " in text
    assert compiled.cache_info().specialisations == 16


def test_rounding_that_differs_is_settled_by_the_program(monkeypatch):
    from retrograde.tracer.outcomes import Prefix

    def wrong(prefix, x):
        return ~value(prefix, x)

    value = Prefix.value
    monkeypatch.setattr(Prefix, "value", wrong)
    compiled = check(branch, (UP,), (DOWN,), (UP,))
    assert compiled.cache_info().misses <= 4


def test_no_outcome_inside_a_loop():
    names = ["a", "b", "c", "d", "e"]

    @rg.compile
    def f(x, n):
        found = ""
        for k in range(n):
            x[k] += 1.0
            found = names[operator.index(np.argmax(x))]
        return found

    with pytest.raises(NotImplementedError) as info:
        f(np.zeros(2000), 2000)
    text = str(info.value)
    assert text.startswith("a value of a loop or branch, i64, is needed as a Python ")
    assert "test_outcomes.py" in text
    assert "found = names[" in text
    assert "hint: " in text
    assert f(UP.copy(), 3) == "d"  # short loops are unrolled


def test_loops_before_the_question_run_compiled():
    def f(x):
        rounds, s = 0, x.sum()
        while s > 1e-3:
            s, rounds = s / 2, rounds + 1
            x *= 0.5
        for k in range(2000):
            x[k % 5] += 1e-9
        if x.max() > 1e-3:
            return "large", rounds, x.sum()
        return "small", rounds

    check(f, (np.abs(UP),), (DOWN,), (np.abs(UP) * 1000,))
