"""What users see where a device cannot do what they ask: nothing has changed then."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from retrograde.ir.errors import DeviceError, DeviceMemoryError
from retrograde.runtime.devices import device, packages
from retrograde.runtime.devices.emulator import Emulator

EMU = "cuda:emu"
emulated = pytest.mark.cuda_emulated
X = np.random.default_rng(0).normal(size=(64, 40))


def normalised(x):
    x *= 2
    m = x.mean(axis=0)
    x -= m
    x /= np.sqrt((x * x).mean(axis=0) + 1)
    return m


def selected(x):
    x += 1
    y = x[x > 1]
    x -= y.sum()
    return y


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list: as many allocations as its one number are left, if it has one."""
    left: list[int] = []
    allocate = Emulator.allocate

    def limited(place: Emulator, size: int) -> Any:
        if left:
            if not left[0]:
                raise DeviceMemoryError(f"{place.name}: no room for {size} bytes")
            left[0] -= 1
        return allocate(place, size)

    monkeypatch.setattr(Emulator, "allocate", limited)
    return left


def called(f: Callable[[Any], Any], x: Any) -> bool:
    """Call a function; tell whether there was room for it."""
    try:
        f(x)
    except MemoryError:
        return False
    return True


@emulated
@pytest.mark.parametrize("program", [normalised, selected])
@pytest.mark.parametrize("there", [False, True], ids=["copied", "there"])
def test_no_room_for_any_of_the_allocations(program: Any, there: bool, room: list[int]):
    def fresh() -> Any:
        return rg.device_array(X, EMU) if there else X.copy()

    f = rg.compile(program, device=EMU)
    f(fresh())
    x, place = fresh(), device(EMU)
    assert isinstance(place, Emulator)
    used = place.in_use()
    for count in range(20):
        room[:] = [count]
        if called(f, x):
            break
        room.clear()
        np.testing.assert_array_equal(np.asarray(x), X)
        assert place.in_use() == used
    room.clear()
    assert count > 1
    expect = X.copy()
    program(expect)
    np.testing.assert_allclose(np.asarray(x), expect, 1e-12)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: rg.compile(normalised, device="cuda:7"),
        lambda: rg.device_array(X, "cuda:7"),
        lambda: rg.tensor(X, device="cuda:7"),
        lambda: rg.tensor(X).to("cuda:7"),
    ],
)
def test_no_device(ask: Callable[[], Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packages, "version", lambda package: "")
    with pytest.raises(DeviceError, match="cuda-core is missing") as caught:
        ask()
    assert "pip install 'retrograde[cuda]'" in caught.value.hint
