"""Linear systems and determinants, of matrices and stacks of matrices.

`solve`, `inv`, `det` and the parts of `slogdet` are what programs ask for. `simplify`
makes them of `lu` and what it is good for, so that all uses of one matrix, in reverse
too, share its factorisation. Such an op has the matrix and its factors as operands: the
derivative is taken in the matrix, from which the factors follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .. import dims
from ..build import Builder
from ..dims import Dim
from ..errors import DTypeError, ShapeError
from ..op import ZERO, Kind, Op, Routine, Sample, Vjp, define
from ..types import Type, promote, same_shape
from .batch import Axis, Batched, moved

SINGULAR = "Singular matrix"


def check_square(name: str, x: Type) -> None:
    if x.ndim < 2 or not dims.same(x.shape[-1], x.shape[-2]):
        raise ShapeError(
            f"{name}: {x} is not a square matrix",
            rule="the last two axes must have the same size",
        )
    if x.dtype.kind != "f" or x.dtype.itemsize < 4:
        raise DTypeError(
            f"{name}: {x} is not a matrix of float32 or float64", hint="convert it"
        )


def check_right_side(name: str, x: Type, y: Type) -> None:
    if y.ndim != x.ndim or not same_shape(y.shape[:-1], x.shape[:-1]):
        raise ShapeError(
            f"{name}: the right side {y} does not fit the matrix {x}",
            rule="both are stacks of matrices with the same number of rows",
        )


def swapped(b: Builder, x: Any) -> Any:
    """Return the transpose of every matrix."""
    n = len(b.shape(x))
    return b.transpose(x, axes=(*range(n - 2), n - 1, n - 2))


def well_conditioned(rng: np.random.Generator, *shape: int) -> Any:
    n = shape[-1]
    return rng.uniform(-1, 1, shape) + n * np.eye(n)


def batch(
    b: Builder, op: Op, xs: Sequence[Any], axes: Sequence[Axis], **attrs: Any
) -> Batched:
    """Make stacks of matrices: the new axis comes first, and every operand has it."""
    size = next(b.shape(x)[p] for x, p in zip(xs, axes, strict=True) if p is not None)
    stacks = [
        b.broadcast_to(x, shape=(size, *b.shape(x))) if p is None else moved(b, x, p, 0)
        for x, p in zip(xs, axes, strict=True)
    ]
    return b.apply(op, stacks, attrs), 0


def eye_like(b: Builder, x: Any) -> Any:
    """Return identity matrices of the shape and dtype of `x`."""
    shape = b.shape(x)
    n = shape[-1]
    rows = b.expand_dims(b.arange(size=n), axis=(1,))
    eye = b.cast(b.equal(rows, b.arange(size=n)), b.type_of(x))
    return b.broadcast_to(eye, shape=shape) if len(shape) > 2 else eye


def matrices(rng: np.random.Generator) -> Iterator[Any]:
    """Yield matrices and stacks to try an op of one matrix on."""
    yield well_conditioned(rng, 3, 3)
    yield well_conditioned(rng, 2, 2, 2)
    yield well_conditioned(rng, 3, 3).T
    yield well_conditioned(rng, 1, 1)
    yield well_conditioned(rng, 2, 2).astype(np.float32)
    yield rng.normal(size=(5, 5))
    yield np.zeros((0, 3, 3))
    yield np.zeros((2, 0, 0))


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for x in matrices(rng):
        yield Sample((x,))


def _sides(rng: np.random.Generator) -> Iterator[tuple[Any, Any]]:
    yield well_conditioned(rng, 3, 3), rng.normal(size=(3, 2))
    yield well_conditioned(rng, 2, 3, 3), rng.normal(size=(2, 3, 1))
    yield well_conditioned(rng, 1, 1), rng.normal(size=(1, 1))
    yield well_conditioned(rng, 4, 4).T, rng.normal(size=(2, 4)).T
    yield rng.normal(size=(5, 5)), rng.normal(size=(5, 3))
    yield np.zeros((0, 0)), np.zeros((0, 2))
    yield well_conditioned(rng, 2, 2).astype(np.float32), np.ones((2, 1), np.float32)


# ---------------------------------------------------------------- factors


def _lu_type(x: Type) -> Type:
    check_square("lu", x)
    *stack, n, _ = x.shape
    return Type(x.dtype, (*stack, dims.add(n, 1), n))


def _lu(x: Any) -> Any:
    from scipy.linalg.lapack import get_lapack_funcs

    *stack, n, _ = x.shape
    out = np.empty((*stack, n + 1, n), x.dtype)
    (factor,) = get_lapack_funcs(("getrf",), dtype=x.dtype)
    for index in np.ndindex(*stack) if n else ():
        factors, exchanges, _ = factor(x[index].T)
        out[index][:n], out[index][n] = factors.T, exchanges
    return out


def unfactored(x: Type, factors: Type) -> None:
    """Check that factors fit their matrix."""
    if not same_shape(_lu_type(x).shape, factors.shape):
        raise ShapeError(f"{factors} does not hold the factors of {x}")


define(
    # The factors of x.T = P L U, transposed, and a last row with the exchanges: row i
    # was exchanged with row exchanges[i], in order. A singular x has factors, too.
    name="lu",
    kind=Kind.ROUTINE,
    operands=("x",),
    infer=_lu_type,
    eager=_lu,
    # What uses the factors has the matrix as another operand, and its derivative there.
    derivatives=(ZERO,),
    lower=Routine("lu", lambda x: x.shape[-1:], over="x"),
    samples=lambda rng: (Sample((x,), {}, False) for x in matrices(rng)),
    batch=batch,
)


def _lu_solve_type(x: Type, factors: Type, y: Type, *, transposed: bool) -> Type:
    unfactored(x, factors)
    check_right_side("lu_solve", x, y)
    return Type(promote(x, y).dtype, y.shape)


def _lu_solve(x: Any, factors: Any, y: Any, transposed: bool) -> Any:
    from scipy.linalg.lapack import get_lapack_funcs

    *stack, n, k = y.shape
    out = np.empty(y.shape, np.result_type(x, y))
    (solve,) = get_lapack_funcs(("getrs",), dtype=out.dtype)
    for index in np.ndindex(*stack) if n and k else ():
        f = factors[index]
        if not f[:n].diagonal().all():
            raise np.linalg.LinAlgError(SINGULAR)
        exchanges = f[n].astype(np.int32) % n  # LAPACK does not look
        out[index] = solve(f[:n].T, exchanges, y[index], trans=int(not transposed))[0]
    return out


def _solved_in_matrix(
    b: Builder, ct: Any, out: Any, x: Any, factors: Any, y: Any, transposed: bool
) -> Any:
    side = b.lu_solve(x, factors, ct, transposed=not transposed)
    left, right = (out, side) if transposed else (side, out)
    return b.cast(b.negative(b.matmul(left, swapped(b, right))), b.type_of(x))


def _solved_in_side(
    b: Builder, ct: Any, out: Any, x: Any, factors: Any, y: Any, transposed: bool
) -> Any:
    found = b.lu_solve(x, factors, ct, transposed=not transposed)
    return b.cast(found, b.type_of(y))


def _lu_solve_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for x, y in _sides(rng):
        for transposed in (False, True):
            yield Sample((x, _lu(x), y), {"transposed": transposed}, False)


def right_side(x: Type, *others: Type) -> tuple[Dim, Dim]:
    """Return the size of a matrix and the number of columns of the right side."""
    return x.shape[-1], others[-1].shape[-1]


define(
    name="lu_solve",  # the z with x @ z = y, or x.T @ z = y; singular: an error
    kind=Kind.ROUTINE,
    operands=("x", "factors", "y"),
    infer=_lu_solve_type,
    eager=_lu_solve,
    derivatives=(
        Vjp(_solved_in_matrix, ("out", "x", "factors")),
        ZERO,
        Vjp(_solved_in_side, ("x", "factors")),
    ),
    lower=Routine(
        "lu_solve", right_side, ("factors",), "y", ("transposed",), error=SINGULAR
    ),
    samples=_lu_solve_samples,
    batch=batch,
)

# ---------------------------------------------------------------- solve, inv


def _solve_type(x: Type, y: Type) -> Type:
    check_square("solve", x)
    check_right_side("solve", x, y)
    return Type(promote(x, y).dtype, y.shape)


def _solve_in_matrix(b: Builder, ct: Any, out: Any, x: Any, y: Any) -> Any:
    in_right = b.solve(swapped(b, x), ct)
    return b.cast(b.negative(b.matmul(in_right, swapped(b, out))), b.type_of(x))


def _solve_factored(b: Builder, x: Any, y: Any) -> Any:
    if b.type_of(x).dtype != b.type_of(y).dtype:
        t = Type(promote(b.type_of(x), b.type_of(y)).dtype, ())
        x, y = b.cast(x, t), b.cast(y, t)
    return b.lu_solve(x, b.lu(x), y, transposed=False)


define(
    name="solve",  # the z with x @ z = y; a singular x is an error
    kind=Kind.ROUTINE,
    operands=("x", "y"),
    infer=_solve_type,
    eager=lambda x, y: np.linalg.solve(x, y),
    derivatives=(
        Vjp(_solve_in_matrix, ("out", "x")),
        Vjp(
            lambda b, ct, out, x, y: b.cast(b.solve(swapped(b, x), ct), b.type_of(y)),
            ("x",),
        ),
    ),
    lower=None,
    samples=lambda rng: (Sample(pair) for pair in _sides(rng)),
    decompose=_solve_factored,
    batch=batch,
)


def _square(name: str) -> Callable[[Type], Type]:
    def infer(x: Type) -> Type:
        check_square(name, x)
        return x

    return infer


def _inv_vjp(b: Builder, ct: Any, out: Any, x: Any) -> Any:
    turned = swapped(b, out)
    return b.negative(b.matmul(b.matmul(turned, ct), turned))


define(
    name="inv",  # of a singular matrix: an error
    kind=Kind.ROUTINE,
    operands=("x",),
    infer=_square("inv"),
    eager=lambda x: np.linalg.inv(x),
    derivatives=(Vjp(_inv_vjp, ("out",)),),
    lower=None,
    samples=_samples,
    decompose=lambda b, x: b.lu_solve(x, b.lu(x), eye_like(b, x), transposed=False),
    batch=batch,
)

# ---------------------------------------------------------------- det, slogdet


def _one_number(name: str) -> Callable[..., Type]:
    """Return the type rule of an op that makes one number of a matrix."""

    def infer(x: Type, *factors: Type) -> Type:
        check_square(name, x)
        for f in factors:
            unfactored(x, f)
        stack = x.shape[:-2]
        return Type(x.dtype, stack) if stack else Type(x.dtype, scalar=True)

    return infer


def _scaled_inverse(b: Builder, ct: Any, solved: Any) -> Any:
    """Return the inverses times one number each."""
    ndim = len(b.shape(solved)) - 2
    ct = b.expand_dims(ct, axis=(ndim, ndim + 1)) if ndim else ct
    return b.multiply(ct, solved)


def _det_vjp(b: Builder, ct: Any, out: Any, x: Any) -> Any:
    """Return ct * det(x) * inv(x).T; a singular x is an error."""
    solved = b.solve(swapped(b, x), eye_like(b, x))
    return _scaled_inverse(b, b.multiply(ct, out), solved)


def _log_vjp(b: Builder, ct: Any, out: Any, x: Any) -> Any:
    return _scaled_inverse(b, ct, b.solve(swapped(b, x), eye_like(b, x)))


def _from_factors(rule: str) -> Callable[..., Any]:
    return lambda b, x: getattr(b, rule)(x, b.lu(x))


define(
    name="det",
    kind=Kind.ROUTINE,
    operands=("x",),
    infer=_one_number("det"),
    eager=lambda x: np.linalg.det(x),
    derivatives=(Vjp(_det_vjp, ("out", "x")),),
    lower=None,
    samples=_samples,
    decompose=_from_factors("lu_det"),
    batch=batch,
)
define(
    name="det_log",  # the logarithm of the absolute value of the determinant
    kind=Kind.ROUTINE,
    operands=("x",),
    infer=_one_number("det_log"),
    eager=lambda x: np.linalg.slogdet(x)[1],
    derivatives=(Vjp(_log_vjp, ("x",)),),
    lower=None,
    samples=_samples,
    decompose=_from_factors("lu_log"),
    batch=batch,
)
define(
    name="det_sign",  # of the determinant: -1, 0 or 1
    kind=Kind.ROUTINE,
    operands=("x",),
    infer=_one_number("det_sign"),
    eager=lambda x: np.linalg.slogdet(x)[0],
    derivatives=(ZERO,),
    lower=None,
    samples=_samples,
    decompose=_from_factors("lu_sign"),
    batch=batch,
)


def _signs_and_logs(factors: Any) -> tuple[Any, Any]:
    n = factors.shape[-1]
    diagonal = np.diagonal(factors[..., :n, :], axis1=-2, axis2=-1)
    odd = np.sum(factors[..., n, :] != np.arange(n), axis=-1) % 2
    sign = np.where(odd, -1, 1) * np.prod(np.sign(diagonal), axis=-1)
    with np.errstate(divide="ignore"):
        log = np.sum(np.log(np.abs(diagonal)), axis=-1)
    return sign.astype(factors.dtype)[()], log.astype(factors.dtype)[()]


def _lu_sign(x: Any, factors: Any) -> Any:
    return _signs_and_logs(factors)[0]


def _lu_log(x: Any, factors: Any) -> Any:
    return _signs_and_logs(factors)[1]


def _lu_det(x: Any, factors: Any) -> Any:
    sign, log = _signs_and_logs(factors)
    return sign * np.exp(log)


def _inverse_transposed(b: Builder, x: Any, factors: Any) -> Any:
    return b.lu_solve(x, factors, eye_like(b, x), transposed=True)


def _lu_det_vjp(b: Builder, ct: Any, out: Any, x: Any, factors: Any) -> Any:
    solved = _inverse_transposed(b, x, factors)
    return _scaled_inverse(b, b.multiply(ct, out), solved)


def _lu_log_vjp(b: Builder, ct: Any, out: Any, x: Any, factors: Any) -> Any:
    return _scaled_inverse(b, ct, _inverse_transposed(b, x, factors))


def _factored_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for x in matrices(rng):
        yield Sample((x, _lu(x)), {}, False)


for _name, _eager, _derivative in (
    ("lu_det", _lu_det, Vjp(_lu_det_vjp, ("out", "x", "factors"))),
    ("lu_log", _lu_log, Vjp(_lu_log_vjp, ("x", "factors"))),
    ("lu_sign", _lu_sign, ZERO),
):
    define(
        name=_name,  # det, det_log and det_sign of a matrix with its factors
        kind=Kind.ROUTINE,
        operands=("x", "factors"),
        infer=_one_number(_name),
        eager=_eager,
        derivatives=(_derivative, ZERO),
        lower=Routine(_name, lambda x, factors: x.shape[-1:], ("factors",)),
        samples=_factored_samples,
        batch=batch,
    )
