"""The check of a GPU, rehearsed without one, and what it says of wrong results."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import cases, correctness, summary
from benchmarks.gpu.programs import PROGRAMS, Timed
from benchmarks.gpu.records import MARK, Child, records_in
from benchmarks.launches import build_stub
from retrograde.runtime.devices import packages


def rehearse(folder: Path, *parts: str) -> dict[str, list[dict[str, Any]]]:
    """Rehearse some parts; return what has been written."""
    if not packages.version("cuda-core") or not build_stub(folder):
        pytest.skip("needs cuda-core, gcc and Linux")
    file = folder / "found.json"
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--rehearse"]
    command += ["--parts", ",".join(parts), "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no problems" in done.stdout
    results: dict[str, list[dict[str, Any]]] = json.loads(file.read_text())["results"]
    assert tuple(results) == parts
    return results


@pytest.mark.cuda_emulated
def test_correctness_is_rehearsed_without_a_gpu(tmp_path: Path):
    results = rehearse(tmp_path, "environment", "correctness")
    kinds = [r["what"] for r in results["environment"]]
    assert kinds == ["machine", "device", "driver"]
    names = {r["name"] for r in results["correctness"]}
    assert {*cases.TINY, "error of taken"} <= names


@pytest.mark.cuda_emulated
def test_speed_is_rehearsed_without_a_gpu(tmp_path: Path):
    times = summary.times_of(rehearse(tmp_path, "speed")["speed"])
    assert {program for program, _ in times} == {p.name for p in PROGRAMS}
    assert all({"ours", "copy"} <= set(found) for found in times.values())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_difference_of_results_is_found(dtype: str):
    known = np.random.default_rng(0).standard_normal(1000)
    found = known.astype(dtype)
    assert correctness.difference((1.0, found), (1.0, known), dtype) == ""
    found[7] += 0.01
    text = correctness.difference((1.0, found), (1.0, known), dtype)
    assert text.startswith("result 1 at (7,): ")
    found[7] = np.nan
    assert correctness.difference(found, known, dtype)
    assert "shape" in correctness.difference(known[:3], known, dtype)
    assert correctness.difference((known, known), known, dtype)
    assert correctness.difference(np.arange(3), np.array([0, 1, 3]), dtype)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_wrong_result_of_a_timed_program_is_found(program: Timed):
    n = 1 << 12
    block, repeats = program.block(n)
    known = program.known(block)
    assert repeats == 1
    args = program.args(block, 1)
    found = [np.array(x) for x in program.known(args)]
    assert program.problem(found, known, 1) == ""
    place = found[-1].size // 2
    found[-1].flat[place] = 10 * abs(found[-1].flat[place]) + 10
    assert program.problem(found, known, 1).startswith(f"result {len(found) - 1}: 1 of")


def test_blocks_of_a_large_argument_are_checked():
    (program,) = [p for p in PROGRAMS if p.name == "total"]
    block = (np.ones(8),)
    assert program.args(block, 3)[0].shape == (24,)
    assert program.problem([np.array(24.0)], [np.array(8.0)], 3) == ""
    assert program.problem([np.array(16.0)], [np.array(8.0)], 3)


def child(script: str, seconds: float) -> list[dict[str, Any]]:
    command = [sys.executable, "-c", script]
    return Child("part", command, {}, seconds).start().finish()


def test_records_of_a_process_that_hangs_are_kept():
    script = f"print('{MARK}{{\"what\": 1}}', flush=True); import time; time.sleep(99)"
    start = time.monotonic()
    first, last = child(script, 1.0)
    assert time.monotonic() - start < 20
    assert first == {"what": 1}
    assert last["error"] == "took over 1 s"


def test_records_of_a_process_that_dies_are_kept():
    script = f"print('{MARK}{{\"what\": 1}}', flush=True); print('why'); exit(3)"
    first, last = child(script, 60.0)
    assert first == {"what": 1}
    assert last["error"] == "ended with status 3"
    assert last["output"] == ["why"]


def test_half_a_record_is_none():
    assert records_in(f'x\n{MARK}{{"a": 1}}\n{MARK}{{"b": ') == [{"a": 1}]


def timed(program: str, framework: str, seconds: float) -> dict[str, Any]:
    record = {"what": "time", "program": program, "size": summary.LARGE}
    return {**record, "framework": framework, "seconds": seconds}


def test_goals_are_a_share_of_the_copy_and_the_best_peer():
    records = [
        timed("softmax", "copy", 0.95),
        timed("softmax", "ours", 1.0),
        timed("layer_norm", "copy", 0.5),
        timed("layer_norm", "ours", 1.0),
        timed("layer_norm", "jax", 0.8),
        timed("layer_norm", "cupy", 2.0),
    ]
    found = dict(summary.goals(summary.times_of(records)))
    assert found == {
        "softmax at 2^26: 95% of the copy bandwidth (goal 90%)": True,
        "layer_norm at 2^26: 50% of the copy bandwidth (goal 90%)": False,
        f"layer_norm at {summary.LARGE}: jax is 1.25 times as fast": False,
    }


def test_problems_of_all_parts_are_said():
    results = {
        "correctness": [{"what": "check", "name": "f", "runs": 1, "bad": ["wrong"]}],
        "speed": [{"what": "time", "program": "g", "size": 8, "error": "bad"}],
    }
    texts = list(summary.problems(results))
    assert texts == ["correctness, f: wrong", "speed, g at 8: bad"]
    assert list(summary.lines(results))[-1] == "2 problems"
