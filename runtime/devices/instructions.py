"""Rules of arithmetic, bits, comparisons and choices."""

from .emitter import TYPES, Emitter, Rules, dtype_of, plain, vector
from .ptx import Immediate, Instruction, Operand

RULES = Rules()
rule = RULES.rule
ROUNDED = ("rz", "rm", "rp")


def is_float(kind: str) -> bool:
    return kind[0] == "f"


def mode_of(item: Instruction) -> str:
    return next((part for part in item.opcode if part in ROUNDED), "rn")


def floats(e: Emitter, item: Instruction) -> list[str]:
    """Return the sources of a float instruction, flushed if it says so."""
    found = [e.get(o, dtype_of(item.opcode[-1])) for o in item.operands[1:]]
    if "ftz" in item.opcode and item.opcode[-1] == "f32":
        found = [f"flush({x})" for x in found]
    return found


def result(e: Emitter, item: Instruction, expression: str) -> None:
    """Assign the result of a float instruction."""
    kind = item.opcode[-1]
    if "ftz" in item.opcode and kind == "f32":
        expression = f"flush({expression})"
    if "sat" in item.opcode:
        expression = f"saturate({expression})"
    e.put(item.operands[0], expression, dtype_of(kind))


# Arithmetic.


@rule("add sub", "rn rz rm rp ftz sat cc")
def add(e: Emitter, item: Instruction) -> None:
    kind, sign = item.opcode[-1], "+" if item.opcode[0] == "add" else "-"
    if "cc" in item.opcode:
        return carried(e, item)
    if is_float(kind):
        a, b = floats(e, item)
        mode = mode_of(item)
        if mode == "rn":
            return result(e, item, f"{a} {sign} {b}")
        return result(e, item, f"add_rounded({a}, {sign}{b}, {mode!r})")
    if "sat" in item.opcode:
        wide = [f"{e.get(o, 'int32')}.astype(int64)" for o in item.operands[1:]]
        clipped = f"integer_saturated({wide[0]} {sign} {wide[1]}, int32)"
        return e.put(item.operands[0], clipped, "int32")
    a, b = (e.get(o, plain(kind)) for o in item.operands[1:])
    e.put(item.operands[0], f"{a} {sign} {b}", plain(kind))


@rule("addc subc", "cc")
def carried(e: Emitter, item: Instruction) -> None:
    unsigned = "u" + plain(item.opcode[-1])
    a, b = (e.get(o, unsigned) for o in item.operands[1:3])
    with_carry(
        e, item, a, b, "subtract_borrow" if "sub" in item.opcode[0] else "add_carry"
    )


def with_carry(e: Emitter, item: Instruction, a: str, b: str, function: str) -> None:
    """Write an addition that reads or writes the condition code."""
    unsigned = "u" + plain(item.opcode[-1])
    carry = e.name("%cc") if item.opcode[0][-1] == "c" else e.constant(0, "bool_")
    temporary = "t_cc" if "cc" in item.opcode else "_"
    e.lines.append(f"t, {temporary} = {function}({a}, {b}, {carry})")
    e.put(item.operands[0], "t", unsigned)
    if "cc" in item.opcode:
        e.lines.append(f"{e.name('%cc')} = t_cc")


def product(e: Emitter, item: Instruction) -> tuple[str, str]:
    """Return the product of an integer mul or mad, and its dtype."""
    kind, operands = item.opcode[-1], item.operands
    dtype, bits = dtype_of(kind), int(kind[1:])
    if "wide" in item.opcode:
        wide = dtype.replace(str(bits), str(2 * bits))
        a, b = (widened(e, o, dtype, wide) for o in operands[1:3])
        return f"{a} * {b}", wide
    if "hi" not in item.opcode:
        a, b = (e.get(o, plain(kind)) for o in operands[1:3])
        return f"{a} * {b}", plain(kind)
    if bits == 64:
        a, b = (e.get(o, dtype) for o in operands[1:3])
        return (
            f"{'high_signed' if kind[0] == 's' else 'high_unsigned'}({a}, {b})",
            dtype,
        )
    wide = dtype.replace(str(bits), str(2 * bits))
    a, b = (widened(e, o, dtype, wide) for o in operands[1:3])
    return f"({a} * {b} >> {e.constant(bits, wide)}).astype({dtype})", dtype


