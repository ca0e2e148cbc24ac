"""Converted functions do what Python does, and their control flow is operators."""

import asyncio
import collections
import contextlib
import copy
import dataclasses
import functools
import gc
import inspect
import itertools
import linecache
import math
import operator
import subprocess
import sys
import threading
import time
import traceback
import types
import warnings
import weakref

import numpy as np
import pytest
from numpy import zeros as zeros_by_name

from retrograde.ir.errors import RetrogradeError
from retrograde.tracer.convert import (
    ConversionError,
    Operators,
    Undefined,
    convert,
    limitation,
    operators,
    user_location,
)


class Counting(Operators):
    """Does what Python does, and notes which operators ran."""

    def __init__(self, intercept=None):
        super().__init__(intercept)
        self.seen = collections.Counter()
        self.blocks = []

    def for_stmt(self, iterable, extra_test, body, get, set_, names, live, target):
        self.seen["for"] += 1
        self.blocks.append((names, live, target))
        set_(get())
        super().for_stmt(iterable, extra_test, body, get, set_, names, live, target)
        set_(get())

    def while_stmt(self, test, body, get, set_, names, live):
        self.seen["while"] += 1
        self.blocks.append((names, live, None))
        set_(get())
        super().while_stmt(test, body, get, set_, names, live)
        set_(get())

    def if_stmt(self, condition, body, orelse, get, set_, names, live):
        self.seen["if"] += 1
        self.blocks.append((names, live, None))
        set_(get())
        super().if_stmt(condition, body, orelse, get, set_, names, live)
        set_(get())

    def if_exp(self, *args):
        self.seen["if_exp"] += 1
        return super().if_exp(*args)

    def and_(self, *args):
        self.seen["and"] += 1
        return super().and_(*args)

    def or_(self, *args):
        self.seen["or"] += 1
        return super().or_(*args)

    def not_(self, *args):
        self.seen["not"] += 1
        return super().not_(*args)

    def assert_stmt(self, *args):
        self.seen["assert"] += 1
        return super().assert_stmt(*args)

    def call(self, f, args, kwargs):
        self.seen[getattr(f, "__name__", type(f).__name__)] += 1
        return super().call(f, args, kwargs)


def outcome(f, args, ops=None):
    """Return what a call gives, as comparable text, and what it did to its arguments."""
    args = copy.deepcopy(args)
    scope = operators(ops) if ops else contextlib.nullcontext()
    try:
        with scope:
            result = repr(f(*args))
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    return result, repr(args)


def agree(f, *args):
    """Check that a function converts, and that it does the same in converted form."""
    converted = convert(f)
    assert converted is not f
    expected = outcome(f, args)
    assert outcome(converted, args) == expected
    counting = Counting()
    assert outcome(converted, args, counting) == expected
    return counting


# ------------------------------------------------------------------- small programs


def sum_loop(xs):
    s = 0.0
    for x in xs:
        s += x
    return s


def nested_loops(n):
    out = []
    for i in range(n):
        for j in range(i):
            if (i + j) % 2:
                out.append((i, j))
    return out


def early_return(xs):
    for i, x in enumerate(xs):
        if x < 0:
            return i
    return -1


def return_without_value(x):
    if x:
        return
    x = 3


def return_chain(x):
    if x < 0:
        return "negative"
    if x == 0:
        return "zero"
    if x < 10:
        return "small"
    return "large"


def return_in_else(x):
    if x > 0:
        y = x
    else:
        return "no"
    y += 1
    return y


def return_from_nested_loop(n):
    for i in range(n):
        for j in range(n):
            if i * j == 6:
                return i, j
        if i == 100:
            break
    else:
        return "none"


def breaks(xs):
    seen = []
    for x in xs:
        if x == 3:
            break
        seen.append(x)
    return seen, x


def continues(xs):
    seen = []
    for x in xs:
        if x % 2:
            continue
        seen.append(x)
        if x > 4:
            continue
        seen.append(-x)
    return seen


def continue_in_try(xs):
    n = 0
    for x in xs:
        try:
            if x == 2:
                continue
            n += x
        finally:
            n += 100
    return n


def break_keeps_the_iterator(xs):
    it = iter(xs)
    for x in it:
        if x == 2:
            break
    return list(it)


