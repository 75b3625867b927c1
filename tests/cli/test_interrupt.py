"""Ctrl-C at a terminal: a sane terminal, and what continues without it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import here
from tests.support.caches import workspace_of
from tests.support.processes import DISTCACHE, clean_environment, start
from tests.support.terminal import interrupt, require_sane
from tests.support.texts import train_bpe


def test_waiting_for_a_cache(tmp_path: Path) -> None:
    """Nothing continues, and nothing was lost."""
    code, shown = interrupt(["ready", tmp_path / "c.h5", "--wait", "100"], b"not started")
    assert code == 8
    require_sane(shown)


@pytest.mark.parametrize("command", ["build", "localize"])
def test_waiting_for_another(command: str, blend_config: dict[str, Any], tmp_path: Path) -> None:
    """It says that running it again continues."""
    (tmp_path / "c.json").write_text(json.dumps(blend_config))
    if command == "build":
        words = ["build", tmp_path / "c.json", "-o", tmp_path / "shared", "--name", "c"]
        other = workspace_of(tmp_path / "shared" / "c.h5")
        assert other.take()
        code, shown = interrupt(words, b"waiting for")
        other.remove()
    else:
        cache = here.build(blend_config, tmp_path, "c").path
        words = ["localize", cache, "--store", tmp_path / "local"]
        done = subprocess.run([DISTCACHE, *words], capture_output=True, check=True)
        assert done.returncode == 0
        locked = tmp_path / "local" / "lock"
        with subprocess.Popen(["flock", "--no-fork", str(locked), "sleep", "100"]) as holder:
            try:
                code, shown = interrupt(words, b"waiting")
            finally:
                holder.kill()
    assert code == 8
    assert b"again" in shown
    require_sane(shown)


# A signal comes while it is imported, and it makes an error of its own of the exception.
LIBRARY = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        pass
except BaseException:
    raise {} from None
"""
INGEST = ["--tokenizer", "{tmp}/tokenizer.json", "-o", "{tmp}/o"]


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "error", "words", "ranks"),
    [
        ("numpy", "ImportError('no')", ["inspect", "{tmp}/c.h5"], 1),
        ("yaml", "ValueError('no')", ["plan", "{tmp}/c.yaml"], 1),
        ("h5py", "OSError('no')", ["build", "{tmp}/c.json", "-o", "{tmp}/o"], 1),
        ("obstore", "ImportError('no')", ["check", "s3://lake/a"], 1),
        ("pyarrow", "ImportError('no')", ["ingest", "text", "{tmp}/a.parquet", *INGEST], 1),
        ("tokenizers", "RuntimeError('no')", ["ingest", "text", "{tmp}/a.txt", *INGEST], 1),
        ("gigatoken", "ImportError('no')", ["ingest", "text", "{tmp}/a.txt", *INGEST], 1),
        pytest.param(
            *("tokenizers", "ImportError('no')", ["ingest", "text", "{tmp}/a.txt", *INGEST], 2),
            marks=pytest.mark.jobs,
        ),
    ],
)
def test_while_a_library_is_imported(
    library: str,
    error: str,
    words: list[str],
    ranks: int,
    blend_config: dict[str, Any],
    tmp_path: Path,
) -> None:
    """The command is interrupted, whatever a library makes of that."""
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / f"{library}.py").write_text(LIBRARY.format(error))
    for name in ("a.txt", "a.parquet", "c.h5"):
        (tmp_path / name).write_text("text\n")
    (tmp_path / "c.yaml").write_text("sequence_length: 8\n")
    (tmp_path / "c.json").write_text(json.dumps(blend_config))
    train_bpe(tmp_path / "tokenizer.json", ["some text"])
    before = {"PYTHONPATH": f"{tmp_path / 'libraries'}:{clean_environment()['PYTHONPATH']}"}
    given = [word.format(tmp=tmp_path) for word in words]
    done = start(given, ranks, environment=before)
    assert done.returncode == 8, done.stderr
    assert "interrupted by SIGTERM" in done.stderr
    assert "Traceback" not in done.stderr
