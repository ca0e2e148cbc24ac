"""Golden IR: text in, passes, text out; RETROGRADE_ACCEPT=1 rewrites what is expected.

A file under tests/golden/<pass>/ reads

    # RUN: functionalize cse
    traced @f(...) ... { ... }
    # EXPECT
    func @f(...) ... { ... }

With `capture` as the first word of RUN there is no input: the file is named after a
program of tests/programs/inplace_programs.py or of the demo, which is captured.

Where a line of the input ends in `# error: text`, parser or verifier must refuse the
input with that text and must blame that line; nothing is expected after it.
"""

import importlib
import os
import re
from pathlib import Path
from typing import Any

import pytest
from inplace_programs import CASES

import retrograde as rg
from retrograde import demo

FOLDER = Path(__file__).parent / "golden"
FILES = sorted(FOLDER.rglob("*.ir"))
MARK = "# EXPECT\n"
ERROR = re.compile(r"^(?P<line>.*?)\s*# error: (?P<text>.*)$", re.M)


def language() -> Any:
    return importlib.import_module("retrograde.ir.text")


def verify(func: Any) -> None:
    importlib.import_module("retrograde.ir.verify").verify(func)


def passes() -> dict[str, Any]:
    table = importlib.import_module("retrograde.passes.manager").PASSES
    assert isinstance(table, dict)
    return table


def captured(name: str) -> str:
    for example in demo.EXAMPLES:
        if example.name == name:
            args = example.arguments(True)
            return str(rg.compile(example.function).ir(*args, stage="capture"))
    (case,) = (case for case in CASES if case.name == name)
    compiled = rg.compile(case.function)
    return str(compiled.ir(*case.args(), **case.kwargs, stage="capture"))


def identity(path: Path) -> str:
    return path.relative_to(FOLDER).with_suffix("").as_posix()


@pytest.mark.parametrize("path", FILES, ids=identity)
def test_golden(path: Path) -> None:
    source, mark, expected = path.read_text().partition(MARK)
    if found := ERROR.search(source):
        refuse(source, found)
        return
    assert mark, "the file has no line '# EXPECT'"
    run = re.search(r"^# RUN:(.*)$", source, re.M)
    assert run, "the file has no line '# RUN: ...'"
    names = run[1].split()
    if names[:1] == ["capture"]:
        func = language().parse(captured(path.stem))
        del names[0]
    else:
        func = language().parse(source)
    verify(func)
    for name in names:
        func = passes()[name](func)
        verify(func)
    shown = language().show(func).rstrip("\n") + "\n"
    if os.environ.get("RETROGRADE_ACCEPT") == "1":
        path.write_text(source + MARK + shown)
    else:
        hint = "if the change is right, run again with RETROGRADE_ACCEPT=1"
        assert shown == expected, hint
        assert language().show(language().parse(shown)).rstrip("\n") + "\n" == shown


def refuse(source: str, found: re.Match[str]) -> None:
    clean = ERROR.sub(lambda match: match["line"], source)
    with pytest.raises(Exception, match=re.escape(found["text"])) as caught:
        verify(language().parse(clean))
    base = importlib.import_module("retrograde.ir.errors").RetrogradeError
    assert isinstance(caught.value, base)
    assert found["line"].strip() in str(caught.value), "the error blames another line"


def test_every_folder_is_named_after_a_pass() -> None:
    folders = {path.parent.name for path in FILES}
    assert folders <= set(passes()) | {"verify", "parse", "capture"}
