"""The groups of programs that are measured against peers."""

from ..case import Case
from . import elementwise, models, overhead, reductions

GROUPS: dict[str, tuple[Case, ...]] = {
    "elementwise": elementwise.CASES,
    "reductions": reductions.CASES,
    "models": models.CASES,
    "overhead": overhead.CASES,
}

SIZES: dict[str, tuple[int, ...]] = {
    "elementwise": (1_000, 100_000, 1_000_000, 10_000_000),
    "reductions": (1_000, 100_000, 1_000_000, 10_000_000),
}


# HIPS autograd makes a pass per operation: it is held against where calls are small.
WITHOUT: dict[str, tuple[str, ...]] = {
    "elementwise": ("autograd",),
    "reductions": ("autograd",),
}


def find(group: str, name: str) -> Case:
    """Return a case by its names."""
    (case,) = [c for c in GROUPS[group] if c.name == name]
    return case
