"""Loops over arrays as they are captured: views with index dims, writes in place.

`LOOPS` maps a name to the text of a traced Func; all sizes are n (and a few constants),
`arguments` gives arrays for which every program is smooth.
"""

from typing import Any

import numpy as np

from retrograde.ir import dims
from retrograde.ir.dims import Symbol
from retrograde.ir.func import Func
from retrograde.ir.text import parse

LOOPS: dict[str, str] = {}

LOOPS["prefix"] = """
traced @f(%b: f64[n], %a: f64[n]) -> f64[n] {
  for i in 1..n {
    %p: f64[] &%b = select %b, i - 1 {axis=0}
    %e: f64[] &%a = select %a, i {axis=0}
    %v: f64[] &%b = select %b, i {axis=0}
    %t: f64 = multiply %p, %e
    %v <- %t
    yield
  }
  return %b
}
"""

LOOPS["cholesky"] = """
traced @f(%A: f64[n,n]) -> f64[n,n] {
  for i in 0..n {
    %ri: f64[n] &%A = select %A, i {axis=0}
    for j in 0..i {
      %rj: f64[n] &%A = select %A, j {axis=0}
      %x: f64[j] &%ri = slice %ri, 0 {axis=0, size=j, step=1}
      %y: f64[j] &%rj = slice %rj, 0 {axis=0, size=j, step=1}
      %d: f64 = matmul %x, %y
      %v: f64[] &%ri = select %ri, j {axis=0}
      %p: f64[] &%rj = select %rj, j {axis=0}
      %s: f64 = subtract %v, %d
      %q: f64 = divide %s, %p
      %v <- %q
      yield
    }
    %z: f64[i] &%ri = slice %ri, 0 {axis=0, size=i, step=1}
    %zz: f64 = matmul %z, %z
    %dd: f64[] &%ri = select %ri, i {axis=0}
    %u: f64 = subtract %dd, %zz
    %w: f64 = sqrt %u
    %dd <- %w
    yield
  }
  return %A
}
"""

LOOPS["cholesky_by_elements"] = """
traced @f(%A: f64[n,n]) -> f64[n,n] {
  for i in 0..n {
    for j in 0..i {
      for k in 0..j {
        %ri: f64[n] &%A = select %A, i {axis=0}
        %v: f64[] &%ri = select %ri, j {axis=0}
        %x: f64[] &%ri = select %ri, k {axis=0}
        %rj: f64[n] &%A = select %A, j {axis=0}
        %y: f64[] &%rj = select %rj, k {axis=0}
        %xy: f64 = multiply %x, %y
        %s: f64 = subtract %v, %xy
        %v <- %s
        yield
      }
      %ri2: f64[n] &%A = select %A, i {axis=0}
      %v2: f64[] &%ri2 = select %ri2, j {axis=0}
      %rj2: f64[n] &%A = select %A, j {axis=0}
      %p: f64[] &%rj2 = select %rj2, j {axis=0}
      %q: f64 = divide %v2, %p
      %v2 <- %q
      yield
    }
    for m in 0..i {
      %ri3: f64[n] &%A = select %A, i {axis=0}
      %d: f64[] &%ri3 = select %ri3, i {axis=0}
      %z: f64[] &%ri3 = select %ri3, m {axis=0}
      %zz: f64 = multiply %z, %z
      %u: f64 = subtract %d, %zz
      %d <- %u
      yield
    }
    %ri4: f64[n] &%A = select %A, i {axis=0}
    %d2: f64[] &%ri4 = select %ri4, i {axis=0}
    %w: f64 = sqrt %d2
    %d2 <- %w
    yield
  }
  return %A
}
"""

LOOPS["trisolv"] = """
traced @f(%L: f64[n,n], %x: f64[n]) -> f64[n] {
  for i in 0..n {
    %r: f64[n] &%L = select %L, i {axis=0}
    %l: f64[i] &%r = slice %r, 0 {axis=0, size=i, step=1}
    %y: f64[i] &%x = slice %x, 0 {axis=0, size=i, step=1}
    %d: f64 = matmul %l, %y
    %v: f64[] &%x = select %x, i {axis=0}
    %p: f64[] &%r = select %r, i {axis=0}
    %s: f64 = subtract %v, %d
    %q: f64 = divide %s, %p
    %v <- %q
    yield
  }
  return %x
}
"""

