"""RETROGRADE_* variables: read at call time, documented, read nowhere else."""

from pathlib import Path

import pytest

from retrograde.runtime import env


@pytest.mark.parametrize("text", ["1", "true", "yes", " on "])
def test_flags_are_read_at_call_time(monkeypatch: pytest.MonkeyPatch, text: str):
    monkeypatch.setenv("RETROGRADE_VERIFY", "0")
    assert not env.verify()
    monkeypatch.setenv("RETROGRADE_VERIFY", text)
    assert env.verify()


@pytest.mark.parametrize("text", ["", "0", "False", "no", "OFF"])
def test_words_for_no_switch_a_flag_off(monkeypatch: pytest.MonkeyPatch, text: str):
    monkeypatch.setenv("RETROGRADE_INTERP", text)
    assert not env.interp()


def test_defaults_apply_when_nothing_is_set(monkeypatch: pytest.MonkeyPatch):
    for switch in env.SWITCHES:
        monkeypatch.delenv(switch.variable, raising=False)
    assert not env.verify()
    assert not env.interp()
    assert not env.accept()
    assert env.dump() == ""
    assert env.stop_after() == ""
    assert env.cache_dir() is None


def test_text_values_come_through(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("RETROGRADE_DUMP", "fuse")
    monkeypatch.setenv("RETROGRADE_STOP_AFTER", "cse")
    monkeypatch.setenv("RETROGRADE_CACHE_DIR", str(tmp_path))
    assert env.dump() == "fuse"
    assert env.stop_after() == "cse"
    assert env.cache_dir() == tmp_path


def test_every_variable_is_described():
    names = [line.split()[0] for line in env.describe().splitlines()]
    assert names == [switch.variable for switch in env.SWITCHES]


def test_no_other_file_reads_the_environment():
    root = Path(env.__file__).resolve().parent.parent
    folders = ("ir", "passes", "codegen", "runtime", "tracer", "retrograde")
    readers = {
        path.relative_to(root).as_posix()
        for folder in folders
        for path in (root / folder).glob("*.py")
        if "os.environ" in path.read_text() or "getenv" in path.read_text()
    }
    assert readers == {"runtime/env.py"}
