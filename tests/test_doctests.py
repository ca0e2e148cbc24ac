"""Every example in a docstring gives what it says."""

import doctest
import importlib
import pkgutil

import pytest

import retrograde

NAMES = [
    module.name for module in pkgutil.walk_packages(retrograde.__path__, "retrograde.")
]


@pytest.mark.parametrize("name", ["retrograde", *NAMES])
def test_docstrings(name: str) -> None:
    module = importlib.import_module(name)
    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert found.failed == 0
