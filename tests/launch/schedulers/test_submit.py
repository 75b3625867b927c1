"""What a submission writes, and what it refuses before anything is submitted."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from distcache.errors import ConfigError
from distcache.launch.prejob import JobOptions
from distcache.launch.schedulers.known_schedulers import SchedulerName
from distcache.launch.submit import SubmitOptions, scripts_of, submit
from distcache.ranks.progress import NullProgress


@pytest.fixture
def submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put commands of schedulers into PATH; return the file in which they count jobs."""
    commands, file = tmp_path / "commands", tmp_path / "submitted"
    commands.mkdir()
    for name in ("qsub", "sbatch"):
        command = commands / name
        command.write_text(f"#!/bin/sh\necho >>{file}\nwc -l <{file}\n")
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    return file


@pytest.fixture
def words(blend_config: dict[str, Any], tmp_path: Path, shared: Path) -> tuple[Any, ...]:
    """Return a configuration, a directory, a name and a training script."""
    config, train = tmp_path / "config.json", tmp_path / "train.sh"
    config.write_text(json.dumps(blend_config))
    train.write_text("#!/bin/sh\ntrue\n")
    return config, shared, "c", [str(train)]


@pytest.mark.parametrize("scheduler", ["slurm", "sge"])
def test_both_jobs(
    scheduler: SchedulerName, words: tuple[Any, ...], submitted: Path, tmp_path: Path
) -> None:
    """The pre-job comes first; what is submitted is what would be printed."""
    job = JobOptions(mpi="pmi2" if scheduler == "slurm" else None)
    options = SubmitOptions(scheduler=scheduler, logs=tmp_path / "logs", job=job)
    printed = scripts_of(*words, options, NullProgress())
    assert not (tmp_path / "logs").exists()
    found = submit(*words, options)
    assert found.prejob is not None
    assert (found.prejob.job, found.training) == ("1", "2")
    assert len(submitted.read_text().splitlines()) == 2
    scripts = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert scripts == {"c-build.sh": printed.prejob, "c-train.sh": printed.training}
    assert "export DISTCACHE_CACHE=" in scripts["c-train.sh"]


def test_options_of_another_scheduler(words: tuple[Any, ...], submitted: Path) -> None:
    """Each is one error, before anything is submitted."""
    job = JobOptions(mpi="pmi2", qos="high", memory="2G")
    with pytest.raises(ConfigError) as caught:
        submit(*words, SubmitOptions(scheduler="sge", job=job))
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "--mem",
        "--mpi",
        "--qos",
    ]
    assert not submitted.exists()


def test_slurm_options_of_the_configuration(words: tuple[Any, ...], submitted: Path) -> None:
    """They come before those of the command line."""
    fields = json.loads(words[0].read_text()) | {"slurm": {"sbatch": ["--gres=a"], "srun": ["-x"]}}
    words[0].write_text(json.dumps(fields))
    job = JobOptions(mpi="pmi2", sbatch=("--gres=b",), srun=("-y",))
    text = scripts_of(*words, SubmitOptions(scheduler="slurm", job=job), NullProgress()).prejob
    assert "#SBATCH --gres=a\n#SBATCH --gres=b\n" in text  # sbatch takes the last
    assert " -x -y " in text


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


def test_logs_in_a_directory_with_a_blank(words: tuple[Any, ...], tmp_path: Path) -> None:
    """Slurm takes them."""
    options = SubmitOptions(scheduler="slurm", logs=tmp_path / "a b", job=JobOptions(mpi="pmi2"))
    text = scripts_of(*words, options, NullProgress()).prejob
    assert f"#SBATCH --output='{tmp_path}/a b/%j.log'" in text
