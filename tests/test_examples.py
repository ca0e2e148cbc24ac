"""The examples run to their end, the README's too."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_example_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


def test_readme_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert blocks
    for k, block in enumerate(blocks):
        path = tmp_path / f"block_{k}.py"
        path.write_text(block)
        runpy.run_path(str(path))
    printed = capsys.readouterr().out
    assert "eager = compiled" in printed
    assert "✗" not in printed