def while_loop(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def while_break_continue(n):
    out = []
    while True:
        n -= 1
        if n % 3 == 0:
            continue
        if n < -5:
            break
        out.append(n)
    return out


def for_else(xs, wanted):
    for x in xs:
        if x == wanted:
            r = "found"
            break
    else:
        r = "missing"
    return r


def for_else_without_break(xs):
    n = 0
    for x in xs:
        n += x
    else:
        n = -n
    return n


def for_else_in_loop(n):
    primes = []
    for p in range(2, n):
        for q in primes:
            if p % q == 0:
                break
        else:
            if p == 13:
                break
            primes.append(p)
    return primes


def while_else(n):
    while n > 0:
        n -= 1
        if n == 5:
            break
    else:
        return "ran out", n
    return "broke", n


def loop_variable_survives(xs):
    for x in xs:
        pass
    return x


def loop_target_is_rebound(n):
    out = []
    for i in range(n):
        out.append(i)
        i = i * 10
        out.append(i)
    return out, i


def loop_target_tuple(pairs):
    out = []
    for i, (a, *b) in enumerate(pairs):
        out.append((i, a, b))
    return out, a, b


def loop_target_item(n):
    d = {}
    for d["k"] in range(n):
        pass
    return d


def unbound_in_one_branch(c):
    if c:
        x = 1
    return x


def unbound_after_empty_loop(xs):
    for x in xs:
        y = x
    return y


def undefined_name(c):
    if c:
        return no_such_name
    return c


def deleted_name(c):
    x = 3
    if c:
        del x
    return x


def deletes_and_binds_again(n):
    for i in range(n):
        x = i
        del x
        x = -i
    del i
    return x


def deletes_items(d):
    for k in list(d):
        if d[k] > 1:
            del d[k]
    return d


def chained_comparison(a, b, c):
    calls = []

    def seen(x):
        calls.append(x)
        return x

    return seen(a) < seen(b) <= seen(c) != 7, calls


def chained_simple(a, b, c):
    return 0 <= a < b <= c, a < b > c, a == b == c, a in [b] in [[b]]


def chained_arrays(a, b, c):
    return a < b + b < c


def logic_returns_operands(a, b, c):
    return a and b, a or b, a and b or c, not a, not (a or b) and c


def logic_is_lazy(a):
    log = []

    def f(x):
        log.append(x)
        return x

    r = f(a) and f(2) or f(0) or f(5)
    return r, log


def conditional_expression(x):
    return "pos" if x > 0 else "zero" if x == 0 else "neg"


def walrus_in_if(xs):
    if (n := len(xs)) > 2 and (m := n * 2):
        return n, m
    return n


def walrus_in_while(xs):
    out = []
    while (x := xs.pop()) != 0:
        out.append(x)
    return out, x


def walrus_in_loop(xs):
    for x in xs:
        if x and (y := x * 2) > 3 and x < 10:
            break
    return x, y


def walrus_in_comprehension(xs):
    total = 0
    for _ in range(2):
        ys = [total := total + x for x in xs]
    return ys, total


def matches(x):
    for _ in range(1):
        match x:
            case 1 | 2:
                r = "small"
            case [a, *rest] if a > 0:
                return "list", a, rest
            case {"k": v, **others}:
                r = v, others
            case str(s):
                r = s * 2
            case -1:
                break
            case _:
                r = "else"
    else:
        return r
    return "broke"


def match_without_default(x):
    r = None
    match x:
        case (0, y) | (y, 0):
            r = y
        case int() as n:
            r = -n
    return r


def try_except_else_finally(x):
    log = []
    for i in range(3):
        try:
            if i == x:
                raise ValueError(i)
            log.append(i)
        except ValueError as e:
            log.append(str(e))
        else:
            log.append("else")
        finally:
            log.append("finally")
    return log


def return_in_try_skips_else(x):
    for _ in range(1):
        try:
            if x:
                return "body"
        except ValueError:
            return "handler"
        else:
            return "else"
        finally:
            if x == 2:
                x = 7
    return "end"


def break_in_try_skips_else(xs):
    log = []
    for x in xs:
        try:
            if x == 2:
                break
        except KeyError:
            pass
        else:
            log.append(x)
    return log


def return_in_finally(x):
    for _ in range(1):
        try:
            raise ValueError
        finally:
            if x:
                return "swallowed"


def exception_in_loop_keeps_values(n):
    x = -1
    try:
        for i in range(5):
            x = i
            if i == n:
                raise KeyError(i)
        x = 10
    except KeyError:
        return x
    return x


def exception_name_is_unbound_afterwards(c):
    if c:
        try:
            raise ValueError("v")
        except ValueError as e:
            r = str(e)
        try:
            e
        except NameError:
            return r, "unbound"
    return "bound"


def exception_group(c):
    out = []
    for _ in range(1):
        try:
            raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
        except* ValueError as e:
            if c:
                out.append(e.exceptions)
        except* KeyError:
            out.append("key")
    return out


def raises_from(x):
    try:
        if x:
            raise KeyError("inner")
    except KeyError as e:
        raise ValueError("outer") from e


def raises_stop_iteration(xs):
    for x in xs:
        if x > 1:
            raise StopIteration("mine")
    return "end"


def with_statement(x):
    log = []

    class Manager:
        def __enter__(self):
            log.append("enter")
            return self

        def __exit__(self, *exc):
            log.append(exc[0])
            return x == 1

    for i in range(2):
        with Manager() as m, contextlib.nullcontext(i) as j:
            if i == x:
                raise ValueError(i)
            log.append(j)
            if x == 5:
                return log, m is not None
    return log


def with_suppress(x):
    with contextlib.suppress(ZeroDivisionError):
        return 1 / x
    return "suppressed"


def closures_read_loop_variable(n):
    fs = []
    for i in range(n):
        y = i * i
        fs.append(lambda: (i, y))
    return [f() for f in fs]


def default_freezes_loop_variable(n):
    fs = []
    for i in range(n):
        fs.append(lambda k=1, i=i: i * k)
    return [f(2) for f in fs]


def closure_sees_later_values(c):
    def read():
        return x

    x = 1
    if c:
        x = 2
    return read()


def nonlocal_counter(n):
    count = 0

    def bump(by=1):
        nonlocal count
        for _ in range(by):
            count += 1
        return count

    return [bump(i) for i in range(n)], count


def generator_inside(n):
    def squares():
        for i in range(n):
            if i != 2:
                got = yield i * i
                if got:
                    yield "got", got

    g = squares()
    return next(g), g.send("x"), list(g)


def yield_from_inside(n):
    def inner():
        yield from range(n)
        return "end"

    def outer():
        r = yield from inner()
        yield r

    return list(outer())


def generator_expression_is_lazy(n):
    k = 1
    g = (k * i for i in range(n) if i)
    if n:
        k = 10
    return list(g)


def comprehensions(n):
    def f(x):
        return x + 1

    a = [f(i) if i else -1 for i in range(n) if i != 1 and i < 5]
    b = {i: f(j) for i in range(n) for j in range(i)}
    c = {f(i) for i in range(n)}
    return a, b, c, sum(f(i) for i in range(n)), [[i * j for i in a] for j in range(2)]


def comprehension_names_are_local(i):
    for _ in range(2):
        [i for i in range(5)]
    return i


def recursion(n):
    if n < 2:
        return n
    return recursion(n - 1) + recursion(n - 2)


def is_even(n):
    return True if n == 0 else is_odd(n - 1)


def is_odd(n):
    return False if n == 0 else is_even(n - 1)


def stars(*args, a=1, **kw):
    def g(*p, k=0, **q):
        return p, k, q

    first, *rest = args
    return g(*rest, first, *args, k=a, **kw), [*args, *rest], {**kw, "a": a}


def duplicate_keyword(kw):
    if kw:
        return dict(a=1, **kw)


def augmented(x, n):
    for i in range(n):
        x[i] += i
        x[-1], x[i] = x[i], x[-1]
    return x


def augmented_attributes(n):
    o = types.SimpleNamespace(v=1, o=types.SimpleNamespace(w=2))
    for i in range(n):
        o.v += i
        if i % 2:
            o.o.w *= 2
            o.new = i
    return o


def class_inside(n):
    base = 3

    class A:
        z = base
        y = z and 4

        def __init__(self, v):
            self.__v = v

        def total(self):
            t = 0
            for i in range(self.__v):
                t += i
            return t, self.y

        @property
        def double(self):
            return self.__v * 2

        @staticmethod
        def s(x):
            return x if x else "none"

        @classmethod
        def make(cls, v):
            return cls(v)

    class B(A):
        def __init__(self, v):
            super().__init__(v + 1)

        def total(self):
            return super().total(), "B"

    b = B.make(n)
    return b.total(), b.double, b.s(0), B.s(1), A(2).total(), B.__qualname__


def imports_inside(x):
    if x:
        import math as m
        from os import path
    return m.floor(2.5), path.join("a", "b")


def asserts(x):
    for _ in range(1):
        assert x, f"not {x}"
        assert x != 2
    return x


def global_inside(n):
    if n:
        global SCRATCH
        for SCRATCH in range(n):
            pass
    return SCRATCH


SCRATCH = None


def formats(xs):
    out = ""
    for x in xs:
        out += f"{x!r:>{3 + 2}}|{'a' if x else 'b'}|{len(xs)}"
    return out + "%s" % (xs,)


def calls_locals(a):
    b = a
    for i in range(2):
        if i:
            b = i
    return sorted(locals().items()), "{b}".format(**locals()), eval("a + b"), dir()


def calls_globals():
    for _ in range(1):
        return globals() is sys.modules[__name__].__dict__ or globals()["__name__"]


def shadows_builtins(dict, tuple=3):
    out = []
    for list in range(dict):
        out.append(max(list, tuple, key=abs))
    return out


def annotated(n):
    total: float = 0
    unused: int
    for i in range(n):
        x: "no such type" = i  # noqa: F722
        total += x
    return total


def iterates_a_generator():
    def g():
        yield from (1, 2, 3)

    return [x for x in g()], sum_loop(g()), sum_loop(x for x in (4, 5))


def dead_code(n):
    while n:
        n -= 1
        continue
        n = 100
    return n
    never = 1
    return never


def long_elif(x):
    if x == 0:
        r = 0
    elif x == 1:
        r = 10
    elif x == 2:
        pass
    else:
        r = 30
    return r


def try_around_return_value(x):
    try:
        for _ in range(1):
            return 1 / x
    except ZeroDivisionError:
        return "zero"


def cholesky(a):
    n = a.shape[0]
    for i in range(n):
        for j in range(i):
            a[i, j] -= np.dot(a[i, :j], a[j, :j])
            a[i, j] /= a[j, j]
        a[i, i] = np.sqrt(a[i, i] - np.dot(a[i, :i], a[i, :i]))
    return a


def heat(u, steps, k=0.1):
    for _ in range(steps):
        u[1:-1] += k * (u[2:] - 2 * u[1:-1] + u[:-2])
    return np.sum(u**2)


MATRIX = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]])
PROGRAMS = [
    (sum_loop, [1, 2.5]),
    (sum_loop, {1: "a", 2: "b"}),
    (sum_loop, np.arange(4.0)),
    (sum_loop, 3),
    (nested_loops, 5),
    (early_return, [1, 2, -3, 4]),
    (early_return, []),
    (return_without_value, 1),
    (return_without_value, 0),
    *((return_chain, x) for x in (-1, 0, 5, 50)),
    (return_in_else, 1),
    (return_in_else, 0),
    (return_from_nested_loop, 5),
    (return_from_nested_loop, 2),
    (breaks, [1, 2, 3, 4]),
    (breaks, []),
    (continues, list(range(9))),
    (continue_in_try, [1, 2, 3]),
    (break_keeps_the_iterator, [1, 2, 3, 4]),
    (while_loop, 27),
    (while_break_continue, 9),
    (for_else, [1, 2], 2),
    (for_else, [1, 2], 3),
    (for_else_without_break, [1, 2]),
    (for_else_in_loop, 20),
    (while_else, 3),
    (while_else, 9),
    (loop_variable_survives, [1, 2]),
    (loop_variable_survives, []),
    (loop_target_is_rebound, 3),
    (loop_target_tuple, ["ab", "cde"]),
    (loop_target_item, 3),
    (unbound_in_one_branch, True),
    (unbound_in_one_branch, False),
    (unbound_after_empty_loop, []),
    (undefined_name, True),
    (deleted_name, False),
    (deleted_name, True),
    (deletes_and_binds_again, 2),
    (deletes_items, {"a": 1, "b": 2}),
    (chained_comparison, 1, 2, 3),
    (chained_comparison, 3, 2, 3),
    (chained_comparison, 1, 2, 7),
    (chained_simple, 1, 2, 3),
    (chained_arrays, np.arange(3), 1, 5),
    (logic_returns_operands, 0, [], "c"),
    (logic_returns_operands, 1, "b", ""),
    (logic_is_lazy, 0),
    (logic_is_lazy, 1),
    (conditional_expression, -1),
    (walrus_in_if, [1, 2, 3]),
    (walrus_in_if, [1]),
    (walrus_in_while, [0, 1, 2]),
    (walrus_in_loop, [0, 1, 2, 3]),
    (walrus_in_comprehension, [1, 2]),
    *((matches, x) for x in (1, [1, 2, 3], [-1], {"k": 1, "z": 2}, "ab", -1, 3.5)),
    (match_without_default, (0, 4)),
    (match_without_default, 3),
    (match_without_default, "x"),
    (try_except_else_finally, 1),
    *((return_in_try_skips_else, x) for x in (0, 1, 2)),
    (break_in_try_skips_else, [1, 2, 3]),
    (return_in_finally, 1),
    (return_in_finally, 0),
    (exception_in_loop_keeps_values, 2),
    (exception_in_loop_keeps_values, 9),
    (exception_name_is_unbound_afterwards, True),
    (exception_group, True),
    (raises_from, True),
    (raises_stop_iteration, [1, 2]),
    *((with_statement, x) for x in (0, 1, 5)),
    (with_suppress, 0),
    (with_suppress, 2),
    (closures_read_loop_variable, 3),
    (default_freezes_loop_variable, 3),
    (closure_sees_later_values, True),
    (nonlocal_counter, 4),
    (generator_inside, 5),
    (yield_from_inside, 3),
    (generator_expression_is_lazy, 3),
    (comprehensions, 6),
    (comprehension_names_are_local, 7),
    (recursion, 10),
    (is_even, 9),
    (stars, 1, 2, 3),
    (duplicate_keyword, {"a": 2}),
    (duplicate_keyword, {"b": 2}),
    (augmented, [1, 2, 3, 4], 3),
    (augmented_attributes, 4),
    (class_inside, 3),
    (imports_inside, True),
    (imports_inside, False),
    (asserts, 1),
    (global_inside, 3),
    (formats, [0, "a"]),
    (calls_locals, 3),
    (calls_globals,),
    (shadows_builtins, 5),
    (annotated, 3),
    (iterates_a_generator,),
    (dead_code, 3),
    *((long_elif, x) for x in (0, 1, 2, 3)),
    (try_around_return_value, 0),
    (try_around_return_value, 4),
    (cholesky, MATRIX),
    (heat, np.linspace(0, 1, 8) ** 2, 5),
]


