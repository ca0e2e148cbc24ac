"""Programs compute on a device what NumPy computes, however they are cut into kernels.

Plans depend on sizes: most tests run as planned, with everything on the grid and loops
run by the host, and with everything in one block.
"""

import zlib
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import inplace_programs
import loop_programs
import numpy as np
import pytest
import random_loops
import random_programs
from agreement import COMMON, close
from hypothesis import given, seed, settings

import retrograde as rg
from retrograde import demo
from retrograde.codegen.cuda import plan
from retrograde.ir.errors import IndexRangeError, ShapeError
from retrograde.runtime.devices import Code
from retrograde.runtime.devices.emulator import Emulator

pytestmark = pytest.mark.cuda_emulated
Array = np.ndarray[Any, Any]
EMULATED = "cuda:emu"
SIZES = (0, 1, 31, 32, 33, 255, 257, 1025)
TOLERANCE = {"float32": 2e-6, "float64": 1e-13}
GRADIENT = 1e-10
PARTS, EXAMPLES_OF_A_PART = 4, 2
LOOPS = range(24, 34)  # numbers of random programs


def everything_on_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each nest a launch, and let the host run all loops of the program."""
    for constant in ("SMALL", "LARGE", "SHORT"):
        monkeypatch.setattr(plan, constant, 1)


def everything_in_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave all to segments but what must be the host's: memory of computed sizes."""
    monkeypatch.setattr(plan.Planner, "nest", lambda *args: None)
    monkeypatch.setattr(plan.Planner, "in_rows", lambda *args: None)
    monkeypatch.setattr(plan, "_is_short", lambda size: True)


MODES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "planned": lambda monkeypatch: None,
    "grid": everything_on_the_grid,
    "block": everything_in_a_block,
}
CUT = tuple(MODES)[1:]


@pytest.fixture
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Cut programs into kernels in the way that is the parameter."""
    name = str(request.param)
    MODES[name](monkeypatch)
    return name


in_all_modes = pytest.mark.parametrize("mode", MODES, indirect=True)
cut = pytest.mark.parametrize("mode", CUT, indirect=True)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Code]:
    """Return the list of what is loaded from now on."""
    found: list[Code] = []
    load = Emulator.load

    def keep(device: Emulator, code: Code) -> Any:
        found.append(code)
        return load(device, code)

    monkeypatch.setattr(Emulator, "load", keep)
    return found


def on_device(f: Callable[..., Any]) -> Any:
    return rg.compile(f, device=EMULATED)


def assert_same(got: Any, want: Any, what: str, tolerance: float | None = None) -> None:
    """Compare kinds, dtypes, shapes and elements."""
    a, b = np.asarray(got), np.asarray(want)
    assert isinstance(got, np.ndarray) == isinstance(want, np.ndarray), what
    assert (a.dtype, a.shape) == (b.dtype, b.shape), what
    if b.dtype.kind != "f":
        np.testing.assert_array_equal(a, b, err_msg=what)
        return
    close = tolerance or TOLERANCE[b.dtype.name]
    finite = np.abs(b[np.isfinite(b)])
    scale = 1.0 + np.max(finite, initial=0.0)
    np.testing.assert_allclose(a, b, rtol=close, atol=close * scale, err_msg=what)


def assert_values(f: Callable[..., Any], compiled: Any, *args: Any) -> None:
    """Hold results and final arguments of a call against NumPy's."""
    mine, numpys = deepcopy(args), deepcopy(args)
    with np.errstate(all="ignore"):
        want = f(*numpys)
    got = compiled(*mine)
    if not isinstance(want, tuple):
        got, want = (got,), (want,)
    what = f"arguments of shapes {[np.shape(a) for a in args]}"
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        assert_same(a, b, f"result {k}, {what}")
    for k, (a, b) in enumerate(zip(mine, numpys, strict=True)):
        assert_same(a, b, f"argument {k} after the call, {what}")


def gradients(found: tuple[Any, Any]) -> list[Any]:
    """Return the gradients of a value with its gradients as arrays or numbers."""
    match found[1]:
        case dict() as by_name:
            return list(by_name.values())
        case tuple() as several:
            return list(several)
        case one:
            return [one]


