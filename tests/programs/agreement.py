"""What the tests with random programs share: settings and comparisons."""

from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, settings

COMMON = settings(
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate, Phase.target),  # programs are short
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
RTOL = 1e-9


def close(got: Any, want: Any, what: str, rtol: float = RTOL) -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape, f"{what}: {got.shape} is not {want.shape}"
    scale = 1.0 + np.max(np.abs(want), initial=0.0)
    np.testing.assert_allclose(got, want, rtol=0, atol=rtol * scale, err_msg=what)


def shares(a: Any, b: Any) -> bool:
    """Tell whether two results are arrays that share memory."""
    arrays = isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
    return arrays and bool(np.shares_memory(a, b))