def widened(e: Emitter, operand: Operand, dtype: str, wide: str) -> str:
    if isinstance(operand, Immediate):
        bits = int(dtype.lstrip("uint"))
        value = operand.value & ((1 << bits) - 1)
        if dtype[0] == "i" and value >> (bits - 1):
            value -= 1 << bits
        return e.constant(value, wide)
    return f"{e.get(operand, dtype)}.astype({wide})"


@rule("mul", "rn rz rm rp ftz sat lo hi wide")
def multiply(e: Emitter, item: Instruction) -> None:
    if not is_float(item.opcode[-1]):
        expression, dtype = product(e, item)
        return e.put(item.operands[0], expression, dtype)
    a, b = floats(e, item)
    mode = mode_of(item)
    if mode == "rn":
        return result(e, item, f"{a} * {b}")
    result(e, item, f"multiply_rounded({a}, {b}, {mode!r})")


@rule("mad madc", "lo hi wide cc")
def multiply_add(e: Emitter, item: Instruction) -> None:
    expression, dtype = product(e, item)
    if "cc" in item.opcode or item.opcode[0] == "madc":
        unsigned = "u" + plain(item.opcode[-1])
        factor = expression if dtype == unsigned else f"({expression}).view({unsigned})"
        addend = e.get(item.operands[3], unsigned)
        return with_carry(e, item, factor, addend, "add_carry")
    e.put(item.operands[0], f"{expression} + {e.get(item.operands[3], dtype)}", dtype)


@rule("fma", "rn rz rm rp ftz sat")
def fused(e: Emitter, item: Instruction) -> None:
    kind, mode = item.opcode[-1], mode_of(item)
    if kind == "f32" and mode == "rn" and "ftz" not in item.opcode:
        a, b, c = (e.wide(o) for o in item.operands[1:])
        return result(e, item, f"fma32({a}, {b}, {c})")
    a, b, c = floats(e, item)
    if mode != "rn":
        return result(e, item, f"fma_rounded({a}, {b}, {c}, {mode!r})")
    if kind == "f64":
        return result(e, item, f"fma64({a}, {b}, {c})")
    a, b, c = (f"{x}.astype(float64)" for x in (a, b, c))
    single = f"fma32({a}, {b}, {c})"
    result(e, item, f"{single}.astype(float16)" if kind == "f16" else single)


@rule("div rem", "rn rz rm rp ftz approx full")
def divided(e: Emitter, item: Instruction) -> None:
    kind = item.opcode[-1]
    if is_float(kind):
        a, b = floats(e, item)
        mode = mode_of(item)
        if "approx" in item.opcode:
            return result(e, item, f"coarse_quotient({a}, {b})")
        if mode == "rn":
            return result(e, item, f"{a} / {b}")
        return result(e, item, f"divide_rounded({a}, {b}, {mode!r})")
    a, b = (e.get(o, dtype_of(kind)) for o in item.operands[1:])
    function = "divide" if item.opcode[0] == "div" else "remainder"
    e.put(item.operands[0], f"{function}({a}, {b})", dtype_of(kind))


@rule("sad")
def sum_of_difference(e: Emitter, item: Instruction) -> None:
    dtype = dtype_of(item.opcode[-1])
    a, b, c = (e.get(o, dtype) for o in item.operands[1:])
    e.put(item.operands[0], f"{c} + absolute_difference({a}, {b})", dtype)


@rule("abs neg", "ftz")
def signs(e: Emitter, item: Instruction) -> None:
    kind = item.opcode[-1]
    pattern = "abs({0})" if item.opcode[0] == "abs" else "-{0}"
    if is_float(kind):
        return result(e, item, pattern.format(*floats(e, item)))
    x = e.get(item.operands[1], plain(kind))
    e.put(item.operands[0], pattern.format(x), plain(kind))


@rule("min max", "ftz NaN")
def extremes(e: Emitter, item: Instruction) -> None:
    kind, name = item.opcode[-1], f"{item.opcode[0]}imum"
    if is_float(kind):
        name = f"{'nan' if 'NaN' in item.opcode else 'float'}_{name}"
        return result(e, item, f"{name}({', '.join(floats(e, item))})")
    a, b = (e.get(o, dtype_of(kind)) for o in item.operands[1:])
    e.put(item.operands[0], f"{name}({a}, {b})", dtype_of(kind))


