"""Devices other than the processor: their memory, and launching kernels on them."""

from .interface import Code, Device, Function, Graph, Memory, device

__all__ = ["Code", "Device", "Function", "Graph", "Memory", "device"]
