"""Elementary functions for generated kernels, which LLVM vectorises in loops.

Note [libmvec]
glibc's libmvec has vector versions of the elementary functions (x86-64; all of them
since 2.35, at most 4 ulp). LLVM replaces a scalar call by a vector call when the scalar
declaration carries ``"vector-function-abi-variant"``. Three things are needed:

- The scalar function must not bear its C name, or LLVM takes it for an intrinsic and
  takes vectors of it apart again: it gets a private name bound to libm's address.
- The vector declaration must survive the removal of unused globals: it is listed in
  ``@llvm.compiler.used``.
- Both must be free of side effects: ``nounwind willreturn memory(none)``.

Vector body and scalar remainder of a loop may differ in the last bits, so the split of
a loop into blocks decides bits.

Note [which function]
`INLINE` functions are polynomials (see `polynomials`): tanh takes 0.4 of libmvec's time
(0.5 in float32), expm1 0.6 to 0.9. The other polynomials are slower than libmvec by up
to a third in a loop with several of them, where the call that clears all registers
costs less than what is saved, and stand in where there is no libmvec; but the
exponential is inline in large loops (`codegen/large.py`). Without fused
multiply-add, and for the rest of the functions where there is no libmvec, the scalar
call of the C library stays: slower, same meaning.

Note [512 bits]
LLVM prefers vectors of 256 bits on Intel's processors, since wider ones lowered the
clock of the first that had them. On later ones (measured on Emerald Rapids) elementary
functions take half the time with 512 bits (0.4 to 0.7 of it, libmvec), and a loop that
arithmetic bounds 0.7 (a polynomial, f64 and f32). Where memory is the bound they are
slower by 5 to 25 %: arrays of NumPy start at multiples of 16 bytes, so that each access
crosses a cache line. So kernels ask for 512 bits that call elementary functions or have
a loop of many operations per access, except on those first processors. Their stack is
aligned: what is kept around calls would lie across cache lines in most processes, and
a loop with an exponential took 3.4 ns per element there instead of 1.8.

Importing this module binds all symbols. Cached native code which names them crashes
the process when it is loaded earlier, so its loader imports this module first and has
`symbols` in its key.
"""

import ctypes
import ctypes.util
import functools
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba.core.errors import TypingError
from numba.extending import intrinsic

from . import modulo, polynomials

# Types and values of Numba and llvmlite are untyped Python to mypy.
types: Any = numba.types
Function = Callable[..., Any]

USED = "llvm.compiler.used"
PURE = "willreturn memory(none)"
WIDE = 'alignstack(64) "prefer-vector-width"="512"'
SLOW_CLOCK = ("skylake-avx512", "cascadelake", "cooperlake", "cannonlake")
INLINE = frozenset("expm1 tanh".split())
UNARY = (
    "exp log sin cos tan tanh sinh cosh asin acos atan asinh acosh atanh "
    "exp2 expm1 log2 log10 log1p cbrt erf erfc"
).split()
BINARY = "pow atan2 hypot".split()
OURS = frozenset({"fmod"})  # scalar and vector functions that are not bound


@dataclass(frozen=True, slots=True)
class Width:
    """Describe one register width of libmvec's vector functions."""

    letter: str  # of the x86-64 vector function ABI
    bits: int
    feature: str  # what LLVM must target, or the arguments travel in other registers


WIDTHS = (
    Width("e", 512, "avx512f"),
    Width("d", 256, "avx2"),
    Width("b", 128, "sse4.1"),
)


def open_library(*names: str | None) -> ctypes.CDLL | None:
    """Return the first of these libraries that can be opened."""
    for name in names:
        if name is not None:
            try:
                return ctypes.CDLL(name)
            except OSError:
                continue
    return None


def _open_libm() -> ctypes.CDLL | None:
    if sys.platform == "win32":
        return open_library("ucrtbase")
    # find_library starts processes, so it is the last resort.
    return open_library("libm.so.6", "libSystem.dylib") or open_library(
        ctypes.util.find_library("m")
    )


