"""The op records. Importing this package defines every op."""

from . import (
    cholesky,
    contract,
    control,
    create,
    gather,
    join,
    linalg,
    math,
    part,
    reduce,
    scan,
    sort,
    special,
    view,
)

__all__ = [
    "cholesky",
    "contract",
    "control",
    "create",
    "gather",
    "join",
    "linalg",
    "math",
    "part",
    "reduce",
    "scan",
    "sort",
    "special",
    "view",
]
