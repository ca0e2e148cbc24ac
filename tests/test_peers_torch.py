"""Random programs give the values, gradients and graphs that PyTorch gives.

    pytest -m peers

A program is a list of steps over a pool of tensors: operations, views of views, writes
through views, `detach`, `no_grad`, `retain_grad`, `backward`. It runs step by step in
both; after every step all tensors are compared: values, what they know about their
graph, and the names of all nodes that can be reached. Where PyTorch raises, eager mode
raises an error of the same class. Programs stay in the common subset: operands do not
overlap with what is written in part, since there values are NumPy's.
"""

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import retrograde as rg

torch: Any = pytest.importorskip("torch", exc_type=ImportError)
pytestmark = pytest.mark.peers

STARTS = [(3,), (2, 3), (3, 2)]


@dataclass
class Pool:
    """The tensors of one program in both libraries, in pairs."""

    pairs: list[tuple[Any, Any]] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)  # which share memory

    def add(self, ours: Any, theirs: Any, root: int | None = None) -> None:
        self.pairs.append((ours, theirs))
        self.roots.append(len(self.roots) if root is None else self.roots[root])

    def pick(self, k: int, *shapes: tuple[int, ...]) -> int | None:
        """Return the number of a tensor, of one of the shapes if any are given."""
        fits = [
            j
            for j, (a, _) in enumerate(self.pairs)
            if not shapes or tuple(a.shape) in shapes
        ]
        return fits[k % len(fits)] if fits else None


class Outcome(Exception):
    """A step raised in both, as it should."""


class Stop(Exception):
    """From here on the two may differ."""


TWICE = "Trying to backward through the graph a second time"
OVERWRITTEN = "one of the variables needed for gradient computation has been modified"


def both(pool: Pool, step: Callable[[Any, Any], Any], *numbers: int) -> tuple[Any, Any]:
    """Run a step in both libraries; the errors must be of one class."""
    results: list[Any] = []
    errors: list[Exception | None] = []
    for side, xp in enumerate((np, torch)):
        operands = [pool.pairs[j][side] for j in numbers]
        try:
            results.append(step(xp, *operands))
            errors.append(None)
        except Exception as error:
            results.append(None)
            errors.append(error)
    mine, other = errors
    if mine is None and other is None:
        return results[0], results[1]
    if mine is None and (OVERWRITTEN in str(other) or TWICE in str(other)):
        raise Stop  # eager mode has a copy of its own, or has saved nothing
    if other is None and str(mine).startswith(f"DivBackward0: {OVERWRITTEN}"):
        raise Stop  # the derivative of a quotient reads it; PyTorch's divides again
    assert mine is not None, f"PyTorch raises {type(other).__name__}: {other}"
    assert other is not None, f"PyTorch does not raise {type(mine).__name__}: {mine}"
    assert isinstance(mine, type(other)), (mine, other)
    assert (OVERWRITTEN in str(mine)) == (OVERWRITTEN in str(other)), (mine, other)
    raise Outcome


# ---------------------------------------------------------------- steps

UNARY = ["exp", "sin", "tanh", "negative", "square", "cos"]
BINARY = [
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: a / (b * b + 1.0),
]
NUMBERS = [
    lambda a: a * 1.5,
    lambda a: 2.0 - a,
    lambda a: a + 0.5,
    lambda a: a / 2.0,
    lambda a: a**2,
    lambda a: -a,
]
WRITES = ["add_", "mul_", "sub_", "copy_", "div_"]
WRITES_ALONE = [
    lambda t: t.mul_(1.5),
    lambda t: t.add_(0.5),
    lambda t: t.zero_(),
    lambda t: t.fill_(0.25),
    lambda t: t.exp_(),
    lambda t: t.sin_(),
    lambda t: t.neg_(),
    lambda t: t.pow_(2),
]


def views_of(
    shape: tuple[int, ...], k: int, contiguous: bool
) -> list[Callable[[Any], Any]]:
    """Return views that both libraries know, and that give at least one axis.

    What a reshape of strided memory is depends on its layout, which is NumPy's.
    """
    n = shape[0]
    found: list[Callable[[Any], Any]] = [
        lambda t: t[k % n : k % n + 1],
        lambda t: t[k % n :],
        lambda t: t[: 1 + k % n],
        lambda t: t[::2],
        lambda t: t[None],
        lambda t: t[..., None],
    ]
    if len(shape) > 1:
        m = shape[-1]
        found += [
            lambda t: t[k % n],
            lambda t: t[-1],
            lambda t: t[:, k % m],
            lambda t: t[..., k % m],
            lambda t: t[:, k % m : k % m + 1],
            lambda t: t[1:, :-1] if n > 1 and m > 1 else t[:1],
            lambda t: t.reshape(-1) if contiguous else t[:1],
            lambda t: t.swapaxes(0, 1),
            lambda t: t.T if len(shape) == 2 else t[0],
            lambda t: t.diagonal() if len(shape) == 2 else t[0],
        ]
    elif contiguous:
        found += [lambda t: t.reshape(n, 1), lambda t: t.reshape(1, n)]
    return found


