"""Settings of every test run: verified passes, fresh caches, seeded random numbers."""

import gc
import importlib
import os
import shutil
import tempfile
import zlib
from functools import partial

import numpy as np
import pytest
from hypothesis import settings

# The same random programs in every run; --hypothesis-profile=random draws others.
settings.register_profile("fixed", derandomize=True, database=None)
settings.register_profile("random", derandomize=False)
settings.load_profile("fixed")


def pytest_configure(config: pytest.Config) -> None:
    """Set the environment before any test module is imported; workers inherit it.

    Native code is compiled anew, unless RETROGRADE_TEST_CACHE names a folder to keep it
    in for the next run: what most of the time of a run goes into.
    """
    if not hasattr(config, "workerinput"):
        folder = os.environ.get("RETROGRADE_TEST_CACHE")
        if not folder:
            folder = tempfile.mkdtemp(prefix="retrograde-tests-")
            config.add_cleanup(partial(shutil.rmtree, folder, ignore_errors=True))
        os.environ["RETROGRADE_CACHE_DIR"] = folder
        os.environ["RETROGRADE_VERIFY"] = "1"
    gc.set_threshold(10_000, 20, 20)  # the heap grows with every test


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Return random numbers that depend on nothing but the name of the test."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture
def brief_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let compare time little: tests look at what it checks, not at how fast it was."""
    monkeypatch.setattr(importlib.import_module("retrograde.compare"), "BUDGET", 0.01)
