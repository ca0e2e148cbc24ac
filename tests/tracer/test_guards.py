"""Guards hold whatever symbols are called, and fail where an assumption does."""

import numpy as np

import retrograde as rg
from retrograde.ir import dims
from retrograde.tracer.guards import make_matcher


def test_symbols_may_be_named_like_anything():
    sizes = [dims.symbol(name) for name in ("s", "i", "shapes", "min", "s1")]
    ceiling = dims.minimum(sizes[0], sizes[1])
    match = make_matcher([tuple(sizes[:4]), (ceiling,)], [sizes[4]], [sizes[3] - 2])
    found = match([(3, 4, 5, 6), (3,)], [7])
    assert found is not None
    assert {s.name: n for s, n in found.items()} == {
        "s": 3,
        "i": 4,
        "shapes": 5,
        "min": 6,
        "s1": 7,
    }
    assert match([(3, 4, 5, 6), (4,)], [7]) is None
    assert match([(3, 4, 5, 1), (3,)], [7]) is None


def test_ten_sizes_in_one_call():
    def f(*arrays):
        return sum(np.sum(a * a) for a in arrays)

    arrays = [np.full((2 + k, 3 + k), 0.5) for k in range(5)]
    compiled = rg.compile(f)
    assert np.isclose(compiled(*arrays), f(*arrays))
    assert np.isclose(compiled(*arrays[::-1]), f(*arrays))
    assert compiled.cache_info().misses == 1


def test_integer_argument_may_be_named_like_a_function():
    def f(x, min, s):
        return x[min:s] * min

    x = np.arange(9.0)
    assert rg.compile(f)(x, 2, 20).tolist() == f(x, 2, 20).tolist()
    assert rg.compile(f)(x, 2, 5).tolist() == f(x, 2, 5).tolist()
