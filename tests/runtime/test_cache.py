"""The cache folder: private, whole entries, damaged ones absent."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from retrograde.runtime import cache

posix = pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs POSIX owners")
KEY = "ab" + "0" * 62


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "deep" / "cache"
    monkeypatch.setenv("RETROGRADE_CACHE_DIR", str(folder))
    return folder


@posix
def test_folder_is_made_for_the_user_alone(place: Path):
    old = os.umask(0)
    try:
        assert cache.folder() == place
        assert cache.store(KEY, ".bin", b"data")
    finally:
        os.umask(old)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    entry = cache.path(KEY, ".bin")
    assert entry is not None
    assert not entry.stat().st_mode & 0o077


def test_default_is_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RETROGRADE_CACHE_DIR", raising=False)
    assert cache.location().name == "retrograde"


@posix
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o722])
def test_folder_that_others_may_write_is_refused_with_one_warning(
    place: Path, mode: int
):
    place.mkdir(parents=True)
    place.chmod(mode)
    with pytest.warns(RuntimeWarning, match="others may write there"):
        assert cache.folder() is None
    assert not cache.store(KEY, ".bin", b"data")
    assert cache.fetch(KEY, ".bin") is None
    assert cache.path(KEY, ".bin") is None
    assert list(place.iterdir()) == []


@posix
def test_folder_of_another_user_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
):
    assert cache.folder() == place
    monkeypatch.setattr(os, "getuid", lambda: place.stat().st_uid + 1)
    with pytest.warns(RuntimeWarning, match="belongs to another user"):
        assert cache.folder() is None


def test_folder_that_cannot_be_made_is_no_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("RETROGRADE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert cache.folder() is None
    assert not cache.store(KEY, ".bin", b"data")
    assert cache.info() == cache.Info(None, 0, 0)
    assert cache.clear() == 0


def test_entries_come_back_until_discarded(place: Path):
    assert cache.fetch(KEY, ".bin") is None
    assert cache.store(KEY, ".bin", b"one")
    assert cache.store(KEY, ".bin", b"two")
    assert cache.fetch(KEY, ".bin") == b"two"
    assert cache.fetch(KEY, ".txt") is None
    cache.discard(KEY, ".bin")
    cache.discard(KEY, ".bin")
    assert cache.fetch(KEY, ".bin") is None


@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "digest"])
def test_damaged_entries_are_absent(place: Path, damage: str):
    assert cache.store(KEY, ".bin", bytes(range(200)))
    entry = cache.path(KEY, ".bin")
    assert entry is not None
    data = bytearray(entry.read_bytes())
    if damage == "flip":
        data[-7] ^= 1
    elif damage == "digest":
        data[3] ^= 1
    entry.write_bytes({"cut": data[:-1], "empty": b""}.get(damage, data))
    assert cache.fetch(KEY, ".bin") is None


def test_info_counts_and_clear_removes_only_entries(place: Path):
    for number in range(3):
        assert cache.store(f"{number:064}", ".bin", b"x" * 100)
    (place / "notes.txt").write_text("mine")
    with cache.alone(KEY, "native"):  # makes a file that is no entry
        pass
    size = 3 * (100 + cache.DIGEST)
    assert cache.info() == cache.Info(place, 3, size)
    assert cache.clear() == 3
    assert cache.info() == cache.Info(place, 0, 0)
    assert (place / "notes.txt").read_text() == "mine"


def test_entries_of_an_older_layout_are_cleared_too(place: Path):
    old = place / "v1" / "ab" / "entry.native"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"old")
    place.chmod(0o700)
    assert cache.info().entries == 1
    assert cache.clear() == 1
    assert not old.exists()


def test_entries_that_others_may_write_are_absent(place: Path):
    assert cache.store(KEY, ".bin", b"data")
    entry = cache.path(KEY, ".bin")
    assert entry is not None
    entry.chmod(0o622)
    if hasattr(os, "getuid"):
        assert cache.fetch(KEY, ".bin") is None
    assert cache.store(KEY, ".bin", b"new")
    assert cache.fetch(KEY, ".bin") == b"new"


def test_an_entry_under_another_name_is_absent(place: Path):
    assert cache.store(KEY, ".bin", b"data")
    entry = cache.path(KEY, ".bin")
    assert entry is not None
    entry.rename(entry.with_suffix(".other"))
    assert cache.fetch(KEY, ".other") is None


WRITER = """
import sys
from retrograde.runtime import cache
for _ in range(100):
    assert cache.store(sys.argv[1], ".bin", sys.argv[2].encode() * 20_000)
"""


def test_concurrent_writers_leave_one_whole_entry(place: Path):
    command = [sys.executable, "-c", WRITER, KEY]
    workers = [subprocess.Popen([*command, mark]) for mark in "ab"]
    seen = set()
    while any(worker.poll() is None for worker in workers):
        data = cache.fetch(KEY, ".bin")
        seen.add(None if data is None else (len(data), data[:1], len(set(data))))
    for worker in workers:
        assert worker.wait() == 0
    whole = {(20_000, b"a", 1), (20_000, b"b", 1)}
    assert seen - {None} <= whole
    assert cache.fetch(KEY, ".bin") is not None
    assert cache.info().entries == 1


MIB = 1 << 20


def keys(count: int) -> list[str]:
    return [f"{k:02x}" + "0" * 62 for k in range(count)]


def aged(key: str, seconds: int) -> None:
    entry = cache.path(key, ".bin")
    assert entry is not None
    os.utime(entry, (seconds, seconds))


def test_the_least_recently_used_go_first(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETROGRADE_CACHE_MIB", "0")
    names = keys(5)
    for age, key in enumerate(names):
        assert cache.store(key, ".bin", bytes(MIB // 2))
        aged(key, 1000 + age)
    assert cache.fetch(names[0], ".bin") is not None  # used now
    monkeypatch.setenv("RETROGRADE_CACHE_MIB", "2")
    assert cache.store("ff" + "0" * 62, ".bin", b"one more")
    left = [key for key in names if cache.fetch(key, ".bin") is not None]
    assert left == [names[0], names[4]]
    assert cache.fetch("ff" + "0" * 62, ".bin") == b"one more"


def test_under_the_limit_nothing_goes(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETROGRADE_CACHE_MIB", "4")
    for key in keys(6):
        assert cache.store(key, ".bin", bytes(MIB // 2))
    assert cache.info().entries == 6


def test_a_limit_that_is_no_number(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETROGRADE_CACHE_MIB", "much")
    with pytest.raises(ValueError, match="RETROGRADE_CACHE_MIB is a number of MiB"):
        cache.store(KEY, ".bin", b"data")
