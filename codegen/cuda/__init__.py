"""Kernels for CUDA devices: programs of nests become launches and a host function."""