LOOPS["durbin"] = """
traced @f(%r: f64[n]) -> f64[n] where n - 2 >= 0 {
  %y: f64[n] = full 0.0 {dtype=f64, shape=(n,)}
  %r0: f64[] &%r = select %r, 0 {axis=0}
  %y0: f64[] &%y = select %y, 0 {axis=0}
  %start: f64 = negative %r0
  %y0 <- %start
  %al: f64, %be: f64 = for k in 1..n carry(%alpha: f64 = %start, %beta: f64 = 1.0) {
    %a2: f64 = square %alpha
    %b1: f64 = subtract 1.0, %a2
    %beta2: f64 = multiply %b1, %beta
    %rk: f64[k] &%r = slice %r, 0 {axis=0, size=k, step=1}
    %rf: f64[k] &%rk = flip %rk {axis=(0,)}
    %yk: f64[k] &%y = slice %y, 0 {axis=0, size=k, step=1}
    %d: f64 = matmul %rf, %yk
    %re: f64[] &%r = select %r, k {axis=0}
    %s: f64 = add %re, %d
    %q: f64 = divide %s, %beta2
    %alpha2: f64 = negative %q
    %yf: f64[k] &%yk = flip %yk {axis=(0,)}
    %z: f64[k] = multiply %yf, %alpha2
    %w: f64[k] = add %yk, %z
    %yk <- %w
    %ye: f64[] &%y = select %y, k {axis=0}
    %ye <- %alpha2
    yield %alpha2, %beta2
  }
  return %y
}
"""

LOOPS["lu"] = """
traced @f(%A: f64[n,n]) -> f64[n,n] {
  for k in 0..n - 1 {
    %rk: f64[n] &%A = select %A, k {axis=0}
    %p: f64[] &%rk = select %rk, k {axis=0}
    %below: f64[n-k-1,n] &%A = slice %A, k + 1 {axis=0, size=n-k-1, step=1}
    %col: f64[n-k-1] &%below = select %below, k {axis=1}
    %l: f64[n-k-1] = divide %col, %p
    %col <- %l
    %u: f64[n-k-1] &%rk = slice %rk, k + 1 {axis=0, size=n-k-1, step=1}
    %rest: f64[n-k-1,n-k-1] &%below = slice %below, k + 1 {axis=1, size=n-k-1, step=1}
    %l2: f64[n-k-1,1] &%col = expand_dims %col {axis=(1,)}
    %u2: f64[1,n-k-1] &%u = expand_dims %u {axis=(0,)}
    %m: f64[n-k-1,n-k-1] = multiply %l2, %u2
    %new: f64[n-k-1,n-k-1] = subtract %rest, %m
    %rest <- %new
    yield
  }
  return %A
}
"""

LOOPS["lu_by_rows"] = """
traced @f(%A: f64[n,n]) -> f64[n,n] {
  for k in 0..n {
    for i in k + 1..n {
      %ri: f64[n] &%A = select %A, i {axis=0}
      %v: f64[] &%ri = select %ri, k {axis=0}
      %rk: f64[n] &%A = select %A, k {axis=0}
      %p: f64[] &%rk = select %rk, k {axis=0}
      %q: f64 = divide %v, %p
      %v <- %q
      for j in k + 1..n {
        %ri2: f64[n] &%A = select %A, i {axis=0}
        %x: f64[] &%ri2 = select %ri2, j {axis=0}
        %l: f64[] &%ri2 = select %ri2, k {axis=0}
        %rk2: f64[n] &%A = select %A, k {axis=0}
        %u: f64[] &%rk2 = select %rk2, j {axis=0}
        %lu: f64 = multiply %l, %u
        %s: f64 = subtract %x, %lu
        %x <- %s
        yield
      }
      yield
    }
    yield
  }
  return %A
}
"""

