"""The loop programs of the benchmarks are right, and so are their gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse

import retrograde as rg
from benchmarks.programs import PROGRAMS, Program, Size, copied, differentiable, find
from retrograde.differences import slope

MODES = ("eager", "compiled")
SAME = 1e-12  # relative error of values
CLOSE = 1e-7  # of derivatives along a direction, beside the doubt of differences

each_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
each_mode = pytest.mark.parametrize("mode", MODES)


def in_mode(mode: str, f: Callable[..., Any]) -> Callable[..., Any]:
    return rg.compile(f) if mode == "compiled" else f


def tensors(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(rg.tensor(x) if isinstance(x, np.ndarray) else x for x in args)


def assert_same(got: Any, want: Any) -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    scale = np.max(np.abs(want), initial=0.0)
    np.testing.assert_allclose(got, want, rtol=0, atol=SAME * scale)


@each_mode
@each_program
def test_values_and_changed_arguments_are_numpys(program: Program, mode: str) -> None:
    f = in_mode(mode, program.function)  # one function: sizes may share its code
    for size in program.tests:
        args = program.args(size)
        want = copied(args)
        result = program.function(*want)
        got = copied(args) if mode == "compiled" else tensors(args)
        known = f(*got)
        if result is None:
            assert known is None
        else:
            assert_same(known, result)
        for a, b in zip(got, want, strict=True):
            assert_same(a, b)


@each_mode
@each_program
def test_gradients_are_those_of_differences(program: Program, mode: str) -> None:
    objective = program.objective()
    f = in_mode(mode, objective)
    for size in program.tests:
        args = program.args(size)
        weights = program.weights(args)
        wrt = differentiable(args)
        before = copied(args)
        both = rg.value_and_grad(f, argnums=tuple(k + 1 for k in wrt))
        value, grads = both(weights, *args)
        assert_same(value, objective(weights, *copied(args)))
        for a, b in zip(args, before, strict=True):
            np.testing.assert_array_equal(a, b)
        for k, g in zip(wrt, grads, strict=True):
            check_direction(program, size, weights, k, g)


def check_direction(
    program: Program, size: Size, weights: tuple[Any, ...], k: int, g: Any
) -> None:
    """Hold the gradient in argument k against differences along a random direction."""
    args = program.args(size)
    objective = program.objective()
    direction = np.random.default_rng(k).uniform(0.5, 1.0, np.shape(args[k]))
    direction *= np.random.default_rng(k + 1).choice([-1.0, 1.0], np.shape(args[k]))

    def along(step: float) -> float:
        moved = list(copied(args))
        moved[k] = args[k] + step * direction
        return float(objective(weights, *moved))

    results = program.results(copied(args))
    scale = sum(
        float(np.sum(np.abs(w * r))) for w, r in zip(weights, results, strict=True)
    )
    known = slope(along, max(scale, 1.0), 2.0**-52)
    assert not known.problem
    got = float(np.sum(g * direction))
    size_of_terms = float(np.sum(np.abs(g * direction)))
    assert abs(got - known.value) <= CLOSE * max(size_of_terms, 1.0) + 2 * known.doubt
    assert known.doubt <= 1e-6 * max(size_of_terms, 1.0), "the differences say nothing"


# What the programs compute, known from elsewhere.


def ran(name: str, size: Size) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return arguments of a program before and after its run."""
    before = find(name).args(size)
    after = copied(before)
    find(name).function(*after)
    return before, after


def assert_close(got: Any, want: Any) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-12)


def test_cholesky_is_numpys() -> None:
    (a,), (factor,) = ran("cholesky", (30,))
    assert_close(np.tril(factor), np.linalg.cholesky(a))


def test_lu_multiplies_to_the_matrix() -> None:
    (a,), (f,) = ran("lu", (30,))
    assert_close((np.tril(f, -1) + np.eye(30)) @ np.triu(f), a)


