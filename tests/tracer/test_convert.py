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
import threading
import types
import weakref

import numpy as np
import pytest
from numpy import zeros as zeros_by_name

from retrograde.ir.errors import ConversionError, RetrogradeError
from retrograde.tracer.convert import (
    Operators,
    convert,
    limitation,
    operators,
)
from retrograde.tracer.support import Undefined

SCRATCH = None


def sum_loop(xs):
    s = 0.0
    for x in xs:
        s += x
    return s


def recursion(n):
    return n if n < 2 else recursion(n - 1) + recursion(n - 2)


# ------------------------------------------------------- operators see the program


def test_blocks_and_logic_reach_their_operators(agree):
    def f(n):
        r = []
        for i in range(n):
            if (i and not i % 2) or i == 3:
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


def test_names_are_what_the_block_binds_and_live_what_matters_afterwards(agree):
    def f(xs, o):
        s = 0
        for i, x in enumerate(xs):  # noqa: B007
            t = 2 * x
            s = s + t
            o.total = s
        return s

    ops = agree(f, [1, 2], types.SimpleNamespace())
    names, live, target = ops.blocks[0]
    assert names == ("i", "s", "t", "x", "o.total")
    assert live == ("s", "o.total")
    assert target in ("i, x", "(i, x)")


def test_names_read_by_a_handler_or_a_closure_are_live(agree):
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


def test_early_return_appears_as_a_value_in_the_state(agree):
    def f(x):
        if x > 0:
            return 1
        return 2

    names, live, _ = agree(f, 1).blocks[0]
    assert names == ("rg__value",)
    assert live == ("rg__value",)


def test_a_return_at_the_end_needs_no_flag(agree):
    def f(x):
        for _ in range(2):
            x += 1
        return x

    assert agree(f, 1).blocks[0][0] == ("_", "x")


def test_operators_are_per_thread(counting):
    result = []

    def work():
        result.append(convert(sum_loop)([1, 2]))

    with operators(counting):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert result == [3.0]
    assert counting.seen["for"] == 0


def test_operators_are_restored_after_an_exception(counting):
    with pytest.raises(TypeError), operators(counting):
        convert(sum_loop)(3)
    convert(sum_loop)([1])
    assert counting.seen["for"] == 1


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


def test_unhashable_and_odd_callables_are_called(counting):
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

    with operators(counting):
        assert convert(f)(Odd()) == 4
        assert convert(Odd())(3) == 6
    assert counting.seen["for"] == 2


def test_bound_methods_of_builtins_are_called_as_they_are(agree):
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


def test_methods_partials_and_callable_objects_are_converted(loops):
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


def test_constructors_are_converted(loops):
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


def test_init_that_returns_something_is_refused_as_in_python(agree):
    class Bad:
        def __init__(self):
            return 3

    def f():
        return Bad()

    agree(f)


def test_ordinary_classes_can_be_made(agree):
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


def test_nested_functions_work_in_plain_hands(agree):
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


def test_functions_given_to_builtins_are_converted(agree):
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


def test_decorated_functions_are_converted_inside_and_out(loops):
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


def test_decorators_inside_converted_code(agree):
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
    multi = [
        lambda x: (
            "yes"  # on several lines
            if x
            else "no"
        ),
    ]
    assert convert(multi[0])(1) == "yes"


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
    for _ in range(n):
        yield limitation()


def limited_by_locals():
    if True:
        return limitation(), locals()


def limited_by_finally():
    for _ in range(1):
        try:
            pass
        finally:
            return limitation()  # noqa: B012


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


def test_code_without_source_runs_as_it_is(loops):
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
    assert isinstance(info.value, SyntaxError)
    assert f"{__file__}:{f.__code__.co_firstlineno}" in str(info.value)


@pytest.mark.parametrize("name", ["locals", "globals", "vars", "dir"])
def test_frame_builtins_under_another_name_are_refused(name):
    builtin = getattr(__import__("builtins"), name)

    def f():
        return builtin()

    with pytest.raises(ConversionError, match=f"^{name}: reached through another"):
        convert(f)()


def test_frame_builtins_with_an_argument_are_ordinary(agree):
    def f(o):
        return vars(o), sorted(dir(o))[-1], eval("a", {"a": 2}), super(list, o)

    class Sub(list):
        pass

    def g():
        s = Sub()
        s.zzz = 1
        return super(Sub, s).__len__(), vars(s), eval("a + 1", {"a": 2})

    agree(g)


def test_many_early_returns_do_not_nest_too_deep(agree):
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


def test_flags_of_inner_loops_start_afresh(agree):
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


def test_global_and_nonlocal_declared_in_a_block(agree):
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


def test_super_and_class_cell_inside_blocks_and_lambdas(agree):
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
            return [x for x in super().go()], super().go()

    b = B()

    def f():
        return b.go()

    agree(f)


def test_iteration_over_user_iterables(agree):
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


def test_names_of_nested_definitions_are_python_s(agree):
    def f():
        global declared_global, DeclaredGlobal

        def declared_global():
            pass

        class DeclaredGlobal:
            def method(self):
                pass

        def local():
            return [g for g in (lambda: 0,)].pop()

        names = [declared_global, DeclaredGlobal.method, local, local()]
        for _ in range(1):

            class InBlock:
                def method(self):
                    return lambda: 0

            names += [InBlock.method, InBlock().method()]
        return [n.__qualname__ for n in names] + [InBlock.__qualname__]

    agree(f)


def test_generators_take_the_names_of_their_function():
    def f():
        yield

    f.__name__, f.__qualname__ = "other", "some.other"
    g = convert(f)()
    assert (g.__name__, g.__qualname__) == ("other", "some.other")


def test_generator_based_coroutines_can_be_awaited():
    @types.coroutine
    def old_style(n):
        yield
        return n

    async def f(n):
        for i in range(n):
            n += await old_style(i)
        return n

    assert asyncio.run(convert(f)(3)) == asyncio.run(f(3)) == 6


def test_eval_sees_the_names_of_its_caller(agree):
    def f(a, namespace=None):
        b = 2
        if a:
            b = 3  # noqa: F841
        scope = {}
        exec("c = a + 1", {"a": a}, scope)
        return eval("a + b", namespace), scope, [eval("a", {"a": k}) for k in (1, 2)]

    agree(f, 1)
    agree(f, 1, {"a": 5, "b": 6})
