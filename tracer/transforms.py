"""Transforms: grad, value_and_grad, vjp.

Of a plain function they run eagerly, on the tape; of a compiled function they are
compiled, and inside a capture they are captured: the function is traced into a Func of
its own, made pure and differentiated there, and the result is inlined. They change no
argument: arguments are private copies, so they alias nothing.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir.errors import DTypeError, GradientError, Location
from ..ir.types import SHORT, type_of_array
from ..runtime.devices import ARRAYS, DeviceArray
from . import dispatch
from .containers import Tree, flatten_tree, parts_of, unflatten_tree
from .convert import convert
from .jit import Compiled
from .linearize import Linear, linearize
from .location import user_location
from .modes import enable_grad, within
from .rewind import Captured
from .symbols import SymInt
from .tensor import Tensor


class Transform:
    """A function made from another one; captured and compiled like any function."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.__name__ = f"{self.prefix}_{getattr(fn, '__name__', 'f')}"
        self.__doc__ = getattr(fn, "__doc__", None)

    prefix = "transform"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def __rg_function__(self) -> Callable[..., Any]:
        return self.fn

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        return self if obj is None else functools.partial(self, obj)


def derive(f: Callable[..., Any], key: Any, make: Callable[[Any], Transform]) -> Any:
    """Apply a transform; that of a compiled function is compiled, and made once."""
    if not callable(f):
        raise TypeError(f"a transform needs a function, not {type(f).__name__}")
    if not isinstance(f, Compiled):
        return make(f)
    known = f.derived.get(key)
    if known is None:  # several threads agree on one
        made = Compiled(make(f.fn), f.options)
        known = f.derived.setdefault(key, made)
    return known


