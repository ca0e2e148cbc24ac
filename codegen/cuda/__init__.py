"""From a program of nests to kernels for CUDA devices."""
