"""The programs of the eager benchmark compute what they should."""

import numpy as np

from benchmarks import eager


def test_its_programs_run() -> None:
    assert min(*eager.chain(50), *eager.writes(50)) >= 0
    assert eager.peak(20) > 0
    assert set(eager.per_op({"ours": eager.ours})) == {"ours"}


def test_the_recurrence_is_differentiated() -> None:
    y = eager.recurrence(3)  # 1 + b1^2 + b2^2, b1 = a1 + 1, b2 = b1 a2 + 1
    assert y.item() == 1 + 1.5**2 + 1.75**2
    y.backward()
    node = y.grad_fn
    while node.next_functions:
        node = next(n for n, _ in node.next_functions if n is not None)
    np.testing.assert_allclose(node.variable.grad.numpy(), [0, 4.75, 5.25])
