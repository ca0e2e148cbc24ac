"""Gradients of loop programs against JAX: `python -m benchmarks.peers`.

    python -m benchmarks.peers [--only NAME ...] [--sizes N ...] [--timeout SECONDS]

Needs the extra `peers`. The JAX programs have a `fori_loop` for a loop, `.at[].set` for
writes, and masks where a slice grows with the index. "JAX rows" are rewritten for JAX:
one loop, whole rows or columns in each iteration. "JAX loops" have the loops of the
NumPy program; where those are nested, their gradient moves the whole array in every
iteration, and it is timed up to n = 200. All gradients are compared before they are
timed, in turn, in one process per program and size, with one thread and float64.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import retrograde as rg

from .measure import MeasurementError, cpu_seconds, machine, medians, run_child
from .programs import Args, Size, differentiable, find

SIZES = (100, 200, 400)
SECONDS = 3.0
NESTED = 200  # largest size at which nested loops in JAX are timed
SAME = 1e-8  # largest difference of gradients, relative to the largest entry

Jax = Any  # an array of JAX, which mypy need not find


@dataclass(frozen=True, slots=True)
class Peer:
    """A program in JAX: results from arguments, and its size at n.

    `rows` works on whole rows, `loops` has the loops of the NumPy program where they
    are others.
    """

    rows: Callable[..., tuple[Jax, ...]]
    size: Callable[[int], Size]
    loops: Callable[..., tuple[Jax, ...]] | None = None

    @property
    def name(self) -> str:
        return self.rows.__name__

    def forms(self, n: int) -> dict[str, Callable[..., tuple[Jax, ...]]]:
        """Return the forms to time at a size, by name."""
        if self.loops is None:
            return {"rows": self.rows, "loops": self.rows}
        if n > NESTED:
            return {"rows": self.rows}
        return {"rows": self.rows, "loops": self.loops}


def cholesky(a: Jax) -> tuple[Jax, ...]:
    from jax import lax
    from jax import numpy as jnp

    index = jnp.arange(a.shape[0])

    def column(j: Jax, a: Jax) -> Jax:
        row = jnp.where(index < j, a[j], 0.0)
        left = jnp.where(index[None, :] < j, a, 0.0)
        c = a[:, j] - left @ row
        c = c / jnp.sqrt(c[j])
        return a.at[:, j].set(jnp.where(index >= j, c, a[:, j]))

    return (lax.fori_loop(0, a.shape[0], column, a),)


def lu(a: Jax) -> tuple[Jax, ...]:
    from jax import lax
    from jax import numpy as jnp

    index = jnp.arange(a.shape[0])

    def step(k: Jax, a: Jax) -> Jax:
        left = jnp.where(index > k, a[:, k] / a[k, k], 0.0)
        right = jnp.where(index > k, a[k], 0.0)
        a = a.at[:, k].set(jnp.where(index > k, left, a[:, k]))
        return a - jnp.outer(left, right)

    return (lax.fori_loop(0, a.shape[0], step, a),)


def gramschmidt(a: Jax, q: Jax, r: Jax) -> tuple[Jax, ...]:
    from jax import lax
    from jax import numpy as jnp

    index = jnp.arange(a.shape[1])

    def column(k: Jax, state: tuple[Jax, Jax, Jax]) -> tuple[Jax, Jax, Jax]:
        a, q, r = state
        length = jnp.sqrt(jnp.sum(a[:, k] * a[:, k]))
        unit = a[:, k] / length
        row = jnp.where(index > k, unit @ a, 0.0)
        q = q.at[:, k].set(unit)
        r = r.at[k].set(jnp.where(index > k, row, r[k])).at[k, k].set(length)
        return a - jnp.outer(unit, row), q, r

    return tuple(lax.fori_loop(0, a.shape[1], column, (a, q, r)))


def trisolv(lower: Jax, b: Jax, x: Jax) -> tuple[Jax, ...]:
    from jax import lax
    from jax import numpy as jnp

    index = jnp.arange(b.shape[0])

    def row(i: Jax, x: Jax) -> Jax:
        known = jnp.where(index < i, lower[i], 0.0) @ x
        return x.at[i].set((b[i] - known) / lower[i, i])

    return (lax.fori_loop(0, b.shape[0], row, x),)


def trmm(alpha: Jax, a: Jax, b: Jax) -> tuple[Jax, ...]:
    from jax import lax
    from jax import numpy as jnp

    index = jnp.arange(a.shape[0])

    def row(i: Jax, b: Jax) -> Jax:
        below = jnp.where(index > i, a[:, i], 0.0)
        return b.at[i].set(alpha * (b[i] + below @ b))

    return (lax.fori_loop(0, a.shape[0], row, b),)


def syrk(alpha: Jax, beta: Jax, c: Jax, a: Jax) -> tuple[Jax, ...]:
    from jax import lax
    from jax import numpy as jnp

    index = jnp.arange(c.shape[0])

    def row(i: Jax, c: Jax) -> Jax:
        new = beta * c[i] + alpha * (a @ a[i])
        return c.at[i].set(jnp.where(index <= i, new, c[i]))

    return (lax.fori_loop(0, c.shape[0], row, c),)


def durbin(r: Jax, y: Jax) -> tuple[Jax, ...]:
    from jax import lax
    from jax import numpy as jnp

    n = r.shape[0]
    index = jnp.arange(n)

    def step(k: Jax, state: tuple[Jax, Jax, Jax]) -> tuple[Jax, Jax, Jax]:
        alpha, beta, y = state
        beta = beta * (1.0 - alpha * alpha)
        back = (k - 1 - index) % n
        past = jnp.where(index < k, r[back], 0.0)
        alpha = -(r[k] + past @ y) / beta
        y = y + alpha * jnp.where(index < k, y[back], 0.0)
        return alpha, beta, y.at[k].set(alpha)

    start = (-r[0], jnp.ones(()), y.at[0].set(-r[0]))
    return (lax.fori_loop(1, n, step, start)[2],)


def cholesky_loops(a: Jax) -> tuple[Jax, ...]:
    from jax import lax
    from jax import numpy as jnp

    n = a.shape[0]
    index = jnp.arange(n)

    def element(i: Jax, j: Jax, a: Jax) -> Jax:
        known = jnp.where(index < j, a[i], 0.0) @ jnp.where(index < j, a[j], 0.0)
        return a.at[i, j].set((a[i, j] - known) / a[j, j])

    def row(i: Jax, a: Jax) -> Jax:
        inner = partial(element, i)
        a = lax.fori_loop(0, n, lambda j, a: lax.cond(j < i, inner, keep, j, a), a)
        left = jnp.where(index < i, a[i], 0.0)
        return a.at[i, i].set(jnp.sqrt(a[i, i] - left @ left))

    return (lax.fori_loop(0, n, row, a),)


def keep(_: Jax, state: Jax) -> Jax:
    """Return the state of a loop where an iteration is not one of the program's."""
    return state


