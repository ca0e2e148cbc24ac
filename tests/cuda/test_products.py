"""Products of matrices on a device: tiles, interpreted, and programs that use them."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from benchmarks.groups import models
from retrograde.codegen.cuda import products
from retrograde.codegen.cuda.products import Products
from retrograde.ir.errors import IndexRangeError
from retrograde.runtime.devices import device, device_array
from retrograde.runtime.devices.emulator import Emulator
from retrograde.runtime.devices.interface import SCRATCH
from retrograde.runtime.devices.machine import Counts
from retrograde.runtime.devices.products import described

pytestmark = pytest.mark.cuda_emulated
Array = np.ndarray[Any, Any]
EMULATED = "cuda:emu"
TOLERANCE = {"float32": 1e-5, "float64": 1e-13}


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Return what changes the constants by which tiles are chosen."""
    products.tiled.cache_clear()
    yield monkeypatch
    products.tiled.cache_clear()


def steps(x: Array) -> tuple[int, ...]:
    return tuple(s // x.itemsize for s in x.strides)


def numbers(out: Array, left: Array, right: Array) -> tuple[int, ...]:
    """Return what compiled code says of a product of views with the same stack."""
    rows, terms = left.shape[-2:]
    found = [rows, right.shape[-1], terms]
    found += [s for x in (out, left, right) for s in steps(x)[-2:]]
    for axis, count in enumerate(out.shape[:-2]):
        found += [count, *(steps(x)[axis] for x in (out, left, right))]
    return tuple(found)


def drawn(shape: Sequence[int], order: Sequence[int], dtype: str) -> Array:
    """Return a view whose axes lie in memory in an order, with room in the last one."""
    lies = [shape[k] for k in order]
    lies[-1] += 2
    x = np.random.default_rng(1).standard_normal(lies).astype(dtype)
    return x[..., : lies[-1] - 2].transpose(np.argsort(order))


def check(out: Array, left: Array, right: Array, sign: int) -> None:
    """Compare a product on the emulated device with NumPy's."""
    bases = [x.base if x.base is not None else x for x in (out, left, right)]
    there = [device_array(b, EMULATED) for b in bases]
    scratch = device(EMULATED).allocate(SCRATCH)
    found = numbers(out, left, right)
    addresses = [x.address for x in there]
    dtype = out.dtype.name
    Products(device(EMULATED))(
        dtype, sign, True, 0, scratch.address, *addresses, *found
    )
    known = out.copy()
    product = left.astype(float) @ right.astype(float)
    known[...] = known + sign * product if sign else product
    base = there[0].numpy()
    got = np.lib.stride_tricks.as_strided(base, out.shape, out.strides)
    scale = np.abs(known).max(initial=1)
    np.testing.assert_allclose(got, known, rtol=0, atol=TOLERANCE[dtype] * scale)


STACKS = ((), (3,), (2, 3), (2, 1, 2, 2))
ORDERS: dict[int, list[tuple[int, ...]]] = {
    2: [(0, 1), (1, 0)],
    3: [(0, 1, 2), (1, 0, 2), (2, 0, 1)],
    4: [(0, 1, 2, 3), (2, 0, 3, 1), (0, 2, 1, 3)],
    6: [(0, 1, 2, 3, 4, 5), (5, 2, 1, 4, 3, 0)],
}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_operands_and_results_have_any_steps(stack: tuple[int, ...], dtype: str):
    m, n, k = 37, 21, 18
    orders = ORDERS[len(stack) + 2]
    cases = list(itertools.product(orders, repeat=3))
    for number, (one, two, three) in enumerate(cases[:: max(len(cases) // 4, 1)]):
        out = drawn((*stack, m, n), one, dtype)
        left = drawn((*stack, m, k), two, dtype)
        right = drawn((*stack, k, n), three, dtype)
        check(out, left, right, number % 3 - 1)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_sizes_need_not_fit_tiles(dtype: str, chosen: pytest.MonkeyPatch):
    chosen.setattr(products, "BLOCKS", 1)  # the wider tiles
    for m, k, n in ((1, 1, 1), (1, 9, 70), (130, 7, 1), (128, 8, 64), (129, 17, 66)):
        shapes = (m, n), (m, k), (k, n)
        check(*(drawn(s, (0, 1), dtype) for s in shapes), sign=0)
    check(*(drawn(s, (1, 0), dtype) for s in ((5, 6), (5, 0), (0, 6))), sign=0)
    check(*(drawn(s, (0, 1), dtype) for s in ((0, 6), (0, 4), (4, 6))), sign=0)


@pytest.mark.parametrize("sign", [0, 1, -1])
def test_long_sums_are_cut_into_parts(sign: int, chosen: pytest.MonkeyPatch):
    chosen.setattr(products, "LEAST_TERMS", 32)
    shapes = (9, 5), (9, 140), (140, 5)
    out, left, right = (drawn(s, (0, 1), "float32") for s in shapes)
    p = described("float32", sign, numbers(out, left, right))
    assert p is not None
    assert products.tiled(p).parts == 4
    check(out, left, right, sign)


def test_packed_stacks_are_one_matrix():
    out, left = np.zeros((4, 5, 3)), np.zeros((4, 5, 6))
    right = np.broadcast_to(np.zeros((6, 3)), (4, 6, 3))
    p = described("float64", 0, numbers(out, left, right))
    assert p is not None
    assert (p.rows, p.columns, p.terms, p.stack) == (20, 3, 6, ())
    turned = (x.swapaxes(-1, -2) for x in (out, right, left))
    p = described("float64", 0, numbers(*turned))
    assert p is not None
    assert (p.rows, p.columns, p.terms, p.stack) == (3, 20, 6, ())


# ---------------------------------------------------------------- programs


def attention(x: Array, w: Array) -> Any:
    """Attention of sequences to themselves, by heads that are views of them."""
    b, t, d = x.shape
    h = (x @ w).reshape(b, t, 2, d // 2).transpose(0, 2, 1, 3)
    s = h @ h.swapaxes(-1, -2) / np.sqrt(d)
    e = np.exp(s - np.max(s, axis=-1, keepdims=True))
    return np.sum(np.tanh((e / np.sum(e, axis=-1, keepdims=True)) @ h))


def contracted(a: Array, b: Array) -> Any:
    lengths = np.einsum("bij,bij->bi", a, a)
    return np.sum(np.einsum("bij,bkj->bik", a, b) * lengths[..., None])


def added(c: Array, a: Array, b: Array) -> Any:
    c = c.copy()
    c += a @ b
    c[1:, :] -= a[:-1] @ b
    return np.sum(c * c)


def mixed(a: Array, b: Array) -> Any:
    return np.sum((a[::2, ::-1] @ b) ** 2)


def repeated(h: Array, w: Array) -> Any:
    for _ in range(3):
        h = np.tanh(h @ w)
    return np.sum(h)


def normals(*shapes: tuple[int, ...]) -> tuple[Array, ...]:
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(s) for s in shapes)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Array, ...], int]] = {
    "mlp": (models.mlp, models.mlp_args(np.random.default_rng(0), 40), 6),
    "attention": (attention, normals((2, 40, 32), (32, 32)), 2),
    "einsum": (contracted, normals((3, 40, 24), (3, 40, 24)), 2),
    "added": (added, normals((40, 33), (40, 35), (35, 33)), 3),
    "mixed": (mixed, (normals((80, 40))[0].astype("f4"), *normals((40, 36))), 2),
    "repeated": (repeated, normals((40, 40), (40, 40)), 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_agree_with_the_processor(name: str, monkeypatch: pytest.MonkeyPatch):
    f, args, count = PROGRAMS[name]
    launched = noted(monkeypatch)
    argnums = tuple(range(count))
    known = rg.value_and_grad(f, argnums)(*args)
    found = rg.value_and_grad(rg.compile(f, device=EMULATED), argnums)(*args)
    assert sum("multiply" in kernel for kernel, _ in launched) >= 3
    for x, y in zip((found[0], *found[1]), (known[0], *known[1]), strict=True):
        rtol = 1e-11 if np.asarray(x).dtype == np.float64 else 1e-4
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol)


def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Counts]]:
    """Return a list that gets the name and the counts of each launch from now on."""
    found: list[tuple[str, Counts]] = []
    launch = Emulator.launch

    def launched(self: Emulator, function: Any, *args: Any, **more: Any) -> None:
        self.counts = Counts()
        launch(self, function, *args, **more)
        found.append((function.code.entry, self.counts))

    monkeypatch.setattr(Emulator, "launch", launched)
    return found


