"""Tensors on a device: where they are, how they move, and their gradients."""

import copy
import gc
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from retrograde.ir.errors import (
    DeviceError,
    GradientBreakError,
    MutationError,
    UnsupportedError,
)
from retrograde.runtime.devices import device
from retrograde.tracer.devices import HostAccessError

pytestmark = pytest.mark.cuda_emulated

EMU = "cuda:emu"
A = np.random.default_rng(0).uniform(0.5, 2, (4, 5))


def leaf(place: str = EMU, x: Any = A) -> rg.Tensor:
    return rg.tensor(x, device=place, requires_grad=True)


def same(program: Callable[[str], Any]) -> None:
    """Compare what a program returns on the device with what it returns on the host."""
    for found, expected in zip(program(EMU), program("cpu"), strict=True):
        if isinstance(found, rg.Tensor):
            assert (found.device, expected.device) == (EMU, "cpu")
            assert found.dtype == expected.dtype
            found, expected = found.detach().cpu().numpy(), expected.detach().numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


# Where they are --------------------------------------------------------------------


def test_tensor_is_made_on_a_device():
    for data in (A, rg.device_array(A, EMU), rg.tensor(A), A.tolist()):
        t = rg.tensor(data, device=EMU)
        assert (t.device, t.shape, t.dtype) == (EMU, (4, 5), np.float64)
        np.testing.assert_array_equal(t.cpu().numpy(), A)
    assert rg.tensor([1, 2], np.float32, device=EMU).dtype == np.float32
    assert rg.tensor(rg.device_array(A, EMU)).device == EMU
    assert rg.tensor(leaf().detach()).device == EMU
    assert rg.tensor(rg.device_array(A, EMU), device="cpu").device == "cpu"
    assert rg.tensor(A).device == rg.tensor(A, device="cpu").device == "cpu"


def test_tensor_is_a_copy():
    d = rg.device_array(A, EMU)
    t = rg.tensor(d)
    d[...] = 0.0
    np.testing.assert_array_equal(t.cpu().numpy(), A)


def test_move_to_where_it_is_returns_itself():
    t, h = leaf(), rg.tensor(A)
    assert t.to(EMU) is t
    assert h.cpu() is h
    assert h.to("cpu") is h


def test_repr_tells_the_device():
    text = "tensor([1., 2.], device='cuda:emu')"
    assert repr(rg.tensor([1.0, 2.0], device=EMU)) == text
    assert "device='cuda:emu', requires_grad=True" in repr(leaf())
    assert "dtype=float32, device='cuda:emu'" in repr(
        rg.tensor([1.0], np.float32, device=EMU)
    )
    assert "grad_fn=<SinBackward0>" in repr(np.sin(leaf()))


@pytest.mark.parametrize("convert", [np.asarray, np.array, rg.Tensor.numpy])
def test_conversion_to_numpy_is_an_error_with_a_way_out(convert: Any):
    with pytest.raises(HostAccessError) as caught:
        convert(rg.tensor(A, device=EMU))
    assert isinstance(caught.value, TypeError)
    assert "can't convert cuda:emu device type tensor to numpy" in str(caught.value)
    assert "t.cpu().numpy()" in caught.value.hint
    with pytest.raises(GradientBreakError):
        convert(leaf())


def test_python_numbers_are_read():
    t = rg.tensor([1.5, 2.5], device=EMU)
    assert (t[0].item(), float(t[1]), int(t[1]), bool(t[0] > 1)) == (1.5, 2.5, 2, True)
    assert t.tolist() == [1.5, 2.5]
    assert t.item(1) == 2.5
    assert [1, 2, 3][rg.tensor(2, device=EMU)] == 3


def test_copies_of_objects_stay_on_the_device():
    t = leaf()
    for c in (copy.deepcopy(t), pickle.loads(pickle.dumps(t))):
        assert (c.device, c.requires_grad, c.is_leaf) == (EMU, True, True)
        np.testing.assert_array_equal(c.detach().cpu().numpy(), A)


# Compiled functions ----------------------------------------------------------------


