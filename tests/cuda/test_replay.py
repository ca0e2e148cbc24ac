"""Calls that come again are graphs, and never with other arrays, sizes or numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from retrograde.codegen.cuda.replay import KEPT
from retrograde.ir.errors import IndexRangeError
from retrograde.runtime.devices import Memory, device
from retrograde.runtime.devices.pool import Pool

EMU = "cuda:emu"
SIZE = 3000  # that is worth a grid
pytestmark = pytest.mark.cuda_emulated


class Recordings:
    """Counts what a device records and replays."""

    def __init__(self) -> None:
        self.made = self.replayed = 0


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> Recordings:
    """Let the emulator hand out memory again, as a GPU does, and count its graphs."""
    emulator, counts = device(EMU), Recordings()
    kept: list[Memory] = []
    allocate, record = emulator.allocate, emulator.record

    def fresh(size: int) -> tuple[int, object]:
        memory = allocate(size)
        kept.append(memory)
        return memory.address, memory

    def counted(run: Callable[[], None]) -> Any:
        graph = record(run)
        counts.made += 1
        launch = graph.launch

        def again() -> None:
            counts.replayed += 1
            launch()

        graph.launch = again  # type: ignore[method-assign]
        return graph

    monkeypatch.setattr(emulator, "allocate", Pool(fresh).allocate)
    monkeypatch.setattr(emulator, "record", counted)
    return counts


def array(seed: int, size: int = SIZE) -> rg.DeviceArray:
    return rg.device_array(np.random.default_rng(seed).standard_normal(size), EMU)


def centred(x: Any) -> Any:
    y = x - np.mean(np.sin(x))
    return y - np.mean(np.sin(y))


def check(function: Any, plain: Any, *args: Any) -> None:
    found = function(*args)
    given = [x.numpy() if isinstance(x, rg.DeviceArray) else x for x in args]
    np.testing.assert_allclose(found.numpy(), plain(*given), rtol=1e-12, atol=1e-12)


def test_call_that_comes_again_is_a_graph(recordings: Recordings):
    f = rg.compile(centred, device=EMU)
    x = array(0)
    for _ in range(6):
        check(f, centred, x)
    assert recordings.made == 1
    assert recordings.replayed >= 3


def test_graph_reads_what_the_array_holds_now(recordings: Recordings):
    f = rg.compile(centred, device=EMU)
    x = array(0)
    for k in range(6):
        x[...] = array(k)
        check(f, centred, x)
    assert recordings.replayed >= 3


def test_other_arrays_and_sizes_have_graphs_of_their_own(recordings: Recordings):
    f = rg.compile(centred, device=EMU)
    arrays = [array(0), array(1), array(2, SIZE + 1)]
    for _ in range(5):
        for x in arrays:
            check(f, centred, x)
    assert recordings.made == 3


def test_results_that_are_kept_are_not_written_again(recordings: Recordings):
    f = rg.compile(centred, device=EMU)
    x = array(0)
    results = []
    for k in range(5):
        x[...] = array(k)
        results.append((f(x), centred(array(k).numpy())))
    for found, wanted in results:
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12, atol=1e-12)
    assert recordings.replayed == 0  # each result is in memory of its own


def scaled(x: Any, k: float) -> Any:
    y = (x - np.mean(np.sin(x))) * k
    return np.copysign(y - np.mean(np.sin(y)), k)


def test_graph_is_not_that_of_another_number(recordings: Recordings):
    f = rg.compile(scaled, device=EMU)
    x = array(0)
    for _ in range(4):
        for k in (0.0, -0.0, 2.0):
            y = f(x, k).numpy()
            np.testing.assert_allclose(y, scaled(x.numpy(), k), atol=1e-12)
            assert np.signbit(y).all() == (np.copysign(1.0, k) < 0)
    assert recordings.replayed > 3


def taken(x: Any, index: Any) -> Any:
    y = centred(x)
    return y - np.sum(y[index])


def test_graph_that_fails_is_an_error(recordings: Recordings):
    f = rg.compile(taken, device=EMU)
    x = array(0)
    good, bad = np.arange(2000), np.full(2000, SIZE)
    index = rg.device_array(good, EMU)
    for _ in range(4):
        check(f, taken, x, index)
    before = recordings.replayed
    assert before
    index[...] = bad
    for _ in range(2):
        with pytest.raises(IndexRangeError, match="y\\[index\\]"):
            f(x, index)
    index[...] = good
    check(f, taken, x, index)
    assert recordings.replayed > before


def test_calls_that_do_not_repeat_keep_little(recordings: Recordings):
    f = rg.compile(centred, device=EMU)
    for k in range(2 * KEPT):
        f(array(k, SIZE + k))
    assert recordings.made == 0


def search(x: Any) -> Any:
    """Leave the number of turns to what is computed: the host has to read it."""
    while np.sum(np.abs(x)) > 1000:
        x = x - 0.5 * np.mean(np.sin(x)) - 0.1 * x
    return x


def test_what_the_host_reads_back_is_no_graph(recordings: Recordings):
    f = rg.compile(search, device=EMU)
    x = array(0)
    for _ in range(4):
        check(f, search, x)
    assert recordings.made == 0