LOOPS["lu_pivoting"] = """
traced @f(%A: f64[n,n]) -> f64[n,n] where n - 2 >= 0 {
  for k in 0..n - 1 {
    %c: f64[n] &%A = select %A, k {axis=1}
    %c2: f64[n-k] &%c = slice %c, k {axis=0, size=n-k, step=1}
    %a: f64[n-k] = absolute %c2
    %m: i64 = argmax %a {axis=(0,)}
    %at: i64 = add %m, k
    %rk: f64[n] &%A = select %A, k {axis=0}
    %rp: f64[n] &%A = select %A, %at {axis=0}
    %old: f64[n] = copy %rk
    %rk <- %rp
    %rp <- %old
    %p: f64[] &%rk = select %rk, k {axis=0}
    %below: f64[n-k-1,n] &%A = slice %A, k + 1 {axis=0, size=n-k-1, step=1}
    %col: f64[n-k-1] &%below = select %below, k {axis=1}
    %l: f64[n-k-1] = divide %col, %p
    %col <- %l
    %u: f64[n-k-1] &%rk = slice %rk, k + 1 {axis=0, size=n-k-1, step=1}
    %rest: f64[n-k-1,n-k-1] &%below = slice %below, k + 1 {axis=1, size=n-k-1, step=1}
    %l2: f64[n-k-1,1] &%col = expand_dims %col {axis=(1,)}
    %u2: f64[1,n-k-1] &%u = expand_dims %u {axis=(0,)}
    %m2: f64[n-k-1,n-k-1] = multiply %l2, %u2
    %new: f64[n-k-1,n-k-1] = subtract %rest, %m2
    %rest <- %new
    yield
  }
  return %A
}
"""

LOOPS["seidel_2d"] = """
traced @f(%A: f64[n,n]) -> f64[n,n] {
  for t in 0..3 {
    for i in 1..n - 1 {
      for j in 1..n - 1 {
        %r0: f64[n] &%A = select %A, i - 1 {axis=0}
        %r1: f64[n] &%A = select %A, i {axis=0}
        %r2: f64[n] &%A = select %A, i + 1 {axis=0}
        %a: f64[] &%r0 = select %r0, j {axis=0}
        %b: f64[] &%r1 = select %r1, j - 1 {axis=0}
        %c: f64[] &%r1 = select %r1, j {axis=0}
        %d: f64[] &%r1 = select %r1, j + 1 {axis=0}
        %e: f64[] &%r2 = select %r2, j {axis=0}
        %s1: f64 = add %a, %b
        %s2: f64 = add %s1, %c
        %s3: f64 = add %s2, %d
        %s4: f64 = add %s3, %e
        %q: f64 = divide %s4, 5.0
        %c <- %q
        yield
      }
      yield
    }
    yield
  }
  return %A
}
"""

LOOPS["seidel_nonlinear"] = LOOPS["seidel_2d"].replace(
    "%q: f64 = divide %s4, 5.0",
    "%s5: f64 = divide %s4, 5.0\n        %q: f64 = tanh %s5",
)

LOOPS["gramschmidt"] = """
traced @f(%A: f64[n,n], %Q: f64[n,n], %R: f64[n,n]) -> f64[n,n] {
  for k in 0..n {
    %a: f64[n] &%A = select %A, k {axis=1}
    %sq: f64[n] = square %a
    %s: f64 = sum %sq {axis=(0,)}
    %nrm: f64 = sqrt %s
    %rk: f64[n] &%R = select %R, k {axis=0}
    %rkk: f64[] &%rk = select %rk, k {axis=0}
    %rkk <- %nrm
    %q: f64[n] &%Q = select %Q, k {axis=1}
    %qn: f64[n] = divide %a, %rkk
    %q <- %qn
    for j in k + 1..n {
      %aj: f64[n] &%A = select %A, j {axis=1}
      %qk: f64[n] &%Q = select %Q, k {axis=1}
      %d: f64 = matmul %qk, %aj
      %rk2: f64[n] &%R = select %R, k {axis=0}
      %rkj: f64[] &%rk2 = select %rk2, j {axis=0}
      %rkj <- %d
      %m: f64[n] = multiply %qk, %rkj
      %new: f64[n] = subtract %aj, %m
      %aj <- %new
      yield
    }
    yield
  }
  return %Q
}
"""

