"""Tests of kernels are skipped where their compiler is not installed."""

import importlib.metadata

import pytest


def installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if installed("numba-cuda"):
        return
    reason = "needs numba-cuda: pip install 'retrograde[test-cuda]'"
    for item in items:
        if item.get_closest_marker("cuda_emulated"):
            item.add_marker(pytest.mark.skip(reason))
