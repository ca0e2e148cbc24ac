"""Where the threads of a group of blocks are: numbers, warps, special registers."""

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .ptx import PtxError

if TYPE_CHECKING:
    from .warps import Rows

__all__ = ["Geometry", "geometry"]

WARP = 32
AXES = {"x": 0, "y": 1, "z": 2}

Extents = tuple[int, int, int]


class Geometry:
    """`count` blocks of a grid from number `start` on, seen as lanes.

    Arrays have an element per lane: the number of its block in the group, its lane in
    its warp, and the number of its warp in the group; `warp_masks` has the bits of the
    threads of every warp. A `ragged` group has warps that are not full, but the last.
    """

    def __init__(self, grid: Extents, block: Extents, start: int, count: int) -> None:
        self.grid, self.extents, self.start, self.count = grid, block, start, count
        self.threads = threads = math.prod(block)
        self.every = np.arange(count * threads)
        self.block, self.thread = self.every // threads, self.every % threads
        self.lane = self.thread % WARP
        per_block = -(-threads // WARP)
        self.warp = self.block * per_block + self.thread // WARP
        self.ragged = bool(threads % WARP) and count > 1
        self.warp_masks = np.zeros(count * per_block, np.uint32)
        np.bitwise_or.at(self.warp_masks, self.warp, self.bit())
        self.values: dict[str, Any] = {}
        self.rows: Rows | None = None

    def bit(self) -> Any:
        return np.uint32(1) << self.lane.astype(np.uint32)

    def special(self, name: str) -> Any:
        """Return a special register: an array, or a scalar where all lanes agree."""
        if name not in self.values:
            value = self.compute(name)
            if isinstance(value, int):
                value = np.int64(value)
            value = value.astype(np.uint32).view(np.int32)
            if value.ndim and len(self.every) == 1:
                value = value[0]
            self.values[name] = value
        return self.values[name]

    def compute(self, name: str) -> Any:
        base, _, part = name.partition(".")
        if base in ("%tid", "%ntid", "%ctaid", "%nctaid") and part in AXES:
            return self.coordinate(base, AXES[part])
        if base.startswith("%lanemask_"):
            return self.mask(base[-2:])
        simple: dict[str, Any] = {
            "%laneid": self.lane,
            "%warpid": self.thread // WARP,
            "%nwarpid": -(-self.threads // WARP),
        }
        if name not in simple:
            raise PtxError(f"unknown special register {name}")
        return simple[name]

    def coordinate(self, base: str, axis: int) -> Any:
        extents = self.extents if base in ("%tid", "%ntid") else self.grid
        if base in ("%ntid", "%nctaid"):
            return extents[axis]
        if extents[axis] == 1:
            return 0
        number: Any = self.thread
        if base == "%ctaid":
            number = self.block + self.start if self.count > 1 else self.start
        return number // math.prod(extents[:axis]) % extents[axis]

    def mask(self, which: str) -> Any:
        """Return the lanes before, up to, ... the own one as bits."""
        one = self.bit()
        less, upto = one - 1, one | (one - 1)
        masks = {"eq": one, "lt": less, "le": upto, "gt": ~upto, "ge": ~less}
        return masks[which]


geometry = functools.lru_cache(maxsize=64)(Geometry)
