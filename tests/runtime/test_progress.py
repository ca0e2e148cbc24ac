"""What is compiled is said on a terminal, late enough, and nowhere else."""

import io
import sys
import time
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import retrograde as rg
from retrograde.runtime import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Return a terminal that standard error goes to."""
    stream = Terminal()
    monkeypatch.setattr(progress, "errors", lambda: stream)
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.delenv("RETROGRADE_PROGRESS", raising=False)
    monkeypatch.setattr(
        progress,
        "console",
        lambda: Console(file=stream, force_terminal=True, width=100),
    )
    return stream


def wait_for(stream: io.StringIO, text: str) -> None:
    until = time.monotonic() + 10
    while text not in stream.getvalue() and time.monotonic() < until:
        time.sleep(0.01)
    assert text in stream.getvalue()


def test_a_line_names_what_is_compiled_and_goes_away(errors: io.StringIO) -> None:
    with progress.compiling("f (user.py:3)"):
        wait_for(errors, "compiling f (user.py:3)")
        progress.stage("pass [fuse]")
        wait_for(errors, "compiling f (user.py:3): pass [fuse]")
    assert errors.getvalue().endswith("\x1b[2K")  # the line is erased


def test_nothing_is_said_of_what_is_quick(
    errors: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "DELAY", 60.0)
    with progress.compiling("f"):
        progress.stage("pass fuse")
    assert errors.getvalue() == ""


@pytest.mark.parametrize(
    ("choice", "terminal", "notebook", "says"),
    [
        (None, False, False, False),
        (None, True, False, True),
        (None, False, True, True),
        ("0", True, True, False),
        ("1", False, False, True),
    ],
)
def test_where_something_is_said(
    errors: io.StringIO,
    monkeypatch: pytest.MonkeyPatch,
    choice: str | None,
    terminal: bool,
    notebook: bool,
    says: bool,
) -> None:
    if choice is not None:
        monkeypatch.setenv("RETROGRADE_PROGRESS", choice)
    monkeypatch.setattr(errors, "isatty", lambda: terminal)
    if notebook:
        monkeypatch.setitem(sys.modules, "ipykernel", sys)
    with progress.compiling("f"):
        if says:
            wait_for(errors, "compiling f")
        else:
            time.sleep(0.02)
    said = errors.getvalue()
    assert bool(said) == says
    if says and not terminal:
        assert said == "compiling f ...\n"


def test_there_may_be_no_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "errors", lambda: None)
    for choice in ("", "1"):
        monkeypatch.setenv("RETROGRADE_PROGRESS", choice)
        with progress.compiling("f"):
            progress.stage("pass fuse")


def test_inner_compilations_belong_to_the_outer_one(errors: io.StringIO) -> None:
    with progress.compiling("f"):
        wait_for(errors, "compiling f")
        with progress.compiling("g"):
            progress.stage("pass fuse")
            wait_for(errors, "compiling f: pass fuse")
    assert "g" not in errors.getvalue().replace("compiling", "")


def slow(x: Any) -> Any:
    return np.tanh(x).sum()


def test_a_compiled_function_is_named_with_its_place(errors: io.StringIO) -> None:
    seen = []

    def stage(name: str) -> None:
        display = progress._local.display
        seen.append((display.what, name))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "stage", stage)
        rg.compile(slow)(np.ones(3))
    assert "slow (" in seen[0][0]
    assert "test_progress.py:" in seen[0][0]
    assert {"pass fuse", "loop nests"} <= {name for _, name in seen}