def _open_libmvec() -> ctypes.CDLL | None:
    linux = sys.platform == "linux" and platform.machine() == "x86_64"
    return open_library("libmvec.so.1") if linux else None


def _address(library: ctypes.CDLL | None, name: str) -> int | None:
    function = getattr(library, name, None) if library is not None else None
    return ctypes.cast(function, ctypes.c_void_p).value if function else None


def _c_name(name: str, bits: int) -> str:
    return name if bits == 64 else name + "f"


def _scalar_name(name: str, bits: int) -> str:
    return f"retrograde_{name}{bits}"


def _vector_name(name: str, bits: int, width: Width, count: int) -> str:
    lanes = width.bits // bits
    return f"_ZGV{width.letter}N{lanes}{'v' * count}_{_c_name(name, bits)}"


def _kinds() -> list[tuple[str, int, int]]:
    """Return all functions: name, bits and number of arguments."""
    arity = dict.fromkeys(UNARY, 1) | dict.fromkeys(BINARY, 2)
    return [(name, bits, n) for name, n in arity.items() for bits in (64, 32)]


def _bind() -> frozenset[str]:
    """Bind all symbols, scalar and vector, in LLVM's process-wide table."""
    libm, libmvec = _open_libm(), _open_libmvec()
    bound = set()
    for name, bits, count in _kinds():
        wanted = {_scalar_name(name, bits): (libm, _c_name(name, bits))}
        for width in WIDTHS:
            vector = _vector_name(name, bits, width, count)
            wanted[vector] = (libmvec, vector)
        for symbol, (library, c_name) in wanted.items():
            address = _address(library, c_name)
            if address is not None:
                llvm.add_symbol(symbol, address)
                bound.add(symbol)
    return frozenset(bound)


_BOUND = _bind()


def symbols() -> tuple[str, ...]:
    """Return the names of all bound symbols, sorted: part of every cache key.

    >>> "retrograde_exp64" in symbols()
    True
    """
    return tuple(sorted(_BOUND))


@dataclass(frozen=True, slots=True)
class Target:
    """What code is compiled for: not the host, NUMBA_CPU_FEATURES may differ."""

    processor: str
    features: frozenset[str]

    @property
    def fuses(self) -> bool:
        """Whether x * y + z is one instruction."""
        return "fma" in self.features or platform.machine() in ("arm64", "aarch64")

    def widths(self) -> list[Width]:
        return [width for width in WIDTHS if width.feature in self.features]


@functools.cache
def _target(processor: str, flags: str) -> Target:
    found = (flag[1:] for flag in flags.split(",") if flag.startswith("+"))
    return Target(processor, frozenset(found))


def _is_inline(name: str, bits: int, count: int, target: Target) -> bool:
    """Tell whether a function is a polynomial; see Note [which function]."""
    if name not in polynomials.FUNCTIONS or not target.fuses:
        return False
    widths = target.widths()
    vectors = [_vector_name(name, bits, width, count) for width in widths]
    return name in INLINE or not any(vector in _BOUND for vector in vectors)


def describe() -> str:
    """Return one line about where elementary functions come from, for the doctor.

    >>> describe().startswith(("libmvec", "polynomials", "scalar"))
    True
    """
    host = llvm.get_host_cpu_features()
    target = Target(llvm.get_host_cpu_name(), frozenset(f for f in host if host[f]))
    kinds = _kinds()
    inline = [x for x in kinds if _is_inline(*x, target)]
    parts, rest = [], len(kinds) - len(inline)
    for width in target.widths():
        found = [x for x in kinds if _vector_name(*x[:2], width, x[2]) in _BOUND]
        if found:
            rest = len(set(kinds) - {*found, *inline})
            widths = f"{width.bits} bits" + (", asked for" * _is_wide(target))
            parts.append(f"libmvec, vectors of {widths}: {len({*found} - {*inline})}")
            break
    if inline:
        parts.append(f"polynomials: {len(inline)}")
    parts.append(f"scalar C library: {rest}")
    return "; ".join(parts) + f" of {len(kinds)} functions"


