"""The scalar functions with the elementary ones of the C library, always.

`rg.compile(precise=True)` imports them instead of `scalar`. They are calls that are not
vectorised; their results are those of `math`, bit for bit, for float64.
"""

from typing import Any

from numba.extending import intrinsic

from . import instructions, scalar, vecmath
from .intrinsics import define

C_NAMES = {name: name.replace("arc", "a") for name in scalar.__all__}
_FUNCTIONS = {
    name: vecmath.precise(c_name)
    for name, c_name in C_NAMES.items()
    if c_name in (*vecmath.UNARY, *vecmath.BINARY)
}
_POWER = instructions.power_by(instructions.EXACT_POWERS)
_FUNCTIONS["power"] = define(intrinsic, "power", _POWER, vecmath.scalar_call)
_FUNCTIONS["logaddexp"] = scalar.function("logaddexp", vecmath.scalar_call)
_FUNCTIONS["logaddexp2"] = scalar.function("logaddexp2", vecmath.scalar_call)


def __getattr__(name: str) -> Any:
    return _FUNCTIONS.get(name) or getattr(scalar, name)