ONE_OPERAND = {  # PTX: (float32, float64, float64 with .ftz)
    "rcp": ("float32(1) / {0}", "float64(1) / {0}", "coarse_reciprocal({0})"),
    "rsqrt": ("reciprocal_root({0})", "reciprocal_root({0})", "coarse_root({0})"),
    "ex2": ("exp2({0})", "", ""),
    "lg2": ("log2({0})", "", ""),
    "sin": ("sine({0})", "", ""),
    "cos": ("cosine({0})", "", ""),
    "tanh": ("tangent({0})", "", ""),
}


@rule(" ".join(ONE_OPERAND), "approx ftz rn rz rm rp")
def unary(e: Emitter, item: Instruction) -> None:
    kind, mode = item.opcode[-1], mode_of(item)
    (x,) = floats(e, item)
    single, double, coarse = ONE_OPERAND[item.opcode[0]]
    if mode != "rn":
        one = e.constant(1, dtype_of(kind))
        return result(e, item, f"divide_rounded({one}, {x}, {mode!r})")
    pattern = single if kind == "f32" else coarse if "ftz" in item.opcode else double
    if not pattern or kind not in ("f32", "f64"):
        raise e.refuse(f"unknown type .{kind} of {item.opcode[0]}")
    result(e, item, pattern.format(x))


@rule("sqrt", "approx ftz rn rz rm rp")
def root(e: Emitter, item: Instruction) -> None:
    (x,) = floats(e, item)
    mode = mode_of(item)
    if mode == "rn":
        return result(e, item, f"square_root({x})")
    result(e, item, f"root_rounded({x}, {mode!r})")


@rule("copysign")
def copy_sign(e: Emitter, item: Instruction) -> None:
    sign, size = floats(e, item)
    result(e, item, f"copysign({size}, {sign})")


@rule("testp", "finite infinite number notanumber normal subnormal")
def test_property(e: Emitter, item: Instruction) -> None:
    (x,) = floats(e, item)
    e.put(item.operands[0], f"test_float({x}, {item.opcode[1]!r})", "bool_")


# Bits.


@rule("and or xor not cnot")
def bitwise(e: Emitter, item: Instruction) -> None:
    dtype = plain(item.opcode[-1])
    found = [e.get(o, dtype) for o in item.operands[1:]]
    patterns = {
        "and": "{0} & {1}",
        "or": "{0} | {1}",
        "xor": "{0} ^ {1}",
        "not": "~{0}",
        "cnot": f"({{0}} == 0).astype({dtype})",
    }
    e.put(item.operands[0], patterns[item.opcode[0]].format(*found), dtype)


@rule("shl shr")
def shift(e: Emitter, item: Instruction) -> None:
    kind, count = item.opcode[-1], item.operands[2]
    left = item.opcode[0] == "shl"
    dtype = plain(kind) if left or kind[0] == "s" else "u" + plain(kind)
    if isinstance(count, Immediate):
        by = e.constant(min(count.value & 0xFFFFFFFF, 64), dtype)
    elif dtype in ("int32", "uint32"):
        by = e.get(count, dtype)
    else:
        by = f"minimum({e.get(count, 'uint32')}, uint32(64)).astype({dtype})"
    x = e.get(item.operands[1], dtype)
    e.put(item.operands[0], f"{x} {'<<' if left else '>>'} {by}", dtype)


@rule("bfe")
def field_extract(e: Emitter, item: Instruction) -> None:
    dtype = dtype_of(item.opcode[-1])
    a = e.get(item.operands[1], dtype)
    place, length = (e.get(o, "uint32") for o in item.operands[2:])
    e.put(item.operands[0], f"extract({a}, {place}, {length})", dtype)


@rule("bfi")
def field_insert(e: Emitter, item: Instruction) -> None:
    dtype = "u" + plain(item.opcode[-1])
    a, b = (e.get(o, dtype) for o in item.operands[1:3])
    place, length = (e.get(o, "uint32") for o in item.operands[3:])
    e.put(item.operands[0], f"insert({a}, {b}, {place}, {length})", dtype)


@rule("brev clz popc bfind", "shiftamt")
def counts(e: Emitter, item: Instruction) -> None:
    name, kind = item.opcode[0], item.opcode[-1]
    unsigned = "u" + plain(kind)
    x = e.get(item.operands[1], dtype_of(kind) if name == "bfind" else unsigned)
    if name == "brev":
        return e.put(item.operands[0], f"reverse_bits({x})", unsigned)
    patterns = {
        "clz": "count_leading({0})",
        "popc": "bitwise_count({0}).astype(int32)",
        "bfind": f"find_leading({{0}}, {'shiftamt' in item.opcode})",
    }
    e.put(item.operands[0], patterns[name].format(x), "int32")


