"""Arrays of devices: what they are, their views, and copies to and from the host."""

import copy
import gc
import pickle
import threading
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from retrograde.ir.errors import (
    DeviceError,
    DTypeError,
    IndexRangeError,
    MutationError,
    ShapeError,
)
from retrograde.runtime.devices import device

EMU = "cuda:emu"
DTYPES = "?bBhHiIqQefdFD"
KEYS: list[Any] = [
    (),
    1,
    (slice(None), 2),
    (slice(None, None, -2), ..., slice(1, None, 2)),
    (None, 3, ..., None, -1),
    slice(0, 0),
    (1, 2, 3),
    (slice(None, None, -1),) * 3,
    (slice(1, 2), slice(4, 0, -3)),
]


def values(shape: tuple[int, ...], dtype: str) -> Any:
    return (10 * np.random.default_rng(0).standard_normal(shape)).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_array_comes_back_as_it_was(dtype: str):
    for shape in ((), (0,), (3, 0, 2), (5,), (2, 3, 4)):
        a = values(shape, dtype)
        d = rg.device_array(a, EMU)
        assert (d.shape, d.dtype, d.ndim) == (a.shape, a.dtype, a.ndim)
        assert (d.size, d.nbytes, d.itemsize) == (a.size, a.nbytes, a.itemsize)
        assert d.strides == a.strides or not a.size
        assert d.device == EMU
        assert d.numpy().dtype == a.dtype
        np.testing.assert_array_equal(d.numpy(), a)
        np.testing.assert_array_equal(np.asarray(d), a)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_basic_index_is_a_view(dtype: str, key: Any):
    a = values((4, 5, 6), dtype)
    d = rg.device_array(a, EMU)
    view = d[key]
    np.testing.assert_array_equal(view.numpy(), a[key])
    assert view.memory is d.memory
    view[...] = 1
    a[key] = 1
    np.testing.assert_array_equal(d.numpy(), a)


def test_index_of_an_index_is_a_view():
    a = values((6, 7), "d")
    d = rg.device_array(a, EMU)
    np.testing.assert_array_equal(d[1:, ::2][::-1, 1].numpy(), a[1:, ::2][::-1, 1])
    assert d[2:][1:].whole
    assert not d[:, 1:].whole


def test_index_out_of_bounds_is_an_error():
    with pytest.raises(IndexError, match="out of bounds"):
        rg.device_array([1.0], EMU)[1]


@pytest.mark.parametrize("key", [[0, 1], np.array([True, False]), True])
def test_index_that_copies_is_an_error(key: Any):
    with pytest.raises(IndexRangeError, match="integers, slices") as caught:
        rg.device_array([1.0, 2.0], EMU)[key]
    assert "x.numpy()[key]" in caught.value.hint


def test_assignment_of_overlapping_views_reads_first():
    a = values((4, 5), "d")
    d = rg.device_array(a, EMU)
    d[1:, ::2] = d[:-1, ::2]
    expected = a.copy()
    expected[1:, ::2] = a[:-1, ::2]
    np.testing.assert_array_equal(d.numpy(), expected)


def test_assignment_broadcasts():
    d = rg.device_array(np.zeros((2, 3)), EMU)
    d[...] = rg.device_array([1.0, 2.0, 3.0], EMU)
    d[0] = np.int8(7)
    np.testing.assert_array_equal(d.numpy(), [[7, 7, 7], [1, 2, 3]])


def test_assignment_of_another_dtype_is_an_error():
    d = rg.device_array([1.0], EMU)
    with pytest.raises(DTypeError, match="float32 to an array of float64"):
        d[...] = rg.device_array(np.ones(1, np.float32), EMU)


def test_write_into_a_read_only_array_is_an_error():
    d = rg.device_array([1.0, 2.0], EMU)
    d.writable = False
    with pytest.raises(MutationError):
        d[0] = 1.0
    with pytest.raises(MutationError):
        d[1:][...] = 1.0


def test_reshape_is_a_view_or_an_error():
    d = rg.device_array(np.arange(24.0), EMU)
    m = d.reshape(4, -1)
    assert m.shape == (4, 6)
    assert m.reshape((2, 12)).memory is d.memory
    np.testing.assert_array_equal(m[:, :3].reshape(2, 2, 3)[1, 1], m[3, :3])
    with pytest.raises(ShapeError) as caught:
        m[:, :3].reshape(-1)
    assert "x.copy().reshape(shape)" in caught.value.hint


def test_copy_is_apart_and_in_order():
    d = rg.device_array(values((3, 4), "f"), EMU)
    for c in (d[::2, ::-1].copy(), copy.copy(d), copy.deepcopy(d), d.copy()):
        assert c.whole
        before = d.numpy()
        c[...] = 0
        np.testing.assert_array_equal(d.numpy(), before)


