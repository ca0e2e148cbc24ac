"""The op records. Importing this package defines every op."""

from . import control, create, math, reduce, scan, view

__all__ = ["control", "create", "math", "reduce", "scan", "view"]
