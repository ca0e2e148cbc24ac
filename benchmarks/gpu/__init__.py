"""The parts of `benchmarks.gpu_check`: each runs in processes of its own."""