def product(a: Array, b: Array) -> Any:
    return a @ b


@pytest.mark.parametrize("f", [product, repeated])
def test_sizes_decide_between_loops_and_tiles(
    f: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    launched = noted(monkeypatch)
    compiled = rg.compile(f, device=EMULATED)
    for n in (4, 40):
        a, b = normals((n, n), (n, n))
        launched.clear()
        np.testing.assert_allclose(compiled(a, b), f(a, b), rtol=1e-11, atol=1e-11)
        assert any("multiply" in name for name, _ in launched) == (n == 40)
        assert n == 40 or len(launched) < 6  # two for each iteration would be more


@pytest.mark.parametrize("turned", [False, True])
def test_tiles_load_whole_sectors(turned: bool, monkeypatch: pytest.MonkeyPatch):
    launched = noted(monkeypatch)
    a, b, c = (x.astype("f4") for x in normals((64, 32), (32, 128), (64, 128)))
    check(c, *((x.T.copy().T for x in (a, b)) if turned else (a, b)), sign=0)
    ((_, counts),) = launched
    assert counts.efficiency == 1
    assert counts.written == c.nbytes
    assert counts.read == 2 * a.nbytes + b.nbytes  # the left matrix by both tiles


def written(out: Array, a: Array, b: Array, index: Array) -> Any:
    x = a[index]
    out += x @ b
    return out


def test_nothing_is_added_after_a_failed_check():
    out, a, b = normals((40, 40), (40, 40), (40, 40))
    index, before = np.arange(40), out.copy()
    f = rg.compile(written, device=EMULATED)
    f(out, a, b, index)
    np.testing.assert_allclose(out, before + a @ b, rtol=1e-11, atol=1e-11)
    before, index[7] = out.copy(), 40
    with pytest.raises(IndexRangeError):
        f(out, a, b, index)
    np.testing.assert_array_equal(out, before)
