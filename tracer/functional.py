"""Derivatives as functions: jvp, linearize, jacobian, hessian, hvp, elementwise_grad.

Made of `Linear`, which pushes tangents forward and pulls cotangents back, and like
`grad`: of a plain function they run eagerly, of a compiled one they are compiled. A
Jacobian has one row per element of the result; compiled, its rows are the iterations of
one loop, and what does not depend on the row is computed before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..ir.errors import DTypeError, GradientError
from ..ir.op import OPS
from ..runtime.devices import DeviceArray
from . import dispatch
from .containers import Tree, flatten_tree, unflatten_tree
from .convert import active_operators
from .devices import copied
from .jit import Compiled
from .linearize import Linear
from .linearize import linearize as linear_at
from .location import user_location
from .rewind import Captured
from .tensor import Tensor
from .transforms import (
    Argnums,
    Grad,
    Transform,
    ValueOf,
    check_argnums,
    derive,
    described,
    filled,
    function_location,
    grad,
    is_differentiable,
    leaves_of,
    matched,
    snapshot,
)


def _head(linear: Linear, has_aux: bool, fn: Any) -> Tree:
    """Return the structure of what is differentiated: its leaves come first."""
    tree = linear.tree
    if not has_aux:
        return tree
    if tree.kind is not tuple or len(tree.children) != 2:
        raise GradientError(
            "has_aux needs a function that returns (result, aux)",
            location=function_location(fn),
            hint="return a tuple of two, or leave has_aux out",
        )
    return tree.children[0]


# ---------------------------------------------------------------- forward mode


class _Pushed:
    """A function at a point, to be pushed: value and tangents in their structures."""

    def __init__(self, fn: Any, primals: tuple[Any, ...], has_aux: bool) -> None:
        self.fn = fn
        self.leaves, self.tree = flatten_tree(primals)
        self.wrt = [j for j, x in enumerate(self.leaves) if is_differentiable(x)]
        self.linear = linear_at(fn, primals, {}, self.wrt)
        self.head = _head(self.linear, has_aux, fn)

    @property
    def value(self) -> Any:
        return unflatten_tree(self.linear.tree, self.linear.leaves)

    def push(self, tangents: tuple[Any, ...]) -> Any:
        given = matched(self.tree, tangents, "tangent", "argument")
        for x, t in zip(self.leaves, given, strict=True):
            _check_tangent(x, t, self.fn)
        pushed = self.linear.push([given[j] for j in self.wrt])
        return unflatten_tree(self.head, pushed[: self.head.leaves])


def _check_tangent(x: Any, t: Any, fn: Any) -> None:
    """Raise where a tangent has not the dtype of its argument."""
    if t is None:
        return
    name = getattr(fn, "__name__", "f")
    what = f"a tangent {described(t)} for an argument {described(x)} of {name}"
    if not is_differentiable(x):
        raise DTypeError(
            what,
            location=user_location(),
            rule="Only floating point arguments have tangents.",
            hint="give None as its tangent, or convert the argument to float64",
        )
    want = np.dtype(getattr(x, "dtype", np.float64))
    have = want if type(t) in (int, float) else getattr(t, "dtype", np.dtype(object))
    if have != want:
        raise DTypeError(
            what,
            location=user_location(),
            rule="A tangent has the dtype of its argument.",
            hint=f"convert it: v.astype({want.name!r})",
        )


class _Jvp(Transform):
    """(primals, tangents) -> value and its tangent, perhaps aux."""

    prefix = "jvp"

    def __init__(self, fn: Callable[..., Any], has_aux: bool) -> None:
        super().__init__(fn)
        self.has_aux = has_aux

    def __call__(self, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
        at = _Pushed(self.fn, primals, self.has_aux)
        tangent = at.push(tangents)
        at.linear.write_back()
        value = at.value
        return (value[0], tangent, value[1]) if self.has_aux else (value, tangent)


def _check_pair(what: str, primals: Any, tangents: Any) -> tuple[Any, Any]:
    """Return primals and tangents as tuples of the same length."""
    for name, x in (("primals", primals), ("tangents", tangents)):
        if type(x) not in (tuple, list):
            raise TypeError(
                f"{what}: {name} must be a tuple with one entry per argument of the "
                f"function, not {type(x).__name__}; write (x,) for one argument"
            )
    if len(primals) != len(tangents):
        raise TypeError(f"{what}: {len(primals)} arguments, {len(tangents)} tangents")
    return tuple(primals), tuple(tangents)


def jvp(
    f: Callable[..., Any],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    has_aux: bool = False,
) -> Any:
    """Return `(f(*primals), tangent)`: the value, and how it moves with its arguments.

    `primals` and `tangents` have one entry per argument. A tangent has the structure,
    shapes and dtypes of its argument; None stands for zeros, and is the only tangent of
    what is not floating point. With `has_aux`, `f` returns `(result, aux)` and the
    result is `(value, tangent, aux)`. No argument is changed. Of a compiled function it
    is compiled: tangents go forward with the values, and loops save nothing.

    >>> jvp(lambda x: x**2, (np.array([1.0, 2.0]),), (np.array([1.0, 0.5]),))
    (array([1., 4.]), array([2., 2.]))
    """
    primals, tangents = _check_pair("jvp", primals, tangents)
    pushed = derive(f, ("jvp", has_aux), lambda fn: _Jvp(fn, has_aux))
    return pushed(primals, tangents)


def linearize(
    f: Callable[..., Any], *primals: Any, has_aux: bool = False
) -> tuple[Any, ...]:
    """Return `(value, push)` of `f` at `primals`, where `push` is its derivative there.

    `push(*tangents)` takes one tangent per argument, as `jvp` does, and returns that of
    the value. It may be called again. With `has_aux` the result is `(value, push,
    aux)`. Eagerly `f` runs once; of a compiled function each push is one compiled call.

    >>> value, push = linearize(lambda x: x**2, np.array([1.0, 2.0]))
    >>> value, push(np.array([1.0, 0.5])), push(np.array([0.0, 1.0]))
    (array([1., 4.]), array([2., 2.]), array([0., 4.]))
    """
    push: Callable[[tuple[Any, ...]], Any]
    if isinstance(f, Compiled) and dispatch.active_trace() is None:
        leaves, tree = flatten_tree(primals)
        saved = unflatten_tree(tree, [snapshot(x) for x in leaves])
        captured = Captured(f.fn)
        value = derive(f, ("value", False), ValueOf)(*saved)
        pushed = derive(f, ("jvp", has_aux), lambda fn: _Jvp(fn, has_aux))

        def push(tangents: tuple[Any, ...]) -> Any:
            with captured.as_then():
                return pushed(saved, tangents)[1]

    else:
        at = _Pushed(f.fn if isinstance(f, Compiled) else f, primals, has_aux)
        at.linear.write_back()
        value, push = at.value, at.push

    def push_all(*tangents: Any) -> Any:
        return push(_check_pair("linearize", primals, tangents)[1])

    return (value[0], push_all, value[1]) if has_aux else (value, push_all)


# ---------------------------------------------------------------- Jacobians


class _Jacobian(Transform):
    prefix = "jacobian"

    def __init__(self, fn: Callable[..., Any], argnums: Argnums, has_aux: bool) -> None:
        super().__init__(fn)
        self.argnums = argnums
        self.has_aux = has_aux

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        argnums = self.argnums if isinstance(self.argnums, tuple) else (self.argnums,)
        groups = [leaves_of(args, k, self.fn) for k in argnums]
        leaves, _ = flatten_tree(tuple(args))
        wrt = [j for group in groups for j in group.positions]
        linear = linear_at(self.fn, args, kwargs, wrt)
        head = _head(linear, self.has_aux, self.fn)
        points = [leaves[j] for j in wrt]
        parts: list[Any] = []
        for k in range(head.leaves):
            blocks = _rows(linear, k, points, self.fn)
            part = None if blocks is None else filled(groups, iter(blocks))
            if part is not None and not isinstance(self.argnums, tuple):
                (part,) = part
            parts.append(part)
        linear.write_back()
        out = unflatten_tree(head, parts)
        if not self.has_aux:
            return out
        return out, unflatten_tree(linear.tree, linear.leaves)[1]


def _rows(linear: Linear, k: int, points: Sequence[Any], fn: Any) -> list[Any] | None:
    """Return the derivative of result leaf `k` in each point, by rows.

    A row is the gradient of one element. None where the result has no value.
    """
    y = linear.leaves[k]
    if y is None:
        return None
    if not is_differentiable(y):
        raise DTypeError(
            f"jacobian: the result is {described(y)}, which has no derivative",
            location=function_location(fn),
            rule="Only floating point results can be differentiated.",
            hint="return it as aux, with has_aux=True",
        )
    shape = _shape(y)
    if not shape:
        return linear.pull([1.0 if j == k else None for j in range(len(linear.leaves))])
    pull = linear.pulling(k)
    blocks = [_filled_with(0.0, (y.size, *_shape(x)), x, y) for x in points]

    def row(i: Any) -> None:
        ct = _filled_with(0.0, (y.size,), y, y)
        ct[i] = 1.0
        for block, g in zip(blocks, pull(ct.reshape(shape)), strict=True):
            block[i] = g

    active_operators().each(y.size, row)
    return [
        block.reshape((*shape, *_shape(x)))
        for block, x in zip(blocks, points, strict=True)
    ]


def _shape(x: Any) -> tuple[Any, ...]:
    return tuple(getattr(x, "shape", ()))


def _filled_with(value: float, shape: tuple[Any, ...], like: Any, y: Any) -> Any:
    """Return a fresh array of a shape where `y` is, or a Tensor if `y` is one."""
    dtype = np.dtype(getattr(like, "dtype", np.float64))
    if isinstance(y, Tensor):
        t = dispatch.apply(OPS["full"], (value,), {"shape": shape, "dtype": dtype})
        return t if y.is_traced else t.to(y.device)
    a = np.full(shape, value, dtype)
    return copied(a, y.device) if isinstance(y, DeviceArray) else a


def jacobian(
    f: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return the function that computes the Jacobian of `f`, of any shapes.

    For a result of shape `(m,)` and an argument of shape `(n,)` it has shape `(m, n)`,
    in general that of the result followed by that of the argument. Results and
    arguments may be containers: then the structure of the result has, in each place,
    that of the argument. `argnums` and `has_aux` are those of `grad`. Each row is one
    pull of the pullback; of a compiled function the rows are one compiled loop.

    >>> jacobian(lambda x: x[:2] * x[2])(np.array([1.0, 2.0, 3.0]))
    array([[3., 0., 1.],
           [0., 3., 2.]])
    """
    argnums = check_argnums(argnums)
    key = ("jacobian", argnums, has_aux)
    return derive(f, key, lambda fn: _Jacobian(fn, argnums, has_aux))  # type: ignore[no-any-return]


