# ruff: noqa: B007, B905, E731
"""Programs with loops and branches: what people write, one feature after the other.

`CASES` maps names to functions and arguments.
"""

import math
from collections import deque

import numpy as np

import retrograde as rg


def seidel(A, T):
    n = A.shape[0]
    for t in range(T):
        for i in range(1, n - 1):
            A[i, 1:-1] += (
                A[i - 1, :-2]
                + A[i - 1, 1:-1]
                + A[i - 1, 2:]
                + A[i, 2:]
                + A[i + 1, :-2]
                + A[i + 1, 1:-1]
                + A[i + 1, 2:]
            )
            for j in range(1, n - 1):
                A[i, j] += A[i, j - 1]
                A[i, j] /= 9.0
    return np.sum(A**2)


def chol(A):
    n = A.shape[0]
    for i in range(n):
        for j in range(i):
            A[i, j] -= np.dot(A[i, :j], A[j, :j])
            A[i, j] /= A[j, j]
        A[i, i] -= np.dot(A[i, :i], A[i, :i])
        A[i, i] = np.sqrt(A[i, i])
    return np.sum(np.tril(A))


def durbin(r):
    n = r.shape[0]
    y = np.empty_like(r)
    alpha = -r[0]
    beta = 1.0
    y[0] = -r[0]
    for k in range(1, n):
        beta *= 1.0 - alpha * alpha
        alpha = -(r[k] + np.dot(np.flip(r[:k]), y[:k])) / beta
        y[:k] += alpha * np.flip(y[:k])
        y[k] = alpha
    return np.sum(y)


def wrap(x):
    s = 0.0
    for i in range(len(x)):
        s = s + x[i] * x[i - 1]
    return s


def newton(a):
    x = a
    n = 0
    while abs(x * x - a) > 1e-12:
        x = 0.5 * (x + a / x)
        n += 1
    return x


def clip(x):
    s = 0.0
    for v in x:
        if v > 0.5:
            s += v * v
        elif v < -0.2:
            s -= v
        else:
            continue
        s *= 1.01
    return s


def first(x, t):
    for i in range(len(x)):
        if x[i] > t:
            return x[i] * i
    return -1.0


def hist(x, T=7):
    out = []
    for t in range(T):
        x = np.sin(x) * 1.1
        out.append(x.sum())
    return np.stack(out).sum()


def pairs(x, y):
    s = 0.0
    for i, (a, b) in enumerate(zip(x, y)):
        s += i * a * b
    for a in reversed(x):
        s = s * 0.9 + a
    return s


def brk(x):
    s = 0.0
    for i in range(len(x)):
        s += x[i] ** 2
        if s > 3.0:
            break
    else:
        s += 100.0
    return s


def insertion(x):
    for i in range(1, len(x)):
        key = x[i]
        j = i - 1
        while j >= 0 and x[j] > key:
            x[j + 1] = x[j]
            j -= 1
        x[j + 1] = key
    return np.sum(x * np.arange(len(x)))


def desc(x):
    for i in range(len(x) - 2, -1, -1):
        x[i] += 0.5 * x[i + 1]
    k = 0
    for i in range(0, len(x), 2):
        x[k] *= 2.0
        k += 1
    return np.sum(x * x)


def swap(u, T):
    v = np.zeros_like(u)
    for t in range(T):
        v[1:-1] = 0.5 * (u[:-2] + u[2:])
        u, v = v, u
    return np.sum(u**2)


class Acc:
    def __init__(self):
        self.total = 0.0
        self.n = 0

    def add(self, v):
        self.total = self.total + v
        self.n += 1


G = 0.0


def nested_return(A):
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            if A[i, j] > 1.0:
                return A[i, j] * 2
    return np.sum(A)


def obj_state(x):
    a = Acc()
    for v in x:
        a.add(v * v)
    return a.total * a.n


def nonlocal_state(x):
    s = 0.0

    def add(v):
        nonlocal s
        s = s + v**3

    for i in range(len(x)):
        add(x[i])
    return s


def dict_state(x):
    d = {"a": 0.0, "b": 1.0}
    for v in x:
        d["a"] = d["a"] + v
        d["b"] = d["b"] * np.cos(v)
    return d["a"] * d["b"]


def while_true(x):
    k = 0
    s = 0.0
    while True:
        s += x[k] ** 2
        k += 1
        if k >= len(x) or s > 2.0:
            break
    return s + k


def prev_none(x):
    prev = None
    s = 0.0
    for v in x:
        if prev is not None:
            s += (v - prev) ** 2
        prev = v
    return s


def append_read(x):
    xs = [x[0]]
    for i in range(1, 6):
        xs.append(np.sin(xs[-1]) + x[i])
    return np.array(xs).sum()


def tuple_carry(x):
    h, c = (np.zeros(3), np.ones(3))
    for v in x:
        h, c = np.tanh(h * v + c), c * 0.5 + h
    return np.sum(h * c)


