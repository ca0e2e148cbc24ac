"""The command line: what it finds, its exit status, one clear line for bad usage."""

from pathlib import Path

import numpy as np
import pytest

from retrograde.__main__ import main
from retrograde.target import UsageError, find

SOURCE = """
import numpy as np

def square(x, n=2):
    x *= n
    return np.sum(x**2)

def square_args():
    return (np.arange(3.0),)

def triple(x):
    return 3 * x

def triple_args():
    return {"x": np.ones(2)}

def broken(x):
    return x

def broken_args():
    raise RuntimeError("no data today")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "programs.py"
    path.write_text(SOURCE)
    return path


def test_arguments_come_from_the_file(file: Path) -> None:
    target = find(f"{file}:square")
    assert target.function.__name__ == "square"
    assert len(target.args) == 1
    assert target.args[0].tolist() == [0.0, 1.0, 2.0]
    assert find(f"{file}:triple").kwargs["x"].tolist() == [1.0, 1.0]


def test_arguments_come_from_an_archive(file: Path, tmp_path: Path) -> None:
    archive = tmp_path / "args.npz"
    np.savez(archive, x=np.arange(2.0), n=np.array(5))
    target = find(f"{file}:square", str(archive))
    assert target.kwargs["x"].tolist() == [0.0, 1.0]
    assert target.kwargs["n"] == 5
    assert type(target.kwargs["n"]) is int


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("{folder}/program.py:f", "no file {folder}/program.py; did you mean "),
        ("{folder}/sub/a.py:f", "there is no folder {folder}/sub"),
        ("{file}:sqare", "no function sqare in {file}; did you mean square"),
        ("{file}", "'{file}' is not of the form FILE.py:FUNCTION"),
        ("{file}:square_args", "no arguments for square_args: write a function "),
        ("{file}:broken", "broken_args() in {file}: RuntimeError: no data today"),
    ],
)
def test_bad_target_is_one_line_and_status_two(
    file: Path, capsys: pytest.CaptureFixture[str], spec: str, message: str
) -> None:
    names = {"file": file, "folder": file.parent}
    for command in ("compare", "explain"):
        assert main([command, spec.format(**names)]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith("retrograde: ")
        assert message.format(**names) in printed.err
        assert printed.err.count("\n") == 1


def test_near_miss_of_a_file_is_named(file: Path) -> None:
    with pytest.raises(UsageError, match=r"did you mean .*programs\.py"):
        find(f"{file.parent}/progams.py:square")


def test_file_with_an_error_is_bad_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.py"
    path.write_text("def f(:\n")
    assert main(["compare", f"{path}:f"]) == 2
    assert "SyntaxError" in capsys.readouterr().err


def test_archive_that_is_missing_or_unfit_is_bad_usage(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "args.npz"
    np.savez(archive, z=np.arange(2.0))
    for command in ("compare", "explain"):
        target = f"{file}:square"
        assert main([command, target, "--args", str(tmp_path / "arg.npz")]) == 2
        assert "did you mean" in capsys.readouterr().err
        assert main([command, target, "--args", str(file)]) == 2
        assert "is not an .npz archive" in capsys.readouterr().err
        assert main([command, target, "--args", str(archive)]) == 2
        assert "the arguments do not fit square" in capsys.readouterr().err


def test_unknown_demo_program_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--explain", "heet"]) == 2
    assert "no demo program heet; there are" in capsys.readouterr().err
