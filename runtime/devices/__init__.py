"""Devices other than the processor: their memory, and launching kernels on them."""

from .array import ARRAYS, DeviceArray, device_array, from_dlpack
from .interface import OPENED, Code, Device, Function, Graph, Memory, device

__all__ = [
    "ARRAYS",
    "OPENED",
    "Code",
    "Device",
    "DeviceArray",
    "Function",
    "Graph",
    "Memory",
    "device",
    "device_array",
    "from_dlpack",
]