class _Attributes(ir.values.FunctionAttributes):  # type: ignore[misc]
    """Print attributes that llvmlite does not know."""

    def __init__(self, extra: str, known: Any) -> None:
        super().__init__(known)
        self.extra = extra

    def __bool__(self) -> bool:
        return True  # printed, even if there is no known attribute

    def _to_list(self, ret_type: Any) -> list[str]:
        return [*super()._to_list(ret_type), self.extra]


def _is_wide(target: Target) -> bool:
    return "avx512f" in target.features and target.processor not in SLOW_CLOCK


def _target_of(context: Any) -> Target:
    return _target(*context.codegen().magic_tuple()[1:])


def is_wide() -> bool:
    """Tell whether kernels may ask for vectors of 512 bits; see Note [512 bits]."""
    context: Any = numba.core.registry.cpu_target.target_context
    return _is_wide(_target_of(context))


def prefer_wide(context: Any, function: Any) -> None:
    """Ask for vectors of 512 bits in `function`; see Note [512 bits]."""
    if _is_wide(_target_of(context)) and not isinstance(
        function.attributes, _Attributes
    ):
        function.attributes = _Attributes(WIDE, function.attributes)


def _keep(module: Any, function: Any) -> None:
    """Add `function` to the globals that LLVM must not remove."""
    byte = ir.IntType(8).as_pointer()
    used = module.globals.get(USED)
    kept = [] if used is None else list(used.initializer.constant)
    kept.append(function.bitcast(byte))
    array = ir.ArrayType(byte, len(kept))
    if used is None:
        used = ir.GlobalVariable(module, array, USED)
        used.linkage, used.section = "appending", "llvm.metadata"
    used.value_type, used.type = array, array.as_pointer()
    used.initializer = ir.Constant(array, kept)


def _declare_variants(
    module: Any, function: Any, name: str, bits: int, count: int, target: Target
) -> str:
    """Declare the vector functions of one; return the attribute that leads to them."""
    element = ir.DoubleType() if bits == 64 else ir.FloatType()
    variants = []
    for width in target.widths():
        vector = _vector_name(name, bits, width, count)
        lanes = width.bits // bits
        if vector in _BOUND:
            wide = ir.VectorType(element, lanes)
            kind = ir.FunctionType(wide, [wide] * count)
            variant = ir.Function(module, kind, vector)
            variant.attributes = _Attributes(PURE, ["nounwind"])
        elif name in OURS and target.fuses:
            vector = f"retrograde_{name}{bits}_{lanes}"
            variant = modulo.define(module, vector, function, element, lanes)
        else:
            continue
        _keep(module, variant)
        path = f"_ZGV_LLVM_N{lanes}{'v' * count}_{function.name}({vector})"
        variants.append(path)
    if not variants:
        return PURE
    return f'{PURE} "vector-function-abi-variant"="{",".join(variants)}"'


def _declare(
    module: Any, name: str, bits: int, count: int, target: Target | None
) -> Any:
    """Return the scalar function in `module`, without a target a plain one."""
    scalar = _scalar_name(name, bits)
    if scalar not in _BOUND and name not in OURS:
        scalar = _c_name(name, bits)  # not found in libm: left to the process
    if scalar not in module.globals:
        element = ir.DoubleType() if bits == 64 else ir.FloatType()
        kind = ir.FunctionType(element, [element] * count)
        function = ir.Function(module, kind, scalar)
        known = ["nounwind"]
        if name in OURS:
            modulo.define_scalar(function)
            known.append("noinline")  # or there is no call that has a vector function
        attributes = PURE
        if target is not None:
            attributes = _declare_variants(module, function, name, bits, count, target)
        function.attributes = _Attributes(attributes, known)
    return module.globals[scalar]


def call(context: Any, builder: Any, bits: int, name: str, *args: Any) -> Any:
    """Emit a call of one of these functions."""
    target = _target_of(context)
    prefer_wide(context, builder.function)
    if _is_inline(name, bits, len(args), target):
        function = polynomials.declare(builder.module, name, bits)
    else:
        function = _declare(builder.module, name, bits, len(args), target)
    return builder.call(function, args)