def pivot(A):
    A = A.copy()
    n = A.shape[0]
    d = 1.0
    for k in range(n):
        p = k + np.argmax(np.abs(A[k:, k]))
        if p != k:
            A[[k, p]] = A[[p, k]]
            d = -d
        d = d * A[k, k]
        for i in range(k + 1, n):
            A[i, k] /= A[k, k]
            A[i, k + 1 :] -= A[i, k] * A[k, k + 1 :]
    return d


def pivot2(A):
    A = A.copy()
    n = A.shape[0]
    s = 0.0
    for k in range(n):
        p = k
        for i in range(k + 1, n):
            if abs(A[i, k]) > abs(A[p, k]):
                p = i
        if p != k:
            t = A[k].copy()
            A[k] = A[p]
            A[p] = t
        s += np.log(abs(A[k, k]))
        A[k + 1 :, k] /= A[k, k]
        A[k + 1 :, k + 1 :] -= np.outer(A[k + 1 :, k], A[k, k + 1 :])
    return s


def csr(ptr, idx, val, x):
    y = np.zeros(len(ptr) - 1)
    for i in range(len(ptr) - 1):
        for k in range(ptr[i], ptr[i + 1]):
            y[i] += val[k] * x[idx[k]]
    return np.sum(y**2)


def csr2(ptr, idx, val, x):
    y = np.zeros(len(ptr) - 1)
    for i in range(len(ptr) - 1):
        lo, hi = ptr[i], ptr[i + 1]
        y[i] = np.dot(val[lo:hi], x[idx[lo:hi]])
    return np.sum(y**2)


def mod_index(x):
    n = len(x)
    s = 0.0
    for i in range(n):
        s += x[i] * x[(i + 2) % n] * x[-i]
    return s


def short_circuit(x):
    s = 0.0
    for i in range(len(x)):
        if i > 0 and x[i - 1] > x[i]:
            s += x[i - 1] * x[i]
        elif i + 1 < len(x) and x[i + 1] > 0:
            s += x[i + 1]
        s = s * 0.9 if s > 1 else s
    return s


def minmax(A):
    n, m = A.shape
    s = 0.0
    for i in range(n):
        for j in range(max(0, i - 1), min(m, i + 2)):
            s += A[i, j] * abs(i - j + 0.5)
        s += np.sum(A[i, : min(i, 2)])
    return s


def comp(x):
    n = len(x)
    y = np.array([x[i] * i for i in range(n)])
    return sum(y[i] ** 2 for i in range(n)) + sum([v for v in x])


def conv(x, maxit=50):
    e = 1.0
    k = 0
    while e > 1e-10 and k < maxit:
        y = np.cos(x)
        e = np.max(np.abs(y - x))
        x = y
        k += 1
    return np.sum(x) * k


def inner_while(x):
    s = 0.0
    for i in range(len(x)):
        v = x[i]
        while abs(v) > 0.3:
            v = v * 0.5
        s += v
    return s


def zeros_in_loop(x):
    s = 0.0
    for i in range(1, len(x)):
        t = np.zeros(i)
        t[:] = x[:i]
        t[0] += x[i]
        s += np.sum(t * t)
    return s


def strided(x):
    for i in range(0, len(x) - 1, 2):
        x[i], x[i + 1] = x[i + 1], x[i] * 2
    for i in range(len(x) - 1, 0, -2):
        x[i] -= x[i - 1]
    return np.sum(x * np.arange(len(x)))


def last_index(x):
    for i in range(len(x)):
        pass
    s = x[i]
    for j in range(3, len(x)):
        s += x[j]
    return s + j


def gradin(x):
    f = lambda z: np.sum(z**3)
    for t in range(4):
        x = x - 0.01 * rg.grad(f)(x)
    return np.sum(x)


def flags(x):
    found = False
    at = -1
    for i in range(len(x)):
        if not found and x[i] < 0:
            found = True
            at = i
    return x[at] * 2 if found else 0.0


def lengths(x):
    s = 0.0
    for i in range(len(x)):
        s += len(x[i:]) * x[i] + float(i) * math.sqrt(abs(x[i]) + 1)
    return s


def trytry(x):
    s = 0.0
    for i in range(len(x)):
        try:
            s += x[i]
        finally:
            s *= 1.1
    return s


def matchy(x):
    s = 0.0
    for i in range(len(x)):
        match i % 3:
            case 0:
                s += x[i]
            case 1:
                s -= x[i] ** 2
            case _:
                s *= x[i]
    return s


def edit(a, b, w):
    n, m = len(a), len(b)
    D = np.zeros((n + 1, m + 1))
    for i in range(n + 1):
        D[i, 0] = i
    for j in range(m + 1):
        D[0, j] = j * w
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            D[i, j] = min(
                D[i - 1, j] + 1,
                D[i, j - 1] + w,
                D[i - 1, j - 1] + abs(a[i - 1] - b[j - 1]),
            )
    return D[n, m]


