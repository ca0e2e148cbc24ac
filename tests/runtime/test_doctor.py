"""The doctor's report names what is there, and survives what is not."""

from pathlib import Path

import numpy as np
import pytest

from retrograde.runtime import doctor, env

ROWS = (
    "Python numpy numba llvmlite scipy processor threads vector BLAS cache CUDA"
).split()


def rows() -> dict[str, str]:
    facts, switches = doctor.report().split("\n\n")
    assert switches == env.describe()
    return {line.split()[0]: line for line in facts.splitlines()}


def test_report_has_one_line_per_fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RETROGRADE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = rows()
    assert list(found) == ROWS
    assert np.__version__ in found["numpy"]
    assert "OMP_NUM_THREADS=3" in found["threads"]
    assert str(tmp_path / "cache") in found["cache"]
    assert "0 files" in found["cache"]
    assert "SciPy" in found["BLAS"]
    assert "driver" in found["CUDA"]


def test_report_says_why_the_cache_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("RETROGRADE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert "not used, File exists" in rows()["cache"]


def test_report_names_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "PACKAGES", ("numpy", "no-such-package"))
    assert "missing" in rows()["no-such-package"]
