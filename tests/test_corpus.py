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

AT_LEAST = {"eager": 90, "compiled": 95}

pytestmark = pytest.mark.skipif(
    not (CORPUS / "run_corpus.py").is_file(), reason="no corpus; set RETROGRADE_CORPUS"
)


def run(mode: str, report: Path) -> list[dict[str, Any]]:
    command = [sys.executable, str(CORPUS / "run_corpus.py")]
    command += [str(HERE / "corpus_adapter.py"), "--mode", mode, "--json", str(report)]
    # The runner imports the adapter by path; the package comes from where ours does.
    paths = [p for p in sys.path if p]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert report.is_file(), done.stdout[-2000:] + done.stderr[-2000:]
    results = json.loads(report.read_text())["results"]
    assert isinstance(results, list)
    return results


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_corpus(mode: str, tmp_path: Path) -> None:
    results = run(mode, tmp_path / "report.json")
    assert {result["mode"] for result in results} == {mode}
    problems = {r["name"]: r["problem"] for r in results if r["problem"]}
    listing = "\n".join(f"{name}: {problem}" for name, problem in problems.items())
    wrong = [n for n, p in problems.items() if not p.startswith("exception")]
    assert not wrong, f"wrong or stuck: {wrong}\n{listing}"
    assert len(results) - len(problems) >= AT_LEAST[mode], listing