def test_gradients_through_compiled_functions():
    f = rg.compile(lambda x, y: (np.sin(x) * y).sum())

    def program(place: str) -> Any:
        x, y = leaf(place), leaf(place)
        loss = f(x * 2, y)
        assert loss.grad_fn.name() == "CompiledBackward"
        loss.backward()
        f(x, y).backward()
        return loss, x.grad, y.grad

    same(program)


def test_backward_through_numbers_reads_nothing(monkeypatch: pytest.MonkeyPatch):
    f = rg.compile(lambda x: (np.sin(x) * x).sum())
    g = rg.compile(lambda loss: loss * loss * 2)
    x, h = leaf(), leaf("cpu")
    for t in (x, h):
        g(f(t)).backward()
    with monkeypatch.context() as patch:
        patch.setattr(device(EMU), "read", None)
        g(f(x)).backward()
    g(f(h)).backward()
    assert x.grad is not None
    assert h.grad is not None
    np.testing.assert_allclose(x.grad.cpu().numpy(), h.grad.numpy())


def test_gradients_of_several_results_and_views():
    f = rg.compile(lambda x: (x[1:], x.T, x * 2, x.sum()))

    def program(place: str) -> Any:
        x = leaf(place)
        a, b, c, d = f(x * 1)
        (a.sum() * b[0, 1] + (c * d).sum()).backward()
        return a, b, c, d, x.grad

    same(program)


def test_compiled_writes_are_counted_and_differentiated():
    @rg.compile
    def f(x: Any, y: Any) -> Any:
        x *= y
        return x.sum()

    def program(place: str) -> Any:
        p = leaf(place)
        x = p * 2
        loss = f(x[1:], p[1:]) + (x * x).sum()
        loss.backward()
        assert x._version == 1
        return loss, x, p.grad

    same(program)


def test_overlapping_tensors_run_op_by_op():
    @rg.compile
    def f(x: Any, y: Any) -> Any:
        x *= 2
        return x + y

    def program(place: str) -> Any:
        p = leaf(place)
        x = p * 1
        out = f(x[1:], x[:-1])
        (out * out).sum().backward()
        return out, x, p.grad

    same(program)


def test_second_derivatives():
    f = rg.compile(lambda x: (np.sin(x) * x**3).sum())

    def program(place: str) -> Any:
        out = []
        for g in (f, f.fn):
            x = leaf(place)
            (first,) = rg.autograd.grad(g(x), x, create_graph=True)
            out += rg.autograd.grad((first * first).sum(), x)
        return out

    same(program)


def test_training_loop():
    f = rg.compile(lambda w, x: (np.tanh(x @ w) ** 2).mean())

    def program(place: str) -> Any:
        w, x = leaf(place, A.T.copy()), rg.tensor(A, device=place)
        losses = []
        for _ in range(4):
            loss = f(w, x)
            loss.backward()
            losses.append(loss.item())
            with rg.no_grad():
                w -= 0.1 * w.grad
            w.grad.zero_()
        return *losses, w

    same(program)


def test_training_step_that_is_compiled_as_a_whole():
    def program(place: str) -> Any:
        w = leaf(place, A.T.copy())

        @rg.compile
        def step(x: Any) -> Any:
            loss = (np.tanh(x @ w) ** 2).mean()
            loss.backward()
            with rg.no_grad():
                w.copy_(w - 0.1 * w.grad)
            w.grad = None
            return loss

        x = rg.tensor(A, device=place)
        return *(step(x).item() for _ in range(4)), w

    same(program)


def test_move_in_a_compiled_function_is_an_error():
    f = rg.compile(lambda x: x.to("cpu") * 2)
    with pytest.raises(UnsupportedError, match="program for cuda:emu"):
        f(leaf())
    g = rg.compile(lambda x: x.to(EMU) * 2)
    assert g(leaf()).device == EMU


# Mixing ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mix",
    [
        lambda: leaf() + rg.tensor(A),
        lambda: rg.tensor(A) @ leaf().T,
        lambda: np.concatenate([leaf(), rg.tensor(A)]),
        lambda: rg.compile(lambda x, y: x + y)(leaf(), rg.tensor(A)),
        lambda: rg.compile(lambda x, y: x + y)(leaf(), A),
        lambda: (leaf() * 1).backward(rg.tensor(A)),
    ],
)
def test_tensors_of_several_places_are_an_error(mix: Any):
    with pytest.raises(DeviceError) as caught:
        mix()
    assert "cuda:emu" in caught.value.what
    assert "to(" in caught.value.hint or "device_array" in caught.value.hint