def test_python_numbers_are_of_one_element():
    assert rg.device_array(2.5, EMU).item() == 2.5
    assert float(rg.device_array([2.5], EMU)) == 2.5
    assert int(rg.device_array(3, EMU)) == 3
    assert complex(rg.device_array(1j, EMU)) == 1j
    assert bool(rg.device_array(True, EMU)) is True
    assert range(3)[rg.device_array(1, EMU)] == 1
    assert rg.device_array([[1, 2], [3, 4]], EMU).item(1, 0) == 3
    with pytest.raises(ShapeError):
        rg.device_array([1, 2], EMU).item()
    with pytest.raises(TypeError):
        range(3)[rg.device_array(1.0, EMU)]


def test_array_is_a_sequence_of_views():
    d = rg.device_array([[1, 2], [3, 4]], EMU)
    assert len(d) == 2
    assert [x.tolist() for x in d] == [[1, 2], [3, 4]]
    with pytest.raises(TypeError):
        len(rg.device_array(1, EMU))


def test_repr_tells_values_dtype_and_device():
    text = "DeviceArray([1, 2], dtype=int16, device='cuda:emu')"
    assert repr(rg.device_array(np.array([1, 2], np.int16), EMU)) == text


def test_array_is_pickled_with_its_device():
    d = pickle.loads(pickle.dumps(rg.device_array([1.0, 2.0], EMU)[::-1]))
    assert d.device == EMU
    assert d.tolist() == [2.0, 1.0]


def test_numpy_functions_refuse_arrays_of_devices():
    d = rg.device_array([1.0], EMU)
    with pytest.raises(TypeError, match=r"numpy.sin .* in a compiled function"):
        np.sin(d)
    with pytest.raises(TypeError, match=r"numpy.add of an array on cuda:emu"):
        np.ones(1) + d


@pytest.mark.cuda_emulated
def test_numpy_functions_take_a_tensor_and_an_array_of_its_device():
    d, t = rg.device_array([1.0], EMU), rg.tensor([2.0], device=EMU)
    assert [np.add(t, d).item(), np.add(d, t).item(), (d + t).item()] == [3.0] * 3
    with pytest.raises(TypeError, match=r"x\.numpy\(\)"):
        np.concatenate([d, d])
    assert (np.shape(d), np.ndim(d), np.size(d)) == ((1,), 1, 1)


def test_array_without_a_copy_is_an_error():
    with pytest.raises(ValueError, match=r"x\.numpy\(\)"):
        np.array(rg.device_array([1.0], EMU), copy=False)


def test_dtypes_of_the_host_only_are_errors():
    for x in (["a"], np.longdouble(1), np.datetime64(1, "s"), [None]):
        with pytest.raises(DTypeError):
            rg.device_array(x, EMU)


def test_bytes_are_turned_into_order():
    d = rg.device_array(np.array([1, 2], ">i4"), EMU)
    assert d.dtype == np.int32
    assert d.tolist() == [1, 2]


def test_dtype_converts_on_the_way():
    d = rg.device_array(rg.device_array([1.5], EMU), EMU, np.float32)
    assert d.dtype == np.float32


def test_unknown_device_is_an_error():
    with pytest.raises(DeviceError):
        rg.device_array([1.0], "gpu")


def test_emulated_memory_is_not_shared_with_other_libraries():
    d = rg.device_array([1.0], EMU)
    assert not hasattr(d, "__cuda_array_interface__")
    for share in (d.__dlpack__, d.__dlpack_device__, lambda: np.from_dlpack(d)):
        with pytest.raises(BufferError, match=r"x\.numpy\(\)"):
            share()


def test_what_is_on_no_gpu_is_not_taken_over():
    with pytest.raises(BufferError, match="not on a GPU"):
        rg.from_dlpack(np.ones(3))
    with pytest.raises(BufferError, match="neither"):
        rg.from_dlpack(3)


def test_views_keep_the_memory_and_nothing_else_does():
    emulator: Any = device(EMU)
    gc.collect()
    before = emulator.in_use()
    d = rg.device_array(np.ones(100), EMU)
    view = d[10:20]
    del d
    assert emulator.in_use() == before + 800
    assert view.numpy().sum() == 10
    del view
    assert emulator.in_use() == before


def test_threads_copy_at_the_same_time():
    failures = []

    def work(seed: int) -> None:
        a = np.full((8, 9), seed)
        for _ in range(20):
            d = rg.device_array(a, EMU)
            if not np.array_equal(d[::2, ::-3].copy().numpy(), a[::2, ::-3]):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