@pytest.mark.parametrize(
    ("f", "args"),
    [(f, args) for f, *args in PROGRAMS],
    ids=[f"{f.__name__}-{i}" for i, (f, *_) in enumerate(PROGRAMS)],
)
def test_converted_function_does_what_python_does(f, args):
    agree(f, *args)


# ------------------------------------------------------- operators see the program


def test_blocks_and_logic_reach_their_operators():
    def f(n):
        r = []
        for i in range(n):
            if i and not i % 2 or i == 3:
                r.append(i if i > 2 else -i)
        while len(r) > 1:
            r.pop()
        assert r
        return r

    seen = agree(f, 6).seen
    assert seen["for"] == 1
    assert seen["if"] == 6
    assert seen["while"] == 1
    assert seen["and"] == 6
    assert seen["or"] == 6
    assert seen["not"] == 5
    assert seen["if_exp"] == 3
    assert seen["assert"] == 1
    assert seen["range"] == 1
    assert seen["len"] == 3
    assert seen["append"] == 3


def test_names_are_what_the_block_binds_and_live_what_matters_afterwards():
    def f(xs, o):
        s = 0
        for i, x in enumerate(xs):
            t = 2 * x
            s = s + t
            o.total = s
        return s

    ops = agree(f, [1, 2], types.SimpleNamespace())
    names, live, target = ops.blocks[0]
    assert names == ("i", "s", "t", "x", "o.total")
    assert live == ("s", "o.total")
    assert target in ("i, x", "(i, x)")


