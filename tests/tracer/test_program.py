"""The switches that people debug with do what they say."""

import numpy as np
import pytest

import retrograde as rg


def f(x):
    y = x**2
    y[0] *= 2
    return np.sum(y)


X = np.arange(1.0, 5.0)


def test_interpreter_takes_the_place_of_compiled_code(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RETROGRADE_INTERP", "1")
    compiled = rg.compile(f)
    assert compiled(X) == f(X)
    assert "interpreted" in compiled.source(X)


def test_pipeline_ends_where_it_is_told_to(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RETROGRADE_STOP_AFTER", "cse")
    compiled = rg.compile(f)
    assert list(compiled.stages(X)) == ["capture", "functionalize", "simplify", "cse"]
    assert compiled(X) == f(X)
    monkeypatch.setenv("RETROGRADE_STOP_AFTER", "functionalize")
    assert list(rg.compile(f).stages(X)) == ["capture", "functionalize"]


def test_pipeline_cannot_end_after_an_unknown_pass(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RETROGRADE_STOP_AFTER", "fusion")
    with pytest.raises(ValueError, match="no pass 'fusion'; there are functionalize, "):
        rg.compile(f)(X)


@pytest.mark.parametrize(
    ("what", "shown", "hidden"),
    [
        ("dce", "# after dce", "# after cse"),
        ("all", "# after fuse", "# after vjp"),
        ("source", "def entry(", "# after"),
    ],
)
def test_ir_and_source_are_printed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    what: str,
    shown: str,
    hidden: str,
):
    monkeypatch.setenv("RETROGRADE_DUMP", what)
    rg.compile(f)(X)
    printed = capsys.readouterr().out
    assert shown in printed
    assert hidden not in printed
