"""The programs of `python -m benchmarks` are right, and so is what it says of times."""

import dataclasses
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from benchmarks import compilation, report
from benchmarks.__main__ import Options, parse
from benchmarks.case import Case, copied, differentiable, rebound
from benchmarks.checks import Digest, digest, disagreement, problem, reference
from benchmarks.frameworks import Computed
from benchmarks.groups import GROUPS, find
from benchmarks.groups.elementwise import black_scholes, chain, normal
from benchmarks.turns import Budget, Row, Turns, Worker, WorkerError
from retrograde.differences import jacobians
from retrograde.ir.errors import UnsupportedError

CASES = [case for cases in GROUPS.values() for case in cases]
PURE = [case for case in CASES if case.pure is not None]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_value_and_gradient_of_a_case(case: Case) -> None:
    args = case.args(case.tiny, "float64")
    wrt = differentiable(args)
    if case.plain:
        value = rg.compile(case.function)(*args)
        assert math.isclose(value, case.function(*args), rel_tol=1e-12)
        return
    gradient = rg.value_and_grad(rg.compile(case.function), argnums=wrt)
    try:
        value, grads = gradient(*args)
    except UnsupportedError as error:
        pytest.skip(str(error).partition("\n")[0])
    assert math.isclose(value, case.function(*copied(args)), rel_tol=1e-12)

    def objective(xs: list[Any]) -> list[Any]:
        moved = list(args)
        for k, x in zip(wrt, xs, strict=True):
            moved[k] = x
        return [case.function(*copied(tuple(moved)))]

    (rows,) = jacobians(objective, [args[k] for k in wrt], 1e-6)
    for g, want in zip(grads, rows, strict=True):
        scale = max(np.max(np.abs(want)), 1.0)
        np.testing.assert_allclose(g.ravel(), want[0], rtol=0, atol=1e-7 * scale)


@pytest.mark.parametrize("case", PURE, ids=lambda case: case.name)
def test_programs_without_writes_compute_the_same(case: Case) -> None:
    assert case.pure is not None
    args = case.args(case.tiny, "float64")
    assert math.isclose(
        case.pure(*args), case.function(*copied(args)), rel_tol=1e-12, abs_tol=1e-12
    )


def test_names_are_unique() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)


def test_arguments_are_the_same_numbers_in_every_precision() -> None:
    case = CASES[0]
    for wide, narrow in zip(
        case.args(50, "float64"), case.args(50, "float32"), strict=True
    ):
        assert (wide.dtype, narrow.dtype) == (np.float64, np.float32)
        np.testing.assert_array_equal(wide, narrow)


def test_rebound_functions_call_another_library() -> None:
    """Also in the functions that they call."""
    args = [np.array([100.0]), np.array([90.0]), np.array([0.2])]
    other = ModuleType("flat")
    vars(other).update(vars(np), exp=np.ones_like)
    want = black_scholes(*args)
    found = rebound(black_scholes, np=other)(*args)
    assert found is not want
    assert black_scholes(*args) == want
    called = rebound(black_scholes, np=other).__globals__["normal"]
    np.testing.assert_allclose(called(np.zeros(1)), 0.5, atol=1e-6)
    assert called(np.full(1, 5.0)) < 0.9999 < normal(np.full(1, 5.0))


# A result is checked before it is timed.


def results() -> tuple[Case, Any, Any, list[Any]]:
    case = Case(chain, lambda rng, n: tuple(rng.standard_normal((2, n))))
    args = case.args(500, "float64")
    value, grads = rg.value_and_grad(chain, argnums=(0, 1))(*args)
    return case, args, value, list(grads)


def test_a_right_result_has_no_problem() -> None:
    case, args, value, grads = results()
    known = reference(case, args)
    found = digest(args, Computed(value, tuple(grads)))
    assert problem(found, known, "float64") == ""
    assert problem(digest(args, Computed(value, None)), known, "float64") == ""
    assert disagreement(found, found, "float64") == ""


def test_a_wrong_value_or_gradient_is_found() -> None:
    case, args, value, grads = results()
    known = reference(case, args)
    right = digest(args, Computed(value, tuple(grads)))
    wrong = digest(args, Computed(value * (1 + 1e-6), tuple(grads)))
    assert problem(wrong, known, "float64").startswith("value")
    wrong = digest(args, Computed(math.nan, tuple(grads)))
    assert problem(wrong, known, "float64").startswith("value")
    grads[1] = grads[1].copy()
    grads[1][-1] += 0.1  # one entry of a thousand
    wrong = digest(args, Computed(value, tuple(grads)))
    assert problem(wrong, known, "float64").startswith("slope")
    assert "gradient 1 differs in block 31" in disagreement(wrong, right, "float64")
    with pytest.raises(ValueError, match="gradient 0 has shape"):
        digest(args, Computed(value, (grads[0][1:], grads[1])))


def test_gradients_of_another_number_disagree() -> None:
    one = Digest(1.0, 1.0, [1.0], [1.0])
    other = Digest(1.0, 1.0, [1.0, 2.0], [1.0, 2.0])
    assert disagreement(one, other, "float64") == "another number of gradients"


# What is said of times.


def row(name: str = "chain", size: int = 100_000, **seconds: float) -> Row:
    return Row("elementwise", name, size, "float64", 1, seconds)


def test_ratio_is_that_of_the_fastest_peer() -> None:
    found = row(ours=1.0, jax=3.0, torch=2.0, numpy=0.1, copy=0.8)
    assert (found.best, found.ratio, found.copying) == ("torch", 2.0, 0.8)
    assert report.bound(found) == "memory"
    assert report.bound(row(ours=1.0, copy=0.2)) == "arithmetic"
    assert report.bound(row(ours=1e-5, copy=0.9e-5)) == "calls"
    assert row(ours=1.0, numpy=2.0).ratio is None
    assert row(jax=1.0).ratio is None


