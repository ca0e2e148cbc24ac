"""Tensor: an array, NumPy scalar or Python number that can be differentiated.

Values, aliasing and errors are NumPy's; the autograd surface is PyTorch's. A Tensor
holds real NumPy data in eager mode, and an IR value inside a trace.
"""

from __future__ import annotations

import functools
import importlib
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ir import ops  # noqa: F401 - defines the ops
from ..ir.errors import GradientBreakError, GradientError, ShapeError, UnsupportedError
from ..ir.func import type_of
from ..ir.op import OPS, Op
from ..ir.types import DType, Type, type_of_array
from ..runtime.storage import Storage
from . import dispatch, tape
from .location import user_location
from .modes import STATE
from .symbols import SymInt

if TYPE_CHECKING:
    from .tape import AccumulateGrad, Node, ViewStep

Array = np.ndarray[Any, Any]


@functools.cache
def _part(name: str) -> Any:
    """Return a module of this package that itself needs Tensor."""
    return importlib.import_module(f".{name}", __package__)


def _function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that is a function of the NumPy namespace."""
    name = function.__name__

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        return _part("functions").FUNCTIONS[function](self, *args, **kwargs)

    method.__name__ = name
    method.__doc__ = f"Call numpy.{name} on this tensor."
    return method


def _binary(name: str) -> tuple[Callable[..., Any], ...]:
    """Return the operator, reflected operator and in-place operator of an op."""

    def forward(self: Tensor, other: Any) -> Any:
        if type(other) is Tensor:
            return dispatch.apply(OPS[name], (self, other))
        return _operate(OPS[name], self, other, other)

    def reflected(self: Tensor, other: Any) -> Any:
        return _operate(OPS[name], other, self, other)

    def inplace(self: Tensor, other: Any) -> Any:
        operand = _operand(other)
        if operand is NotImplemented:
            return NotImplemented
        if self.type.scalar:
            return dispatch.apply(OPS[name], (self, operand))
        dispatch.update(OPS[name], self, operand)
        return self

    return forward, reflected, inplace


def _operate(op: Op, x: Any, y: Any, other: Any) -> Any:
    operand = _operand(other)
    if operand is NotImplemented:
        return NotImplemented
    if operand is not other:
        x, y = (operand, y) if x is other else (x, operand)
    return dispatch.apply(op, (x, y))


def _operand(x: Any) -> Any:
    """Return `x` as an operand of an operator, or NotImplemented."""
    if isinstance(x, OPERANDS):
        return x
    if isinstance(x, list | tuple):
        return _part("functions.core").asarray(x)
    return NotImplemented


def _repeating(multiply: Callable[..., Any]) -> Callable[..., Any]:
    """Return `multiply` for integer scalars too, which repeat what is a sequence."""

    def method(self: Tensor, other: Any) -> Any:
        if isinstance(other, list | tuple | str):
            type = self.type
            if type.scalar and type.dtype.kind in "iu":
                return other * self.__index__()
        return multiply(self, other)

    return method


def _unary(name: str) -> Callable[[Any], Any]:

    def method(self: Tensor) -> Any:
        return dispatch.apply(OPS[name], (self,))

    return method


class MissingAttributeError(UnsupportedError, AttributeError):
    """An attribute of ndarray that Tensors do not have."""


HINTS = {
    "view": "use x[...] for another view, astype for another dtype",
    "setflags": "copy the array instead",
}


class Tensor:
    """An array, scalar or number with values of NumPy and gradients of PyTorch.

    >>> x = tensor([1.0, 2.0], requires_grad=True)
    >>> (x * x).shape
    (2,)
    """

    __slots__ = (
        "__weakref__",
        "_accumulator",
        "_base",
        "_data",
        "_grad",
        "_hooks",
        "_leaf",
        "_made_without_grad",
        "_node",
        "_nr",
        "_seen",
        "_steps",
        "_storage",
        "_trace",
        "_value",
    )
    __array_priority__ = 1000.0

    _data: Any
    _storage: Storage | None
    _trace: dispatch.Trace | None
    _value: Any
    _node: Node | None
    _nr: int
    _leaf: bool
    _base: Tensor | None
    _steps: tuple[ViewStep, ...]
    _seen: int
    _made_without_grad: bool
    _grad: Tensor | None
    _accumulator: weakref.ref[AccumulateGrad] | None
    _hooks: Any

    def __init__(self, data: Any, storage: Storage | None = None) -> None:
        self._data = data
        self._storage = storage
        self._trace = None
        self._value = None
        self._node = None
        self._nr = 0
        self._leaf = False
        self._base = None
        self._steps = ()
        self._seen = 0
        self._made_without_grad = False
        self._grad = None
        self._accumulator = None
        self._hooks = None

    @classmethod
    def traced(cls, trace: dispatch.Trace, value: Any) -> Tensor:
        """Return a tensor that stands for an IR value or literal of a trace."""
        t = cls(None)
        t._trace = trace
        t._value = value
        return t

    # What it is -------------------------------------------------------------------

    @property
    def is_traced(self) -> bool:
        """Whether this stands for a value of a trace."""
        return self._trace is not None

    @property
    def type(self) -> Type:
        """The IR type; its marks tell arrays, NumPy scalars and Python numbers."""
        if self._trace is not None:
            return type_of(self._value)
        return type_of_array(self._data)

    @property
    def shape(self) -> tuple[Any, ...]:
        """The sizes of the axes: ints, or what the trace lets Python see."""
        if self._trace is not None:
            return self._trace.shape_of(self)
        return getattr(self._data, "shape", ())

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> Any:
        """The number of elements."""
        size = 1
        for d in self.shape:
            size = size * d
        return size

    @property
    def dtype(self) -> DType:
        """The NumPy dtype."""
        dtype: DType | None = getattr(self._data, "dtype", None)
        return self.type.dtype if dtype is None else dtype

    def __repr__(self) -> str:
        if self._trace is not None:
            return f"Tensor({self._value!r})"
        data = self._data
        body = repr(data)
        if isinstance(data, np.ndarray):
            body = np.array2string(data, separator=", ", prefix="tensor(")
            if data.dtype not in (np.float64, np.int64, np.bool_):
                body += f", dtype={data.dtype}"
        elif isinstance(data, np.generic):
            body = f"np.{data.dtype}({data})"
        node = self.grad_fn
        if node is not None:
            return f"tensor({body}, grad_fn=<{node.name()}>)"
        return f"tensor({body}{', requires_grad=True' if self._leaf else ''})"

    def __format__(self, spec: str) -> str:
        return format(self._python("format", breaks=False), spec) if spec else str(self)

    def __round__(self, ndigits: int | None = None) -> Any:
        return self.round(ndigits or 0)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(np.ndarray, name):
            raise MissingAttributeError(
                f"Tensor has no attribute {name!r}, which NumPy's arrays have",
                location=user_location(),
                hint=HINTS.get(name, "call it on x.detach().numpy()"),
            )
        raise AttributeError(f"'Tensor' object has no attribute {name!r}")

    def __hash__(self) -> int:
        if self._trace is not None and self.type.scalar:
            raise GradientBreakError(
                f"a computed number, {self.type}, as the key of a dict or in a set",
                location=user_location(),
                rule="Numbers are found by their value, which is not there yet.",
                hint="use operator.index(k), which is checked at every call, or arrays",
            )
        return object.__hash__(self)

    # Operators --------------------------------------------------------------------

    __add__, __radd__, __iadd__ = _binary("add")
    __sub__, __rsub__, __isub__ = _binary("subtract")
    __mul__, __rmul__, __imul__ = map(_repeating, _binary("multiply"))
    __truediv__, __rtruediv__, __itruediv__ = _binary("divide")
    __floordiv__, __rfloordiv__, __ifloordiv__ = _binary("floor_divide")
    __mod__, __rmod__, __imod__ = _binary("remainder")
    __pow__, __rpow__, __ipow__ = _binary("power")
    __matmul__, __rmatmul__, __imatmul__ = _binary("matmul")
    __and__, __rand__, __iand__ = _binary("bitwise_and")
    __or__, __ror__, __ior__ = _binary("bitwise_or")
    __xor__, __rxor__, __ixor__ = _binary("bitwise_xor")
    __lshift__, __rlshift__, __ilshift__ = _binary("left_shift")
    __rshift__, __rrshift__, __irshift__ = _binary("right_shift")
    __lt__, _, _ = _binary("less")
    __le__, _, _ = _binary("less_equal")
    __gt__, _, _ = _binary("greater")
    __ge__, _, _ = _binary("greater_equal")
    __eq__, _, _ = _binary("equal")
    __ne__, _, _ = _binary("not_equal")
    __neg__ = _unary("negative")
    __pos__ = _unary("positive")
    __abs__ = _unary("absolute")
    __invert__ = _unary("invert")

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    # NumPy's protocols ------------------------------------------------------------

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any
    ) -> Any:
        return getattr(_part("ufuncs"), method.strip("_"))(ufunc, inputs, kwargs)

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any
    ) -> Any:
        ours = _part("functions").FUNCTIONS.get(function)
        if ours is None:
            module = getattr(function, "__module__", None) or "numpy"
            raise UnsupportedError(
                f"{module}.{function.__name__}: not supported on tensors",
                location=user_location(),
                hint=way_out(args),
            )
        return ours(*args, **kwargs)

    all = _function(np.all)
    any = _function(np.any)
    argmax = _function(np.argmax)
    argmin = _function(np.argmin)
    argsort = _function(np.argsort)
    choose = _function(np.choose)
    clip = _function(np.clip)
    compress = _function(np.compress)
    cumprod = _function(np.cumprod)
    cumsum = _function(np.cumsum)
    diagonal = _function(np.diagonal)
    dot = _function(np.dot)
    max = _function(np.max)
    mean = _function(np.mean)
    min = _function(np.min)
    nonzero = _function(np.nonzero)
    prod = _function(np.prod)
    ptp = _function(np.ptp)
    put = _function(np.put)
    ravel = _function(np.ravel)
    repeat = _function(np.repeat)
    round = _function(np.round)
    searchsorted = _function(np.searchsorted)
    squeeze = _function(np.squeeze)
    std = _function(np.std)
    sum = _function(np.sum)
    swapaxes = _function(np.swapaxes)
    take = _function(np.take)
    trace = _function(np.trace)
    var = _function(np.var)

    # Items ------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        return _part("index").getitem(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        _part("index").setitem(self, key, value)

    def __len__(self) -> int:
        if self._trace is not None:
            return int(self._trace.convert_to_python(self, "len"))
        if not self.shape:
            raise TypeError("len() of unsized object")
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Any]:
        if self._trace is not None:
            return iter(self._trace.convert_to_python(self, "iter"))
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return (self[k] for k in range(len(self)))

    def __contains__(self, x: Any) -> bool:
        return bool((self == x).any())

    # Conversions to Python --------------------------------------------------------

    def _python(self, kind: str, breaks: bool = True) -> Any:
        """Return the data for a conversion that forgets the gradient."""
        if self._trace is not None:
            return self._trace.convert_to_python(self, kind)
        if breaks and STATE.grad and self.requires_grad:
            raise GradientBreakError(
                f"{kind}: {self.type} requires a gradient, which would be lost",
                location=user_location(),
                rule="a conversion to a Python or NumPy object is not recorded",
                hint="call .item(), or .detach() first, if that is what you want",
            )
        return self._data

    def __bool__(self) -> bool:
        return bool(self._python("bool", breaks=False))

    def __float__(self) -> float:
        return float(self._python("float"))

    def __int__(self) -> int:
        return int(self._python("int"))

    def __complex__(self) -> complex:
        return complex(self._python("complex"))

    def __index__(self) -> int:
        data = self._python("index")
        return int(data.__index__())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        data = self._python("array")
        if copy is not True and self._storage is not None:
            self._storage.share()
        return np.array(data, dtype=dtype, copy=copy)

    def item(self, *index: int) -> Any:
        """Return one element as a Python number, without its gradient."""
        if self._trace is not None:
            return self._trace.item(self, index)
        return np.asarray(self._python("item", breaks=False)).item(*index)

    def tolist(self) -> Any:
        """Return nested lists of Python numbers, without gradients."""
        data = self._python("tolist", breaks=False)
        return np.asarray(data).tolist() if self._trace is None else data

    def numpy(self) -> Any:
        """Return the NumPy array over the same memory.

        From then on the memory is shared: values saved from it are saved as copies.
        """
        data = self._python("numpy")
        if self._storage is not None:
            self._storage.share()
        return data

    # Autograd ---------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Whether operations on this are recorded."""
        if self._trace is not None:
            return bool(self._trace.leaves.requires(self))
        if self._base is not None:
            return tape.edge_of(self) is not None
        return self._leaf or self._node is not None

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Make this a leaf whose gradient is wanted, or a constant; returns self."""
        if self._trace is not None:
            self._trace.leaves.make(self, requires_grad)
            return self
        edge = tape.edge_of(self)
        if self._node is not None:
            if not requires_grad:
                raise GradientError(
                    "you can only change requires_grad flags of leaf variables.",
                    location=user_location(),
                    hint="use .detach() for a tensor without gradient",
                )
            return self
        if requires_grad and not tape.is_inexact(self._data):
            raise GradientError(
                "only Tensors of floating point dtype can require gradients",
                location=user_location(),
                rule=f"this is {self.type}",
            )
        if requires_grad != (edge is not None):
            self._leaf = requires_grad
            if self._base is None and self._storage is not None:
                self._storage.epoch += 1  # views made before now have a gradient
        return self

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation computed this."""
        if self._trace is not None:
            return bool(self._trace.leaves.is_leaf(self))
        return self.grad_fn is None

    @property
    def grad_fn(self) -> Node | None:
        """The node that computed this, or None."""
        if self._trace is not None:
            raise self._on_tape("grad_fn")
        if self._base is not None:
            tape.edge_of(self)
        return self._node

    @property
    def output_nr(self) -> int:
        """Which output of `grad_fn` this is."""
        return self._nr

    @property
    def grad(self) -> Tensor | None:
        """The gradient that `backward` has added up so far."""
        if self._trace is not None:
            held: Tensor | None = self._trace.leaves.grad(self)
            return held
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None and value.shape != self.shape:
            raise ShapeError(
                f"attempting to assign a gradient of size '{list(value.shape)}' to a "
                f"tensor of size '{list(self.shape)}'.",
                location=user_location(),
            )
        if self._trace is not None:
            self._trace.leaves.set_grad(self, value)
        else:
            self._grad = value

    def _on_tape(self, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"{what} of a traced value, {self.type}",
            location=user_location(),
            rule="In a compiled function there are no nodes of the tape.",
            hint="use it outside of the compiled function",
        )

    @property
    def _version(self) -> int:
        return 0 if self._storage is None else self._storage.version

    def _is_view(self) -> bool:
        return self._base is not None

    def backward(
        self,
        gradient: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Add the gradients of this to the `.grad` of the leaves it depends on."""
        _part("autograd").backward(
            (self,), (gradient,), retain_graph, create_graph, inputs
        )

    def retain_grad(self) -> None:
        """Have `backward` store the gradient of this tensor, though it is no leaf."""
        if self._trace is not None:
            raise self._on_tape("retain_grad")
        edge = tape.edge_of(self)
        if edge is None:
            raise GradientError(
                "can't retain_grad on Tensor that has requires_grad=False",
                location=user_location(),
            )
        if self._node is not None:
            tape.retain(*edge, self)

    @property
    def retains_grad(self) -> bool:
        """Whether `retain_grad` was called on this tensor."""
        node = self.grad_fn
        ref = None if node is None else (node.retains or {}).get(self._nr)
        return ref is not None and ref() is self

    def register_hook(self, hook: Callable[[Any], Any]) -> Any:
        """Call `hook` with the gradient of this; its result replaces the gradient."""
        return _part("autograd").register_hook(self, hook)

    def register_post_accumulate_grad_hook(self, hook: Callable[[Any], Any]) -> Any:
        """Call `hook(t)` after the gradient of this leaf was added to `.grad`."""
        return _part("autograd").register_post_accumulate_grad_hook(self, hook)

    def detach(self) -> Tensor:
        """Return a tensor over the same memory that has no gradient."""
        if self._trace is not None:
            result: Tensor = self._trace.detach(self)
            return result
        return Tensor(self._data, self._storage)

    def detach_(self) -> Tensor:
        """Cut this tensor off its graph, in place."""
        if self._trace is not None:
            raise self._on_tape("detach_")
        if self._base is not None:
            raise GradientError(
                "Can't detach views in-place. Use detach() instead.",
                location=user_location(),
            )
        self._node, self._nr, self._leaf = None, 0, False
        if self._storage is not None:
            self._storage.epoch += 1
        return self

    # Copies and NumPy's methods ---------------------------------------------------

    def copy(self, order: str = "C") -> Tensor:
        """Return a copy in fresh memory; its gradient goes through."""
        result: Tensor = _part("order").ordered(self._applied("copy"), order, self)
        return result

    def clone(self) -> Tensor:
        """Return a copy in fresh memory; its gradient goes through."""
        result: Tensor = self._applied("copy")
        return result

    def contiguous(self) -> Tensor:
        """Return this, or a copy if the memory is not in C order."""
        return self if _part("order").is_contiguous(self) else self.copy()

    def _applied(self, name: str, *operands: Any, **attrs: Any) -> Any:
        return dispatch.apply(OPS[name], (self, *operands), attrs)

    def __copy__(self) -> Tensor:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if not self.is_leaf:
            raise GradientError(
                "Only Tensors created explicitly by the user (graph leaves) support "
                "the deepcopy protocol at the moment.",
                location=user_location(),
            )
        result = of(np.array(self._data)) if self._storage else Tensor(self._data)
        result._leaf = self._leaf
        memo[id(self)] = result
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.is_leaf:
            raise GradientError(
                "only leaves can be pickled",
                location=user_location(),
                hint="pickle x.detach()",
            )
        return _rebuild, (self._python("pickle", breaks=False), self._leaf)

    def astype(self, dtype: Any, order: str = "K", *, copy: bool = True) -> Tensor:
        """Return this converted to a dtype."""
        dtype = np.dtype(dtype)
        if not copy and dtype == self.dtype:
            return self
        result: Tensor = self._applied("astype", dtype=dtype)
        return _part("order").ordered(result, order, self)  # type: ignore[no-any-return]

    def reshape(self, *shape: Any, order: str = "C") -> Any:
        """Return this with another shape: a view where memory allows."""
        if len(shape) == 1:
            (shape,) = shape
        return _part("functions").FUNCTIONS[np.reshape](self, shape, order=order)

    def transpose(self, *axes: Any) -> Any:
        """Return a view with the axes reordered."""
        if len(axes) == 1 and not isinstance(axes[0], int):
            (axes,) = axes
        return _part("functions").FUNCTIONS[np.transpose](self, axes or None)

    @property
    def flat(self) -> Any:
        """The elements in C order, to be read, written and iterated over."""
        return _part("flat").Flat(self)

    @flat.setter
    def flat(self, value: Any) -> None:
        self.flat[...] = value

    @property
    def T(self) -> Any:
        """A view with the axes reversed."""
        return self.transpose()

    @property
    def mT(self) -> Any:
        """A view with the last two axes swapped."""
        return _part("functions").FUNCTIONS[np.matrix_transpose](self)

    @property
    def real(self) -> Any:
        """The real part."""
        if self.dtype.kind != "c":
            return self
        return _part("functions").FUNCTIONS[np.real](self)

    @property
    def imag(self) -> Any:
        """The imaginary part."""
        return _part("functions").FUNCTIONS[np.imag](self)

    def conj(self) -> Any:
        """Return the complex conjugate; this itself where it is real."""
        return np.conjugate(self) if self.dtype.kind == "c" else self

    conjugate = conj

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return int(self.size * self.dtype.itemsize)

    @property
    def itemsize(self) -> int:
        """The size of one element in bytes."""
        return self.dtype.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides in bytes; only eager tensors have them."""
        return tuple(np.asarray(self._python("strides", breaks=False)).strides)

    def flatten(self, order: str = "C") -> Any:
        """Return a 1-D copy."""
        return _part("functions").FUNCTIONS[np.ravel](self, order=order).copy()

    def fill(self, value: Any) -> None:
        """Write one value into every element."""
        dispatch.write(self, value, kind="unsafe")

    def fill_(self, value: Any) -> Tensor:
        """Write one value into every element; returns self."""
        dispatch.write(self, value, kind="unsafe")
        return self

    def zero_(self) -> Tensor:
        """Write zeros; returns self."""
        return self.fill_(0)

    def copy_(self, source: Any) -> Tensor:
        """Write another tensor, converted and broadcast; returns self."""
        source = as_tensor(source)
        if len(source.shape) > len(self.shape):
            raise ShapeError(
                f"output with shape {list(self.shape)} doesn't match the broadcast "
                f"shape {list(source.shape)}",
                location=user_location(),
            )
        dispatch.write(self, source, kind="unsafe")
        return self

    def masked_fill_(self, mask: Any, value: Any) -> Tensor:
        """Write a 0-d value where the mask is true; returns self."""
        value = as_tensor(value)
        if value.shape:
            raise ShapeError(
                "masked_fill_ only supports a 0-dimensional value tensor, but got "
                f"tensor with {value.ndim} dimension(s).",
                location=user_location(),
            )
        new = dispatch.apply(OPS["where"], (mask, value, self))
        dispatch.write(self, new)
        return self

    def sort(self, axis: int = -1) -> None:
        """Sort in place along an axis."""
        dispatch.write(self, _part("functions").FUNCTIONS[np.sort](self, axis))


def _in_place(name: str) -> Callable[..., Tensor]:
    def method(self: Tensor, *others: Any) -> Tensor:
        dispatch.update(OPS[name], self, *others)
        return self

    method.__name__ = name
    method.__doc__ = f"Set this to `{name}` of itself, in place; returns self."
    return method


_IN_PLACE = {
    "abs_": "absolute",
    "add_": "add",
    "ceil_": "ceil",
    "cos_": "cos",
    "cosh_": "cosh",
    "div_": "divide",
    "exp_": "exp",
    "expm1_": "expm1",
    "floor_": "floor",
    "log1p_": "log1p",
    "log_": "log",
    "maximum_": "maximum",
    "minimum_": "minimum",
    "mul_": "multiply",
    "neg_": "negative",
    "pow_": "power",
    "reciprocal_": "reciprocal",
    "remainder_": "remainder",
    "round_": "rint",
    "sin_": "sin",
    "sinh_": "sinh",
    "sqrt_": "sqrt",
    "square_": "square",
    "sub_": "subtract",
    "tan_": "tan",
    "tanh_": "tanh",
    "trunc_": "trunc",
}
for _method, _op in _IN_PLACE.items():
    setattr(Tensor, _method, _in_place(_op))


OPERANDS = (Tensor, int, float, complex, np.ndarray, np.generic, SymInt)


def way_out(args: Any) -> str:
    """Return what a user can do about a function that tensors do not have."""
    if dispatch.trace_of(args) is not None:
        return "call it outside the compiled function and pass the result in"
    return "call it on x.detach().numpy() if its gradient is not needed"


def of(data: Any) -> Tensor:
    """Return a tensor over data that nobody else writes: its memory is taken over."""
    return Tensor(data, Storage() if isinstance(data, np.ndarray) else None)


def _rebuild(data: Any, requires_grad: bool) -> Tensor:
    """Return a tensor from what was pickled."""
    t = of(data)
    t._leaf = requires_grad
    return t


def wrap(data: Any) -> Tensor:
    """Return a tensor over `data` without copying; the memory stays the caller's."""
    is_array = isinstance(data, np.ndarray)
    return Tensor(data, Storage(shared=True) if is_array else None)


def as_tensor(x: Any) -> Tensor:
    """Return `x` if it is a tensor, else a tensor over its data."""
    if isinstance(x, Tensor):
        return x
    if isinstance(x, np.ndarray | np.generic | int | float | complex):
        return wrap(x)
    return wrap(np.asarray(x))


def from_numpy(array: Array) -> Tensor:
    """Return a tensor over the memory of an array: writes are seen on both sides.

    >>> a = np.zeros(2)
    >>> from_numpy(a).fill(1.0)
    >>> a
    array([1., 1.])
    """
    return wrap(array)


def tensor(data: Any, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Return a tensor with a copy of `data`.

    >>> tensor([1.0, 2.0], requires_grad=True)
    tensor([1., 2.], requires_grad=True)
    """
    if dispatch.active_trace() is not None:
        copy = _part("functions").FUNCTIONS[np.array](data, dtype=dtype)
        t: Tensor = dispatch.apply(OPS["detach"], (copy,))
    else:
        t = of(np.array(data._data if isinstance(data, Tensor) else data, dtype=dtype))
    return t.requires_grad_() if requires_grad else t
