"""The command line: what it finds, its exit status, one clear line for bad usage."""

from pathlib import Path

import numpy as np
import pytest

from retrograde.__main__ import main
from retrograde.runtime import cache
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


def test_cache_is_described_and_cleared(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RETROGRADE_CACHE_DIR", str(tmp_path / "cache"))
    cache.store("ab" * 32, ".bin", b"native code")
    for action, told in (
        ("info", "1 files, 0.0 MiB of at most 1024 MiB"),
        ("clear", "1 files removed"),
        ("info", "0 files, 0.0 MiB of at most 1024 MiB"),
    ):
        assert main(["cache", action]) == 0
        assert capsys.readouterr().out == f"{tmp_path / 'cache'}: {told}\n"


def test_cache_that_others_can_write_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setenv("RETROGRADE_CACHE_DIR", str(tmp_path))
    assert main(["cache", "info"]) == 1
    assert f"{tmp_path} is not used" in capsys.readouterr().err


def test_doctor_names_versions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert f"numpy           {np.__version__}" in capsys.readouterr().out


def test_compare_prints_the_table_and_succeeds(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", f"{file}:square"]) == 0
    assert "gradient of x" in capsys.readouterr().out


def test_compare_of_what_cannot_be_right_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "counts.py"
    path.write_text(
        "n = 0\n"
        "def f(x):\n"
        "    global n\n"
        "    n += 1\n"
        "    return x * n\n"
        "def f_args():\n"
        "    return 2.0\n"
    )
    assert main(["compare", f"{path}:f"]) == 1
    assert "two runs differ" in capsys.readouterr().out


def test_explain_shows_value_and_gradient(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", f"{file}:square"]) == 0
    printed = capsys.readouterr().out
    titles = [line for line in printed.splitlines() if line.startswith("# ")]
    stages = ["# after capture", "# after functionalize", "# after vjp"]
    assert titles == [*stages, "# nests", "# source"]
    for part in ("traced @square", "func @square", "func @square.joint", "for "):
        assert part in printed


def test_explain_takes_keywords_and_functions_of_several_numbers(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", f"{file}:triple"]) == 0
    assert "func @triple.joint" in capsys.readouterr().out


def test_explain_of_a_direct_call_shows_every_stage(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", f"{file}:square", "--direct", "--every"]) == 0
    printed = capsys.readouterr().out
    assert "# after vjp" not in printed
    for name in ("simplify", "cse", "dce", "fuse", "reinplace"):
        assert f"# after {name}" in printed


def test_explain_of_what_cannot_be_compiled_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "branch.py"
    path.write_text(
        "import random\n"
        "def f(x):\n"
        "    return x * random.random()\n"
        "def f_args():\n"
        "    return 2.0\n"
    )
    assert main(["explain", f"{path}:f"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"at {path}:3, in f:" in printed.err