@rule("prmt")
def permute(e: Emitter, item: Instruction) -> None:
    a, b, c = (e.get(o, "uint32") for o in item.operands[1:])
    e.put(item.operands[0], f"permute({a}, {b}, {c})", "uint32")


@rule("shf", "l r wrap clamp")
def funnel(e: Emitter, item: Instruction) -> None:
    a, b, c = (e.get(o, "uint32") for o in item.operands[1:])
    left, clamp = "l" in item.opcode, "clamp" in item.opcode
    e.put(item.operands[0], f"funnel({a}, {b}, {c}, {left}, {clamp})", "uint32")


@rule("lop3")
def logic(e: Emitter, item: Instruction) -> None:
    a, b, c = (e.get(o, "int32") for o in item.operands[1:4])
    table = item.operands[4]
    assert isinstance(table, Immediate)
    e.put(item.operands[0], f"logic({a}, {b}, {c}, {table.value})", "int32")


# Comparisons and choices.


COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
COMPARISONS |= {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
OPPOSITES = {"equ": "ne", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}
TESTS = " ".join([*COMPARISONS, *OPPOSITES, "neu", "num", "nan"])


def compared(test: str, a: str, b: str, real: bool) -> str:
    """Return a comparison; of floats, the unordered ones hold if one is a NaN."""
    ordered = f"({a} == {a}) & ({b} == {b})"
    if test == "num":
        return ordered
    if test == "nan":
        return f"({a} != {a}) | ({b} != {b})"
    if test == "neu":
        return f"{a} != {b}"
    if real and test == "ne":
        return f"({a} < {b}) | ({a} > {b})"
    if test == "equ":
        return f"~(({a} < {b}) | ({a} > {b}))"
    if test in OPPOSITES:
        return f"~({a} {COMPARISONS[OPPOSITES[test]]} {b})"
    return f"{a} {COMPARISONS[test]} {b}"


@rule("setp set", f"{TESTS} and or xor ftz")
def compare(e: Emitter, item: Instruction) -> None:
    kind, test = item.opcode[-1], item.opcode[1]
    same = test in ("eq", "ne") and not is_float(kind)
    dtype = plain(kind) if same else dtype_of(kind)
    if kind[0] == "b" or test in ("lo", "ls", "hi", "hs"):
        dtype = plain(kind) if same else "u" + plain(kind)
    a, b = (e.get(o, dtype) for o in item.operands[1:3])
    if "ftz" in item.opcode and kind == "f32":
        a, b = f"flush({a})", f"flush({b})"
    expression = compared(test, a, b, is_float(kind))
    join = next((p for p in item.opcode[2:] if p in ("and", "or", "xor")), "")
    c = e.get(item.operands[3], "bool_") if join else ""
    symbol = {"and": "&", "or": "|", "xor": "^"}.get(join)
    if item.opcode[0] == "set":
        return compare_to_number(
            e, item, f"({expression}) {symbol} {c}" if c else expression
        )
    targets = vector(item.operands[0])
    e.lines.append(f"t = {expression}")
    if c:
        e.lines.append(f"u = ~t {symbol} {c}; t = t {symbol} {c}")
    e.put(targets[0], "t", "bool_")
    if len(targets) > 1:
        e.put(targets[1], "u" if c else "~t", "bool_")


def compare_to_number(e: Emitter, item: Instruction, expression: str) -> None:
    target = next(p for p in item.opcode[2:-1] if p in TYPES)
    if target == "f32":
        return e.put(item.operands[0], f"({expression}).astype(float32)", "float32")
    e.put(item.operands[0], f"-({expression}).astype(int32)", "int32")


@rule("selp")
def choose(e: Emitter, item: Instruction) -> None:
    dtype = plain(item.opcode[-1])
    a, b = (e.get(o, dtype) for o in item.operands[1:3])
    p = e.get(item.operands[3], "bool_")
    e.put(item.operands[0], f"select({p}, {a}, {b})", dtype)


@rule("slct", "ftz")
def choose_by_sign(e: Emitter, item: Instruction) -> None:
    dtype = plain(item.opcode[-2])
    a, b = (e.get(o, dtype) for o in item.operands[1:3])
    c = e.get(item.operands[3], dtype_of(item.opcode[-1]))
    e.put(item.operands[0], f"select({c} >= 0, {a}, {b})", dtype)
