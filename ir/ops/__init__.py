"""The op records. Importing this package defines every op."""

from . import control, create, gather, math, reduce, scan, view

__all__ = ["control", "create", "gather", "math", "reduce", "scan", "view"]
