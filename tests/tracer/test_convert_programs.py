"""Small programs with everything Python has, plain and converted.

They are written as people should not write them: unused, unbound and rebound names,
returns in `finally`, closures over loop variables are the point.
"""

# ruff: noqa: B007, B012, B018, B023, F821, F842, RUF021, UP031

import contextlib
import sys
import types

import numpy as np
import pytest


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
def test_converted_function_does_what_python_does(agree, f, args):
    agree(f, *args)
