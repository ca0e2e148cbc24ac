"""Hold derivatives against differences: gradcheck, gradgradcheck, check_grads."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .comparison import SMALL, TOLERANCES, precision_of
from .differences import Slope, as_reals, jacobians, slope
from .gradients import draw_direction, moved_args
from .ir.errors import GradcheckError, GradientError, ShapeError
from .leaves import copy_apart, is_array, is_float, leaves, rebuild
from .program import to_numpy
from .tracer import autograd
from .tracer.functional import jvp
from .tracer.jit import Compiled, compile
from .tracer.location import user_location
from .tracer.tensor import Tensor, of
from .tracer.transforms import vjp

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class _Tolerance:
    eps: float
    atol: float
    rtol: float
    nondet_tol: float


def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
) -> bool:
    """Check the gradients of `func` against central differences with step `eps`.

    `inputs` is one input or a tuple of them: those Tensors are differentiated that
    require a gradient, and every output that requires one is checked in each element.
    An entry of the Jacobian may be off by `atol + rtol * |numerical|`. Two backward
    passes may differ by `nondet_tol`. `func` may be a compiled function; it must not
    change its inputs. Use float64: other precisions are too coarse and give a warning.

    Returns True. Raises GradcheckError, with both Jacobians and their worst entry,
    where they differ, or returns False with `raise_exception=False`. Raises
    GradientError where no input requires a gradient, ShapeError where one has a stride
    of 0.

    >>> x = of(np.array([1.0, 2.0])).requires_grad_()
    >>> gradcheck(lambda x: np.sin(x) * x, x)
    True
    """
    given = inputs if isinstance(inputs, tuple | list) else (inputs,)
    points = _points(given)
    tolerance = _Tolerance(eps, atol, rtol, nondet_tol)
    try:
        _check_jacobians(func, given, points, tolerance)
    except GradcheckError as error:
        if not raise_exception:
            return False
        error.location = user_location()
        raise
    return True


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
) -> bool:
    """Check second derivatives: `gradcheck` of the gradients of `func`.

    They are differentiated in the inputs and in `grad_outputs`, which are random where
    none are given: one per output that requires a gradient.

    >>> x = of(np.array([1.0, 2.0])).requires_grad_()
    >>> gradgradcheck(lambda x: np.sin(x) * x, x)
    True
    """
    given = inputs if isinstance(inputs, tuple | list) else (inputs,)
    points = _points(given)
    outputs = _differentiable(func(*_fresh(given, points)))
    if grad_outputs is None:
        rng = np.random.default_rng(0)
        cotangents = [_random(rng, y).requires_grad_() for y in outputs]
    else:
        several = isinstance(grad_outputs, tuple | list)
        cotangents = list(grad_outputs) if several else [grad_outputs]
    if not outputs:
        raise GradcheckError(
            "gradgradcheck: no output requires a gradient",
            location=user_location(),
        )

    def gradients(*args: Any) -> tuple[Tensor, ...]:
        args, cts = args[: len(given)], args[len(given) :]
        found = autograd.grad(
            _differentiable(func(*args)),
            [args[k] for k in points],
            cts,
            create_graph=True,
            allow_unused=True,
        )
        return tuple(g for g in found if g is not None)

    return gradcheck(
        gradients,
        (*given, *cotangents),
        eps=eps,
        atol=atol,
        rtol=rtol,
        raise_exception=raise_exception,
        nondet_tol=nondet_tol,
    )


def _random(rng: np.random.Generator, like: Tensor) -> Tensor:
    x: Any = rng.uniform(-1, 1, like.shape)
    if like.dtype.kind == "c":
        x = x + 1j * rng.uniform(-1, 1, like.shape)
    return of(np.asarray(x, like.dtype))


def _points(inputs: Sequence[Any]) -> list[int]:
    """Return the numbers of the inputs to differentiate in; raise for bad ones."""
    found = []
    for k, x in enumerate(inputs):
        if not isinstance(x, Tensor) or not x.requires_grad:
            continue
        found.append(k)
        data = np.asarray(x._data)
        if data.size and 0 in data.strides:
            raise ShapeError(
                f"gradcheck: input {k}, {x.type}, has a dimension with stride 0",
                location=user_location(),
                rule="Elements that share memory cannot be moved one by one.",
                hint="copy it: x = x.copy()",
            )
        if data.dtype not in (np.float64, np.complex128):
            warnings.warn(
                f"gradcheck: input {k} requires a gradient and is {x.type}, not double "
                "precision: the check will likely fail",
                stacklevel=3,
            )
    if not found:
        kinds = ", ".join(
            str(x.type) if isinstance(x, Tensor) else type(x).__name__ for x in inputs
        )
        raise GradientError(
            f"gradcheck: no input requires a gradient: {kinds}",
            location=user_location(),
            rule="Tensors of floats are checked, if they require a gradient.",
            hint="make one: rg.tensor(x, dtype=float, requires_grad=True)",
        )
    return found


def _fresh(
    inputs: Sequence[Any], points: Sequence[int], data: Sequence[Array] = ()
) -> list[Any]:
    """Return the inputs with new leaves in place of those that are differentiated."""
    args = list(inputs)
    values = data or [_copied(inputs[k]._data) for k in points]
    for k, x in zip(points, values, strict=True):
        has_memory = isinstance(inputs[k]._data, np.ndarray)
        args[k] = of(x if has_memory else np.asarray(x)[()]).requires_grad_()
    return args


def _copied(x: Any) -> Any:
    return x.copy(order="K") if isinstance(x, np.ndarray) else x


def _differentiable(outputs: Any) -> list[Tensor]:
    return [y for _, y in leaves(outputs) if isinstance(y, Tensor) and y.requires_grad]


def _check_jacobians(
    func: Callable[..., Any],
    inputs: Sequence[Any],
    points: Sequence[int],
    tolerance: _Tolerance,
) -> None:
    """Compare the Jacobian of every output in every input."""
    args = _fresh(inputs, points)
    every = [y for _, y in leaves(func(*args)) if isinstance(y, Tensor)]
    smooth = [k for k, y in enumerate(every) if y.requires_grad]
    wanted = smooth or [k for k, y in enumerate(every) if y.dtype.kind in "fc"]

    def values(xs: list[Array]) -> list[Any]:
        found = leaves(func(*_fresh(inputs, points, xs)))
        ys = [y for _, y in found if isinstance(y, Tensor)]
        return [_copied(ys[k]._data) for k in wanted]

    numerical = jacobians(values, [inputs[k]._data for k in points], tolerance.eps)
    for k, output in enumerate(wanted):
        y = every[output]
        analytical, again = (_rows(y, [args[j] for j in points]) for _ in range(2))
        for j, point in enumerate(points):
            place = _Place(output, point, y, args[point])
            _compare(place, analytical[j], numerical[k][j], tolerance)
            apart = np.max(np.abs(analytical[j] - again[j]), initial=0.0)
            if apart > tolerance.nondet_tol:
                raise GradcheckError(
                    f"gradcheck: the backward pass is not deterministic: two gradients "
                    f"of output {output} in input {point} differ by {apart:.3g}, "
                    f"nondet_tol is {tolerance.nondet_tol:.3g}"
                )


def _rows(y: Tensor, xs: Sequence[Tensor]) -> list[Array]:
    """Return the Jacobians of one output by one backward pass per element."""
    units = (1, 1j) if y.dtype.kind == "c" else (1,)
    rows: list[list[Array]] = [[] for _ in xs]
    for at in np.ndindex(y.shape):
        for unit in units:
            ct = np.zeros(y.shape, y.dtype)
            ct[at] = unit
            grads: tuple[Any, ...] = (None,) * len(xs)
            if y.requires_grad:
                grads = autograd.grad(
                    y, xs, of(ct), retain_graph=True, allow_unused=True
                )
            for row, x, g in zip(rows, xs, grads, strict=True):
                zeros = np.zeros(x.shape, x.dtype)
                row.append(as_reals(zeros if g is None else g._data))
    columns = [as_reals(np.zeros(x.shape, x.dtype)).size for x in xs]
    return [
        np.stack(row) if row else np.zeros((0, n))
        for row, n in zip(rows, columns, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Place:
    """Which Jacobian: of which output in which input."""

    output: int
    input: int
    y: Tensor
    x: Tensor

    def __str__(self) -> str:
        return (
            f"output {self.output}, {self.y.type}, in input {self.input}, {self.x.type}"
        )

    def entry(self, row: int, column: int) -> str:
        """Say which elements an entry of the Jacobian belongs to."""
        return f"output{_index(self.y, row)} in input{_index(self.x, column)}"


def _index(t: Tensor, number: int) -> str:
    part = ""
    if t.dtype.kind == "c":
        number, which = divmod(number, 2)
        part = (".real", ".imag")[which]
    index = ", ".join(str(int(i)) for i in np.unravel_index(number, t.shape or (1,)))
    return (f"[{index}]" if t.shape else "[()]") + part


def _compare(
    place: _Place, analytical: Array, numerical: Array, tolerance: _Tolerance
) -> None:
    allowed = tolerance.atol + tolerance.rtol * np.abs(numerical)
    with np.errstate(invalid="ignore"):
        error = np.abs(analytical - numerical)
    bad = ~(error <= allowed)  # also where it is NaN
    if not bad.any():
        return
    excess = np.where(bad, np.nan_to_num(error - allowed, nan=np.inf), -np.inf)
    row, column = np.unravel_index(np.argmax(excess), excess.shape)
    got, want = analytical[row, column], numerical[row, column]
    raise GradcheckError(
        f"gradcheck: the Jacobian of {place} is not that of differences\n"
        f"numerical:\n{numerical}\nanalytical:\n{analytical}\n"
        f"{np.count_nonzero(bad)} of {bad.size} entries differ; the worst is "
        f"[{row}, {column}], {place.entry(int(row), int(column))}: analytical "
        f"{got:.9g}, numerical {want:.9g}, off by {error[row, column]:.3g} where "
        f"{allowed[row, column]:.3g} is allowed"
    )


# ---------------------------------------------------------------- any order


def check_grads(
    f: Callable[..., Any],
    args: Sequence[Any],
    order: int,
    modes: Sequence[str] = ("fwd", "rev"),
    tolerance: float | None = None,
) -> None:
    """Check derivatives of `f` at `args` up to an order, along random directions.

    `f` is a function of arrays, numbers and containers of them, plain or compiled; what
    is not floating point is left alone. Forward mode ("fwd", `rg.jvp`) and reverse mode
    ("rev", `rg.vjp`) are compared with differences, whose steps follow from how `f`
    bends. What these derivatives compute is then differentiated again, up to `order`,
    in every combination of modes. `tolerance` is relative to the size of what is added
    up, by default 1e-6 in double and 1e-2 in single precision.

    Raises GradcheckError that says which derivative is off, and by how much, or why
    there are no differences to compare with.

    >>> check_grads(lambda x, y: np.sin(x) * y, (np.array([1.0, 2.0]), 3.0), order=2)
    """
    unknown = set(modes) - {"fwd", "rev"}
    if unknown or not modes:
        raise ValueError(f"check_grads: modes are 'fwd' and 'rev', not {modes!r}")
    check = _Check(tuple(modes), tolerance, np.random.default_rng(0))
    try:
        check.run(f, tuple(rebuild(tuple(args), to_numpy)), order, "")
    except GradcheckError as error:
        error.location = user_location()
        raise


@dataclass(frozen=True, slots=True)
class _Check:
    """What all steps of one `check_grads` share."""

    modes: tuple[str, ...]
    tolerance: float | None
    rng: np.random.Generator

    def run(
        self, f: Callable[..., Any], args: tuple[Any, ...], order: int, path: str
    ) -> None:
        """Check one function, then its derivatives."""
        if order < 1:
            return
        value = rebuild(f(*copy_apart(args)), to_numpy)
        weights = rebuild(value, self.weight)
        ways = [draw_direction(x, self.rng) for _, x in leaves(args)]
        remaining = iter(ways)
        tangents = rebuild(args, lambda x: _as(next(remaining), x))
        precision = precision_of([*leaves(args), *leaves(value)])
        reached = self.slope(f, args, ways, value, weights, precision)
        if reached.problem:
            raise GradcheckError(
                f"check_grads: no differences of {path or 'f'}: {reached.problem}",
                hint="check at a point where the function is smooth",
            )

        def forward(primals: Any, tangents: Any) -> Any:
            return jvp(f, primals, tangents)

        def reverse(args: Any, cotangents: Any) -> Any:
            return vjp(f, *args)[1](cotangents)

        found = {
            "fwd": lambda: (weights, jvp(f, args, tangents)[1]),
            "rev": lambda: (tangents, reverse(args, weights)),
        }
        further = {"fwd": (forward, tangents), "rev": (reverse, weights)}
        for mode in self.modes:
            name = f"{mode} of {path}" if path else mode
            products = _products(*found[mode]())
            self.compare(name, products, reached, precision)
            g, vectors = further[mode]
            g = compile(g) if isinstance(f, Compiled) else g
            self.run(g, (args, vectors), order - 1, name)

    def weight(self, y: Any) -> Any:
        """Draw a cotangent for one leaf of a result."""
        return _as(self.rng.standard_normal(np.shape(y)), y) if is_float(y) else None

    def slope(
        self,
        f: Callable[..., Any],
        args: tuple[Any, ...],
        ways: list[Any],
        value: Any,
        weights: Any,
        precision: np.dtype[Any],
    ) -> Slope:
        """Differentiate the weighted result along the directions."""

        def moved(step: float) -> float:
            (xs,) = moved_args((args,), 0, ways, step)
            products = _products(weights, f(*xs))
            return math.fsum(float(p.sum()) for p in products)

        scale = sum(float(np.abs(p).sum()) for p in _products(weights, value))
        with np.errstate(all="ignore"):
            return slope(moved, scale, float(np.finfo(precision).eps))

    def compare(
        self, name: str, products: list[Array], want: Slope, precision: np.dtype[Any]
    ) -> None:
        got = math.fsum(float(p.sum()) for p in products)
        size = max(abs(want.value), *(float(np.abs(p).sum()) for p in products), SMALL)
        relative = (
            TOLERANCES[precision][2] if self.tolerance is None else self.tolerance
        )
        allowed = relative * size + 3 * want.doubt
        if not abs(got - want.value) <= allowed:
            raise GradcheckError(
                f"check_grads: {name} gives {got:.9g} along a direction, differences "
                f"give {want.value:.9g}; {allowed:.1g} is allowed"
            )


def _as(x: Any, like: Any) -> Any:
    """Return a drawn value with the type of a leaf."""
    if x is None:
        return None
    data = np.asarray(x, np.asarray(like).dtype)
    if is_array(like):
        return data
    return data[()] if isinstance(like, np.generic) else data.item()


def _products(a: Any, b: Any) -> list[Array]:
    """Multiply two structures leaf by leaf, leaving out what has no derivative."""
    pairs = zip(leaves(a), leaves(rebuild(b, to_numpy)), strict=True)
    return [
        np.asarray(x, np.float64) * np.asarray(y, np.float64)
        for (_, x), (_, y) in pairs
        if x is not None and y is not None
    ]
