"""Locks between processes: freed at death, never waited for too long, optional."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from retrograde.runtime import locks

posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX processes")

OWNER = """
import sys, time
from pathlib import Path
from retrograde.runtime import locks
with locks.held(Path(sys.argv[1])) as ours:
    print(ours, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "lock"


@pytest.fixture
def owner(file: Path) -> Iterator[subprocess.Popen[str]]:
    """Return another process that holds the lock."""
    command = [sys.executable, "-c", OWNER, str(file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    yield process
    process.kill()
    process.communicate()


def test_lock_is_held_and_let_go(file: Path) -> None:
    for _ in range(2):
        with locks.held(file) as ours:
            assert ours
    assert file.exists()


def test_owner_that_does_not_move_blocks_for_a_while_only(
    file: Path, owner: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "WAIT", 0.1)
    start = time.monotonic()
    with locks.held(file) as ours:
        assert not ours
    assert time.monotonic() - start >= 0.1


@posix
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_death_of_the_owner_frees_the_lock(
    file: Path, owner: subprocess.Popen[str], how: signal.Signals
) -> None:
    threading.Timer(0.1, owner.send_signal, (how,)).start()
    with locks.held(file) as ours:
        assert ours


@posix
def test_forked_child_does_not_inherit_the_lock(file: Path) -> None:
    script = OWNER.replace(
        "    print(ours",
        "    import os\n    if not os.fork(): time.sleep(60)\n    print(ours",
    ).replace("    time.sleep(60)\n", "    os.kill(os.getpid(), 9)\n")
    command = [sys.executable, "-c", script, str(file)]
    group = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert group.wait() == -signal.SIGKILL
        with locks.held(file) as ours:  # though the child lives
            assert ours
    finally:
        os.killpg(group.pid, signal.SIGKILL)
        group.communicate()


def test_threads_take_turns(file: Path) -> None:
    inside: list[int] = []
    most = []

    def work() -> None:
        with locks.held(file) as ours:
            assert ours
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.005)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 6


def test_without_a_place_for_locks_everybody_goes_on(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with locks.held(None) as ours:
        assert not ours
    file.parent.write_text("in the way")
    with locks.held(file) as ours:
        assert not ours
    file.parent.unlink()

    def refuse(number: int) -> None:
        raise OSError(37, "no locks available")

    monkeypatch.setattr(locks, "_try", refuse)
    with locks.held(file) as ours:
        assert not ours
