"""The demo passes only if every comparison and the training do."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import retrograde as rg
from retrograde import demo
from retrograde.__main__ import main
from retrograde.comparison import Comparison, Row

GOOD = demo.Training(iterations=9, loss=0.1, accuracy=0.99, seconds=0.5)


def test_quick_demo_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--quick", "--explain", "write_through_view"]) == 0
    printed = capsys.readouterr().out
    assert "everything agrees" in printed
    assert "of the training images right" in printed
    assert "power" in printed


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replace what the demo runs by results that a test can spoil."""
    results: dict[str, Any] = {"status": "ok", "training": GOOD}

    def compare(f: Any, *args: Any, argnums: tuple[int, ...]) -> Comparison:
        spoiled = f.name == "heat"
        row = Row("result", "compiled", results["status"] if spoiled else "ok")
        return Comparison(f.name, (row,), math.nan, math.nan, math.nan)

    def compile_(f: Any) -> Any:
        return SimpleNamespace(name=f.__name__)

    monkeypatch.setattr(rg, "compare", compare)
    monkeypatch.setattr(rg, "compile", compile_)
    monkeypatch.setattr(demo, "train", lambda loss, quick: results["training"])
    return results


def test_demo_succeeds_if_all_agrees(found: dict[str, Any]) -> None:
    assert main(["demo", "--quick"]) == 0


def test_demo_fails_if_one_comparison_does(found: dict[str, Any]) -> None:
    found["status"] = "failed"
    assert main(["demo", "--quick"]) == 1


def test_demo_fails_if_training_does(found: dict[str, Any]) -> None:
    found["training"] = demo.Training(9, 0.1, demo.ACCURACY - 0.01, 0.5)
    assert main(["demo", "--quick"]) == 1


def test_digits_are_the_real_ones() -> None:
    images, labels = demo.digits()
    assert images.min() == 0.0
    assert images.max() == 1.0
    counts = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.bincount(labels).tolist() == counts
