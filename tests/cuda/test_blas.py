"""Products by cuBLAS, of which a stub computes on memory of the host."""

from collections.abc import Callable

import pytest

from retrograde.runtime.devices import blas
from retrograde.runtime.devices.products import described

Run = Callable[..., str]
PRODUCTS = """
from itertools import product
from retrograde.runtime.devices.interface import SCRATCH
from retrograde.runtime.devices.products import described

there = device("cuda")
scratch = there.allocate(SCRATCH)
rng = np.random.default_rng(0)

def steps(x):
    return [s // x.itemsize for s in x.strides]

def drawn(shape, order, dtype):
    lies = [shape[k] for k in order]
    lies[-1] += 3
    x = rng.standard_normal(lies).astype(dtype)
    return x[..., :-3].transpose(np.argsort(order))

def asked(sign, c, a, b):
    numbers = [a.shape[-2], b.shape[-1], a.shape[-1]]
    numbers += [s for x in (c, a, b) for s in steps(x)[-2:]]
    for axis, count in enumerate(c.shape[:-2]):
        numbers += [count, *(steps(x)[axis] for x in (c, a, b))]
    return described(c.dtype.name, sign, tuple(numbers))

def base(x):
    return x.base if x.base is not None else x

def there_of(x):
    memory = there.allocate(x.nbytes)
    there.write(memory.address, x)
    return memory

def check(sign, c, a, b):
    p = asked(sign, c, a, b)
    memory = [there_of(base(x)) for x in (c, a, b)]
    assert there.multiplies(p), p
    there.multiply(p, *(m.address for m in memory), scratch.address)
    known = c + sign * (a @ b) if sign else a @ b
    there.read(memory[0].address, base(c))
    tolerance = 1e-5 if c.dtype == "f4" else 1e-13
    assert np.allclose(c, known, tolerance, tolerance), p
"""


def test_products_are_those_of_numpy(run: Run):
    script = """
orders = {2: [(0, 1), (1, 0)], 3: [(0, 1, 2), (0, 2, 1)]}
orders[4] = [(0, 1, 2, 3), (1, 0, 3, 2)]
sizes = [(5, 4, 3), (1, 6, 4), (6, 1, 4), (4, 5, 1), (1, 1, 7)]
for dtype, stack in product(("f4", "f8"), ((), (3,), (2, 3))):
    for m, n, k in sizes:
        for sign, *lies in product((-1, 0, 1), *[orders[len(stack) + 2]] * 3):
            shapes = ((*stack, m, n), (*stack, m, k), (*stack, k, n))
            check(sign, *(drawn(s, o, dtype) for s, o in zip(shapes, lies)))
lines = log()
print(any("TN" in x for x in lines), any("gemmStridedBatched" in x for x in lines))
# One right matrix for the stack, and operands that are spread.
a, b = drawn((3, 4, 5), (1, 0, 2), "f8"), rng.standard_normal((5, 6))
check(0, np.zeros((3, 4, 6)), a, np.broadcast_to(b, (3, 5, 6)))
print([x for x in log() if "gemm" in x])
a, b = np.broadcast_to(np.ones(4), (3, 4)), np.ones((4, 5))
c = np.zeros((3, 5))
print(there.multiplies(asked(0, c, a, b)))
"""
    found = run(PRODUCTS + script).splitlines()
    assert found == ["True True", "['DgemmStridedBatched NN 6 4 5 x 3']", "False"]


def test_recorded_products_are_computed_by_each_launch_of_the_graph(run: Run):
    script = """
c, a, b = np.ones((4, 5), "f4"), np.ones((4, 3), "f4"), np.ones((3, 5), "f4")
p, memory = asked(1, c, a, b), [there_of(x) for x in (c, a, b)]
multiply = lambda: there.multiply(p, *(m.address for m in memory), scratch.address)
there.record(lambda: print(there.multiplies(p)))
print(there.multiplies(p))
graph = there.record(multiply)
log()
graph.launch(), graph.launch()
there.read(memory[0].address, c)
print(np.unique(c), log()[:2])
"""
    found = run(PRODUCTS + script).splitlines()
    assert found[0] == "False"  # cuBLAS does not start in a recording
    assert found[1:] == ["True", "[7.] ['Sgemm NN 5 4 3 x 1', 'Sgemm NN 5 4 3 x 1']"]


def test_library_that_does_not_start_is_an_error(run: Run):
    script = """
x = np.ones((2, 2))
print(failing(there.multiplies, asked(0, x, x, x)))
"""
    text = run(PRODUCTS + script, STUB_NO_BLAS="1")
    assert text.startswith("cuda:0: cuBLAS: cublasCreate_v2: status 1\n")


@pytest.mark.cuda_emulated
def test_large_products_of_a_program_are_those_of_the_library(run: Run):
    script = """
import retrograde as rg
from benchmarks.groups import models
args = models.mlp_args(rng, 64)
args = [rg.device_array(x.astype("f4"), "cuda") for x in args]
f = rg.value_and_grad(rg.compile(models.mlp, device="cuda"), (2, 3, 4, 5))
found = []
for _ in range(6):
    log()
    f(*args)
    found.append([x.split()[:2] for x in log() if "gemm" in x or "launch" in x])
print(all(x == found[0] for x in found))
print([x for x in found[0] if "gemm" in x[0]])
"""
    same, calls = run(PRODUCTS + script).splitlines()
    assert same == "True"
    assert calls == "[['Sgemm', 'NN'], ['Sgemm', 'NT']]"


def test_matrices_that_cublas_does_not_take_are_refused():
    def calls(out: tuple[int, int], left: tuple[int, int]) -> object:
        p = described("float64", 0, (4, 5, 3, *out, *left, 5, 1))
        assert p is not None
        return blas.calls_of(p)

    assert calls((5, 1), (3, 1)) is not None
    assert calls((5, 1), (1, 4)) is not None
    assert calls((1, 4), (3, 1)) is not None
    for left in ((0, 1), (2, 1), (6, 2), (-3, 1), (1, 3), (2**31, 1)):
        assert calls((5, 1), left) is None
    assert calls((10, 2), (3, 1)) is None


def test_missing_library_is_none(monkeypatch: pytest.MonkeyPatch):
    pathfinder = pytest.importorskip("cuda.pathfinder")

    def missing(name: str) -> None:
        raise pathfinder.DynamicLibNotFoundError(name)

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", missing)
    assert blas.Blas.opened("cuda:0") is None


def test_lines_of_one_element_have_any_step():
    assert blas._lines((7, 9), 1, 1) == (blas.NORMAL, 1)
    assert blas._lines((0, 1), 1, 5) == (blas.NORMAL, 5)
    assert blas._lines((3, 0), 4, 1) == (blas.NORMAL, 3)
    assert blas._lines((9, 4), 1, 5) == (blas.TRANSPOSED, 4)
    assert blas._lines((0, 1), 2, 5) is None
