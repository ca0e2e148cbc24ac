"""Devices other than the processor: their memory, and launching kernels on them."""

from .array import ARRAYS, DeviceArray, device_array, from_dlpack
from .interface import (
    FORMATS,
    OPENED,
    Batch,
    Code,
    Device,
    Fill,
    Function,
    Given,
    Graph,
    Launch,
    Memory,
    Multiply,
    device,
)

__all__ = [
    "ARRAYS",
    "FORMATS",
    "OPENED",
    "Batch",
    "Code",
    "Device",
    "DeviceArray",
    "Fill",
    "Function",
    "Given",
    "Graph",
    "Launch",
    "Memory",
    "Multiply",
    "device",
    "device_array",
    "from_dlpack",
]
