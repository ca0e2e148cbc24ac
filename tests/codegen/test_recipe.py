"""Kernels made from a recipe on disk are those that the passes would make."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inplace_programs import CASES, Case

import retrograde as rg
from retrograde import codegen
from retrograde.codegen import binder, recipe, variants
from retrograde.codegen.lower import lower
from retrograde.codegen.nests import drop_unused
from retrograde.ir.errors import Location
from retrograde.ir.func import Func
from retrograde.ir.text import parse
from retrograde.runtime import cache
from retrograde.tracer import program
from retrograde.tracer.containers import flatten_tree


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RETROGRADE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("RETROGRADE_VERIFY", "0")  # which runs all passes
    return tmp_path / "cache"


def recipe_of(f: Func) -> recipe.Recipe:
    p = lower(f, f.name)
    drop_unused(p)
    return binder.describe(p, [x.type.ndim for x in f.params])


def plain(x: Any) -> Any:
    return x.tolist() if isinstance(x, np.ndarray) else x


TABLE = """
func @table(%x: f64[n], %i: i64[m]) -> (f64[m], f64[n] into %x) {
  %t: f64[3] = constant {data=(0.5, -0.0, 2.0), dtype=f64, shape=(3,)}
  %s: f64[m] = gather %x, %i {axes=(0,), position=0}
  %p: f64[m] = gather %t, %i {axes=(0,), position=0}
  %r: f64[m] = multiply %s, %p
  %y: f64[n] = cumsum %x {axis=0}
  return %r, %y
}
"""


def test_recipe_is_read_back_as_it_was() -> None:
    r = recipe_of(parse(TABLE))
    assert r.failures
    assert len(r.constants) == 1
    data = recipe.to_bytes(r)
    assert data is not None
    again = recipe.from_bytes(data)
    for name in r.__slots__:
        if name != "constants":
            assert getattr(again, name) == getattr(r, name), name
    assert recipe.to_bytes(again) == data
    x = np.arange(4.0)
    out, same = binder.assemble(again)([x, np.array([2, 1])])
    assert out.tolist() == [4, 0]
    assert np.signbit(out).tolist() == [False, True]
    assert same is x
    assert x.tolist() == [0, 1, 3, 6]
    with pytest.raises(rg.RetrogradeError):
        binder.assemble(again)([x, np.array([4])])


@pytest.mark.parametrize("data", [b"[]", b"\xff", b"{}", b'{"name": 3}'])
def test_what_is_no_recipe_is_absent(place: Path, data: bytes) -> None:
    key = codegen.key_of("something")
    assert cache.store(key, variants.RECIPE, data)
    assert variants.saved(key) is None
    assert cache.fetch(key, variants.RECIPE) is None


def kinds_of_func() -> dict[str, str]:
    usual = """
func @f[k](%x: f64[n]) -> f64[n] where n - 1 >= 0 {
  %y: f64[n] = multiply %x, 2.0
  return %y
}
"""
    return {
        "usual": usual,
        "name": usual.replace("@f", "@g"),
        "zero": usual.replace("2.0", "0.0"),
        "minus zero": usual.replace("2.0", "-0.0"),
        "fact": usual.replace("n - 1", "n - 2"),
        "dtype": usual.replace("f64", "f32"),
        "size": usual.replace("[n]", "[3]").replace(" where n - 1 >= 0", ""),
        "update": usual.replace("-> f64[n]", "-> f64[n] into %x"),
        "symbol": usual.replace("[k]", ""),
        "op": usual.replace("multiply", "add"),
    }


def test_keys_tell_programs_apart(place: Path) -> None:
    keys = {name: program._key(parse(text)) for name, text in kinds_of_func().items()}
    assert None not in keys.values()
    assert len(set(keys.values())) == len(keys)
    f = parse(kinds_of_func()["usual"])
    assert program._key(f) == keys["usual"]
    f.nodes[0].loc = Location("user.py", 3)
    assert program._key(f) != keys["usual"]


def test_attributes_that_are_objects_have_no_key(place: Path) -> None:
    f = parse(kinds_of_func()["usual"])
    f.nodes[0].attrs = {"call": print}
    assert program._key(f) is None
    f.nodes[0].attrs = {"call": (1, ("x", [2]))}
    assert program._key(f) is None


@pytest.mark.parametrize("switch", ["VERIFY", "DUMP", "STOP_AFTER"])
def test_passes_that_are_to_be_seen_are_run(
    place: Path, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    monkeypatch.setenv(f"RETROGRADE_{switch}", "dce" if switch != "VERIFY" else "1")
    assert program._key(parse(kinds_of_func()["usual"])) is None


def outcome(f: Any, args: Any, kwargs: Any) -> Any:
    """Return all that a call does, or the text of its error."""
    try:
        out = f(*args, **kwargs)
    except rg.RetrogradeError as error:
        return str(error)
    return [plain(x) for x in flatten_tree((out, args))[0]]


@pytest.mark.parametrize("case", CASES[::3], ids=lambda case: case.name)
def test_programs_do_the_same_from_a_recipe(
    place: Path, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    found = []
    for again in (False, True):
        if again:
            monkeypatch.setattr(codegen, "build", None)  # would fail
        found.append(outcome(rg.compile(case.function), case.args(), case.kwargs))
    assert repr(found[0]) == repr(found[1])


def picked(x: Any, i: Any) -> Any:
    return x[i] * 2.0


def test_errors_name_the_place_from_a_recipe_too(place: Path) -> None:
    texts = []
    for _ in range(2):
        with pytest.raises(IndexError) as caught:
            rg.compile(picked)(np.ones(3), np.array([7]))
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert "in picked" in texts[0]


def test_what_a_kernel_looks_like_is_kept(place: Path) -> None:
    x, i = np.ones(3), np.array([1])
    first, second = rg.compile(picked), rg.compile(picked)
    first(x, i)
    second(x, i)
    assert second.cache_info().loaded + second.cache_info().compiled == 1
    assert first.explain(x, i) == second.explain(x, i)
    assert first.scratch_bytes(x, i) == second.scratch_bytes(x, i)
