"""What a submission to a scheduler other than Slurm refuses before anything is submitted."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from distcache.errors import ConfigError
from distcache.launch.submit import SubmitOptions, submit


@pytest.fixture
def submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a command of Grid Engine into PATH; return the file in which it counts jobs."""
    commands, file = tmp_path / "commands", tmp_path / "submitted"
    commands.mkdir()
    qsub = commands / "qsub"
    qsub.write_text(f"#!/bin/sh\necho >>{file}\nwc -l <{file}\n")
    qsub.chmod(qsub.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    return file


@pytest.fixture
def words(blend_config: dict[str, Any], tmp_path: Path, shared: Path) -> tuple[Any, ...]:
    """Return a configuration, a directory, a name and a training script."""
    config, train = tmp_path / "config.json", tmp_path / "train.sh"
    config.write_text(json.dumps(blend_config))
    train.write_text("#!/bin/sh\ntrue\n")
    return config, shared, "c", [str(train)]


def test_both_jobs(words: tuple[Any, ...], submitted: Path, tmp_path: Path) -> None:
    """The pre-job comes first, and their scripts are in the directory of logs."""
    options = SubmitOptions(scheduler="sge", logs=tmp_path / "logs")
    found = submit(*words, options)
    assert found.prejob is not None
    assert (found.prejob.job, found.training) == ("1", "2")
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"c-build.sh", "c-train.sh"}
    assert len(submitted.read_text().splitlines()) == 2


def test_a_file_in_the_place_of_a_script(
    words: tuple[Any, ...], submitted: Path, tmp_path: Path
) -> None:
    """It is not replaced, and no pre-job runs for a training that cannot be submitted."""
    logs = tmp_path / "logs"
    logs.mkdir(mode=0o700)
    (logs / "c-train.sh").write_text("#!/bin/sh\necho my own\n")
    with pytest.raises(ConfigError, match="is not a script of distcache's"):
        submit(*words, SubmitOptions(scheduler="sge", logs=logs))
    assert not submitted.exists()
    (logs / "c-train.sh").unlink()
    (logs / "c-train.sh").symlink_to(words[0])
    with pytest.raises(ConfigError, match="is not a script of distcache's"):
        submit(*words, SubmitOptions(scheduler="sge", logs=logs))
    assert not submitted.exists()


@pytest.mark.parametrize("name", ["a b", "a:b", "a,b", "{{id}}", "a%j"])
def test_logs_that_a_scheduler_would_misread(
    name: str, words: tuple[Any, ...], submitted: Path, tmp_path: Path
) -> None:
    """Such a directory is refused, and another one asked for."""
    with pytest.raises(ConfigError, match="choose another directory with --logs"):
        submit(*words, SubmitOptions(scheduler="sge", logs=tmp_path / name))
    assert not submitted.exists()