LOOPS["floyd_warshall"] = """
traced @f(%D: f64[n,n]) -> f64[n,n] {
  for k in 0..n {
    %c: f64[n,1] &%D = slice %D, k {axis=1, size=1, step=1}
    %r: f64[1,n] &%D = slice %D, k {axis=0, size=1, step=1}
    %s: f64[n,n] = add %c, %r
    %m: f64[n,n] = minimum %D, %s
    %D <- %m
    yield
  }
  return %D
}
"""

LOOPS["adi"] = """
traced @f(%u: f64[n,n], %v: f64[n,n], %p: f64[n,n], %q: f64[n,n], %a: f64) -> f64[n,n] {
  for t in 0..3 {
    for i in 1..n - 1 {
      %pi: f64[n] &%p = select %p, i {axis=0}
      %qi: f64[n] &%q = select %q, i {axis=0}
      %p0: f64[] &%pi = select %pi, 0 {axis=0}
      %q0: f64[] &%qi = select %qi, 0 {axis=0}
      %p0 <- 0.0
      %q0 <- 1.0
      for j in 1..n - 1 {
        %pi2: f64[n] &%p = select %p, i {axis=0}
        %qi2: f64[n] &%q = select %q, i {axis=0}
        %pj: f64[] &%pi2 = select %pi2, j - 1 {axis=0}
        %qj: f64[] &%qi2 = select %qi2, j - 1 {axis=0}
        %ap: f64 = multiply %a, %pj
        %den: f64 = add %ap, 3.0
        %new: f64 = divide 0.5, %den
        %pt: f64[] &%pi2 = select %pi2, j {axis=0}
        %pt <- %new
        %uj: f64[n] &%u = select %u, j {axis=0}
        %uji: f64[] &%uj = select %uj, i {axis=0}
        %aq: f64 = multiply %a, %qj
        %su: f64 = subtract %uji, %aq
        %qn: f64 = divide %su, %den
        %qt: f64[] &%qi2 = select %qi2, j {axis=0}
        %qt <- %qn
        yield
      }
      %vl: f64[n] &%v = select %v, n - 1 {axis=0}
      %vli: f64[] &%vl = select %vl, i {axis=0}
      %vli <- 1.0
      for h in 1..n - 1 {
        %pi3: f64[n] &%p = select %p, i {axis=0}
        %qi3: f64[n] &%q = select %q, i {axis=0}
        %ph: f64[] &%pi3 = select %pi3, n - 1 - h {axis=0}
        %qh: f64[] &%qi3 = select %qi3, n - 1 - h {axis=0}
        %vn: f64[n] &%v = select %v, n - h {axis=0}
        %vni: f64[] &%vn = select %vn, i {axis=0}
        %pv: f64 = multiply %ph, %vni
        %pq: f64 = add %pv, %qh
        %vt: f64[n] &%v = select %v, n - 1 - h {axis=0}
        %vti: f64[] &%vt = select %vt, i {axis=0}
        %vti <- %pq
        yield
      }
      yield
    }
    for i2 in 1..n - 1 {
      %src: f64[n] &%v = select %v, i2 {axis=0}
      %dst: f64[n] &%u = select %u, i2 {axis=0}
      %sm: f64[n] = sin %src
      %dst <- %sm
      yield
    }
    yield
  }
  return %u
}
"""

