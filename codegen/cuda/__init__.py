"""From loop nests to kernels of a GPU."""
