"""Locations, tracebacks and warnings of converted code; its depth, threads and cost."""

import linecache
import subprocess
import sys
import threading
import time
import traceback
import types
import warnings

import numpy as np
import pytest

from retrograde.tracer.convert import (
    Operators,
    convert,
    operators,
)
from retrograde.tracer.location import user_location

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
    assert [x.line - first for x in found] == [3, 6, 9, 18, 20, 21, 22]
    found = found[:2] + found[4:]
    assert {x.file for x in found} == {__file__}
    assert [x.function for x in found] == [*["located"] * 4, "<lambda>"]
    assert found[0].text == "found.append(user_location())"
    assert str(found[0]).startswith(f"{__file__}:{first + 3}, in located:")


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

    with pytest.raises(ValueError, match="boom") as info:
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


def test_failed_assertion_has_its_message(agree, tmp_path):
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


# ---------------------------------------------------------------- depth, threads, cost


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


def test_converting_imports_no_other_converter_and_warns_of_nothing():
    script = (
        "import sys; from retrograde.tracer.convert import convert;"
        "import retrograde.demo as d; assert convert(d.heat) is not d.heat;"
        "print([m for m in ('malt', 'gast', 'tensorflow') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""


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
