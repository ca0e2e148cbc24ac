"""Devices on which compiled kernels run, and an interpreter of their code."""
