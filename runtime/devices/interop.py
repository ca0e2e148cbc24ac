"""Arrays of a GPU for other libraries, and theirs for us: DLPack and its CUDA sibling.

Memory is shared, not copied. Whoever gets an array gets it when the device is done with
it: these calls wait, since the streams of others are not ours to know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from . import packages
from .array import DeviceArray, extent
from .interface import Memory, device

if TYPE_CHECKING:
    from .core import Gpu


def _gpu(x: DeviceArray, what: str) -> Gpu:
    """Return the GPU of an array."""
    from .core import Gpu

    if not isinstance(x.place, Gpu):
        raise BufferError(
            f"{what} of an array on {x.device}: its memory is that of no GPU and not "
            "the processor's; x.numpy() copies it"
        )
    return x.place


def cuda_array_interface(x: DeviceArray) -> dict[str, Any]:
    """Return the CUDA array interface, version 3, of what the device is done with."""
    try:
        gpu = _gpu(x, "__cuda_array_interface__")
    except BufferError as error:
        raise AttributeError(str(error)) from None  # as `hasattr` asks for it
    gpu.synchronize()
    return {
        "shape": x.shape,
        "typestr": x.dtype.str,
        "data": (x.address, not x.writable),
        "strides": None if x.whole else x.strides,
        "stream": None,
        "version": 3,
    }


def dlpack_device(x: DeviceArray) -> tuple[int, int]:
    """Return DLPack's kind and number of the device."""
    return 2, _gpu(x, "DLPack device").number


def dlpack(x: DeviceArray, options: Mapping[str, Any]) -> Any:
    """Return a DLPack capsule over the memory of an array."""
    gpu = _gpu(x, "DLPack capsule")
    given = options.get("dl_device")
    if options.get("copy") or given not in (None, dlpack_device(x)):
        raise BufferError(
            f"DLPack: an array on {x.device} is handed out there and without a copy"
        )
    from cuda.core import Buffer
    from cuda.core.utils import StridedMemoryView

    gpu.synchronize()
    low, high = extent(x)
    if low != x.address:
        raise BufferError("DLPack: an array with negative strides; take a copy of it")
    buffer = Buffer.from_handle(low, max(high - low, 1), owner=x.memory)
    steps = None if x.whole else tuple(s // x.dtype.itemsize for s in x.strides)
    view = StridedMemoryView.from_buffer(
        buffer, x.shape, steps, dtype=x.dtype, is_readonly=not x.writable
    )
    return view.__dlpack__(stream=-1, max_version=options.get("max_version"))


def imported(x: Any) -> DeviceArray:
    """Return an array over the memory of another library's."""
    if not hasattr(x, "__cuda_array_interface__"):
        if not hasattr(x, "__dlpack__"):
            raise BufferError(
                f"from_dlpack: a {type(x).__name__} has neither __dlpack__ nor "
                "__cuda_array_interface__"
            )
        if x.__dlpack_device__()[0] not in (2, 13):  # memory of CUDA, managed by it
            raise BufferError(
                f"from_dlpack: this {type(x).__name__} is not on a GPU; "
                "device_array(x, device) copies it there"
            )
    packages.require("cuda-core", "shares arrays of GPUs")
    from cuda.core.utils import StridedMemoryView

    view = StridedMemoryView.from_any_interface(x, stream_ptr=-1)
    place: Any = device(f"cuda:{view.device_id}")
    place.wait_for_others()
    dtype = np.dtype(view.dtype)
    strides = view.strides
    if strides is not None:
        strides = tuple(s * dtype.itemsize for s in strides)
    if view.ptr % dtype.itemsize:
        raise BufferError(f"from_dlpack: elements of {dtype} that are not aligned")
    out = DeviceArray(
        place,
        Memory(view.ptr, 0, view),
        view.ptr,
        tuple(view.shape),
        dtype,
        strides,
        not view.readonly,
    )
    low, high = extent(out)
    out.memory.size = high - low
    return out
