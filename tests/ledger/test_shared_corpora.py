"""What a report and a search say of corpora that are the same documents."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.support import here
from tests.support.corpora import write_lengths
from tests.support.processes import start


def test_a_view_beside_its_corpus(tmp_path: Path) -> None:
    """Each counts for itself: that is said, and where a document of one is searched for."""
    web = write_lengths(tmp_path / "web", np.full(40, 30))
    code = write_lengths(tmp_path / "code", np.full(40, 31))
    half = str(tmp_path / "half")
    here.select(web, half, sample=0.5, seed=1)
    entries = [{"path": path, "weight": 1.0} for path in (web, half, code)]
    fields = {
        "sequence_length": 16,
        "split": "100,0,0",
        "samples": {"train": 60, "valid": 0, "test": 0},
        "blend": entries,
    }
    cache = here.build(fields, tmp_path / "caches", "c").path
    report = json.loads(start(["report", cache, "--json"]).stdout)
    (found,) = [w["message"] for w in report["warnings"] if w["kind"] == "same documents"]
    assert f"documents of {half} are documents of {web}, too" in found
    assert f"documents of {half}" not in start(["trace", cache, "--find", f"{code}:0"]).stderr
    said = start(["trace", cache, "--find", f"{half}:0"]).stderr
    assert f"are documents of {web}, too: --find looks in the corpora that it names" in said
    both = start(["trace", cache, "--find", f"{half}:0", "--find", f"{web}:0"]).stderr
    assert "--find looks in" not in both
