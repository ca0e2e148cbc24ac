"""What would lose a gradient in silence raises, and leaves memory as it was.

Memory that is handed out is counted, harmless to saved values, or not handed out.
"""

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from retrograde.ir.errors import GradientBreakError, RetrogradeError
from retrograde.tracer.modes import no_grad
from retrograde.tracer.tensor import Tensor, as_tensor, tensor

Array = np.ndarray[Any, Any]


def leaf(*values: float) -> Tensor:
    return tensor(np.array(values, float), requires_grad=True)


def grad(t: Tensor) -> Any:
    assert t.grad is not None
    return t.grad.tolist()


# ---------------------------------------------------------------- into plain arrays

WRITES: dict[str, Callable[[Array, Tensor], Any]] = {
    "a[...] = x": lambda a, x: operator.setitem(a, ..., x),
    "a[:] = x": lambda a, x: operator.setitem(a, slice(None), x),
    "a[mask] = x": lambda a, x: operator.setitem(a, [True, True], x),
    "a[index] = x": lambda a, x: operator.setitem(a, [1, 0], x),
    "a[0] = s": lambda a, x: operator.setitem(a, 0, x.sum()),
    "a.flat[0] = s": lambda a, x: operator.setitem(a.flat, 0, x.sum()),
    "a.fill(s)": lambda a, x: a.fill(x.sum()),
    "a.put": lambda a, x: a.put([0], x.sum()),
    "a += x": lambda a, x: operator.iadd(a, x),
    "a -= x": lambda a, x: operator.isub(a, x),
    "a *= x": lambda a, x: operator.imul(a, x + 1),
    "a **= x": lambda a, x: operator.ipow(a, x),
    "add.at": lambda a, x: np.add.at(a, [0], x.sum()),
    "add.at[x]": lambda a, x: np.add.at(a, [0, 0], x),
    "exp(out=)": lambda a, x: np.exp(x, out=a),
    "add(out=, where=)": lambda a, x: np.add(x, 1, out=a, where=[True, False]),
    "matmul(out=)": lambda a, x: np.matmul(x, np.eye(2), out=a),
    "dot(out=)": lambda a, x: np.dot(x, x, out=a[0, ...]),
    "sum(out=)": lambda a, x: np.sum(x, out=a[0, ...]),
    "mean(out=)": lambda a, x: np.mean(x, out=a[0, ...]),
    "clip(out=)": lambda a, x: np.clip(x, 0, 1, out=a),
    "cumsum(out=)": lambda a, x: np.cumsum(x, out=a),
    "accumulate(out=)": lambda a, x: np.add.accumulate(x, out=a),
    "reduce(out=)": lambda a, x: np.add.reduce(x, out=a[0, ...]),
    "take(out=)": lambda a, x: np.take(x, [0, 1], out=a),
    "concatenate(out=)": lambda a, x: np.concatenate([x], out=a),
    "stack(out=)": lambda a, x: np.stack([x], out=a[None]),
    "einsum(out=)": lambda a, x: np.einsum("i->i", x, out=a),
    "copyto": lambda a, x: np.copyto(a, x),
    "copyto(where=)": lambda a, x: np.copyto(a, x, where=[True, False]),
    "put": lambda a, x: np.put(a, [0, 1], x),
    "place": lambda a, x: np.place(a, [True, True], x),
    "putmask": lambda a, x: np.putmask(a, [True, True], x),
    "fill_diagonal": lambda a, x: np.fill_diagonal(a[None], x.sum()),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_plain_array_takes_no_gradient(write: Callable[[Array, Tensor], Any]) -> None:
    a = np.zeros(2)
    with pytest.raises((GradientBreakError, ValueError)) as caught:
        write(a, leaf(1, 2))
    error: BaseException | None = caught.value
    if not isinstance(error, GradientBreakError):  # NumPy's own, perhaps with a cause
        assert str(error).startswith(("setting an array element", "Error setting"))
        assert isinstance(error.__cause__, GradientBreakError | None)
    assert a.tolist() == [0, 0]


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_plain_array_takes_what_needs_no_gradient(
    write: Callable[[Array, Any], Any],
) -> None:
    a, want = np.zeros(2), np.zeros(2)
    write(want, np.array([1.0, 2.0]))
    result = write(a, tensor([1.0, 2.0]))
    assert a.tolist() == want.tolist()
    assert not isinstance(result, Tensor)
    a = np.zeros(2)
    with no_grad():
        write(a, leaf(1, 2))
    assert a.tolist() == want.tolist()


def test_an_operator_in_place_returns_the_plain_array() -> None:
    a = kept = np.zeros(2)
    a += tensor([1.0, 2.0])
    assert a is kept
    out = np.zeros(2)
    assert np.exp(tensor([0.0, 0.0]), out=out) is out


# ---------------------------------------------------------------- into Python

CONVERSIONS: dict[str, Callable[[Tensor], Any]] = {
    "float": lambda s: float(s),
    "int": lambda s: int(s),
    "complex": lambda s: complex(s),
    "math.sin": lambda s: math.sin(s),
    "operator.index": lambda s: operator.index(s),
    "range": lambda s: range(s),  # type: ignore[arg-type]
    "asarray": lambda s: np.asarray(s),
    "array": lambda s: np.array(s),
    "array of a list": lambda s: np.array([s, s]),
    "float64": lambda s: np.float64(s),
    "tensor": lambda s: tensor(s),
    "tensor of a list": lambda s: tensor([s, s]),
    "full": lambda s: np.full(3, s),
    "sum of a list": lambda s: np.sum([s, s]),
    "ascontiguousarray": lambda s: np.ascontiguousarray(s),
    "numpy": lambda s: s.numpy(),
    "from_dlpack": lambda s: np.from_dlpack(s),
    "as_strided": lambda s: np.lib.stride_tricks.as_strided(s, (2,), (0,)),
}


@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)
def test_a_conversion_loses_no_gradient(convert: Callable[[Tensor], Any]) -> None:
    s = tensor(2.0, requires_grad=True)
    with pytest.raises(GradientBreakError, match=r"hint: call \.item") as caught:
        convert(s)
    assert "test_gradient_breaks.py" in str(caught.value)


