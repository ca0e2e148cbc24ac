"""NumPy, eager mode, compiled code and differences agree on whole programs."""

import pytest
from inplace_programs import CASES, Case

import retrograde as rg


@pytest.mark.usefixtures("brief_timing")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_modes_agree(case: Case) -> None:
    rg.compare(case.function, *case.args(), **case.kwargs).assert_ok()
