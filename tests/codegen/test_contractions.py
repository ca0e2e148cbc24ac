"""Products of views of every layout and size are those of the interpreter."""

import copy
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import retrograde.ir.ops  # noqa: F401
from retrograde.codegen import binder, build
from retrograde.codegen.binder import Kernel
from retrograde.codegen.lower import lower
from retrograde.codegen.nests import Call
from retrograde.ir.func import Func
from retrograde.ir.interp import run
from retrograde.ir.text import parse
from retrograde.passes import manager
from retrograde.passes.fuse import fuse
from retrograde.passes.vjp import vjp

sys.path.append(str(Path(__file__).parent.parent / "passes"))
from differences import check_joint

SIZES = (0, 1, 2, 3, 17, 64, 200)
TOLERANCE = {"f64": 1e-11, "f32": 2e-4, "i64": 0}

FORMS = """func @f(%a: T[n,m], %b: T[m,k], %x: T[m], %y: T[n], %z: T[2,m], %c: T[2,2]) -> OUT {
  %at: T[m,n] = transpose %a {axes=(1, 0)}
  %bt: T[k,m] = transpose %b {axes=(1, 0)}
  %back: T[m] = flip %x {axis=(0,)}
  %up: T[n,m] = flip %a {axis=(0,)}
  %even: T[2] = select %c, 1 {axis=1}
  %r0: T = matmul %x, %back
  %r1: T[n] = matmul %a, %back
  %r2: T[m] = matmul %at, %y
  %r3: T[k] = matmul %x, %b
  %r4: T[n] = matmul %x, %at
  %r5: T[n,k] = matmul %a, %b
  %r6: T[n,n] = matmul %up, %at
  %r7: T[k,n] = matmul %bt, %at
  %r8: T[m] = matmul %even, %z
  %r9: T[2,k] = matmul %z, %b
  %row: T[1,m] = expand_dims %x {axis=(0,)}
  %column: T[m,1] = expand_dims %back {axis=(1,)}
  %r10: T[1,k] = matmul %row, %b
  %r11: T[n,1] = matmul %up, %column
  %r12: T[m,m] = matmul %column, %row
  return NAMES
}"""  # noqa: E501
NAMES = [f"%r{k}" for k in range(13)]


def written(text: str, dtype: str) -> Func:
    """Fill in the results and the dtype of a listing."""
    types = [re.search(rf"{name}: (\S+) =", text)[1] for name in NAMES]  # type: ignore[index]
    text = text.replace("OUT", f"({', '.join(types)})")
    text = text.replace("NAMES", ", ".join(NAMES))
    return parse(re.sub(r"\bT\b", dtype, text))


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    if dtype == "i64":
        return rng.integers(-9, 10, shape)
    return rng.normal(size=shape).astype({"f64": "f8", "f32": "f4"}[dtype])


def agree(kernel: Kernel, f: Func, args: list[Any], tolerance: float) -> None:
    want = run(f, *copy.deepcopy(args))
    for got, expected in zip(kernel(args), want, strict=True):
        assert np.asarray(got).dtype == np.asarray(expected).dtype
        scale = max(1.0, float(np.max(np.abs(expected), initial=0)))
        np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("dtype", ["f64", "f32", "i64"])
def test_every_form_in_every_size(dtype: str) -> None:
    f = written(FORMS, dtype)
    kernel = build(f)
    rng = np.random.default_rng(0)
    sizes = [(n, n, n) for n in SIZES] + [(0, 3, 2), (3, 0, 2), (3, 2, 0), (200, 1, 3)]
    for n, m, k in sizes:
        shapes = ((n, m), (m, k), (m,), (n,), (2, m), (2, 2))
        agree(kernel, f, [values(rng, s, dtype) for s in shapes], TOLERANCE[dtype])