def test_moves_are_told_from_those_of_the_machine() -> None:
    old = [row("a", ours=1.0, jax=2.0), row("b", ours=1.0, jax=2.0), row("c", ours=1.0)]
    new = [row("a", ours=2.0, jax=4.0), row("b", ours=1.0, jax=4.0), row("d", ours=1.0)]
    changes = {m.row.program: m.change for m in report.moves(new, old)}
    assert changes == {"a": 1.0, "b": 0.5}
    text = report.changes(new, old)
    assert text[0].startswith("2 rows in both, 1 moved by over 15%")
    assert "elementwise b 1e5 float64, 1 thread (ours 1.00, peers 2.00)" in text[1]
    assert len(text) == 2


def test_failures_are_told_from_those_of_before() -> None:
    bad = row("a")
    bad.errors["ours"] = "slope 1, by differences 2"
    assert report.changes([bad], [row("a", ours=1.0)])[1:] == [
        "fails now: elementwise a: slope 1, by differences 2"
    ]
    assert report.changes([bad], [bad]) == ["no row is in both"]


def test_json_keeps_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    rows = [row(ours=0.5, jax=0.25), row("b")]
    path.write_text(report.as_json("a machine", rows))
    assert report.load(path) == rows
    rows[1].errors["jax"] = "e" * 200
    path.write_text(report.as_json("a machine", rows))
    assert report.load(path)[1].errors == {"jax": "e" * 80}


def test_table_marks_what_is_slower(capsys: pytest.CaptureFixture[str]) -> None:
    bad = row("b")
    bad.errors["ours"] = "value 1, NumPy's is 2"
    report.show("a title", [row(ours=2.0, jax=1e-3, copy=1e-6), bad])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == "a title"
    (line,) = [line for line in lines if line.startswith("chain")]
    for text in ("1e5", "f64", "2 s", "1 ms", "1 us", "0.00 <", "arithmetic"):
        assert text in line
    assert "b 1e5 float64, ours: value 1, NumPy's is 2" in lines


def test_durations_and_sizes_are_short() -> None:
    times = [1.5, 0.0123, 45.6e-6, 1e-7, None]
    assert [report.duration(t) for t in times] == [
        "1.5 s",
        "12.3 ms",
        "45.6 us",
        "0.1 us",
        "-",
    ]
    assert [report.count(n) for n in (0, 10, 1000, 1500, 10**7)] == [
        "",
        "10",
        "1e3",
        "1500",
        "1e7",
    ]


# What is measured when.


def options(**changed: Any) -> Options:
    plain = Options((), (), False, (), (1,), (), (), "wall", math.inf)
    return dataclasses.replace(plain, **changed)


def test_points_of_a_group() -> None:
    case = CASES[0]
    every = list(options().points("elementwise", case, 1))
    assert every == [
        (1_000, "float64"),
        (1_000, "float32"),
        (100_000, "float64"),
        (1_000_000, "float64"),
        (1_000_000, "float32"),
        (10_000_000, "float64"),
    ]
    assert list(options().points("elementwise", case, 2)) == every[3:]
    quick = list(options(quick=True).points("elementwise", case, 1))
    assert quick == every[:1]
    chosen = options(sizes=(500,), dtypes=("float32",))
    assert list(chosen.points("elementwise", case, 2)) == [(500, "float32")]


def test_arguments_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    given = parse(["models", "--sizes", "1e3,2e5", "--threads", "2", "--peers", "jax"])
    assert (given.groups, given.sizes) == (["models"], (1000, 200_000))
    assert (given.threads, given.peers) == ((2,), ("jax",))
    with pytest.raises(SystemExit):
        parse(["nothing"])
    assert "no group is called nothing" in capsys.readouterr().err


def test_over_limits() -> None:
    rows = [
        Row("compile", "ten loops, cold", 0, "", 1, {"ours": 3.0}),
        Row("compile", "ten loops, warm", 0, "", 1, {"ours": 1.0}),
        Row("compile", "heat, warm", 0, "", 1, {"ours": 2.0}),
        Row("compile", "heat, cold", 0, "", 1, {"ours": 20.0}),
    ]
    assert compilation.over_limits(rows) == [
        "ten loops, cold: 3.00 s are over 2 s",
        "heat, warm: 2.00 s are over 1.2 s",
    ]


def test_batches_of_many_sizes_compile_once() -> None:
    compilation.compute_batches()


def test_a_worker_answers(tmp_path: Path) -> None:
    worker = Worker("ours", 1, str(tmp_path))
    try:
        place = "overhead", "plain_call", 4, "float64"
        found = worker.ask("prepare", *place, timeout=60)
        x, y = find("overhead", "plain_call").args(4, "float64")
        assert math.isclose(found["digest"]["value"], np.sum(x * y + x))
        assert worker.ask("time", timeout=60)["wall"] > 0
        with pytest.raises(WorkerError, match="ValueError"):
            worker.ask("prepare", "overhead", "nothing", 4, "float64", timeout=60)
    finally:
        worker.close()


def test_frameworks_are_measured_in_turn() -> None:
    case = find("overhead", "four_arguments")
    with Turns(("ours", "numpy", "copy"), 1, Budget(0.01, 60.0)) as turns:
        found = turns.measure("overhead", case, 4, "float64")
    assert found.errors == {}
    assert found.seconds.keys() == {"ours", "numpy", "copy"}
    assert min(found.seconds.values()) > 0
