"""Hold a program of your own against NumPy before you trust its gradient."""

import numpy as np

import retrograde as rg


def smooth(x, weights, passes=3):
    for _ in range(passes):
        x[1:-1] = weights[0] * x[:-2] + weights[1] * x[1:-1] + weights[2] * x[2:]
    return np.sum(np.diff(x) ** 2), x[::2]


def main() -> None:
    x = np.random.default_rng(0).standard_normal(1000)
    comparison = rg.compare(smooth, x, np.array([0.25, 0.5, 0.25]))
    print(comparison)
    comparison.assert_ok()


if __name__ == "__main__":
    main()