def test_lu_with_pivots_is_scipys() -> None:
    (a, _), (f, pivots) = ran("lu_pivot", (30,))
    known, known_pivots = scipy.linalg.lu_factor(a)
    assert_close(f, known)
    np.testing.assert_array_equal(pivots, known_pivots)
    assert (pivots != np.arange(30)).any()


def test_ludcmp_solves() -> None:
    (a, b, _, _), (_, _, x, _) = ran("ludcmp", (30,))
    assert_close(x, np.linalg.solve(a, b))


def test_gramschmidt_is_qr() -> None:
    (a, _, _), (_, q, r) = ran("gramschmidt", (30, 20))
    known_q, known_r = np.linalg.qr(a)
    signs = np.sign(np.diagonal(known_r))
    assert_close(q, known_q * signs)
    assert_close(r, known_r * signs[:, None])


def test_trisolv_is_scipys() -> None:
    (lower, b, _), (_, _, x) = ran("trisolv", (30,))
    assert_close(x, scipy.linalg.solve_triangular(lower, b, lower=True))


def test_trmm_is_a_product() -> None:
    (alpha, a, b), (_, _, out) = ran("trmm", (8, 9))
    assert_close(out, alpha * (np.tril(a, -1) + np.eye(8)).T @ b)


def test_rank_updates_are_products() -> None:
    (alpha, beta, c, a), (_, _, out, _) = ran("syrk", (8, 9))
    want = np.tril(alpha * a @ a.T + beta * c) + np.triu(c, 1)
    assert_close(out, want)
    (alpha, beta, c, a, b), (_, _, out, *_) = ran("syr2k", (8, 9))
    want = np.tril(alpha * (a @ b.T + b @ a.T) + beta * c) + np.triu(c, 1)
    assert_close(out, want)


def test_symm_is_a_product() -> None:
    (alpha, beta, c, a, b), (_, _, out, *_) = ran("symm", (8, 9))
    full = np.tril(a) + np.tril(a, -1).T
    assert_close(out, alpha * full @ b + beta * c)


def test_durbin_solves_a_toeplitz_system() -> None:
    (r, _), (_, y) = ran("durbin", (20,))
    first = np.concatenate([[1.0], r[:-1]])
    assert_close(y, scipy.linalg.solve_toeplitz(first, -r))


def test_gemver_is_products() -> None:
    (alpha, beta, a, u1, v1, u2, v2, w, x, y, z), after = ran("gemver", (8,))
    b = a + np.outer(u1, v1) + np.outer(u2, v2)
    x = x + beta * b.T @ y + z
    for got, want in zip(
        (after[2], after[8], after[7]), (b, x, w + alpha * b @ x), strict=True
    ):
        assert_close(got, want)


def test_doitgen_is_a_product() -> None:
    (a, c), (out, _) = ran("doitgen", (3, 4, 5))
    assert_close(out, a @ c)


def test_statistics_are_numpys() -> None:
    (data, _), (_, cov) = ran("covariance", (20, 6))
    assert_close(cov, np.cov(data.T))
    (data, _), (_, corr) = ran("correlation", (20, 6))
    assert_close(corr[:-1, :-1], np.corrcoef(data[:, :-1].T))
    assert np.max(np.abs(corr[:-1, -1])) < 0.01  # the column that hardly varies


def test_stencils_keep_what_is_constant() -> None:
    for name, size, changed in (
        ("seidel_2d", (5, 9), (1,)),
        ("jacobi_1d", (5, 9), (1, 2)),
        ("jacobi_2d", (5, 9), (1, 2)),
        ("heat_3d", (5, 6), (2, 3)),
        ("adi", (5, 9), (2,)),
        ("upwind_ring", (5, 9), (2,)),
    ):
        args = list(find(name).args(size))
        for k in changed:
            args[k] = np.ones_like(args[k])
        find(name).function(*args)
        for k in changed:
            assert_close(args[k], np.ones_like(args[k]))


def test_adi_converges_to_the_steady_state() -> None:
    args = list(find("adi").args((200, 7)))
    args[2][[0, -1]] = args[2][:, [0, -1]] = 1.0
    find("adi").function(*args)
    assert_close(args[2], np.ones((7, 7)))