def inline_call(context: Any, builder: Any, bits: int, name: str, *args: Any) -> Any:
    """Emit a polynomial, where there may be one."""
    if not _target_of(context).fuses:
        return call(context, builder, bits, name, *args)
    return builder.call(polynomials.declare(builder.module, name, bits), args)


def scalar_call(context: Any, builder: Any, bits: int, name: str, *args: Any) -> Any:
    """Emit a call of the C library's scalar function, which stays one."""
    function = _declare(builder.module, name, bits, len(args), None)
    return builder.call(function, args)


def _float(name: str, *arguments: Any) -> Any:
    kind = types.unliteral(arguments[0])
    same = all(types.unliteral(other) == kind for other in arguments)
    if not same or kind not in (types.float32, types.float64):
        given = " and ".join(map(str, arguments))
        raise TypingError(f"{name} needs float32 or float64, not {given}")
    return kind


Emitter = Callable[[Any, Any, Any, Any], Any]


def _call(name: str, call: Function = call) -> Emitter:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return call(context, builder, signature.return_type.bitwidth, name, *args)

    return emit


def _instruction(llvm_name: str) -> Emitter:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = context.get_value_type(signature.return_type)
        function_type = ir.FunctionType(kind, [kind] * len(args))
        function = builder.module.declare_intrinsic(llvm_name, [kind], function_type)
        return builder.call(function, args)

    return emit


def _unary(name: str, emit: Emitter) -> Function:
    @intrinsic
    def function(typingctx: Any, x: Any) -> Any:
        kind = _float(name, x)
        return kind(kind), emit

    return function


def _binary(name: str, emit: Emitter) -> Function:
    @intrinsic
    def function(typingctx: Any, x: Any, y: Any) -> Any:
        kind = _float(name, x, y)
        return kind(kind, kind), emit

    return function


def precise(name: str) -> Function:
    """Return the function that is always the C library's scalar one."""
    make = _binary if name in BINARY else _unary
    return make(name, _call(name, scalar_call))


exp = _unary("exp", _call("exp"))
inline_exp = _unary("exp", _call("exp", inline_call))
log = _unary("log", _call("log"))
sin = _unary("sin", _call("sin"))
cos = _unary("cos", _call("cos"))
tan = _unary("tan", _call("tan"))
tanh = _unary("tanh", _call("tanh"))
sinh = _unary("sinh", _call("sinh"))
cosh = _unary("cosh", _call("cosh"))
asin = _unary("asin", _call("asin"))
acos = _unary("acos", _call("acos"))
atan = _unary("atan", _call("atan"))
asinh = _unary("asinh", _call("asinh"))
acosh = _unary("acosh", _call("acosh"))
atanh = _unary("atanh", _call("atanh"))
exp2 = _unary("exp2", _call("exp2"))
expm1 = _unary("expm1", _call("expm1"))
log2 = _unary("log2", _call("log2"))
log10 = _unary("log10", _call("log10"))
log1p = _unary("log1p", _call("log1p"))
cbrt = _unary("cbrt", _call("cbrt"))
erf = _unary("erf", _call("erf"))
erfc = _unary("erfc", _call("erfc"))
pow = _binary("pow", _call("pow"))
atan2 = _binary("atan2", _call("atan2"))
hypot = _binary("hypot", _call("hypot"))

# Machine instructions, exact: cheaper to compile than NumPy's functions in Numba.
sqrt = _unary("sqrt", _instruction("llvm.sqrt"))
fabs = _unary("fabs", _instruction("llvm.fabs"))
rint = _unary("rint", _instruction("llvm.rint"))
copysign = _binary("copysign", _instruction("llvm.copysign"))
# maximum and minimum give NaN if either is NaN, fmax and fmin only if both are.
maximum = _binary("maximum", _instruction("llvm.maximum"))
minimum = _binary("minimum", _instruction("llvm.minimum"))
fmax = _binary("fmax", _instruction("llvm.maxnum"))
fmin = _binary("fmin", _instruction("llvm.minnum"))