STACKS = """func @stacks(%a: f64[p,n,m], %b: f64[m,n], %x: f64[m]) -> (f64[p,n,n], f64[p,n], f64[p,m,m], f64[p,n]) {
  %r0: f64[p,n,n] = matmul %a, %b
  %r1: f64[p,n] = matmul %a, %x
  %t: f64[p,m,n] = transpose %a {axes=(0, 2, 1)}
  %r2: f64[p,m,m] = matmul %t, %a
  %r3: f64[p,n] = matmul %x, %t
  return %r0, %r1, %r2, %r3
}"""  # noqa: E501


def layouts(x: Any) -> list[Any]:
    """Return equal arrays: packed, with rows apart, with columns together, ..."""
    apart = np.repeat(np.pad(x, [(0, 2)] * x.ndim), 2, axis=0)[::2]
    inside = apart[tuple(slice(0, d) for d in x.shape)]
    backward = np.ascontiguousarray(x[::-1])[::-1]
    turned = np.ascontiguousarray(x.T).T if x.ndim < 3 else x.swapaxes(1, 2).copy()
    turned = turned if x.ndim < 3 else turned.swapaxes(1, 2)
    wide = np.repeat(x, 2, -1)[..., ::2]
    return [x, inside, turned, np.asfortranarray(x), backward, wide]


def test_one_kernel_takes_arguments_of_every_layout() -> None:
    f = parse(STACKS)
    kernel = build(f)
    rng = np.random.default_rng(1)
    for p, n, m in ((2, 3, 5), (2, 40, 50), (0, 2, 2), (1, 1, 4), (3, 1, 1), (2, 0, 3)):
        a, b, x = (rng.normal(size=s) for s in ((p, n, m), (m, n), (m,)))
        for changed in layouts(a):
            agree(kernel, f, [changed, b, x], 1e-12)
        for changed in layouts(b):
            agree(kernel, f, [a, changed, x], 1e-12)
        for changed in layouts(x):
            agree(kernel, f, [a, b, changed], 1e-12)
        agree(kernel, f, [a, np.broadcast_to(b[:, :1], (m, n)), x], 1e-12)


SUMS = """func @sums(%a: f64[n,m]) -> f64[n] {
  %b: f64[n,m] = square %a
  %s: f64[n] = sum %b {axis=(1,), keepdims=False}
  return %s
}"""