@pytest.fixture
def assert_gradients(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what holds values and gradients against those of the interpreter."""

    def check(f: Callable[..., Any], *args: Any, argnums: Any = 0) -> None:
        got = rg.value_and_grad(on_device(f), argnums)(*deepcopy(args))
        with monkeypatch.context() as m:
            m.setenv("RETROGRADE_INTERP", "1")
            want = rg.value_and_grad(rg.compile(f), argnums)(*deepcopy(args))
        assert_same(got[0], want[0], "value", GRADIENT)
        for k, (a, b) in enumerate(zip(*map(gradients, (got, want)), strict=True)):
            assert_same(a, b, f"gradient {k}", GRADIENT)

    return check


def numbers(dtype: str, *shape: int) -> Array:
    """Return an array that depends on nothing but its dtype and shape."""
    rng = np.random.default_rng(zlib.crc32(f"{dtype}{shape}".encode()))
    if dtype == "bool":
        return rng.uniform(size=shape) < 0.9
    if dtype.startswith("int"):
        return rng.integers(-9, 9, shape).astype(dtype)
    return rng.uniform(-1.0, 1.0, shape).astype(dtype)


# Reductions ---------------------------------------------------------------------------


def totals(x: Array) -> Any:
    return x.sum(), x.any(), x.all()


def extremes(x: Array) -> Any:
    return x.max(), x.min(), x.argmax(), x.argmin(), x.prod()


@cut
@pytest.mark.parametrize("dtype", ["bool", "int64", "float32", "float64"])
def test_totals_of_any_size(mode: str, dtype: str) -> None:
    compiled = on_device(totals)
    for n in SIZES:
        assert_values(totals, compiled, numbers(dtype, n))


@cut
@pytest.mark.parametrize("dtype", ["int32", "float32", "float64"])
def test_extremes_of_any_size(mode: str, dtype: str) -> None:
    compiled = on_device(extremes)
    for n in SIZES[1:]:
        assert_values(extremes, compiled, numbers(dtype, n))
    with pytest.raises(ShapeError):
        compiled(numbers(dtype, 0))


def with_values(size: int, values: dict[int, float]) -> Array:
    x = numbers("float64", size)
    x[list(values)] = list(values.values())
    return x


SPECIAL = [
    with_values(1025, {700: np.nan, 900: np.nan}),
    with_values(1025, {3: np.inf, 500: np.inf, 70: -np.inf, 71: -np.inf}),
    with_values(257, {200: np.nan, 30: np.inf}),
    with_values(1025, {300: 9.0, 600: 9.0, 301: -9.0, 999: -9.0}),
    np.full(300, np.nan),
    np.full(300, -np.inf),
    np.full(300, -0.0),
]


@cut
@pytest.mark.parametrize("function", [totals, extremes], ids=lambda f: f.__name__)
def test_reductions_of_special_values(mode: str, function: Any) -> None:
    compiled = on_device(function)
    for x in SPECIAL:
        assert_values(function, compiled, x)


def by_rows(x: Array) -> Any:
    shifted = x - x.max(axis=1, keepdims=True)
    return x.sum(axis=1), x.argmax(axis=1), shifted, x.cumsum(axis=1)


def by_columns(x: Array) -> Any:
    return x.sum(axis=0), x.max(axis=0), x.argmin(axis=0), x.cumsum(axis=0), x.T + 1.0


@cut
@pytest.mark.parametrize("function", [by_rows, by_columns], ids=lambda f: f.__name__)
def test_reductions_along_an_axis(mode: str, function: Any) -> None:
    compiled = on_device(function)
    for shape in ((1, 1), (3, 1), (31, 33), (257, 5), (5, 1025), (40, 300)):
        assert_values(function, compiled, numbers("float64", *shape))


@cut
def test_sums_are_as_accurate_as_numpys_and_the_same_in_every_run(mode: str) -> None:
    x = np.random.default_rng(0).uniform(0.0, 1.0, 100_003).astype(np.float32)
    exact = np.sum(x, dtype=np.float64)
    compiled = on_device(lambda x: x.sum())
    got = compiled(x)
    assert abs(got - exact) <= max(abs(np.sum(x) - exact), exact * 2.0**-24)
    assert all(compiled(x) == got for _ in range(3))


def test_more_elements_than_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MOST", 3)

    def program(x: Array) -> Any:
        y = x * 2.0
        y[1:] += x[:-1]
        return y, y.sum(), y.max(), y.argmax()

    size = 16 * plan.MOST * plan.THREADS_PER_BLOCK + 7  # a thread has at most 8 at once
    x = numbers("float32", size)
    x[size - 3] = 5.0
    y, total, most, place = on_device(program)(x)
    want = program(x)
    np.testing.assert_array_equal(y, want[0])
    assert abs(total - np.sum(y, dtype=np.float64)) < 1e-6 * np.sum(np.abs(y))
    assert (most, place) == (want[2], want[3])


def test_float32_programs_compute_in_float32(loaded: list[Code]) -> None:
    def loss(x: Array, y: Array) -> Any:
        z = np.exp(0.1 * x) / (1.0 + y**2)
        z[1:] += np.tanh(z[:-1])
        return 0.1 * np.sum(z) + z.max() + np.sum(x @ y)

    x, y = numbers("float32", 40, 40), numbers("float32", 40)
    value, _ = rg.value_and_grad(on_device(loss), (0, 1))(x, y)
    assert value.dtype == np.float32
    text = "\n".join(code.ptx for code in loaded)
    assert ".f32" in text
    assert ".f64" not in text


# Indices, masks, products -------------------------------------------------------------


def fancy(x: Array, i: Array, v: Array) -> Any:
    x[i] = v  # the last one wins
    y = np.zeros_like(x)
    np.add.at(y, i, v)
    return y, x[i] * 2


@cut
@pytest.mark.parametrize("dtype", ["int64", "float32", "float64"])
def test_duplicate_indices(mode: str, dtype: str, rng: np.random.Generator) -> None:
    compiled = on_device(fancy)
    for n, m in ((1, 5), (33, 257), (1025, 2050), (5, 0)):
        i = rng.integers(-n, n, m)
        assert_values(fancy, compiled, numbers(dtype, n), i, numbers(dtype, m))


def masked(x: Array) -> Any:
    chosen = x[x > 0.0]
    again = chosen[chosen < 0.5]
    z = x.copy()
    z[x < 0.0] *= 2.0
    z[x > 0.0] = chosen * 3.0
    return z, again.sum(), again * 2.0


@cut
def test_masks_have_computed_sizes(mode: str) -> None:
    compiled = on_device(masked)
    for n in SIZES:
        assert_values(masked, compiled, numbers("float64", n))


def products(a: Array, b: Array) -> Any:
    return a @ b, b.T @ (a.T @ a[:, 0])


@cut
def test_products(mode: str) -> None:
    compiled = on_device(products)
    for a, b in (
        ((1, 1), (1, 1)),
        ((2, 0), (0, 4)),
        ((33, 31), (31, 65)),
        ((5, 300), (300, 7)),
    ):
        if a[1]:
            assert_values(products, compiled, numbers("float64", *a), np.ones(b))


# Loops and branches -------------------------------------------------------------------


def diffusion(u: Array, k: int) -> Any:
    v = np.zeros_like(u)
    for _ in range(k):
        v[1:-1] = 0.5 * u[1:-1] + 0.25 * (u[2:] + u[:-2])
        u, v = v, u
    return u.sum(), u * 1.0


def three_exchanged(u: Array, k: int) -> Any:
    v, w = u * 2.0, u * 3.0
    for _ in range(k):
        w = 0.5 * u + v
        u, v, w = v, w, u
    return u + 1.0, v - 1.0, w * 2.0


@in_all_modes
@pytest.mark.parametrize(
    "function", [diffusion, three_exchanged], ids=lambda f: f.__name__
)
def test_exchanged_buffers_after_any_number_of_turns(mode: str, function: Any) -> None:
    compiled = on_device(function)
    for n, k in ((3, 0), (33, 1), (300, 2), (257, 3), (3, 4)):
        assert_values(function, compiled, numbers("float64", n), k)


def newton(x: Array) -> Any:
    n = 0
    while np.abs(x * x - 2.0).sum() > 1e-9 and n < 40:
        x = x - (x * x - 2.0) / (2.0 * x)
        n += 1
    return x, n


def bisection(x: Array) -> Any:
    low, high = 0.0, 10.0
    for _ in range(20):
        middle = (low + high) / 2.0
        if np.sum(np.minimum(x, middle)) < len(x) * 0.3:
            low = middle
        else:
            high = middle
    return low


def growing(x: Array) -> Any:
    s = 0.0
    for i in range(3):
        y = x[x > 0.3 * i]
        s = s + y.sum() * len(y)
        x[: len(y)] += 0.1 * y
    return s


def substitution(x: Array) -> Any:
    a = np.outer(x, x) + 3.0 * np.eye(len(x))
    for i in range(len(x)):
        x[i] = (x[i] - a[i, :i] @ x[:i]) / a[i, i]
    return x


@cut
@pytest.mark.parametrize(
    "function", [newton, bisection, growing, substitution], ids=lambda f: f.__name__
)
def test_loops_that_compute_what_they_do(mode: str, function: Any) -> None:
    compiled = on_device(function)
    for n in (1, 33, 300):
        assert_values(function, compiled, np.abs(numbers("float64", n)) + 0.1)


# Checks -------------------------------------------------------------------------------


@in_all_modes
def test_arguments_are_unchanged_where_a_check_fails(mode: str) -> None:
    def program(x: Array, y: Array, i: Array) -> Any:
        x *= 2.0
        for k in range(3):
            y[1:] += x[:-1] * y[i[k]]  # this line
        y[i] = 1.0
        return x.sum()

    compiled = on_device(program)
    x, y = numbers("float64", 300), numbers("float64", 300)
    assert_values(program, compiled, x, y, np.array([3, -300, 299]))
    a, b = x.copy(), y.copy()
    with pytest.raises(IndexRangeError) as caught:
        compiled(a, b, np.array([3, 4, 300]))
    location = caught.value.location
    assert location is not None
    assert location.text.endswith("# this line")
    np.testing.assert_array_equal(a, x)
    np.testing.assert_array_equal(b, y)


@in_all_modes
def test_the_first_check_that_fails_is_the_error(mode: str) -> None:
    def program(x: Array, i: Array) -> Any:
        y = x[i]  # this line
        z = y[y > 0.0]
        return z.max() + x[i + 1].sum()

    compiled = on_device(program)
    x = np.abs(numbers("float64", 300)) + 0.1
    assert compiled(x, np.arange(299)) == program(x, np.arange(299))
    with pytest.raises(IndexRangeError) as caught:
        compiled(-x, np.full(299, 300))
    assert caught.value.location is not None
    assert caught.value.location.text.endswith("# this line")
    with pytest.raises(ShapeError):
        compiled(-x, np.arange(299))


@in_all_modes
def test_a_loop_ends_where_a_check_in_it_fails(mode: str) -> None:
    def program(x: Array, i: Array) -> Any:
        k = 0
        while x.sum() < 100.0:
            x = x + np.abs(x[i[k]])
            k += 1
        return x

    compiled = on_device(program)
    x = np.full(300, 0.1)
    assert_values(program, compiled, x, np.array([0, -300, 299]))
    with pytest.raises(IndexRangeError):
        compiled(x, np.array([300, 0, 0]))


# Gradients ----------------------------------------------------------------------------


def classification(w: Array, x: Array, y: Array) -> Any:
    z = x @ w
    z -= z.max(axis=1, keepdims=True)
    right = z[np.arange(len(y)), y]
    return np.mean(np.log(np.exp(z).sum(axis=1)) - right)


def plate(u: Array, k: float) -> Any:
    for _ in range(4):
        u[1:-1, 1:-1] += k * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2])
    return np.sum(u**2)


def exchanged(u: Array, k: int) -> Any:
    v = np.zeros_like(u)
    for _ in range(k):
        v[1:-1] = np.sin(u[1:-1]) + 0.25 * (u[2:] + u[:-2])
        u, v = v, u
    return np.sum(u * u)


def stepped(y: Array, s: float) -> Any:
    t = s
    for i in range(len(y) - 1, 0, -2):
        t -= 0.2 * np.sin(t) * y[i]
        y[:] -= 0.1 * np.sin(y[:])
    return t + y.sum()


def roots(x: Array) -> Any:
    y = x * x + 1.0
    while np.abs(y * y - x * x).sum() > 1e-9:
        y = y - (y * y - x * x) / (2.0 * y)
    return y.sum()


def picked(x: Array, i: Array) -> Any:
    y = np.zeros(11)
    np.add.at(y, i, x * x)
    y[i[:3]] = x[:3]
    z = x[x > 0.0]
    x[x < 0.0] *= 2.0
    return np.sum(y**2) + np.sum(z**3) + np.sum(x * x)


def recurrent(w: Array, x: Array) -> Any:
    h = np.zeros(len(w))
    for t in range(len(x)):
        h = np.tanh(w @ h + x[t])
    return h @ h


def scanned(x: Array) -> Any:
    y = np.cumsum(x, axis=1)
    return np.sum(y**2 * x) + x.max() ** 2 + x.min(axis=0).sum()


LABELS = np.arange(300) * 7 % 5
DIFFERENTIATED = {
    classification: (
        numbers("float64", 30, 5),
        numbers("float64", 64, 30),
        LABELS[:64],
    ),
    plate: (numbers("float64", 20, 33), 0.2),
    exchanged: (numbers("float64", 40), 5),
    stepped: (numbers("float64", 12), 0.7),
    roots: (np.abs(numbers("float64", 40)) + 1.0,),
    picked: (numbers("float64", 300), LABELS),
    recurrent: (numbers("float64", 9, 9), numbers("float64", 12, 9)),
    scanned: (numbers("float64", 20, 33),),
}


@cut
@pytest.mark.parametrize("function", DIFFERENTIATED, ids=lambda f: f.__name__)
def test_gradients(mode: str, function: Any, assert_gradients: Any) -> None:
    assert_gradients(function, *DIFFERENTIATED[function])


# Programs of other tests --------------------------------------------------------------


IMAGES, DIGITS = (x[:20] for x in demo.digits())
EXAMPLES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    e.name: (e.function, tuple(e.arguments(True))) for e in demo.EXAMPLES
}
for name in ("softmax_loss", "network_loss"):  # interpreted, all images take long
    function, (params, *_) = EXAMPLES[name]
    EXAMPLES[name] = function, (params, IMAGES, DIGITS)
PROGRAMS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    c.name: (c.function, c.args(), c.kwargs) for c in inplace_programs.CASES[::5]
} | {name: (*loop_programs.CASES[name], {}) for name in list(loop_programs.CASES)[::9]}


def weighted(function: Any, weights: list[Any]) -> Callable[..., Any]:
    """Return the weighted sum of all results of a program."""

    def loss(*args: Any) -> Any:
        total = 0.0
        for value, w in zip(function(*args), weights, strict=True):
            total = total + np.sum(value * w)
        return total

    return loss


def mode_of(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut a program into kernels in a way that depends on its name."""
    MODES[CUT[zlib.crc32(name.encode()) % len(CUT)]](monkeypatch)


@pytest.mark.usefixtures("brief_timing")
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_all_modes_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values, aliasing and gradients are NumPy's, eager mode's and differences'."""
    mode_of(name, monkeypatch)
    function, args, kwargs = PROGRAMS[name]
    rg.compare(on_device(function), *args, **kwargs).assert_ok()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_demo_agrees(name: str, assert_gradients: Any) -> None:
    function, args = EXAMPLES[name]
    assert_gradients(lambda *args: np.sum(function(*args) ** 2), *args)


@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs(part: int, assert_gradients: Any, monkeypatch: Any) -> None:
    MODES[CUT[part % len(CUT)]](monkeypatch)

    def check(p: random_programs.Program) -> None:
        values = p.function()(*p.fresh())
        weights = [numbers("float64", *np.shape(v)) for v in values]
        loss = weighted(p.function(), weights)
        assert_gradients(loss, *p.fresh(), argnums=(0, 1, 2))

    examples = settings(COMMON, max_examples=EXAMPLES_OF_A_PART)
    seed(part)(examples(given(random_programs.programs(3, 6))(check)))()


@pytest.mark.parametrize("number", LOOPS)
def test_random_loops(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    MODES[CUT[number % len(CUT)]](monkeypatch)
    p = random_loops.loop_program(number)
    assert random_loops.margin(p, p.args()) > random_loops.MARGIN
    f, mine, numpys = p.function(), p.args(), p.args()
    got, want = on_device(f)(*mine), f(*numpys)
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        close(a, b, f"result {k}")
    for k, (a, b) in enumerate(zip(mine, numpys, strict=True)):
        close(a, b, f"argument {k} after the call")