LOOPS["jacobi_nonlinear"] = """
traced @f(%u: f64[n], %k: f64) -> f64[n] where n - 2 >= 0 {
  for t in 0..3 {
    %a: f64[n-2] &%u = slice %u, 0 {axis=0, size=n-2, step=1}
    %b: f64[n-2] &%u = slice %u, 1 {axis=0, size=n-2, step=1}
    %c: f64[n-2] &%u = slice %u, 2 {axis=0, size=n-2, step=1}
    %ac: f64[n-2] = multiply %a, %c
    %b2: f64[n-2] = square %b
    %d: f64[n-2] = subtract %ac, %b2
    %e: f64[n-2] = multiply %d, %k
    %f: f64[n-2] = add %b, %e
    %b <- %f
    yield
  }
  return %u
}
"""

LOOPS["nbody"] = """
traced @f(%x: f64[n,3], %v: f64[n,3], %m: f64[n]) -> f64[n,3] {
  for t in 0..4 {
    for i in 0..n {
      for j in i + 1..n {
        %xi: f64[3] &%x = select %x, i {axis=0}
        %xj: f64[3] &%x = select %x, j {axis=0}
        %d: f64[3] = subtract %xi, %xj
        %d2: f64[3] = square %d
        %s: f64 = sum %d2 {axis=(0,)}
        %s1: f64 = add %s, 1.0
        %w: f64 = power %s1, -1.5
        %mi: f64[] &%m = select %m, i {axis=0}
        %mj: f64[] &%m = select %m, j {axis=0}
        %vi: f64[3] &%v = select %v, i {axis=0}
        %vj: f64[3] &%v = select %v, j {axis=0}
        %wj: f64 = multiply %w, %mj
        %dj: f64[3] = multiply %d, %wj
        %ni: f64[3] = subtract %vi, %dj
        %vi <- %ni
        %wi: f64 = multiply %w, %mi
        %di: f64[3] = multiply %d, %wi
        %nj: f64[3] = add %vj, %di
        %vj <- %nj
        yield
      }
      yield
    }
    %dx: f64[n,3] = multiply %v, 0.125
    %x2: f64[n,3] = add %x, %dx
    %x <- %x2
    yield
  }
  return %x
}
"""

LOOPS["lstm"] = """
traced @f(%h0: f64[n], %c0: f64[n], %W: f64[4*n,n], %X: f64[t,n]) -> f64[n] {
  %h1: f64[n], %c1: f64[n] = for s in 0..t carry(%h: f64[n] = %h0, %c: f64[n] = %c0) {
    %x: f64[n] &%X = select %X, s {axis=0}
    %hx: f64[n] = add %h, %x
    %g: f64[4*n] = matmul %W, %hx
    %g1: f64[n] &%g = slice %g, 0 {axis=0, size=n, step=1}
    %g2: f64[n] &%g = slice %g, n {axis=0, size=n, step=1}
    %g3: f64[n] &%g = slice %g, 2*n {axis=0, size=n, step=1}
    %g4: f64[n] &%g = slice %g, 3*n {axis=0, size=n, step=1}
    %i: f64[n] = tanh %g1
    %f: f64[n] = tanh %g2
    %o: f64[n] = tanh %g3
    %z: f64[n] = tanh %g4
    %fc: f64[n] = multiply %f, %c
    %iz: f64[n] = multiply %i, %z
    %cn: f64[n] = add %fc, %iz
    %tc: f64[n] = tanh %cn
    %hn: f64[n] = multiply %o, %tc
    yield %hn, %cn
  }
  return %h1
}
"""


def program(name: str) -> Func:
    """Return one of the programs as a traced Func."""
    return parse(LOOPS[name])


def arguments(f: Func, rng: np.random.Generator, **sizes: int) -> list[Any]:
    """Return arrays for a program: matrices are far from singular."""
    env = {Symbol(k): v for k, v in sizes.items()}
    args: list[Any] = []
    for p in f.params:
        shape = tuple(dims.evaluate(d, env) for d in p.type.shape)
        x = rng.uniform(0.1, 0.4, shape)
        if len(shape) == 2 and shape[0] == shape[1]:
            x += 2.0 * shape[0] * np.eye(shape[0])
        args.append(np.float64(x) if p.type.scalar else x)
    return args