@pytest.mark.parametrize("text", [STACKS, SUMS], ids=["matrices", "rows"])
def test_arrays_are_read_where_they_are(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    f = fuse(parse(text))
    kernel = build(f)
    shapes = [tuple(4 for _ in p.type.shape) for p in f.params]
    args = [np.random.default_rng(0).normal(size=s) for s in shapes]
    monkeypatch.setitem(kernel.call.__globals__, "normal", None)
    monkeypatch.setattr(binder, "normal", None)
    taken = layouts(args[0])[: 3 if len(args) > 1 else 2]
    for x in taken:
        agree(kernel, f, [x, *args[1:]], 1e-12)


def test_loops_over_whole_arrays_stay_single() -> None:
    kernel = build(
        parse("""func @f(%a: f64[n,m]) -> f64[n,m] {
  %b: f64[n,m] = square %a
  return %b
}""")
    )
    assert "stride(" not in kernel.source
    assert kernel.source.count("for ") == 1


PROGRAMS = {
    "row_times_block": """traced @f(%a0: f64[n,n]) -> f64[n,n] where n - 2 >= 0 {
  %a: f64[n,n] = copy %a0
  for i in 0..n {
    %row: f64[n] &%a = select %a, i {axis=0}
    %left: f64[i] &%row = slice %row, 0 {axis=0, size=i, step=1}
    %rows: f64[i,n] &%a = slice %a, 0 {axis=0, size=i, step=1}
    %up: f64[i,n - i] &%rows = slice %rows, i {axis=1, size=n - i, step=1}
    %m: f64[n - i] = matmul %left, %up
    %s: f64[n - i] = multiply %m, 0.1
    %rest: f64[n - i] &%row = slice %row, i {axis=0, size=n - i, step=1}
    %new: f64[n - i] = subtract %rest, %s
    %rest <- %new
    yield
  }
  return %a
}""",
    "column_times_block": """traced @f(%a: f64[n,n]) -> f64[n] where n - 2 >= 0 {
  %y: f64[n] = exp %a.0
  for i in 0..n {
    %down: f64[n - i - 1,n] &%a = slice %a, i + 1 {axis=0, size=n - i - 1, step=1}
    %block: f64[n - i - 1,i] &%down = slice %down, 0 {axis=1, size=i, step=1}
    %column: f64[n] &%a = select %a, i {axis=1}
    %x: f64[i] &%column = slice %column, 0 {axis=0, size=i, step=1}
    %back: f64[i] &%x = flip %x {axis=(0,)}
    %m: f64[n - i - 1] = matmul %block, %back
    %part: f64[n - i - 1] &%y = slice %y, i + 1 {axis=0, size=n - i - 1, step=1}
    %s: f64[n - i - 1] = multiply %m, 0.1
    %t: f64[n - i - 1] = add %part, %s
    %part <- %t
    yield
  }
  return %y
}""".replace(
        "%y: f64[n] = exp %a.0",
        "%d: f64[n] &%a = select %a, 0 {axis=1}\n  %y: f64[n] = exp %d",
    ),
    "recurrent": """traced @f(%w: f64[h,h], %u: f64[h,d], %x: f64[t,d]) -> f64 where h - 2 >= 0, d - 2 >= 0, t - 2 >= 0 {
  %z: f64[h] = full 0.1 {dtype=f64, shape=(h,)}
  %end: f64[h] = for i in 0..t carry(%s: f64[h] = %z) {
    %now: f64[d] &%x = select %x, i {axis=0}
    %p: f64[h] = matmul %w, %s
    %q: f64[h] = matmul %u, %now
    %a: f64[h] = add %p, %q
    %n: f64[h] = tanh %a
    yield %n
  }
  %sum: f64 = sum %end {axis=(0,), keepdims=False}
  return %sum
}""",  # noqa: E501
    "triangular": """traced @f(%l: f64[n,n], %b: f64[n]) -> f64[n] where n - 2 >= 0 {
  %x: f64[n] = copy %b
  for i in 0..n {
    %r: f64[n] &%l = select %l, i {axis=0}
    %u: f64[i] &%r = slice %r, 0 {axis=0, size=i, step=1}
    %w: f64[i] &%x = slice %x, 0 {axis=0, size=i, step=1}
    %p: f64 = matmul %u, %w
    %v: f64[] &%x = select %x, i {axis=0}
    %q: f64 = subtract %v, %p
    %d: f64[] &%r = select %r, i {axis=0}
    %e: f64 = add %d, 3.0
    %z: f64 = divide %q, %e
    %v <- %z
    yield
  }
  return %x
}""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_products_in_loops_and_their_gradients(name: str) -> None:
    f = manager.run(parse(PROGRAMS[name]), manager.PIPELINES["pure"], verify=True)
    joint = vjp(f, range(len(f.params)))
    joint = manager.run(joint, manager.PIPELINES["optimize"], verify=True)
    lowered = manager.run(joint, manager.PIPELINES["lower"], verify=True)
    kernel = build(lowered)
    rng = np.random.default_rng(0)
    for n in (2, 3, 17, 40):
        args = []
        for p in joint.params:
            shape = tuple(n for _ in p.type.shape)
            args.append(rng.normal(size=shape) / n if shape else np.float64(1.5))
        agree(kernel, joint, args, 1e-11)
        if n == 3:
            check_joint(f, joint, args[: len(f.params)], 0)


IN_PLACE = {
    "sum": (
        """func @f(PARAMS) -> f64[n,m] into %c where n - 2 >= 0, m - 2 >= 0 {
  %t: f64[n,m] = matmul %a, %b
  %d: f64[n,m] = add %c, %t
  return %d
}""",
        "gemm_add",
    ),
    "rows": (
        """traced @f(PARAMS) -> f64 where n - 2 >= 0, m - 2 >= 0 {
  %v: f64[n - 1,m] &%c = slice %c, 1 {axis=0, size=n - 1, step=1}
  %r: f64[n - 1,k] &%a = slice %a, 0 {axis=0, size=n - 1, step=1}
  %t: f64[n - 1,m] = matmul %r, %b
  %d: f64[n - 1,m] = subtract %v, %t
  %v <- %d
  %s: f64 = sum %c {axis=(0, 1), keepdims=False}
  return %s
}""",
        "gemm_subtract",
    ),
    "columns": (
        """func @f(PARAMS) -> f64[n,m] into %c where n - 2 >= 0, m - 2 >= 0 {
  %x: f64[k] = select %b, 0 {axis=1}
  %t: f64[n] = matmul %a, %x
  %d: f64[n,m] = select_scatter %c, %t, 0 {axis=1}
  return %d
}""",
        "gemv",
    ),
    "negative": (
        """func @f(PARAMS) -> f64[n,m] into %c where n - 2 >= 0, m - 2 >= 0 {
  %x: f64[k] = select %a, 0 {axis=0}
  %t: f64[m] = matmul %x, %b
  %u: f64[m] = negative %t
  %d: f64[n,m] = select_scatter_add %c, %u, n - 1 {axis=0}
  return %d
}""",
        "gemv_subtract",
    ),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_products_are_added_in_place(name: str) -> None:
    text, call = IN_PLACE[name]
    text = text.replace("PARAMS", "%c: f64[n,m], %a: f64[n,k], %b: f64[k,m]")
    f = manager.run(parse(text), [*manager.PIPELINES["pure"]], verify=True)
    kernel = build(manager.run(f, manager.PIPELINES["lower"], verify=True))
    assert f"{call}(" in kernel.source
    assert "arena" not in kernel.nests
    rng = np.random.default_rng(0)
    for n, m, k in ((2, 2, 0), (2, 3, 4), (17, 5, 9), (60, 50, 40)):
        args = [rng.normal(size=s) for s in ((n, m), (n, k), (k, m))]
        want = run(f, *copy.deepcopy(args))
        for got, expected in zip(kernel(copy.deepcopy(args)), want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-11)


NOT_IN_PLACE = """func @f(%a0: f64[n,n], %y0: f64[n]) -> (f64[n,n], f64[n], f64[n,n], f64[n]) {
  %a: f64[n,n] = sin %a0
  %y: f64[n] = cos %y0
  %t: f64[n] = matmul %a, %y0
  %b: f64[n,n] = multiply %a, 2.0
  %z: f64[n] = add %y, %t
  %c: f64[n,n] = cos %a0
  %r: f64[n] = select %c, 0 {axis=0}
  %p: f64[n] = matmul %r, %c
  %d: f64[n,n] = select_scatter %c, %p, 0 {axis=0}
  %u: f64[n] = matmul %a0, %y0
  %v: f64[n] = matmul %y0, %a0
  %w: f64[n] = add %u, %v
  return %b, %z, %d, %w
}"""  # noqa: E501


def test_products_see_what_was_there_at_their_place() -> None:
    f = parse(NOT_IN_PLACE)
    kernel = build(manager.run(f, manager.PIPELINES["lower"], verify=True))
    rng = np.random.default_rng(0)
    for n in (1, 2, 17, 64):
        agree(kernel, f, [rng.normal(size=(n, n)), rng.normal(size=n)], 1e-12)


# ---------------------------------------------------------------- orders of axes

HEADS = """func @heads[h,d](%p: f64[b,h,t,t], %v: f64[b,t,h*d], %w: f64[h*d,c]) -> f64[b,t,c] where h - 2 >= 0, d - 2 >= 0 {
  %s: f64[b,t,h,d] = reshape %v {shape=(b, t, h, d)}
  %u: f64[b,h,t,d] = transpose %s {axes=(0, 2, 1, 3)}
  %o: f64[b,h,t,d] = matmul %p, %u
  %q: f64[b,t,h,d] = transpose %o {axes=(0, 2, 1, 3)}
  %r: f64[b,t,h*d] = reshape %q {shape=(b, t, h*d)}
  %y: f64[b,t,c] = matmul %r, %w
  return %y
}"""  # noqa: E501
TURNED = """func @turned(%x: f64[b,n,m], %y: f64[b,m,k]) -> f64[b*k,n] {
  %o: f64[b,n,k] = matmul %x, %y
  %q: f64[b,k,n] = transpose %o {axes=(0, 2, 1)}
  %r: f64[b*k,n] = reshape %q {shape=(b*k, n)}
  %e: f64[b*k,n] = exp %r
  return %e
}"""


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        (HEADS, [(2, 3, 4, 4), (2, 4, 6), (6, 5)]),
        (HEADS, [(1, 2, 40, 40), (1, 40, 64), (64, 3)]),
        (TURNED, [(2, 30, 20), (2, 20, 40)]),
        (TURNED, [(3, 1, 2), (3, 2, 5)]),
        (TURNED, [(3, 2, 0), (3, 0, 5)]),
    ],
)
def test_a_stack_lies_as_its_transpose_shows_it(text: str, shapes: Any) -> None:
    f = parse(text)
    rng = np.random.default_rng(0)
    args = [rng.normal(size=s) for s in shapes]
    symbols = {"h": shapes[0][1], "d": shapes[1][2] // shapes[0][1]}
    given = [symbols[s.name] for s in f.symbols]
    kernel = build(f)
    want = run(f, *args, symbols=dict(zip(f.symbols, given, strict=True)))
    np.testing.assert_allclose(kernel(args, given)[0], want[0], rtol=1e-12, atol=1e-12)
    between = shapes[0][0] * shapes[1][2] * shapes[0][-1 if text is HEADS else 1]
    assert kernel.scratch(args, given) == -(-8 * between // 64) * 64  # no copies


def test_the_gradient_of_heads_copies_nothing() -> None:
    f = parse(HEADS)
    joint = vjp(f, [0, 1, 2], seed={0: 1.0})
    stages = (*manager.PIPELINES["optimize"], *manager.PIPELINES["lower"])
    f = manager.run(joint, stages, verify=True)
    kernel = build(f)
    rng = np.random.default_rng(0)
    args = [rng.normal(size=s) for s in ((2, 3, 4, 4), (2, 4, 6), (6, 5))]
    given = {s: {"h": 3, "d": 2}[s.name] for s in f.symbols}
    want = run(joint, *args, symbols=given)
    for got, expected in zip(kernel(args, list(given.values())), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
    # The heads, their cotangent, and the one of ones that it is made of.
    assert kernel.scratch(args, list(given.values())) == 384 + 384 + 320


MERGED = """func @merged(%x: f64[p,q,n,m], %w: f64[m,k], %v: f64[m]) -> (f64[p,q,n,k], f64[p,q,n], f64[p,q,n,k]) {
  %r0: f64[p,q,n,k] = matmul %x, %w
  %r1: f64[p,q,n] = matmul %x, %v
  %e: f64[p,q,n,m] = negative %x
  %r2: f64[p,q,n,k] = matmul %e, %w
  return %r0, %r1, %r2
}"""  # noqa: E501


def test_a_stack_by_one_matrix_is_one_product() -> None:
    f = parse(MERGED)
    kernel = build(f)
    rng = np.random.default_rng(0)
    for p, q, n, m, k in ((2, 3, 4, 20, 30), (2, 2, 1, 3, 1), (0, 2, 3, 4, 5)):
        x = rng.normal(size=(p, q, n, m))
        w, v = rng.normal(size=(m, k)), rng.normal(size=m)
        apart = np.repeat(np.pad(x, [(0, 1)] * 4), 2, axis=0)[::2][:p, :q, :n, :m]
        for given in (x, apart, np.swapaxes(np.swapaxes(x, 2, 3).copy(), 2, 3)):
            agree(kernel, f, [given, w, v], 1e-12)
    body = lower(parse(MERGED.replace("p,q,n", "2,3,50")), "f").body
    assert len([s for s in body if isinstance(s, Call)]) == 1  # of %e, which is packed