def test_names_read_by_a_handler_or_a_closure_are_live():
    def f(xs):
        def read():
            return a

        b = 0
        try:
            for x in xs:
                a = b = x
            b = 10
        except ValueError:
            return b
        return read()

    live = agree(f, [1, 2]).blocks[0][1]
    assert "a" in live
    assert "b" in live
    assert "x" not in live


def test_state_functions_read_and_write_every_name():
    class Swap(Operators):
        def if_stmt(self, condition, body, orelse, get, set_, names, live):
            self.before = dict(zip(names, get(), strict=True))
            body()
            self.then = dict(zip(names, get(), strict=True))
            set_(tuple(self.before.values()))
            orelse()

    def f(o):
        y = 1
        if o:
            y = 2
            z = 3
            o.v = 4
        else:
            pass
        return y, o, z

    ops = Swap()
    o = types.SimpleNamespace(v=0)
    with operators(ops), pytest.raises(UnboundLocalError):
        convert(f)(o)
    assert ops.before["y"] == 1
    assert isinstance(ops.before["z"], Undefined)
    assert ops.then == {"y": 2, "z": 3, "o.v": 4}
    assert o.v == 0


def test_early_return_appears_as_a_value_in_the_state():
    def f(x):
        if x > 0:
            return 1
        return 2

    names, live, _ = agree(f, 1).blocks[0]
    assert names == ("rg__value",)
    assert live == ("rg__value",)


def test_a_return_at_the_end_needs_no_flag():
    def f(x):
        for _ in range(2):
            x += 1
        return x

    assert agree(f, 1).blocks[0][0] == ("_", "x")


def test_operators_are_per_thread():
    ops = Counting()
    result = []

    def work():
        result.append(convert(sum_loop)([1, 2]))

    with operators(ops):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert result == [3.0]
    assert ops.seen["for"] == 0


def test_operators_are_restored_after_an_exception():
    ops = Counting()
    with pytest.raises(TypeError), operators(ops):
        convert(sum_loop)(3)
    convert(sum_loop)([1])
    assert ops.seen["for"] == 1


# ---------------------------------------------------------------------- call, intercept


def fake_zeros(*args, **kwargs):
    return ("zeros", args, kwargs)


def helper_by_attribute(n):
    return np.zeros(n)


def helper_by_name(n):
    return zeros_by_name(n, dtype=int)


