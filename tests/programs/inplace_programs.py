"""Whole NumPy programs that write in place and through views, with their arguments."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Rng = np.random.Generator


class Case(NamedTuple):
    """A program, how to draw its arguments, and its keyword arguments."""

    function: Callable[..., Any]
    draw: Callable[[Rng], tuple[Any, ...]]
    kwargs: dict[str, Any]

    @property
    def name(self) -> str:
        return self.function.__name__

    def args(self) -> tuple[Any, ...]:
        """Draw arguments that depend on nothing but the program's name."""
        return self.draw(np.random.default_rng(zlib.crc32(self.name.encode())))


CASES: list[Case] = []


def case(
    draw: Callable[[Rng], tuple[Any, ...]], **kwargs: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add a program to the list."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES.append(Case(function, draw, kwargs))
        return function

    return add


def normal(*shapes: tuple[int, ...]) -> Callable[[Rng], tuple[Any, ...]]:
    return lambda rng: tuple(rng.standard_normal(shape) for shape in shapes)


def positive(*shapes: tuple[int, ...]) -> Callable[[Rng], tuple[Any, ...]]:
    return lambda rng: tuple(rng.uniform(0.5, 2.0, shape) for shape in shapes)


# Views.


@case(normal((3, 4)))
def row_doubled(x: Array) -> Any:
    y = x**2
    v = y[0]
    v *= 2
    return y


@case(normal((4, 4)))
def row_and_column_cross(x: Array) -> Any:
    y = x**2
    row, column = y[0, :], y[:, 0]
    row *= 2
    column += row
    return np.sum(row * column)


@case(normal((5, 4)))
def view_of_a_view(x: Array) -> Any:
    y = x * 1.0
    block = y[1:4].T[1:3]
    inner = block[0, ::2]
    inner *= 3.0
    return y, block.sum()


@case(normal((9,)))
def negative_steps(x: Array) -> Any:
    y = np.sin(x)
    back = y[::-2]
    back[1:] *= back[:-1]
    return y


@case(normal((4, 4)))
def diagonal_through_flat_stride(x: Array) -> Any:
    y = x.copy()
    flat = y.reshape(-1)
    flat[::5] += 10.0
    return y @ y


@case(normal((6,)))
def reshaped_view_is_written(x: Array) -> Any:
    y = 2.0 * x
    grid = y.reshape(2, 3)
    grid[:, 1] = 0.0
    grid[1] -= grid[0]
    return y


@case(normal((3, 4)))
def reshape_of_a_transpose_is_a_copy(x: Array) -> Any:
    y = x + 0.0
    copy = y.T.reshape(-1)
    copy *= 5.0
    return y.sum() + np.sum(copy**2)


@case(normal((2, 3, 4)))
def axes_moved_and_written(x: Array) -> Any:
    y = x * x
    z = np.moveaxis(y, 2, 0)
    z[1:3, :, 0] -= 1.0
    return np.swapaxes(y, 0, 1)


@case(normal((3, 4), (4,)))
def new_axis_and_ellipsis(x: Array, w: Array) -> Any:
    y = x.copy()
    y[..., 1] *= w[0]
    return y[:, None, :] * w[None, None, :]


@case(normal((5,)))
def halves_swap_through_temporary(x: Array) -> Any:
    y = np.exp(x)
    kept = y[:2].copy()
    y[:2] = y[3:]
    y[3:] = kept
    return y


# Overlapping operands: read before written.


@case(normal((8,)))
def shift_onto_itself(x: Array) -> Any:
    y = x * 1.0
    y[1:] += y[:-1]
    y[:-2] = y[2:]
    return y


@case(normal((5, 5)))
def diagonal_shift_onto_itself(x: Array) -> Any:
    x[1:, 1:] = x[:-1, :-1] * x[1:, :-1]
    return np.sum(x)


@case(normal((4, 4)))
def added_to_own_transpose(x: Array) -> Any:
    y = np.tanh(x)
    y += y.T
    return y


@case(normal((7,)))
def reversed_onto_itself(x: Array) -> Any:
    x[:] = x[::-1] * 2.0
    return x[1:3]


# Arguments.


@case(normal((6,), (6,)))
def both_arguments_change(a: Array, b: Array) -> Any:
    a *= b
    b[::2] = a[1::2]
    return np.sum(a * b)


@case(normal((4, 3)))
def argument_view_is_returned(x: Array) -> Any:
    x[0] = 0.0
    return x[1:, ::2], x.T


@case(lambda rng: (rng.standard_normal((4, 6)).T, rng.standard_normal(12)[::-2]))
def strided_arguments(x: Array, y: Array) -> Any:
    x[:, 0] += y
    y -= x[:, 1]
    return x * y[:, None]


@case(lambda rng: (rng.standard_normal(5), 0.3), power=3)
def number_and_keyword(x: Array, a: float, *, power: int = 2) -> Any:
    x -= a
    x **= power
    return np.mean(x) * a


@case(lambda rng: ({"w": rng.standard_normal((3, 2)), "b": [rng.standard_normal(2)]},))
def containers(params: dict[str, Any]) -> Any:
    params["w"] *= 2.0
    params["b"][0] += params["w"][0]
    return {"sum": params["w"].sum(), "bias": params["b"]}


@dataclass
class Particles:
    """Positions and velocities of a simulation."""

    position: Array
    velocity: Array


@case(lambda rng: (Particles(*normal((5, 2), (5, 2))(rng)), 0.1))
def dataclass_is_updated(state: Particles, dt: float) -> Any:
    for _ in range(2):
        state.velocity -= dt * np.sin(state.position)
        state.position += dt * state.velocity
    return np.sum(state.position**2)


# Broadcasting and reductions.


@case(normal((3, 4), (3, 1), (4,)))
def broadcast_into_a_block(x: Array, column: Array, row: Array) -> Any:
    y = np.zeros((4, 5))
    y[1:, 1:] = x * column
    y[1:] += column
    y[:, :4] -= row
    return y


@case(normal((4, 5)))
def rows_are_normalised(x: Array) -> Any:
    x -= x.mean(axis=1, keepdims=True)
    x /= np.sqrt(np.sum(x**2, axis=1, keepdims=True))
    return x.sum(axis=0)


@case(normal((3, 5)))
def stable_softmax(z: Array) -> Any:
    z -= z.max(axis=1, keepdims=True)
    np.exp(z, out=z)
    z /= z.sum(axis=1, keepdims=True)
    return z


@case(positive((3, 4)))
def products_and_variances(x: Array) -> Any:
    y = np.prod(x, axis=0)
    y[1:] *= np.var(x, axis=0)[1:]
    return y + np.std(x)


@case(normal((2, 3, 4)))
def reduced_over_two_axes(x: Array) -> Any:
    x[:, 1:] *= x[:, :1]
    return x.sum(axis=(0, 2)), x.min(), x.max(axis=-1)


@case(normal((6,)))
def running_sums(x: Array) -> Any:
    y = np.cumsum(x)
    y[::2] -= y[1::2]
    return y


# Masks and integer arrays.


@case(normal((10,)))
def mask_is_written(x: Array) -> Any:
    y = x * 3.0
    y[x < 0] = 0.0
    y[x > 0.5] *= x[x > 0.5]
    return y


@case(normal((4, 4)))
def where_of_a_view(x: Array) -> Any:
    top = x[:2]
    top[...] = np.where(top > 0, top, 0.1 * top)
    return np.sum(x * np.maximum(x, 0.2))


@case(lambda rng: (rng.standard_normal((5, 3)), np.array([3, 0, 3])))
def rows_are_gathered(x: Array, index: Array) -> Any:
    y = x[index]
    y[0] = 7.0
    return y * x[1]


@case(lambda rng: (rng.standard_normal(5), np.array([1, 1, 4]), rng.standard_normal(3)))
def duplicate_indices(x: Array, index: Array, v: Array) -> Any:
    y = x.copy()
    y[index] += v
    z = np.zeros(5)
    z[index] = v * 2.0
    return y, z


@case(lambda rng: (rng.standard_normal((4, 5)), np.array([0, 4, 2, 2])))
def entries_are_picked(z: Array, labels: Array) -> Any:
    rows = np.arange(4)
    picked = z[rows, labels]
    z[rows, labels] -= 1.0
    return np.sum(picked) + np.sum(z**2)


# Matrices.


@case(normal((3, 4), (4, 2), (2,)))
def layer(x: Array, w: Array, b: Array) -> Any:
    h = x @ w
    h += b
    np.tanh(h, out=h)
    return np.sum(h)


@case(normal((4, 4), (4,)))
def matrix_and_vectors(a: Array, x: Array) -> Any:
    a[1] = a @ x
    a += np.outer(x, a[1])
    return np.dot(x, a @ x)


@case(lambda rng: (rng.standard_normal((4, 4)) + 6 * np.eye(4), rng.standard_normal(4)))
def forward_substitution(a: Array, b: Array) -> Any:
    for i in range(4):
        b[i] = (b[i] - a[i, :i] @ b[:i]) / a[i, i]
    return b


@case(normal((2, 3), (2, 2)))
def joined_and_split(x: Array, y: Array) -> Any:
    z = np.concatenate([x, y], axis=1)
    left, right = np.split(z, [2], axis=1)
    left *= right[:, :2]
    return np.stack([z[0], z[1] * 2.0])


# Loops that are unrolled.


@case(lambda rng: (rng.standard_normal(10), 0.2))
def heat_rod(u: Array, k: float) -> Any:
    for _ in range(3):
        u[1:-1] += k * (u[2:] - 2 * u[1:-1] + u[:-2])
    return np.sum(u**2)


@case(normal((5,), (5,)))
def recurrence(a: Array, b: Array) -> Any:
    for i in range(1, 5):
        b[i] = b[i - 1] * a[i] + b[i]
    return b[-1]


@case(normal((4, 4)))
def sweep_by_rows(a: Array) -> Any:
    for i in range(1, 4):
        a[i] += 0.5 * a[i - 1]
    for row in a:
        row[0] = row[-1]
    return a


# Numbers, empty arrays, single precision.


@case(lambda rng: (np.asarray(1.3), rng.standard_normal(3)))
def zero_dimensions(s: Array, x: Array) -> Any:
    s *= x[0]
    t = x[1]
    t += s[()]
    x[1] = 2.0 * t
    return t, s


@case(lambda rng: (np.zeros((0, 3)), rng.standard_normal((2, 3))))
def nothing_to_do(x: Array, y: Array) -> Any:
    x *= 2.0
    y[5:] = 1.0
    y[:, 1:1] *= 3.0
    return np.concatenate([x, y]).sum(axis=0)


@case(lambda rng: tuple(a.astype(np.float32) for a in normal((4, 5), (5,))(rng)))
def single_precision(x: Array, y: Array) -> Any:
    x *= 0.1
    x[1:] += np.exp(-y)
    return x / (1.0 + np.sum(y**2))


@case(lambda rng: (rng.standard_normal(4).astype(np.float32), rng.standard_normal(4)))
def mixed_precision(x: Array, y: Array) -> Any:
    x += y
    z = x * y
    z[::2] = x[::2]
    return z


@case(lambda rng: (np.arange(6), rng.standard_normal(6)))
def integers_are_written(n: Array, x: Array) -> Any:
    n[1:] += n[:-1]
    x *= n
    return x, n % 3


@case(positive((3, 3)))
def swap_of_numbers(x: Array) -> Any:
    x[0, 0], x[2, 2] = x[2, 2], x[0, 0]
    x[1], x[2] = x[2].copy(), x[1].copy()
    return np.log(x).sum()
