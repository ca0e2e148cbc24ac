"""Many writes in a row: no pass recurses along the chain."""

import numpy as np

import retrograde as rg


def test_a_sweep_of_element_writes_of_any_length():
    def sweep(u):
        for j in list(range(1, u.shape[0] - 1)):
            u[j] = 0.5 * (u[j - 1] + u[j + 1])
        return u.sum()

    u = np.linspace(0.0, 1.0, 250) ** 2
    f = rg.compile(sweep)
    stages = f.stages(u)  # capture and passes; compiling takes seconds at this length
    assert len(stages["simplify"].nodes) > 250
    value, gradient = rg.value_and_grad(sweep)(u)
    small = u[:40].copy()
    np.testing.assert_allclose(rg.grad(f)(small), rg.grad(sweep)(small))
    want = u.copy()
    assert value == sweep(want)
    assert gradient.shape == u.shape
