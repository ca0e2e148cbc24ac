"""Run the conformance corpus where there is one: RETROGRADE_CORPUS, or beside us."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
BESIDE = HERE.parents[1] / "shared" / "corpus"
CORPUS = Path(os.environ.get("RETROGRADE_CORPUS", BESIDE))

# Programs that raise, with a reason; everything else has to pass.
REFUSED = {
    "eager": set[str](),
    "compiled": set[str](),
}
# Where the bare tape raises and PyTorch's does not: the derivatives of quotients and
# sorted arrays read the result, which the program overwrites.
STRICTER = {"ew_divide_chain", "mi_sorts_its_input", "so_sort_inplace_method"}
# Where PyTorch's tape raises and ours need not: it keeps a copy of what it overwrites.
LESS_STRICT = {
    "cf_per_element_branches",
    "ew_inplace_chain",
    "mi_returns_mutated_input",
    "rc_fibonacci_like",
    "sl_relu_inplace",
    "sr_nested_index_vs_pair",
}
# Compiled code is tried in parts of similar size, so that processors share the work.
PARTS = ["[a-d]*", "[ef]*", "[g-m]*", "[n-r]*", "[!a-r]*"]
# Second derivatives of compiled code are tried where writes and views meet them; those
# of all programs take about a minute more: run_corpus.py tests/corpus_adapter.py.
SECOND = "[hov]*"

pytestmark = pytest.mark.skipif(
    not (CORPUS / "run_corpus.py").is_file(), reason="no corpus; set RETROGRADE_CORPUS"
)


def run(
    mode: str, names: str, report: Path, *more: str, adapter: str = "corpus_adapter.py"
) -> list[dict[str, Any]]:
    command = [sys.executable, str(CORPUS / "run_corpus.py")]
    command += [str(HERE / adapter), "--json", str(report)]
    command += ["--mode", mode, "--name", names, *more]
    # The runner imports the adapter by path; the package comes from where ours does.
    paths = [p for p in sys.path if p]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert report.is_file(), done.stdout[-2000:] + done.stderr[-2000:]
    results = json.loads(report.read_text())["results"]
    assert isinstance(results, list)
    return results


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "names", "more"),
    [
        ("eager", "*", ()),
        *(("compiled", names, ("--no-hvp",)) for names in PARTS),
        ("compiled", SECOND, ()),
    ],
)
def test_corpus(mode: str, names: str, more: tuple[str, ...], tmp_path: Path) -> None:
    results = run(mode, names, tmp_path / "report.json", *more)
    assert len(results) > 10
    assert {result["mode"] for result in results} == {mode}
    problems = {r["name"]: r["problem"] for r in results if r["problem"]}
    listing = "\n".join(f"{name}: {problem}" for name, problem in problems.items())
    wrong = [n for n, p in problems.items() if not p.startswith("exception")]
    assert not wrong, f"wrong or stuck: {wrong}\n{listing}"
    assert set(problems) <= REFUSED[mode], listing


def test_the_tape_refuses_what_was_overwritten(tmp_path: Path) -> None:
    """Saved values that a program overwrites are an error, and nothing else is."""
    results = run(
        "eager",
        "*",
        tmp_path / "report.json",
        "--no-hvp",
        adapter="corpus_tape_adapter.py",
    )
    problems = {r["name"]: r["problem"] for r in results if r["problem"]}
    for problem in problems.values():
        assert "modified by an inplace operation" in problem
    records = {p.stem: json.loads(p.read_text()) for p in CORPUS.glob("data/*.json")}
    refused = {n for n, r in records.items() if r.get("eager_torch") == "version_error"}
    assert set(problems) == refused - LESS_STRICT | STRICTER
