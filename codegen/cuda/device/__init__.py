"""The names that generated kernels import, as intrinsics of numba-cuda.

Importing this package imports numba-cuda.
"""

from . import counted, grid, memory, reductions, scalars, sorting, tiles
from .counted import *  # noqa: F403
from .grid import *  # noqa: F403
from .memory import *  # noqa: F403
from .reductions import *  # noqa: F403
from .scalars import *  # noqa: F403
from .sorting import *  # noqa: F403
from .tiles import *  # noqa: F403

__all__ = [
    *counted.__all__,
    *grid.__all__,
    *memory.__all__,
    *reductions.__all__,
    *scalars.__all__,
    *sorting.__all__,
    *tiles.__all__,
]
