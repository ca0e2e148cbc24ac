"""docs/semantics.md says what the tests say, and PyTorch does what they say it does."""

import io
from contextlib import redirect_stdout

import catalogue
import pytest
from catalogue import Line


def test_the_table_is_current() -> None:
    assert catalogue.TABLE.read_text() == catalogue.table(), (
        "run: python tests/programs/catalogue.py"
    )


def test_every_line_has_a_number_of_its_own() -> None:
    numbers = [x.number for x in catalogue.lines()]
    assert len(numbers) == len(set(numbers))
    tests = [(x.file, x.test) for x in catalogue.lines()]
    assert len(tests) == len(set(tests))


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("line", catalogue.lines(), ids=lambda x: x.number)
def test_pytorch_prints_this(line: Line) -> None:
    pytest.importorskip("torch")
    out = io.StringIO()
    namespace: dict[str, object] = {}
    exec(catalogue.PRELUDE, namespace)
    with redirect_stdout(out):
        exec(line.program, namespace)
    printed = out.getvalue().split("\n")
    wanted = line.torch.split(" | ") if line.torch else []
    for have, want in zip(printed, wanted, strict=False):
        assert have.startswith(want), (have, want)
    assert len(printed) > len(wanted) or not wanted