def hessian(
    f: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return the function that computes the Hessian of a scalar function.

    It is the Jacobian of the gradient: for an argument of shape `(n,)` an array of
    shape `(n, n)`. Of a container it has the structure of the container in each place
    of the container, as `h["a"]["b"]`, and with a tuple of `argnums` there is a tuple
    of tuples. With `has_aux`, `f` returns `(loss, aux)` and the result is `(hessian,
    aux)`.

    >>> hessian(lambda x: x[0] ** 2 * x[1])(np.array([1.0, 2.0]))
    array([[4., 2.],
           [2., 0.]])
    """
    return jacobian(grad(f, argnums, has_aux), argnums, has_aux)


def hvp(
    f: Callable[..., Any], primals: Sequence[Any], vectors: Sequence[Any]
) -> tuple[Any, ...]:
    """Return the product of the Hessian of a scalar function with vectors.

    `primals` and `vectors` have one entry per argument, as for `jvp`; the result has
    one per argument, too, with None where the argument is not floating point. It is the
    tangent of the gradient, so it costs a few times what the gradient does.

    >>> x, v = np.array([1.0, 2.0]), np.array([1.0, 0.0])
    >>> hvp(lambda x: x[0] ** 2 * x[1], (x,), (v,))
    (array([4., 2.]),)
    """
    gradient = derive(f, ("grad", None), lambda fn: Grad(fn, None, False, False))
    primals, vectors = _check_pair("hvp", primals, vectors)
    product: tuple[Any, ...] = jvp(gradient, primals, vectors)[1]
    return product


class _ElementwiseGrad(Transform):
    prefix = "elementwise_grad"

    def __init__(self, fn: Callable[..., Any], argnums: Argnums) -> None:
        super().__init__(fn)
        self.argnums = argnums

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        argnums = self.argnums if isinstance(self.argnums, tuple) else (self.argnums,)
        groups = [leaves_of(args, k, self.fn) for k in argnums]
        wrt = [j for group in groups for j in group.positions]
        linear = linear_at(self.fn, args, kwargs, wrt)
        cotangents = [_ones(y) for y in linear.leaves]
        parts = filled(groups, iter(linear.pull(cotangents)))
        linear.write_back()
        return parts if isinstance(self.argnums, tuple) else parts[0]


def _ones(y: Any) -> Any:
    """Return a cotangent of ones, or None for what has no derivative."""
    if not is_differentiable(y):
        return None
    shape = _shape(y)
    if not shape:
        return 1.0
    return _filled_with(1.0, shape, y, y)


def elementwise_grad(f: Callable[..., Any], argnums: Argnums = 0) -> Callable[..., Any]:
    """Return the function that computes the derivative of `f` in each element.

    For functions that work element by element: it is the gradient of the sum of all
    results, of the shape of the argument. `argnums` is that of `grad`.

    >>> elementwise_grad(np.sin)(np.array([0.0, np.pi]))
    array([ 1., -1.])
    """
    argnums = check_argnums(argnums)
    key = ("elementwise_grad", argnums)
    return derive(f, key, lambda fn: _ElementwiseGrad(fn, argnums))  # type: ignore[no-any-return]