def rows2(A):
    s = np.zeros(A.shape[1])
    for k, row in enumerate(A):
        s = s * 0.5 + row * k
    for row in A[::-1]:
        s += row**2
    for r, c in zip(A, A.T):
        s += r * c[0]
    return np.sum(s**2)


def clampl(x):
    out = np.empty_like(x)
    for i, v in enumerate(x):
        if v < -1:
            out[i] = -1.0
        elif v > 1:
            out[i] = 1.0
        else:
            out[i] = v
    return np.sum(out**2)


def poly(c, x):
    r = 0
    for a in reversed(c):
        r = r * x + a
    return r


def shrink(x):
    n = len(x)
    while n > 1:
        n = n // 2
        x[:n] += x[n : 2 * n]
    return x[0]


def bubble(x):
    n = len(x)
    swapped = True
    while swapped:
        swapped = False
        for i in range(1, n):
            if x[i - 1] > x[i]:
                x[i - 1], x[i] = x[i], x[i - 1]
                swapped = True
        n -= 1
    return np.sum(x * np.arange(len(x)))


def gl(x):
    global G
    G = 0.0
    for v in x:
        G = G + v * v
    return G


def counted_up(x):
    i = 1
    s = 0.0
    while i < len(x):
        x[i] += x[i - 1] * 0.5
        s += x[i]
        i += 2
    return s + i


def counted_to(x):
    i = 0
    n = len(x)
    s = 1.0
    while i <= n - 2:
        s = s * np.cos(x[i] * x[i + 1])
        i += 1
    return s


def counted_down(x):
    i = len(x) - 1
    s = 1.0
    while i >= 0:
        s = s * np.cos(x[i])
        i -= 1
    return s


class Slotted:
    __slots__ = ("n", "t")

    def __init__(self):
        self.t = 0.0
        self.n = 0

    def add(self, v):
        self.t = self.t + v
        self.n += 1


def slotted_state(x):
    s = Slotted()
    for i in range(len(x)):
        s.add(x[i] ** 2)
    return s.t * s.n


def deque_state(x):
    q = deque([0.0])
    for i in range(len(x)):
        q.append(q.popleft() + x[i])
    return q[0]


def set_state(x):
    seen = set()
    s = 0.0
    for i in range(len(x)):
        if i not in seen:
            s += x[i]
        seen.add(i // 2)
    return s


def iterator_from_outside(x):
    it = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    s = 0.0
    for i in range(len(x)):
        s += x[i] * next(it)
    return s


def v(shape):
    """Return random numbers, the same for every process."""
    return RNG.standard_normal(shape)


RNG = np.random.default_rng(1)
B = v((6, 6))
SPD = B @ B.T + 6 * np.eye(6)
PTR = np.array([0, 2, 2, 5, 6])
IDX = np.array([0, 3, 1, 2, 4, 0])
CASES = {
    f.__name__: (f, args)
    for f, args in [
        (seidel, (v((7, 7)), 3)),
        (chol, (SPD,)),
        (durbin, (v(7) * 0.1,)),
        (wrap, (v(5),)),
        (newton, (2.0,)),
        (clip, (v(9),)),
        (first, (v(9), 0.4)),
        (hist, (v(4),)),
        (pairs, (v(4), v(4))),
        (brk, (v(9),)),
        (insertion, (v(8),)),
        (desc, (v(7),)),
        (swap, (v(7), 5)),
        (nested_return, (v((3, 4)) * 0.3,)),
        (obj_state, (v(5),)),
        (nonlocal_state, (v(5),)),
        (dict_state, (v(5),)),
        (while_true, (v(6),)),
        (prev_none, (v(5),)),
        (append_read, (v(6),)),
        (tuple_carry, (v(4),)),
        (pivot, (v((5, 5)),)),
        (pivot2, (v((5, 5)),)),
        (csr, (PTR, IDX, v(6), v(5))),
        (csr2, (PTR, IDX, v(6), v(5))),
        (mod_index, (v(6),)),
        (short_circuit, (v(7),)),
        (minmax, (v((4, 5)),)),
        (comp, (v(5),)),
        (conv, (v(3),)),
        (inner_while, (v(5),)),
        (zeros_in_loop, (v(5),)),
        (strided, (v(6),)),
        (last_index, (v(6),)),
        (gradin, (v(4),)),
        (flags, (v(5),)),
        (lengths, (v(5),)),
        (trytry, (v(5),)),
        (matchy, (v(7),)),
        (edit, (v(4), v(5), 0.7)),
        (rows2, (v((4, 4)),)),
        (clampl, (v(7) * 2,)),
        (poly, (v(4), 0.7)),
        (shrink, (v(9),)),
        (bubble, (v(6),)),
        (counted_up, (v(6),)),
        (counted_to, (v(6),)),
        (counted_down, (v(6),)),
        (slotted_state, (v(5),)),
        (deque_state, (v(5),)),
        (set_state, (v(5),)),
        (iterator_from_outside, (v(5),)),
        (gl, (v(4),)),
    ]
}