def gramschmidt_loops(a: Jax, q: Jax, r: Jax) -> tuple[Jax, ...]:
    from jax import lax
    from jax import numpy as jnp

    n = a.shape[1]

    def other(k: Jax, j: Jax, state: Jax) -> Jax:
        a, q, r = state
        r = r.at[k, j].set(q[:, k] @ a[:, j])
        return a.at[:, j].set(a[:, j] - q[:, k] * r[k, j]), q, r

    def column(k: Jax, state: Jax) -> Jax:
        a, q, r = state
        r = r.at[k, k].set(jnp.sqrt(jnp.sum(a[:, k] * a[:, k])))
        q = q.at[:, k].set(a[:, k] / r[k, k])
        inner = partial(other, k)
        return lax.fori_loop(
            0, n, lambda j, s: lax.cond(j > k, inner, keep, j, s), (a, q, r)
        )

    return tuple(lax.fori_loop(0, n, column, (a, q, r)))


def trmm_loops(alpha: Jax, a: Jax, b: Jax) -> tuple[Jax, ...]:
    from jax import lax
    from jax import numpy as jnp

    m, n = b.shape
    index = jnp.arange(m)

    def row(i: Jax, b: Jax) -> Jax:
        below = jnp.where(index > i, a[:, i], 0.0)

        def element(j: Jax, b: Jax) -> Jax:
            return b.at[i, j].set(alpha * (b[i, j] + below @ b[:, j]))

        return lax.fori_loop(0, n, element, b)

    return (lax.fori_loop(0, m, row, b),)