def unary(pool: Pool, a: int, b: int, c: int) -> None:
    j = pool.pick(a)
    f = UNARY[b % len(UNARY)]
    pool.add(*both(pool, lambda xp, x: getattr(xp, f)(x), j))


def number(pool: Pool, a: int, b: int, c: int) -> None:
    f = NUMBERS[b % len(NUMBERS)]
    pool.add(*both(pool, lambda xp, x: f(x), pool.pick(a)))


def binary(pool: Pool, a: int, b: int, c: int) -> None:
    i = pool.pick(a)
    shape = tuple(pool.pairs[i][0].shape)
    j = pool.pick(b, shape, shape[-1:], (1,), ())
    f = BINARY[c % len(BINARY)]
    pool.add(*both(pool, lambda xp, x, y: f(x, y), i, j))


def product(pool: Pool, a: int, b: int, c: int) -> None:
    i = pool.pick(a, (2, 3))
    j = pool.pick(b, (3, 2), (3,))
    if i is not None and j is not None:
        pool.add(*both(pool, lambda xp, x, y: x @ y, i, j))


def reduction(pool: Pool, a: int, b: int, c: int) -> None:
    i = pool.pick(a)
    axis = b % pool.pairs[i][0].ndim if pool.pairs[i][0].ndim else None
    if c % 2 or axis is None:
        pool.add(*both(pool, lambda xp, x: x.sum(), i))
    else:
        pool.add(*both(pool, lambda xp, x: x.sum(axis), i))


def is_contiguous(ours: Any, theirs: Any) -> bool:
    steps = tuple(s * theirs.element_size() for s in theirs.stride())
    return theirs.is_contiguous() and ours.strides == steps


def view(pool: Pool, a: int, b: int, c: int) -> None:
    i = pool.pick(a)
    shape = tuple(pool.pairs[i][0].shape)
    if shape and len(shape) < 4:
        views = views_of(shape, c, is_contiguous(*pool.pairs[i]))
        f = views[b % len(views)]
        pool.add(*both(pool, lambda xp, x: f(x), i), root=i)


def write(pool: Pool, a: int, b: int, c: int) -> None:
    """Write one tensor into another, which it does not overlap in part."""
    i = pool.pick(a)
    shape = tuple(pool.pairs[i][0].shape)
    j = pool.pick(b, shape, shape[-1:], (1,))
    if shape and j is not None and (i == j or pool.roots[i] != pool.roots[j]):
        f = WRITES[c % len(WRITES)]
        both(pool, lambda xp, x, y: getattr(x, f)(y), i, j)


def write_alone(pool: Pool, a: int, b: int, c: int) -> None:
    i = pool.pick(a)
    f = WRITES_ALONE[b % len(WRITES_ALONE)]
    if pool.pairs[i][0].ndim:  # a sum is a NumPy scalar
        both(pool, lambda xp, x: f(x), i)


def assign(pool: Pool, a: int, b: int, c: int) -> None:
    """Assign to a part: a tensor that does not share memory, or a number."""
    i = pool.pick(a)
    shape = tuple(pool.pairs[i][0].shape)
    if not shape:
        return
    k = c % shape[0]
    part = shape[1:]
    j = pool.pick(b, part, (1,) if part else (), ())

    def put(xp: Any, x: Any, y: Any) -> None:
        x[k] = y

    def put_number(xp: Any, x: Any) -> None:
        x[k:] = 0.5

    if j is not None and pool.roots[i] != pool.roots[j] and b % 3:
        both(pool, put, i, j)
    else:
        both(pool, put_number, i)


def detach(pool: Pool, a: int, b: int, c: int) -> None:
    i = pool.pick(a)
    if b % 2:
        pool.add(*both(pool, lambda xp, x: x.detach(), i), root=i)
    else:
        pool.add(*both(pool, lambda xp, x: x.clone(), i))


