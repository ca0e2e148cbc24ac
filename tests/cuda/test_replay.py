"""Calls that come again are batches and graphs, with their own arrays and numbers."""

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
    """Counts what a device records and replays, and the batches that it makes."""

    def __init__(self) -> None:
        self.made = self.replayed = self.batches = 0


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> Recordings:
    """Let the emulator hand out memory again, as a GPU does, and count its graphs."""
    emulator, counts = device(EMU), Recordings()
    kept: list[Memory] = []
    allocate, record, batch = emulator.allocate, emulator.record, emulator.batch

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

    def gathered(kinds: Any, steps: Any) -> Any:
        counts.batches += 1
        return batch(kinds, steps)

    pool = Pool(fresh)
    for name in ("allocate", "take", "give"):
        monkeypatch.setattr(emulator, name, getattr(pool, name))
    monkeypatch.setattr(emulator, "record", counted)
    monkeypatch.setattr(emulator, "batch", gathered)
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


def test_other_arrays_and_numbers_go_through_one_batch(recordings: Recordings):
    f = rg.compile(scaled, device=EMU)
    kept = []
    for k in range(6):
        x = array(k)
        check(f, scaled, x, 0.5 * k)
        kept.append(x)
    assert (recordings.batches, recordings.made) == (1, 0)


def test_number_becomes_a_float32_where_the_program_has_these(recordings: Recordings):
    f = rg.compile(scaled, device=EMU)
    host = np.random.default_rng(0).standard_normal(SIZE).astype(np.float32)
    x = rg.device_array(host, EMU)
    for k in (0.1, 0.2, 0.3, -0.0, 1e-3):
        found = f(x, k)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found.numpy(), scaled(host, k), 1e-4, 1e-5)
    assert recordings.batches == 1


def damped(x: Any, k: float) -> Any:
    """Let the host compute with a number."""
    rate = 1.0 / (k + 1.0)
    y = (x - np.mean(np.sin(x))) * rate
    return y - np.mean(np.sin(y)) * rate


def test_number_that_the_host_reads_has_batches_of_its_own(recordings: Recordings):
    f = rg.compile(damped, device=EMU)
    x = array(0)
    for _ in range(4):
        for k in (0.5, 2.0):
            check(f, damped, x, k)
    assert recordings.batches == 2


def normalised(x: Any) -> Any:
    """Give blocks rows of their own."""
    y = np.exp(x - np.max(x, axis=1, keepdims=True))
    y = y / np.sum(y, axis=1, keepdims=True)
    return y - np.mean(np.sin(y)) - np.mean(np.cos(y))


def test_rows_of_blocks_are_replayed(recordings: Recordings):
    plain = rg.grad(lambda x: np.sum(normalised(x) ** 2))
    f = rg.compile(plain, device=EMU)
    for width in (200, 4000):  # in shared memory, and in that of the call
        arrays = [array(k, 8 * width).reshape(8, width) for k in range(2)]
        for _ in range(4):
            for x in arrays:
                np.testing.assert_allclose(f(x).numpy(), plain(x.numpy()), 1e-9, 1e-12)
    assert recordings.batches == 2
    assert recordings.made == 4


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