def syrk_loops(alpha: Jax, beta: Jax, c: Jax, a: Jax) -> tuple[Jax, ...]:
    from jax import lax
    from jax import numpy as jnp

    n, m = a.shape
    index = jnp.arange(n)

    def row(i: Jax, c: Jax) -> Jax:
        c = c.at[i].set(jnp.where(index <= i, beta * c[i], c[i]))

        def add(k: Jax, c: Jax) -> Jax:
            return c.at[i].add(jnp.where(index <= i, alpha * a[i, k] * a[:, k], 0.0))

        return lax.fori_loop(0, m, add, c)

    return (lax.fori_loop(0, n, row, c),)


def jacobi_2d(tsteps: int, a: Jax, b: Jax) -> tuple[Jax, ...]:
    from jax import lax

    def smooth(x: Jax) -> Jax:
        star = x[1:-1, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] + x[2:, 1:-1] + x[:-2, 1:-1]
        return 0.2 * star

    def step(_: Jax, state: tuple[Jax, Jax]) -> tuple[Jax, Jax]:
        a, b = state
        b = b.at[1:-1, 1:-1].set(smooth(a))
        return a.at[1:-1, 1:-1].set(smooth(b)), b

    return tuple(lax.fori_loop(0, tsteps, step, (a, b)))


def heat_3d(tsteps: int, r: Jax, a: Jax, b: Jax) -> tuple[Jax, ...]:
    from jax import lax

    def conduct(x: Jax) -> Jax:
        mid = x[1:-1, 1:-1, 1:-1]
        return (
            mid
            + r * (x[2:, 1:-1, 1:-1] - 2.0 * mid + x[:-2, 1:-1, 1:-1])
            + r * (x[1:-1, 2:, 1:-1] - 2.0 * mid + x[1:-1, :-2, 1:-1])
            + r * (x[1:-1, 1:-1, 2:] - 2.0 * mid + x[1:-1, 1:-1, :-2])
        )

    def step(_: Jax, state: tuple[Jax, Jax]) -> tuple[Jax, Jax]:
        a, b = state
        b = b.at[1:-1, 1:-1, 1:-1].set(conduct(a))
        return a.at[1:-1, 1:-1, 1:-1].set(conduct(b)), b

    return tuple(lax.fori_loop(0, tsteps, step, (a, b)))


def fdtd_2d(tsteps: int, ex: Jax, ey: Jax, hz: Jax, source: Jax) -> tuple[Jax, ...]:
    from jax import lax

    def step(state: tuple[Jax, ...], now: Jax) -> tuple[tuple[Jax, ...], None]:
        ex, ey, hz = state
        ey = ey.at[0].set(now)
        ey = ey.at[1:].add(-0.5 * (hz[1:] - hz[:-1]))
        ex = ex.at[:, 1:].add(-0.5 * (hz[:, 1:] - hz[:, :-1]))
        curl = ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1]
        return (ex, ey, hz.at[:-1, :-1].add(-0.7 * curl)), None

    return tuple(lax.scan(step, (ex, ey, hz), source, length=tsteps)[0])