def test_deriche_keeps_the_mean_far_from_edges() -> None:
    image = np.ones((120, 120))
    out = np.zeros_like(image)
    find("deriche").function(1.0, image, out, np.zeros_like(image))
    assert_close(out[50:70, 50:70], 1.0)
    impulse = np.zeros((61, 61))
    impulse[30, 30] = 1.0
    find("deriche").function(1.0, impulse, out[:61, :61], np.zeros((61, 61)))
    assert_close(out[:61, :61], out[:61, :61][::-1, ::-1])


def test_conv2d_is_scipys() -> None:
    from scipy.signal import correlate

    (image, kernel, _), (_, _, out) = ran("conv2d", (3, 2, 7, 3))
    for k in range(2):
        assert_close(out[k], correlate(image, kernel[k], "valid")[0])


def test_kalman_likelihood_is_that_of_a_gaussian() -> None:
    program = find("kalman")
    args = program.args((6, 3))
    zs, f, q, h, noise, x, p = copied(args)
    mean, cov = np.zeros(6), np.zeros((6, 6))
    states = [(x, p)]
    for t in range(6):
        x, p = f @ states[t][0], f @ states[t][1] @ f.T + q
        states.append((x, p))
        mean[t] = h @ x
        across = p
        for s in range(t, 6):
            cov[t, s] = cov[s, t] = h @ across @ h + (noise if s == t else 0.0)
            across = f @ across
    gap = zs - mean
    known = -0.5 * (
        gap @ np.linalg.solve(cov, gap) + np.linalg.slogdet(2.0 * np.pi * cov)[1]
    )
    assert_close(program.function(*args), known)


def test_nbody_keeps_momentum() -> None:
    (_, _, mass, _, v), (_, _, _, _, after) = ran("nbody", (20, 5))
    assert_close(mass @ after, mass @ v)


def test_runge_kutta_is_of_fourth_order() -> None:
    from scipy.integrate import solve_ivp

    from benchmarks.programs.dynamics import lorenz_96

    start = np.random.default_rng(0).normal(size=6)
    exact = solve_ivp(
        lambda _, x: lorenz_96(x, 8.0), (0.0, 0.2), start, rtol=1e-12, atol=1e-12
    ).y[:, -1]
    errors = []
    for steps in (20, 40):
        path = np.zeros((steps + 1, 6))
        path[0] = start
        find("runge_kutta").function(0.2 / steps, 8.0, path)
        errors.append(np.max(np.abs(path[-1] - exact)))
    assert 12 < errors[0] / errors[1] < 20


def test_iterations_converge() -> None:
    (mean, e, _), (_, _, x) = ran("kepler", (9,))
    assert_close(x - e * np.sin(x), mean)
    (a, b, _), (_, _, x) = ran("jacobi_solver", (20,))
    np.testing.assert_allclose(x, np.linalg.solve(a, b), atol=1e-10)


def test_sparse_products_are_scipys() -> None:
    for name in ("spmv", "spmv_rows"):
        (indptr, indices, data, x, _), (*_, y) = ran(name, (9, 7, 4))
        known = scipy.sparse.csr_array((data, indices, indptr), (9, 7)) @ x
        assert_close(y, known)
        assert (np.diff(indptr) == 0).any()


def test_floyd_warshall_is_scipys() -> None:
    from scipy.sparse.csgraph import floyd_warshall

    (path,), (shortest,) = ran("floyd_warshall", (12,))
    known = floyd_warshall(path)
    off = ~np.eye(12, dtype=bool)  # SciPy's paths to the start itself are empty
    assert_close(shortest[off], known[off])
    assert (shortest[off] < path[off]).any()


def test_insertion_sort_sorts() -> None:
    (a,), (b,) = ran("insertion_sort", (20,))
    np.testing.assert_array_equal(b, np.sort(a))


def test_names_are_unique() -> None:
    names = [p.name for p in PROGRAMS]
    assert len(set(names)) == len(names)
