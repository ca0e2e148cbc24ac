"""Cases that take less time than a test of their own: one test for all of a name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import pytest

Case: TypeAlias = tuple[Any, ...]
Test: TypeAlias = Callable[..., None]


def every(cases: Iterable[Case], name: Callable[[Case], str]) -> Callable[[Test], Any]:
    """Run a test on every case, as one test per name; a failure shows its case."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(name(case), []).append(case)

    def decorate(test: Test) -> Any:
        @pytest.mark.parametrize("group", groups.values(), ids=groups)
        def run(group: list[Case]) -> None:
            for k, case in enumerate(group):
                try:
                    test(*case)
                except Exception as error:
                    error.add_note(f"case {k} of {len(group)}: {case}")
                    raise

        run.__doc__ = test.__doc__
        return run

    return decorate