class Grad(Transform):
    prefix = "grad"

    def __init__(
        self,
        fn: Callable[..., Any],
        argnums: Argnums | None,
        has_aux: bool,
        with_value: bool,
    ) -> None:
        super().__init__(fn)
        self.argnums = argnums
        self.has_aux = has_aux
        self.with_value = with_value

    @property
    def __signature__(self) -> Any:
        return inspect.signature(self.fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Differentiate in `argnums`, or for None in every argument that is a float."""
        strict = self.argnums is not None
        argnums = (
            (self.argnums,)
            if isinstance(self.argnums, int)
            else self.argnums or range(len(args))
        )
        groups = [leaves_of(args, k, self.fn, strict) for k in argnums]
        wrt = [j for group in groups for j in group.positions]
        linear = linearize(self.fn, args, kwargs, wrt)
        loss = self._loss(linear)
        cotangents = [1.0 if k == loss else None for k in range(len(linear.leaves))]
        grads = iter(linear.pull(cotangents))
        parts = filled(groups, grads)
        linear.write_back()
        gradient = parts[0] if isinstance(self.argnums, int) else parts
        out = unflatten_tree(linear.tree, linear.leaves)
        if self.with_value:
            return out, gradient
        return (gradient, out[1]) if self.has_aux else gradient

    def _loss(self, linear: Linear) -> int:
        """Return the number of the leaf that is differentiated."""
        tree = linear.tree
        if self.has_aux and (tree.kind is not tuple or len(tree.children) != 2):
            raise GradientError(
                f"{self.__name__}: has_aux needs a function that returns (loss, aux)",
                location=user_location(),
            )
        head = tree.children[0] if self.has_aux else tree
        x = linear.leaves[0] if head.kind is None else None
        shape = getattr(x, "shape", ())
        kind = np.dtype(getattr(x, "dtype", type(x) if x is not None else object)).kind
        if head.kind is not None or len(shape) or kind != "f":
            what = "a container" if head.kind is not None else described(x)
            raise GradientError(
                f"{self.__name__}: the result must be one real number, not {what}",
                location=function_location(self.fn),
                rule="A gradient is that of a scalar function.",
                hint="return a sum or a mean, or use rg.vjp with a cotangent",
            )
        return 0


def described(x: Any) -> str:
    if isinstance(x, bool | int | SymInt):
        return f"a Python {'bool' if isinstance(x, bool) else 'int'}"
    if getattr(x, "dtype", None) is not None and x.dtype not in SHORT:
        return f"an array of dtype {x.dtype}"
    t = x.type if isinstance(x, Tensor) else None
    if t is None and isinstance(x, np.ndarray | np.generic | DeviceArray | float):
        t = type_of_array(x)
    if t is not None:
        return str(t)
    kind = type(x)
    return f"{kind.__module__}.{kind.__name__}" if is_foreign(x) else kind.__name__


def is_foreign(x: Any) -> bool:
    """Tell whether `x` is an array of another library, as of torch or JAX."""
    ours = isinstance(x, Tensor | np.ndarray | np.generic | DeviceArray)
    return hasattr(type(x), "__array__") and not ours


def function_location(fn: Any) -> Any:
    code = getattr(fn, "__code__", None)
    if code is None:
        return user_location()
    return Location(code.co_filename, code.co_firstlineno, code.co_name)


@dataclass(frozen=True, slots=True)
class Group:
    """The leaves of one argument: which are differentiated, and how to rebuild."""

    tree: Tree
    count: int
    positions: tuple[int, ...]  # among all leaves
    inside: tuple[int, ...]  # among the leaves of this argument

    def fill(self, grads: Sequence[Any]) -> Any:
        leaves: list[Any] = [None] * self.count
        for k, g in zip(self.inside, grads, strict=True):
            leaves[k] = g
        return unflatten_tree(self.tree, leaves)


def leaves_of(args: Sequence[Any], k: int, fn: Any, strict: bool = True) -> Group:
    """Return the differentiable leaves of argument `k`."""
    name = getattr(fn, "__name__", "f")
    if not -len(args) <= k < len(args):
        raise IndexError(
            f"argnums: {name} was called with {len(args)} arguments by position; there "
            f"is no number {k}; what is differentiated is passed by position"
        )
    k %= len(args)
    start = len(flatten_tree(tuple(args[:k]))[0])
    leaves, tree = flatten_tree(args[k])
    inside = tuple(j for j, x in enumerate(leaves) if is_differentiable(x))
    if strict and not inside:
        shown, hint = "a container without floats", "pass floats"
        if tree.kind is None:
            shown = described(leaves[0])
            if is_foreign(leaves[0]):
                hint = "pass an array of NumPy, np.asarray(x)"
        raise DTypeError(
            f"argnums: argument {k} of {name} is {shown}, which has no gradient",
            location=function_location(fn),
            rule="Only floating point arguments can be differentiated.",
            hint=f"{hint}, or leave the argument out of argnums",
        )
    return Group(tree, len(leaves), tuple(start + j for j in inside), inside)


def is_differentiable(x: Any) -> bool:
    if isinstance(x, Tensor):
        return x.dtype.kind == "f"
    if isinstance(x, np.ndarray | np.generic | DeviceArray):
        return x.dtype.kind == "f"
    return isinstance(x, float)


Argnums = int | tuple[int, ...]


def check_argnums(argnums: Any) -> Argnums:
    if isinstance(argnums, list):
        argnums = tuple(argnums)
    every = argnums if isinstance(argnums, tuple) else (argnums,)
    if not all(isinstance(k, int) and not isinstance(k, bool) for k in every):
        raise TypeError(f"argnums must be an int or a tuple of ints, not {argnums!r}")
    if len(set(every)) != len(every):
        raise ValueError(f"argnums {argnums!r} names an argument twice")
    return argnums  # type: ignore[no-any-return]


def grad(
    f: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return the function that computes the gradient of `f`.

    `argnums` says in which positional arguments, an int or a tuple; an argument may be
    a container, and its gradient has the same structure. With `has_aux`, `f` returns
    `(loss, aux)` and the result is `(gradient, aux)`. No argument is changed: `f` gets
    copies, also of arrays that share memory, which are then independent variables: a
    write into one is not seen in the other. Of a compiled function the gradient is
    compiled. Raises GradientError when the result of `f` is not one real number, and
    DTypeError for an argument that is not floating point.

    >>> grad(lambda x: (x**3).sum())(np.array([1.0, 2.0]))
    array([ 3., 12.])
    """
    argnums = check_argnums(argnums)
    key = ("grad", argnums, has_aux)
    return derive(f, key, lambda fn: Grad(fn, argnums, has_aux, False))  # type: ignore[no-any-return]


def value_and_grad(
    f: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return the function that computes `(value, gradient)` of `f`; see `grad`.

    >>> value_and_grad(lambda x: (x**2).sum())(np.array([1.0, 2.0]))
    (np.float64(5.0), array([2., 4.]))
    """
    argnums = check_argnums(argnums)
    key = ("value_and_grad", argnums, has_aux)
    return derive(f, key, lambda fn: Grad(fn, argnums, has_aux, True))  # type: ignore[no-any-return]


class ValueOf(Transform):
    """The value of a function on private copies, with the final values if asked."""

    prefix = "value"

    def __call__(self, *args: Any) -> Any:
        linear = linearize(self.fn, args, {}, ())
        linear.write_back()
        return unflatten_tree(linear.tree, linear.leaves)


class _Pullback(Transform):
    """(args, cotangent) -> gradients of every positional argument."""

    prefix = "vjp"

    def __call__(self, args: tuple[Any, ...], ct: Any) -> Any:
        groups = [leaves_of(args, k, self.fn, strict=False) for k in range(len(args))]
        wrt = [j for group in groups for j in group.positions]
        linear = linearize(self.fn, args, {}, wrt)
        return _pulled(linear, groups, ct)


def _pulled(linear: Linear, groups: Sequence[Group], ct: Any) -> tuple[Any, ...]:
    grads = iter(linear.pull(cotangent_leaves(linear.tree, linear.leaves, ct)))
    return filled(groups, grads)


def filled(groups: Sequence[Group], grads: Iterator[Any]) -> tuple[Any, ...]:
    """Put gradients, in order, into the structure of each argument."""
    return tuple(g.fill([next(grads) for _ in g.positions]) for g in groups)


def cotangent_leaves(tree: Tree, leaves: Sequence[Any], ct: Any) -> list[Any]:
    """Match a cotangent to the structure of a result; None stands for zeros."""
    out = matched(tree, ct, "cotangent", "result")
    assert len(out) == len(leaves)
    return out


def matched(tree: Tree, given: Any, what: str, whose: str) -> list[Any]:
    """Return the leaves of a (co)tangent, in which None may stand for any part."""
    if given is None:
        return [None] * tree.leaves
    if tree.kind is None:
        return [given]
    parts = parts_of(given)
    if parts is None:
        have = type(given).__name__
        raise _other_structure(f"the {what} is {have} where the {whose} is a container")
    children = list(parts[0])
    if len(children) != len(tree.children) or parts[1] != tree.data:
        raise _other_structure(
            f"the {what} has {len(children)} parts where the {whose} has "
            f"{len(tree.children)}"
        )
    pairs = zip(tree.children, children, strict=True)
    return [x for t, c in pairs for x in matched(t, c, what, whose)]


def _other_structure(problem: str) -> GradientError:
    return GradientError(
        problem,
        location=user_location(),
        rule="Tangents have the structure of the arguments, cotangents that of the "
        "result.",
    )


class WithFinals:
    """`fn` with the final values of its arguments beside its result."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.__name__ = getattr(fn, "__name__", "f")

    def __rg_function__(self) -> Callable[..., Any]:
        return self.fn

    def __call__(self, *args: Any) -> Any:
        out = convert(self.fn)(*args)
        return out, args


def vjp(f: Callable[..., Any], *args: Any, finals: bool = False) -> tuple[Any, Any]:
    """Return `(value, pullback)` of `f` at `args`.

    `pullback(cotangent)` takes a cotangent with the structure of the value (None for
    zeros) and returns one gradient per argument, with None where there is none. It may
    be called again. With `finals`, the value is `(value, finals)`, where finals are the
    values of the arguments after the call, and the cotangent is such a pair. No
    argument is changed. Of a compiled function both are compiled.

    >>> value, pullback = vjp(lambda x, y: x * y, np.array([2.0]), np.array([3.0]))
    >>> value, pullback(np.array([1.0]))
    (array([6.]), (array([3.]), array([2.])))
    """
    compiled = isinstance(f, Compiled)
    fn = f.fn if isinstance(f, Compiled) else f
    if compiled and dispatch.active_trace() is None:
        return _vjp_compiled(f, args, finals)  # type: ignore[arg-type]
    target = WithFinals(fn) if finals else fn
    groups = [leaves_of(args, k, fn, strict=False) for k in range(len(args))]
    wrt = [j for group in groups for j in group.positions]
    with within(f.options.memory_limit if isinstance(f, Compiled) else None):
        linear = linearize(target, args, {}, wrt)
    linear.write_back()

    def pullback(ct: Any) -> tuple[Any, ...]:
        return _pulled(linear, groups, ct)

    return unflatten_tree(linear.tree, linear.leaves), pullback


def _vjp_compiled(f: Compiled, args: tuple[Any, ...], finals: bool) -> tuple[Any, Any]:
    def derived(kind: type[Transform]) -> Compiled:
        key = (kind.prefix, finals)
        if key not in f.derived:
            fn = WithFinals(f.fn) if finals else f.fn
            made = Compiled(kind(fn), f.options)
            f.derived.setdefault(key, made)
        return f.derived[key]  # type: ignore[no-any-return]

    leaves, tree = flatten_tree(args)
    saved = unflatten_tree(tree, [snapshot(x) for x in leaves])
    captured = Captured(f.fn)
    value = derived(ValueOf)(*saved)

    def pullback(ct: Any) -> tuple[Any, ...]:
        with captured.as_then():
            return derived(_Pullback)(saved, ct)  # type: ignore[no-any-return]

    return value, pullback


def snapshot(x: Any) -> Any:
    """Copy an argument, so that the pullback sees it as it was."""
    if isinstance(x, Tensor) and x._storage is not None:
        with enable_grad():
            return x.clone()
    return x.copy(order="K") if isinstance(x, ARRAYS) else x