def test_arrays_and_numbers_go_with_tensors():
    def program(place: str) -> Any:
        x = leaf(place)
        return x + A, A * x, x * np.float64(2), 2 / x, x - np.array(3.0)

    same(program)


def test_arrays_of_the_device_go_with_its_tensors():
    x, d = leaf(), rg.device_array(A, EMU)
    for y in (x + d, d + x):
        np.testing.assert_allclose(y.detach().cpu().numpy(), 2 * A)


def test_assignment_moves():
    t, h = rg.tensor(0 * A, device=EMU), rg.tensor(0 * A)
    t[...] = rg.tensor(A)
    h[1:] = t[1:]
    np.testing.assert_array_equal(t.cpu().numpy(), A)
    np.testing.assert_array_equal(h.numpy()[1:], A[1:])
    assert (t._version, h._version) == (1, 1)


def test_gradients_cross_from_one_place_to_another():
    def program(place: str) -> Any:
        x, w = leaf("cpu"), leaf(place)
        y = (x.to(place) * w).sum(0).cpu()
        (y * y).sum().backward()
        assert x.grad.device == "cpu"
        return w.grad, x.grad.to(place)

    same(program)


def test_second_derivatives_cross():
    def program(place: str) -> Any:
        x = leaf("cpu")
        y = np.sin(x.to(place)).cpu()
        (g,) = rg.autograd.grad((y * y).sum(), x, create_graph=True)
        (h,) = rg.autograd.grad((g * g).sum(), x)
        return (h.to(place),)

    same(program)


# The tape --------------------------------------------------------------------------


def test_overwritten_values_are_found():
    x = leaf() * 1
    y = np.sin(x)
    x += 1
    with pytest.raises(MutationError, match="modified by an inplace operation"):
        y.sum().backward()


def test_overwritten_values_are_copied_where_that_is_allowed():
    def program(place: str) -> Any:
        with rg.allow_mutation_on_saved_tensors():
            x = leaf(place)
            y = x * 1
            z = np.sin(y)
            y += 1
            (z * y).sum().backward()
        return (x.grad,)

    same(program)


def test_write_into_a_leaf_is_an_error():
    x = leaf()
    with pytest.raises(MutationError, match="leaf Variable"):
        x += 1


def test_hooks_and_retained_gradients():
    def program(place: str) -> Any:
        seen = []
        x = leaf(place)
        y = x * 2
        y.retain_grad()
        x.register_hook(lambda g: (seen.append(g.device), g * 2)[1])
        y.sum().backward(retain_graph=True)
        y.sum().backward()
        assert seen == [place] * 2
        return x.grad, y.grad

    same(program)


def test_gradients_are_added_up_in_place():
    x = leaf()
    (x * 2).sum().backward()
    g = x.grad
    (x * 3).sum().backward()
    assert x.grad is g
    assert g.cpu().tolist() == np.full((4, 5), 5.0).tolist()


def test_gradients_of_what_does_not_depend_are_zeros_there():
    x, y = leaf(), leaf()
    _, g = rg.autograd.grad(x.sum(), (x, y), allow_unused=True, materialize_grads=True)
    assert (g.device, g.shape) == (EMU, y.shape)


