"""Compiled gradients of NumPy programs with loops, views and in-place writes."""