def test_intercept_at_any_depth_and_under_any_name():
    def f(n):
        make = np.zeros
        later = functools.partial(np.zeros, dtype=bool)
        return [
            np.zeros(n),
            helper_by_attribute(n),
            helper_by_name(n),
            make(n),
            [make(i) for i in range(1)],
            (lambda k: make(k))(2),
            later(n),
            list(map(np.zeros, [1])),
        ]

    with operators(Operators({np.zeros: fake_zeros})):
        got = convert(f)(3)
    assert got == [
        ("zeros", (3,), {}),
        ("zeros", (3,), {}),
        ("zeros", (3,), {"dtype": int}),
        ("zeros", (3,), {}),
        [("zeros", (0,), {})],
        ("zeros", (2,), {}),
        ("zeros", (3,), {"dtype": bool}),
        [("zeros", (1,), {})],
    ]
    assert isinstance(convert(f)(3)[0], np.ndarray)


@pytest.mark.parametrize(
    ("g", "args"),
    [
        (float, ("2",)),
        (int, (2.5,)),
        (math.sin, (1.0,)),
        (len, ([1],)),
        (range, (3,)),
        (sum, ([1, 2],)),
        (enumerate, ([1],)),
        (zip, ([1], [2])),
        (isinstance, (1, int)),
        (min, (1, 2)),
        (abs, (-1,)),
        (print, ()),
        (list, ((1,),)),
        (np.linalg.norm, ([1.0],)),
        (np.sin, (1.0,)),
        (np.array, ([1],)),
        (np.float64, (1,)),
        (operator.add, (1, 2)),
        (copy.deepcopy, ([1],)),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_intercept_sees_the_call(g, args):
    def f():
        return g(*args)

    with operators(Operators({g: lambda *a: ("seen", a)})):
        assert convert(f)() == ("seen", args)


def test_intercept_replaces_a_user_function_without_converting_it():
    def f(n):
        return recursion(n)

    with operators(Operators({recursion: lambda n: -n})):
        assert convert(f)(5) == -5


def test_unhashable_and_odd_callables_are_called():
    class Odd:
        __hash__ = None

        def __eq__(self, other):
            raise RuntimeError

        def __call__(self, n):
            for _ in range(n):
                n += 1
            return n

    def f(odd):
        return odd(2)

    ops = Counting()
    with operators(ops):
        assert convert(f)(Odd()) == 4
        assert convert(Odd())(3) == 6
    assert ops.seen["for"] == 2


def test_bound_methods_of_builtins_are_called_as_they_are():
    def f(xs):
        xs.append(1)
        xs.extend(x for x in (3, 2))
        xs.sort(key=lambda x: -x)
        return xs, ",".join(str(x) for x in xs), xs.index(2)

    agree(f, [0])


# ------------------------------------------------------------- what `convert` accepts


class Model:
    scale = 2

    def __init__(self, n):
        self.parts = []
        for i in range(n):
            self.parts.append(i)

    def total(self):
        t = 0
        for p in self.parts:
            t += p * self.scale
        return t

    @classmethod
    def make(cls, n):
        for _ in range(1):
            n += 1
        return cls(n)

    @staticmethod
    def count(n):
        for _ in range(2):
            n += 1
        return n

    def __call__(self, k):
        for _ in range(k):
            k += 1
        return k

    def __private(self):
        for _ in range(1):
            pass
        return "private"

    def calls_private(self):
        return self.__private()


class SubModel(Model):
    def __init__(self, n):
        super().__init__(n + 1)

    def total(self):
        if self.parts:
            return -super().total()


def loops(f, *args):
    """Return the result of converted code, and how many loops operators ran."""
    ops = Counting()
    with operators(ops):
        result = convert(f)(*args)
    return result, ops.seen["for"]


def test_methods_partials_and_callable_objects_are_converted():
    assert loops(Model(3).total) == (6, 1)
    assert loops(Model.total, Model(3)) == (6, 1)
    assert loops(Model.make, 2)[0].parts == [0, 1, 2]
    assert loops(Model.count, 1) == (3, 1)
    assert loops(Model(1), 2) == (4, 1)
    assert loops(functools.partial(Model.count, n=5)) == (7, 1)
    assert loops(functools.partial(functools.partial(Model.count), 5)) == (7, 1)
    assert loops(Model(1).calls_private) == ("private", 1)
    assert loops(SubModel(2).total) == (-6, 1)
    assert loops(lambda m: m.total(), Model(3)) == (6, 1)
    assert loops(lambda m: m(2), Model(3)) == (4, 1)
    assert loops(convert(staticmethod(sum_loop)).__func__, [1]) == (1.0, 1)


def test_constructors_are_converted():
    made, count = loops(lambda n: SubModel(n), 2)
    assert type(made) is SubModel
    assert made.parts == [0, 1, 2]
    assert count == 1
    assert loops(Model, 2)[1] == 1

    class Custom:
        def __new__(cls, *args):
            for _ in args:
                pass
            return "other" if not args else super().__new__(cls)

        def __init__(self, *args):
            for _ in args:
                self.args = args

    assert loops(lambda: Custom()) == ("other", 1)
    made, count = loops(lambda: Custom(1))
    assert made.args == (1,)
    assert count == 2


def test_init_that_returns_something_is_refused_as_in_python():
    class Bad:
        def __init__(self):
            return 3

    def f():
        return Bad()

    agree(f)


def test_ordinary_classes_can_be_made():
    point = collections.namedtuple("point", "x y")

    @dataclasses.dataclass
    class Data:
        x: int
        y: list = dataclasses.field(default_factory=list)

    class Listy(list):
        def __init__(self, *items):
            super().__init__(items)

    class Failure(Exception):
        def __init__(self, n):
            super().__init__(f"failed {n}")

    def f():
        d = Data(1)
        d.y.append(point(1, y=2))
        try:
            raise Failure(3)
        except Failure as e:
            return d, Listy(1, 2), str(e), dict(a=1), type(d).__name__, object

    agree(f)


def test_what_must_stay_plain_is_returned_as_it_is():
    plain = [
        len,
        np.zeros,
        np.sin,
        np.linalg.norm,
        np.add.reduce,
        [].append,
        copy.deepcopy,
        functools.lru_cache(recursion),
        convert,
        user_location,
        int,
        np.vectorize(abs),
        pytest.approx,
        collections.OrderedDict,
    ]
    for f in plain:
        assert convert(f) is f
    with pytest.raises(TypeError, match="not callable"):
        convert(3)


def test_convert_keeps_the_function_s_face():
    def f(a, /, b: int = 3, *args, c, d=[], **kw) -> str:  # noqa: B006
        """Say something."""
        d.append(b)
        if c:
            return a, b, args, c, d, kw

    f.note = "kept"
    g = convert(f)
    assert inspect.signature(g) == inspect.signature(f)
    assert (g.__name__, g.__qualname__, g.__doc__) == (
        f.__name__,
        f.__qualname__,
        f.__doc__,
    )
    assert g.__module__ == f.__module__
    assert g.__annotations__ == f.__annotations__
    assert g.note == "kept"
    assert g.__kwdefaults__["d"] is f.__kwdefaults__["d"]
    assert g(1, c=1)[4] == [3]
    assert g(1, c=1, d=[7], e=2)[4:] == ([7, 3], {"e": 2})
    assert convert(f)(1, 5, 6, c=2) == (1, 5, (6,), 2, [3, 5], {})
    assert inspect.getsource(g) == inspect.getsource(f)
    assert g.__globals__ is f.__globals__
    assert not hasattr(g, "__wrapped__")


def test_cells_are_shared_with_the_original():
    step = 1

    def add(n):
        nonlocal step
        for _ in range(n):
            step += 1
        return step

    converted = convert(add)
    assert converted(2) == 3
    assert step == 3
    step = 10
    assert converted(1) == 11
    assert add(1) == 12
    assert converted(0) == 12


def test_globals_are_the_original_ones(monkeypatch):
    def f():
        return SCRATCH

    g = convert(f)
    monkeypatch.setitem(f.__globals__, "SCRATCH", "patched")
    assert g() == "patched"


def test_a_converted_function_is_not_converted_again():
    def outer(n):
        def inner(k):
            return [i for i in range(k) if i != n]

        return inner, lambda k: k + n

    g = convert(outer)
    assert convert(g) is g
    inner, lam = g(2)
    assert convert(inner) is inner
    assert convert(lam) is lam
    plain_inner, _ = outer(2)
    assert inner(4) == plain_inner(4) == [0, 1, 3]
    assert lam(1) == 3


def test_code_is_converted_once():
    def make(k):
        def f(x):
            return k if x else -k

        return f

    one, two = convert(make(1)), convert(make(2))
    assert one.__code__ is two.__code__
    assert (one(1), two(0)) == (1, -2)


def test_conversions_die_with_their_code():
    def f(x):
        if x:
            return 1

    twin = types.FunctionType(f.__code__.replace(), globals())
    converted = convert(twin)
    code = weakref.ref(converted.__code__)
    assert converted(1) == 1
    del twin, converted
    gc.collect()
    assert code() is None


def test_nested_functions_work_in_plain_hands():
    def f(xs):
        def key(x):
            return -x if x % 2 else x

        return (
            sorted(xs, key=key),
            list(map(key, xs)),
            functools.reduce(lambda a, b: a * 2 + b, xs),
            list(filter(lambda x: x > 1 and x < 4, xs)),
            max(xs, key=lambda x: -x),
            list(itertools.accumulate(xs, lambda a, b: a - b)),
            [(k, list(g)) for k, g in itertools.groupby(xs, key=lambda x: x // 2)],
            np.vectorize(key)(np.array(xs)),
            np.apply_along_axis(lambda v: v[0], 0, np.array(xs)),
        )

    agree(f, [3, 1, 2, 4])


def key_with_branch(x):
    if x % 2:
        return -x
    return x


def add_with_branch(a, b):
    if a:
        return a + b
    return b


def test_functions_given_to_builtins_are_converted():
    def f(xs):
        xs.sort(key=key_with_branch)
        return (
            sorted(xs, key=key_with_branch),
            list(map(key_with_branch, xs)),
            functools.reduce(add_with_branch, xs),
            min(xs, key=key_with_branch),
            list(itertools.accumulate(xs, add_with_branch)),
        )

    assert agree(f, [3, 1, 2]).seen["if"] == 3 + 3 + 3 + 2 + 3 + 2


def test_decorated_functions_are_converted_inside_and_out():
    def twice(g):
        @functools.wraps(g)
        def wrapper(*args):
            out = []
            for _ in range(2):
                out.append(g(*args))
            return out

        return wrapper

    @twice
    @twice
    def f(n):
        for i in range(n):
            n += i
        return n

    result, count = loops(f, 3)
    assert result == [[6, 6], [6, 6]]
    assert count == 1 + 2 + 4


def test_decorators_inside_converted_code():
    def f(n):
        log = []

        def note(label):
            def wrap(g):
                log.append(label)
                return lambda *a: (label, g(*a))

            return wrap

        @note("a")
        @note("b")
        def g(x, y=n):
            return x if x else y

        return g(0), g(1), log

    agree(f, 3)


def test_lambdas_on_one_line_are_told_apart():
    fs = [lambda x: x or 1, lambda x: x and 2, lambda x, y=3: not x]
    assert [convert(f)(0) for f in fs] == [1, 0, True]
    assert convert(lambda x: x if x else "none")(0) == "none"
    multi = (
        lambda x:
            "yes"
            if x
            else "no"
    )  # fmt: skip
    assert convert(multi)(1) == "yes"


def test_coroutines_are_converted_in_their_calls():
    async def inner(n):
        return n and helper_by_attribute(n)

    async def f(n):
        out = []
        async with contextlib.AsyncExitStack():
            for i in range(n):
                out.append(await inner(i))
            return out, [x async for x in agen(n)]

    async def agen(n):
        for i in range(n):
            if i:
                yield i

    with operators(Operators({np.zeros: fake_zeros})):
        got = asyncio.run(convert(f)(2))
    assert got == ([0, ("zeros", (1,), {})], [1])


def test_generators_are_converted_in_their_calls():
    def f(n):
        for i in range(n):
            yield np.zeros(i) if i else None

    with operators(Operators({np.zeros: fake_zeros})):
        assert list(convert(f)(2)) == [None, ("zeros", (1,), {})]


# ---------------------------------------------------------------- limits and refusals


def limited_by_generator(n):
    for i in range(n):
        yield limitation()


def limited_by_locals():
    if True:
        return limitation(), locals()


def limited_by_finally():
    for _ in range(1):
        try:
            pass
        finally:
            return limitation()


def not_limited(n):
    out = []
    for _ in range(n):
        out.append(limitation())
    return out, [limitation() for _ in range(n)]


def test_limitation_tells_why_statements_stay_plain():
    assert list(convert(limited_by_generator)(1)) == ["it is a generator"]
    assert convert(limited_by_locals)() == ("it calls locals()", {})
    assert "finally" in convert(limited_by_finally)()
    assert convert(not_limited)(1) == ([None], [None])
    assert "not converted" in limited_by_finally()


def test_code_without_source_runs_as_it_is():
    space = {"limitation": limitation}
    exec(
        "def f(n):\n    for i in range(n):\n        pass\n    return limitation()",
        space,
    )
    f = space["f"]
    assert convert(f) is f
    assert loops(f, 3) == ("its source is not available", 0)


def test_source_that_changed_since_it_was_compiled_is_not_used(tmp_path):
    file = tmp_path / "program.py"
    text = "def f(x):\n    if x:\n        return 1\n    return {}\n"
    space = {}
    exec(compile(text.format(2.5), file, "exec"), space)
    file.write_text(text.format(3.5))
    linecache.checkcache()
    assert convert(space["f"]) is space["f"]
    file.write_text("not python (")
    exec(compile(text.format(2.5), file, "exec"), space)
    linecache.checkcache()
    assert convert(space["f"]) is space["f"]
    file.write_text(text.format(2.5))
    exec(compile(text.format(2.5), file, "exec"), space)
    linecache.checkcache()
    assert convert(space["f"]) is not space["f"]
    assert convert(space["f"])(0) == 2.5


def test_reserved_names_are_refused():
    def f():
        rg__mine = 1
        return rg__mine

    with pytest.raises(ConversionError, match="'rg__mine' is reserved") as info:
        convert(f)
    assert isinstance(info.value, RetrogradeError)
    assert isinstance(info.value, NotImplementedError)
    assert f"{__file__}:{f.__code__.co_firstlineno}" in str(info.value)


@pytest.mark.parametrize("name", ["locals", "globals", "vars", "dir"])
def test_frame_builtins_under_another_name_are_refused(name):
    builtin = getattr(__import__("builtins"), name)

    def f():
        return builtin()

    with pytest.raises(ConversionError, match=f"^{name}: reached through another"):
        convert(f)()


def test_frame_builtins_with_an_argument_are_ordinary():
    def f(o):
        return vars(o), sorted(dir(o))[-1], eval("a", {"a": 2}), super(list, o)

    class Sub(list):
        pass

    def g():
        s = Sub()
        s.zzz = 1
        return super(Sub, s).__len__(), vars(s), eval("a + 1", {"a": 2})

    agree(g)


# --------------------------------------------------------------- locations, tracebacks


def where(n):
    frame = sys._getframe(n)
    while frame.f_code.co_name != "located":
        frame = frame.f_back
    return types.SimpleNamespace(line=frame.f_lineno, **dict.fromkeys(FIELDS))


FIELDS = ("file", "function", "text")


def located(n):
    found = []
    for i in range(n):
        found.append(user_location())
        if i or found:
            found += [
                user_location(),
            ]
    found.append(
        where(
            n,
        )
    )
    found.append(
        [0]
        and convert  # a chain over several lines
        and types.SimpleNamespace(
            where=where,
        ).where(n)
    )
    found += [user_location() for _ in range(1)]
    found.append(n and user_location())
    found.append((lambda: user_location())())
    return found  # fmt: skip


@pytest.mark.parametrize("run", [located, convert(located)], ids=["plain", "converted"])
def test_user_location_gives_the_line(run):
    first = located.__code__.co_firstlineno
    found = run(1)
    assert [x.line - first for x in found] == [3, 6, 9, 19, 21, 22, 23]
    found = found[:2] + found[4:]
    assert {x.file for x in found} == {__file__}
    assert [x.function for x in found] == [*["located"] * 4, "<lambda>"]
    assert found[0].text == "found.append(user_location())"
    assert str(found[0]).startswith(f"at {__file__}:{first + 3}, in located:")


def test_user_location_passes_over_libraries_and_this_package():
    def f(xs):
        return np.vectorize(key)(xs)

    def key(x):
        for _ in range(1):
            lines.append(user_location().line)
        return x

    lines = []
    convert(f)(np.arange(2))
    assert set(lines) == {key.__code__.co_firstlineno + 2}
    seen = []

    def spy(*args):
        seen.append(user_location())  # this test is a user as well
        return 0

    def g():
        return np.zeros(3)

    with operators(Operators({np.zeros: spy})):
        convert(g)()
    assert seen[0].function == "spy"


def test_user_location_is_cheap():
    def f():
        start = time.perf_counter()
        for _ in range(1000):
            user_location()
        return time.perf_counter() - start

    assert min(convert(f)() for _ in range(5)) < 1000 * 20e-6


def test_tracebacks_show_the_user_s_lines():
    def inner(x):
        while True:
            if x:
                raise ValueError("boom")

    def outer(xs):
        for x in xs:
            inner(x)

    with pytest.raises(ValueError, match="^boom$") as info:
        convert(outer)([1])
    frames = traceback.extract_tb(info.value.__traceback__)
    mine = [(f.name, f.line) for f in frames if f.filename == __file__][1:]
    assert mine == [
        ("outer", "for x in xs:"),
        ("outer", "inner(x)"),
        ("inner", "while True:"),
        ("inner", "if x:"),
        ("inner", 'raise ValueError("boom")'),
    ]


def test_exceptions_are_not_wrapped():
    error = KeyError("own")

    def f():
        for _ in range(1):
            raise error

    with pytest.raises(KeyError) as info:
        convert(f)()
    assert info.value is error
    assert info.value.__cause__ is None
    assert info.value.__context__ is None


def test_failed_assertion_has_its_message(tmp_path):
    file = tmp_path / "asserting.py"
    file.write_text(
        "def f(x, log):\n"
        "    assert x, log.append(x) or f'not {x}'\n"
        "    assert x != 2\n"
        "    return log\n"
    )
    space = {}
    exec(compile(file.read_text(), file, "exec"), space)
    f = space["f"]
    agree(f, 0, [])
    agree(f, 2, [])
    agree(f, 1, [])


def test_warnings_are_blamed_on_the_user():
    def inner(level):
        for _ in range(1):
            warnings.warn("careful", UserWarning, stacklevel=level)

    def outer(level):
        if level:
            inner(level)

    first = inner.__code__.co_firstlineno
    for level, line in ((1, first + 2), (2, first + 6)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            convert(outer)(level)
        assert [(w.filename, w.lineno) for w in caught] == [(__file__, line)]


# ------------------------------------------------------------------ depth, threads, cost


def deep(n):
    for _ in range(1):
        if n == 0:
            return 0
        r = deep(n - 1) + 1 if n else 0
    return r


def forever(n):
    return forever(n + 1) if n >= 0 else 0


def test_recursion_as_deep_as_python_allows():
    limit = sys.getrecursionlimit()
    with operators(Operators()):
        assert convert(deep)(800) == 800
    assert sys.getrecursionlimit() == limit


def test_endless_recursion_is_a_recursion_error_in_any_thread():
    caught = []

    def work():
        try:
            with operators(Operators()):
                convert(forever)(0)
        except RecursionError as error:
            caught.append(error)

    work()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(caught) == 2


def test_threads_convert_the_same_functions():
    space = {}
    source = "\n".join(
        f"def f{i}(n):\n    for k in range(n):\n        if k: n += {i}\n    return n"
        for i in range(40)
    )
    name = f"<threads {id(space)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    exec(compile(source, name, "exec"), space)
    barrier, results, errors = threading.Barrier(6), [], []

    def work():
        barrier.wait()
        try:
            converted = [convert(space[f"f{i}"]) for i in range(40)]
            results.append([f(3) for f in converted])
            codes.append([f.__code__ for f in converted])
        except Exception as error:
            errors.append(error)

    codes = []
    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert all(r == [space[f"f{i}"](3) for i in range(40)] for r in results)
    assert all(a is b for row in codes for a, b in zip(codes[0], row, strict=True))


def test_importing_the_converter_imports_only_the_standard_library():
    script = (
        "import sys; import retrograde.tracer.convert;"
        "print([m for m in ('malt', 'numpy', 'numba', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_conversion_is_fast():
    lines = ["def f(x, n):"]
    for i in range(40):
        lines += [
            f"    for i{i} in range(n):",
            f"        if x > {i} and n:",
            f"            x = x + g(i{i})",
            "        else:",
            "            x -= 1",
        ]
    source = "\n".join([*lines, "    return x"])
    name = f"<speed {id(lines)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    space = {"g": abs}
    exec(compile(source, name, "exec"), space)
    start = time.process_time()
    converted = convert(space["f"])
    assert time.process_time() - start < 1.0
    assert converted(5, 3) == space["f"](5, 3)


def test_many_early_returns_do_not_nest_too_deep():
    source = "def f(x):\n" + "".join(
        f"    if x == {i}:\n        return {i}\n" for i in range(100)
    )
    name = f"<returns {id(source)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    space = {}
    exec(compile(source, name, "exec"), space)
    agree(space["f"], 0)
    agree(space["f"], 99)
    agree(space["f"], 100)


def test_flags_of_inner_loops_start_afresh():
    def f(n):
        out = []
        for i in range(n):
            for j in range(n):
                if j > i:
                    break
                if j == 1:
                    continue
                while True:
                    if i:
                        break
                    out.append("first")
                    break
                out.append((i, j))
            if i == 3:
                return out
        return "end"

    agree(f, 3)
    agree(f, 5)


def test_global_and_nonlocal_declared_in_a_block():
    def f(n):
        x = 0

        def g():
            if n:
                nonlocal x
                for _ in range(n):
                    x += 1

        g()
        return x

    agree(f, 3)


def test_super_and_class_cell_inside_blocks_and_lambdas():
    class A:
        def go(self):
            return [1]

    class B(A):
        def go(self):
            out = []
            for _ in range(2):
                if out or True:
                    out += super().go()
            return out, (lambda: __class__.__name__)(), self.more()

        def more(self):
            return [x for x in super().go()], super(B, self).go()

    b = B()

    def f():
        return b.go()

    agree(f)


def test_iteration_over_user_iterables():
    class Countdown:
        def __init__(self, n):
            self.n = n

        def __iter__(self):
            return self

        def __next__(self):
            if self.n == 0:
                raise StopIteration
            self.n -= 1
            return self.n

    class Sequence:
        def __getitem__(self, i):
            if i > 2:
                raise IndexError
            return i

    def f():
        out = []
        for x in Countdown(3):
            out.append(x)
        for x in Sequence():
            out.append(x)
        a, *b = Countdown(3)
        return out, a, b, list(Countdown(2))

    agree(f)
