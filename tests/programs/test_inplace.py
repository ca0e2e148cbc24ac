"""NumPy, eager mode, compiled code and differences agree on whole programs."""

import importlib.util
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import retrograde as rg


def _cases() -> list[Any]:
    """Load the programs beside this file, which is in no package."""
    path = Path(__file__).with_name("inplace.py")
    spec = importlib.util.spec_from_file_location("retrograde_programs_inplace", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return list(module.CASES)


@pytest.mark.parametrize("case", _cases(), ids=lambda case: case.function.__name__)
def test_all_modes_agree(case: Any) -> None:
    rng = np.random.default_rng(zlib.crc32(case.function.__name__.encode()))
    rg.compare(case.function, *case.draw(rng), **case.kwargs).assert_ok()
