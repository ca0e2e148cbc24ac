"""Find a plate's conductivity from two pictures of its temperature.

The simulation updates the plate in place; its gradient is compiled all the same.
"""

import numpy as np
from scipy.optimize import minimize_scalar

import retrograde as rg


@rg.compile
def spread(u, k):
    for _ in range(4):
        u[1:-1, 1:-1] += k * (
            u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
        )
    return u


@rg.compile
def misfit(k, before, after):
    return np.sum((spread(before, k) - after) ** 2)


def main() -> None:
    rng = np.random.default_rng(0)
    before = rng.uniform(size=(60, 60))
    after = spread(before.copy(), 0.17)

    value_and_slope = rg.value_and_grad(misfit)
    k = 0.1
    for step in range(20):  # Newton's method on the slope, by secants
        value, slope = value_and_slope(k, before, after)
        _, ahead = value_and_slope(k + 1e-4, before, after)
        k -= slope * 1e-4 / (ahead - slope)
        print(f"step {step}: k = {k:.6f}, misfit {value:.3e}")
        if abs(slope) < 1e-8:
            break
    check = minimize_scalar(
        lambda k: misfit(k, before.copy(), after), bounds=(0.0, 0.25), method="bounded"
    )
    print(f"found k = {k:.6f}; SciPy, without gradients, finds {check.x:.6f}")
    assert abs(k - 0.17) < 1e-6


if __name__ == "__main__":
    main()