def adi(tsteps: int, r: Jax, u: Jax) -> tuple[Jax, ...]:
    from jax import lax
    from jax import numpy as jnp

    side, centre, n = -0.5 * r, 1.0 + r, u.shape[0]
    one, ends = jnp.ones(n - 2), jnp.ones((n, n))

    def up(state: tuple[Jax, Jax], known: Jax) -> tuple[tuple[Jax, Jax], Any]:
        p, q = state
        pivot = side * p + centre
        p, q = -side / pivot, (known - side * q) / pivot
        return (p, q), (p, q)

    def down(x: Jax, pq: tuple[Jax, Jax]) -> tuple[Jax, Jax]:
        x = pq[0] * x + pq[1]
        return x, x

    def half(u: Jax) -> Jax:
        x = u[1:-1].T
        known = 0.5 * r * (x[:-2] + x[2:]) + (1.0 - r) * x[1:-1]
        pq = lax.scan(up, (0.0 * one, one), known)[1]
        return lax.scan(down, one, pq, reverse=True)[1]

    def step(_: Jax, u: Jax) -> Jax:
        v = ends.at[1:-1, 1:-1].set(half(u))
        return u.at[1:-1, 1:-1].set(half(v)).at[n - 1, 1:-1].set(1.0)

    return (lax.fori_loop(0, tsteps, step, u),)


def hdiff(coefficient: Jax, field: Jax, out: Jax) -> tuple[Jax, ...]:
    from jax import numpy as jnp

    lap = 4.0 * field[1:-1, 1:-1] - (
        field[2:, 1:-1] + field[:-2, 1:-1] + field[1:-1, 2:] + field[1:-1, :-2]
    )
    across = lap[1:, 1:-1] - lap[:-1, 1:-1]
    rise = field[2:-1, 2:-2] - field[1:-2, 2:-2]
    across = jnp.where(across * rise > 0.0, 0.0, across)
    along = lap[1:-1, 1:] - lap[1:-1, :-1]
    rise = field[2:-2, 2:-1] - field[2:-2, 1:-2]
    along = jnp.where(along * rise > 0.0, 0.0, along)
    flux = across[1:] - across[:-1] + along[:, 1:] - along[:, :-1]
    return (field[2:-2, 2:-2] - coefficient * flux,)


def vadv(tendency: Jax, u: Jax, wind: Jax, old: Jax, forcing: Jax) -> tuple[Jax, ...]:
    from jax import lax
    from jax import numpy as jnp

    rate = 3.0 / 20.0
    tendency, u, wind, old, forcing = (
        jnp.moveaxis(x, 2, 0) for x in (tendency, u, wind, old, forcing)
    )
    between = 0.25 * (wind[1:, 1:] + wind[1:, :-1])  # two levels
    none = jnp.zeros_like(u[:1])
    up, down = jnp.concatenate([between, none]), -jnp.concatenate([none, between])
    rises = jnp.concatenate([u[1:] - u[:-1], none])
    falls = jnp.concatenate([none, u[:-1] - u[1:]])
    known = rate * old + forcing + tendency - 0.4 * (down * falls + up * rises)

    def eliminate(state: tuple[Jax, Jax], level: Any) -> tuple[Any, Any]:
        above, right = state
        up, down, known = level
        pivot = rate - 0.6 * down - 0.6 * up - 0.6 * down * above
        above = 0.6 * up / pivot
        right = (known - 0.6 * down * right) / pivot
        return (above, right), (above, right)

    def substitute(x: Jax, level: tuple[Jax, Jax]) -> tuple[Jax, Jax]:
        x = level[1] - level[0] * x
        return x, x

    start = (none[0], none[0])
    levels = lax.scan(eliminate, start, (up, down, known))[1]
    x = lax.scan(substitute, none[0], levels, reverse=True)[1]
    return (jnp.moveaxis(rate * (x - old), 0, 2),)


