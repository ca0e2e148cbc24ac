"""Compiled gradients within a memory limit: the same bits in less memory."""

import numpy as np

from retrograde.codegen import build
from retrograde.codegen.binder import Kernel
from retrograde.ir.dims import Symbol
from retrograde.ir.func import Func
from retrograde.ir.text import parse
from retrograde.ir.verify import verify
from retrograde.passes import manager
from retrograde.passes.functionalize import functionalize
from retrograde.passes.limit import Known, limited, limited_vjp, total

TEXT = """
traced @f[t](%u: f64[n], %k: f64[n]) -> f64 where n - 6 >= 0 {
  for s in 0..t {
    %c: f64[n - 2] &%u = slice %u, 1 {axis=0, size=n - 2, step=1}
    %l: f64[n - 2] &%u = slice %u, 0 {axis=0, size=n - 2, step=1}
    %r: f64[n - 2] &%u = slice %u, 2 {axis=0, size=n - 2, step=1}
    %q: f64[n - 2] &%k = slice %k, 1 {axis=0, size=n - 2, step=1}
    %a: f64[n - 2] = subtract %r, %l
    %b: f64[n - 2] = multiply %c, %a
    %d: f64[n - 2] = multiply %b, %q
    %e: f64[n - 2] = subtract %c, %d
    %c <- %e
    yield
  }
  %z: f64[n] = square %u
  %s: f64 = sum %z {axis=(0,)}
  return %s
}
"""
T, N = Symbol("t"), Symbol("n")


def compiled(joint: Func) -> Kernel:
    names = (*manager.PIPELINES["optimize"], *manager.PIPELINES["lower"])
    f = manager.run(joint, names, verify=True)
    return build(f)


def kernels(steps: int, size: int, part: int) -> tuple[int, Kernel, Kernel]:
    """Return a part of the bytes of a tape, and the gradient without and with it."""
    f = functionalize(parse(TEXT))
    verify(f)
    sizes = Known({T: steps, N: size})
    joint, tapes = limited(f, [0, 1], [], seed={0: 1.0}, limit=None, sizes=sizes)
    limit = sizes.value(total(tapes)) // part
    less = limited_vjp(f, [0, 1], [], seed={0: 1.0}, limit=limit, sizes=sizes)
    return limit, compiled(joint), compiled(less)


def test_a_time_loop_in_less_memory(rng: np.random.Generator) -> None:
    size, steps, part = 50, 1000, 5
    limit, plain, less = kernels(steps, size, part)
    u, k = rng.uniform(0, 1, size), rng.uniform(0, 0.1, size)
    assert plain.scratch([u, k], [steps]) > limit * part
    assert less.scratch([u, k], [steps]) < limit + 20 * size * 8
    for t in (0, 1, 7, 300, steps):
        want, got = (f([u, k], [t]) for f in (plain, less))
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)
