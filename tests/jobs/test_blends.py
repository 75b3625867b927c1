"""Large blends, drawn by the ranks of real MPI libraries, are those of one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import here
from tests.support.large import write_blend
from tests.support.processes import start


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("launcher", "ranks", "weighted"), [("mpich", 3, True), ("openmpi", 2, False)]
)
def test_bytes_are_those_of_one_process(
    launcher: str, ranks: int, weighted: bool, tmp_path: Path
) -> None:
    """Whichever rank draws them; tests/builder has other numbers of ranks, as threads."""
    (tmp_path / "corpora").mkdir()
    fields = write_blend(tmp_path / "corpora", weighted=weighted)
    config = tmp_path / "c.json"
    config.write_text(json.dumps(fields))
    alone = Path(here.build(fields, tmp_path / "alone").path)
    done = start(["build", config, "-o", tmp_path], ranks, launcher)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == alone.read_bytes()