PEERS = (
    Peer(cholesky, lambda n: (n,), cholesky_loops),
    Peer(lu, lambda n: (n,)),
    Peer(gramschmidt, lambda n: (n, n), gramschmidt_loops),
    Peer(trisolv, lambda n: (n,)),
    Peer(trmm, lambda n: (n, n), trmm_loops),
    Peer(syrk, lambda n: (n, n), syrk_loops),
    Peer(durbin, lambda n: (n,)),
    Peer(jacobi_2d, lambda n: (50, n)),
    Peer(fdtd_2d, lambda n: (50, n, n)),
    Peer(heat_3d, lambda n: (20, n // 5)),
    Peer(adi, lambda n: (10, n)),
    Peer(hdiff, lambda n: (n, n, 20)),
    Peer(vadv, lambda n: (n // 2, n // 2, 40)),
)


def jax_gradient(
    function: Callable[..., tuple[Jax, ...]], wrt: tuple[int, ...], args: Args
) -> Callable[..., Any]:
    """Return `f(weights, *args)`, value and gradient by JAX, compiled.

    JAX compiles numbers of steps in.
    """
    import jax
    from jax import numpy as jnp

    jax.config.update("jax_enable_x64", True)

    def objective(weights: Args, *args: Jax) -> Jax:
        results = function(*args)
        return sum(jnp.sum(w * r) for w, r in zip(weights, results, strict=True))

    steps = tuple(k + 1 for k, x in enumerate(args) if isinstance(x, int))
    gradient = jax.value_and_grad(objective, argnums=tuple(k + 1 for k in wrt))
    both = jax.jit(gradient, static_argnums=steps)
    return lambda *args: jax.block_until_ready(both(*args))


def child(name: str, n: int) -> dict[str, float]:
    """Compare and time both gradients in this process."""
    (peer,) = [p for p in PEERS if p.name == name]
    program = find(name)
    args = program.args(peer.size(n))
    weights, wrt = program.weights(args), differentiable(args)
    ours = rg.value_and_grad(
        rg.compile(program.objective()), argnums=tuple(k + 1 for k in wrt)
    )
    forms = {f: jax_gradient(g, wrt, args) for f, g in peer.forms(n).items()}
    calls = {"ours": partial(ours, weights, *args)}
    calls |= {name: partial(f, weights, *args) for name, f in forms.items()}
    first, found = {}, {}
    for name, call in calls.items():
        start = cpu_seconds()
        found[name] = call()
        first[f"{name} first"] = cpu_seconds() - start
    for name in forms:
        check(found["ours"], found[name])
    times = medians([partial(always, call) for call in calls.values()], SECONDS)
    return dict(zip(calls, times, strict=True)) | first


def always(call: Callable[[], Any]) -> Callable[[], Any]:
    """Return a call that needs no preparation."""
    return call


def check(found: Any, known: Any) -> None:
    """Raise where values or gradients differ."""
    pairs = [(found[0], known[0]), *zip(found[1], known[1], strict=True)]
    for k, (a, b) in enumerate(pairs):
        got, want = np.asarray(a), np.asarray(b)
        error = float(np.max(np.abs(got - want))) / max(
            float(np.max(np.abs(want))), 1.0
        )
        if not error <= SAME:
            what = f"gradients {k - 1}" if k else "values"
            raise MeasurementError(f"the {what} differ by {error:.1e}")


def line(t: dict[str, float]) -> str:
    """Return times, ratios and first calls as columns of the table."""
    ours, rows, loops = t["ours"], t["rows"], t.get("loops")
    nested = f"{'-':>12} {'-':>7}"
    if loops is not None:
        nested = f"{loops * 1e3:12.3f} {loops / ours:7.1f}"
    return (
        f"{ours * 1e3:9.3f} {rows * 1e3:11.3f} {rows / ours:6.1f} {nested} "
        f"{t['ours first']:8.2f} {t['rows first']:11.2f}"
    )


def main() -> int:
    """Print a table and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="N")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="SECONDS")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(child(given.child, given.sizes[0])))
        return 0
    unknown = set(given.only) - {p.name for p in PEERS}
    if unknown:
        parser.error(f"no peer of {', '.join(sorted(unknown))}")
    print(machine("jax"))
    print(
        f"{'gradient':12} {'n':>4} {'ours ms':>9} {'JAX rows ms':>11} {'/ours':>6} "
        f"{'JAX loops ms':>12} {'/ours':>7} {'first s':>8} {'JAX first s':>11}"
    )
    failed = False
    for peer in PEERS:
        if given.only and peer.name not in given.only:
            continue
        for n in given.sizes:
            head = f"{peer.name:12} {n:4}"
            try:
                t = run_child(
                    ["benchmarks.peers", f"--child={peer.name}", f"--sizes={n}"],
                    given.timeout,
                )
            except MeasurementError as error:
                failed = True
                print(f"{head} failed: {error}", flush=True)
                continue
            print(f"{head} {line(t)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