def test_functions_with_a_derivative_of_their_own():
    class Product(rg.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            ctx.save_for_backward(x, y)
            return x * y, x + y

        @staticmethod
        def backward(ctx: Any, g: Any, h: Any) -> Any:
            x, y = ctx.saved_tensors
            return g * y + h, g * x + h

    def program(place: str) -> Any:
        x = leaf(place)
        a, _ = Product.apply(x, x * 2)
        a.sum().backward()
        return a, x.grad

    same(program)


def test_checkpoints():
    def program(place: str) -> Any:
        x = leaf(place)
        y = rg.checkpoint(lambda x: np.sin(x) * x)(x)
        y.sum().backward()
        return y, x.grad

    same(program)


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "grad": lambda f, x: (rg.grad(f)(x),),
    "value_and_grad": lambda f, x: rg.value_and_grad(f)(x),
    "vjp": lambda f, x: rg.vjp(f, x)[1](1.0),
    "jvp": lambda f, x: rg.jvp(f, (x,), (x,)),
    "hvp": lambda f, x: rg.hvp(f, (x,), (x,))[:1],
    "hessian": lambda f, x: (rg.hessian(f)(x),),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_plain_functions(name: str):
    w = rg.device_array(A[0], EMU)
    scale = [w]

    def f(x: Any) -> Any:
        return (np.sin(x) * scale[0] * x[0]).sum()

    x = rg.device_array(A, EMU)
    found = TRANSFORMS[name](f, x)
    scale[0] = A[0]
    expected = TRANSFORMS[name](f, A)
    for a, b in zip(found, expected, strict=True):
        assert isinstance(a, rg.DeviceArray)
        np.testing.assert_allclose(a.numpy(), b, atol=1e-12)
    np.testing.assert_array_equal(x.numpy(), A)


# Memory and threads ----------------------------------------------------------------


def test_graphs_give_their_memory_back():
    emulator: Any = device(EMU)

    def work() -> None:
        x = leaf()
        y = np.sin(x[1:]) * x[:-1]
        y.sum().backward()
        assert x.grad is not None

    work()
    gc.collect()
    before = emulator.in_use()
    work()
    gc.collect()
    assert emulator.in_use() == before


def test_threads_differentiate_at_the_same_time():
    expected = np.cos(A) * A + np.sin(A)
    failures = []

    def work() -> None:
        for _ in range(4):
            x = leaf()
            (np.sin(x) * x).sum().backward()
            assert x.grad is not None
            if not np.allclose(x.grad.cpu().numpy(), expected):
                failures.append(x.grad)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_what_numpy_finds_lies_where_it_was_found() -> None:
    t = rg.tensor([[0.0, 2.0], [3.0, 0.0]], device=EMU)
    i = rg.tensor([0, 2, 2], device=EMU)
    found = [*np.nonzero(t), np.flatnonzero(t), np.argwhere(t), np.bincount(i)]
    assert [x.device for x in found] == [EMU] * 5
    assert t[np.nonzero(t)].tolist() == [2.0, 3.0]


def test_shared_memory_is_known() -> None:
    t = rg.tensor([[0.0, 2.0], [3.0, 0.0]], device=EMU)
    np.put(t, [1, 2], 9.0)
    assert t.tolist() == [[0.0, 9.0], [9.0, 0.0]]
    d = rg.device_array(np.zeros((2, 4)), EMU)
    assert np.shares_memory(t, t[1:])
    assert np.may_share_memory(d, d.reshape(-1))
    assert not np.shares_memory(d[:, ::2], d[:, 1::2])
    assert not np.shares_memory(d, np.ones(3))


def test_transforms_make_arrays_where_arguments_are() -> None:
    def f(x: Any) -> Any:
        z = np.zeros(4)
        z[1:] = x[1:] * np.linspace(0.0, 1.0, 3)
        np.add.at(z, np.array([0, 0, -1]), x[:3])
        return np.sum(z[np.arange(4) % 3 != 1] * np.ones(3)) + np.sum(z * z)

    x = np.array([1.0, -2.0, 3.0, 0.5])
    found = rg.grad(f)(rg.device_array(x, EMU))
    assert isinstance(found, rg.DeviceArray)
    np.testing.assert_allclose(found.numpy(), rg.grad(f)(x))


@pytest.mark.parametrize(
    "write",
    [
        lambda z, t: np.add.at(z, [0], t[:1]),
        lambda z, t: np.copyto(z, t),
        lambda z, t: np.put(z, [0], t[:1]),
        lambda z, t: np.sin(t, out=z),
        lambda z, t: np.cumsum(t, out=z),
        lambda z, t: z.__iadd__(t),
    ],
    ids=["at", "copyto", "put", "out", "function", "iadd"],
)
def test_nothing_is_written_into_numpys_arrays(write: Callable[..., Any]) -> None:
    z = np.zeros(3)
    with pytest.raises(HostAccessError, match=r"t\.cpu\(\)"):
        write(z, rg.tensor([1.0, 2.0, 3.0], device=EMU))
    assert not z.any()