def test_ways_out_of_the_graph() -> None:
    s = tensor(2.0, requires_grad=True)
    assert s.item() == s.tolist() == float(s.detach()) == s.detach().numpy() == 2.0
    assert s > 1  # a comparison has no gradient to lose
    assert [10, 20][as_tensor(np.int64(1))] == 20
    with no_grad():
        assert float(s) == math.sqrt(4.0) == np.asarray(s)


UNSUPPORTED: dict[str, Callable[[Tensor], Any]] = {
    "spacing": np.spacing,
    "nextafter": lambda x: np.nextafter(x, 2.0),
    "poly": np.poly,
    "tobytes": lambda x: x.tobytes(),
    "ctypes": lambda x: x.ctypes,
}


@pytest.mark.parametrize("f", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_what_has_no_derivative_says_so(f: Callable[[Tensor], Any]) -> None:
    with pytest.raises(RetrogradeError):
        f(leaf(1, 2))


ROUNDINGS: list[Callable[[Any], Any]] = [np.floor, np.ceil, np.trunc, np.rint, np.sign]


@pytest.mark.parametrize("f", ROUNDINGS, ids=lambda f: f.__name__)
def test_rounding_has_a_derivative_of_zero(f: Callable[[Any], Any]) -> None:
    a = leaf(1.5, -0.5)
    f(a).sum().backward()
    assert grad(a) == [0, 0]


def test_integers_of_a_tensor_require_no_gradient() -> None:
    a = leaf(1.5, 2.5)
    for t in (a.astype(int), np.argsort(a), a > 1, np.isnan(a)):
        assert not t.requires_grad


# ---------------------------------------------------------------- memory handed out

EXPORTS: dict[str, Callable[[Tensor], Any]] = {
    "numpy": lambda t: t.numpy(),
    "asarray": lambda t: np.asarray(t),
    "from_dlpack": lambda t: np.from_dlpack(t),
    "as_strided": lambda t: np.lib.stride_tricks.as_strided(t, (2,), (8,)),
}


@pytest.mark.parametrize("export", EXPORTS.values(), ids=EXPORTS)
def test_writes_outside_cannot_spoil_saved_values(
    export: Callable[[Tensor], Any],
) -> None:
    a = leaf(1, 1)
    b = a * 2
    c = b * b  # saved before the memory is handed out
    outside = export(b.detach())
    assert np.shares_memory(outside, b._data)
    d = b * b  # and after
    if not outside.flags.writeable:
        assert export is EXPORTS["from_dlpack"]
        outside = b.detach().numpy()
    outside[...] = 0
    (c + d).sum().backward()
    assert b.tolist() == [0, 0]
    assert grad(a) == [16, 16]


def test_a_view_handed_out_is_handed_out_with_its_base() -> None:
    a = leaf(1, 1, 1)
    b = a * 2
    c = b * b
    outside = b[1:].detach().numpy()
    outside[...] = 0
    c.sum().backward()
    assert grad(a) == [8, 8, 8]


def test_memory_is_not_handed_out_as_a_buffer() -> None:
    t = tensor([1.0, 2.0])
    with pytest.raises(TypeError, match="bytes-like object is required"):
        memoryview(t)  # type: ignore[arg-type]
    for name in ("__array_interface__", "__array_struct__", "ctypes"):
        assert not hasattr(t, name)


def test_tensors_go_to_other_libraries_by_dlpack() -> None:
    t = tensor([1.0, 2.0])
    assert t.__dlpack_device__() == (1, 0)
    assert np.from_dlpack(t).tolist() == [1, 2]
    assert np.shares_memory(np.from_dlpack(t), t._data)