def quietly(pool: Pool, a: int, b: int, c: int) -> None:
    """Write or compute under `no_grad`; views made there are another matter."""
    with rg.no_grad(), torch.no_grad():
        (write_alone, number)[c % 2](pool, a, b, c // 2)


def retain(pool: Pool, a: int, b: int, c: int) -> None:
    both(pool, lambda xp, x: x.retain_grad(), pool.pick(a))


def require(pool: Pool, a: int, b: int, c: int) -> None:
    """Ask for a gradient; PyTorch loses that of views made before."""
    i = pool.pick(a)
    if pool.roots.count(pool.roots[i]) == 1:
        both(pool, lambda xp, x: x.requires_grad_(), i)


def backward(pool: Pool, a: int, b: int, c: int) -> None:
    keep = bool(b % 2)

    def run(xp: Any, x: Any) -> None:
        ct = np.linspace(1.0, 2.0, int(np.prod(x.shape))).reshape(tuple(x.shape))
        x.backward(rg.tensor(ct) if xp is np else torch.tensor(ct), retain_graph=keep)

    try:
        both(pool, run, pool.pick(a))
    except Outcome:  # half done: which leaves have got their gradients is left open
        raise Stop from None


STEPS = {
    f.__name__: f
    for f in (
        unary,
        number,
        binary,
        product,
        reduction,
        view,
        write,
        write_alone,
        assign,
        detach,
        quietly,
        retain,
        require,
        backward,
    )
}
# Views and writes are what this is about.
CHOICES = [*STEPS, "view", "view", "view", "write", "write_alone", "assign", "binary"]
Program = list[tuple[str, int, int, int]]
SMALL = st.integers(0, 47)
PROGRAMS = st.lists(
    st.tuples(st.sampled_from(CHOICES), SMALL, SMALL, SMALL), min_size=3, max_size=16
)


# ---------------------------------------------------------------- comparison


# Names that are PyTorch's for one of several functions where we have one op; the number
# at the end of a name is that of an overload.
STEMS = {
    "Rsub": "Sub",  # number - tensor
    "Fill": "Copy",  # a number written into the whole of a tensor
    "Zero": "Copy",
    "Transpose": "Permute",
    "Alias": "Slice",  # of all
}


def stem(node: Any) -> str:
    """Return what a node is called, whichever overload made it."""
    name = re.sub(r"Backwards?\d*$", "", node.name().split("::")[-1])
    return STEMS.get(name, name)


def graph_of(node: Any) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the names of all nodes below, each with its inputs.

    Of a `CopySlices` only the base is followed: PyTorch's hides the op that computed
    what was written, ours has it as its other input.
    """
    numbers: dict[Any, int] = {}
    found: list[tuple[str, tuple[Any, ...]]] = []

    def visit(n: Any) -> int:
        if n not in numbers:
            numbers[n] = k = len(found)
            found.append((stem(n), ()))
            inputs = n.next_functions[: 1 if stem(n) == "CopySlices" else None]
            below = [(visit(m), nr) for m, nr in inputs if m is not None]
            found[k] = (stem(n), tuple(below))
        return numbers[n]

    if node is not None:
        visit(node)
    return found


def compare(ours: Any, theirs: Any) -> None:
    """Compare one tensor: its value, its gradient, its place in the graph."""
    assert tuple(ours.shape) == tuple(theirs.shape)
    same(ours, theirs)
    marks = (ours.requires_grad, ours.is_leaf, ours._is_view())
    wanted = (theirs.requires_grad, theirs.is_leaf, theirs._is_view())
    assert marks == wanted, f"requires_grad, is_leaf are {marks}, in PyTorch {wanted}"
    mine, wanted = graph_of(ours.grad_fn), graph_of(theirs.grad_fn)
    assert mine == wanted, f"the graph is {mine}, in PyTorch {wanted}"
    if ours.is_leaf or theirs.retains_grad:
        assert (ours.grad is None) == (theirs.grad is None)
        if ours.grad is not None:
            same(ours.grad, theirs.grad)


def same(ours: Any, theirs: Any) -> None:
    a, b = ours.tolist(), theirs.tolist()  # of numpy() eager mode would take note
    np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def run(program: Program) -> None:
    pool = Pool()
    for k, shape in enumerate(STARTS):
        data = np.linspace(0.1, 0.9, int(np.prod(shape))).reshape(shape) + 0.1 * k
        pool.add(
            rg.tensor(data, requires_grad=k != 1),
            torch.tensor(data, requires_grad=k != 1),
        )
    for step, a, b, c in program:
        with contextlib.suppress(Outcome):
            STEPS[step](pool, a, b, c)
        for ours, theirs in pool.pairs:
            compare(ours, theirs)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@settings(
    max_examples=500,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(PROGRAMS)
def test_random_programs_are_pytorchs(program: Program) -> None:
    with np.errstate(all="ignore"), contextlib.suppress(Stop):
        run(program)
