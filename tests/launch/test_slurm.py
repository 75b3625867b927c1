"""What Slurm says is read right, and what it does not say in time is an error."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from distcache.errors import ConfigError, DistcacheError
from distcache.launch.slurm import (
    JobState,
    call,
    choose_plugin,
    job_number,
    look_at_job,
    parse_minutes,
    parse_plugins,
    parse_sacct,
    parse_scontrol,
    without_variables,
)

FAILED = (
    "JobId=8 JobName=distcache UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=1 "
    "JobState=FAILED Reason=NonZeroExitCode Dependency=(null) Requeue=1 Restarts=2 BatchFlag=1 "
    "Reboot=0 ExitCode=143:0 RunTime=00:00:01"
)
PLUGINS = """MPI plugin types are...
\tpmix
\tnone
\tpmi2
specific pmix plugin versions available: pmix_v4
"""


def fake(directory: Path, monkeypatch: pytest.MonkeyPatch, **commands: str) -> None:
    """Put commands of these names first in PATH, each a shell script."""
    for name, script in commands.items():
        path = directory / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


def test_what_the_controller_says() -> None:
    """State, exit code, reason and restarts, from its one line."""
    assert parse_scontrol(FAILED) == JobState("FAILED", 143, "NonZeroExitCode", 2)
    assert parse_scontrol(FAILED).ended
    waiting = parse_scontrol(FAILED.replace("FAILED", "PENDING").replace("NonZeroExitCode", "None"))
    assert waiting.reason == ""
    assert not waiting.ended
    with pytest.raises(DistcacheError, match="says nothing"):
        parse_scontrol("slurm_load_jobs error")


def test_a_job_cannot_speak_for_the_controller() -> None:
    """Its name may be anything."""
    named = FAILED.replace("JobName=distcache", "JobName=x JobState=COMPLETED ExitCode=0:0")
    assert parse_scontrol(named).state == "FAILED"


@pytest.mark.parametrize("state", ["REVOKED", "LAUNCH_FAILED", "OUT_OF_MEMORY", "OF_LATER_SLURM"])
def test_states_of_jobs_that_have_ended(state: str) -> None:
    """They are all but those of jobs that live; nobody waits for ever for one that is not known."""
    assert JobState(state).ended


@pytest.mark.parametrize(
    ("said", "number"), [("7\n", "7"), ("7;cluster\n", "7"), ("sbatch: warning\n12\n", "12")]
)
def test_the_number_of_a_job(said: str, number: str) -> None:
    """As sbatch writes it for scripts."""
    assert job_number(said) == number


@pytest.mark.parametrize("said", ["", "Your last job 17 was slow", "-1", "7 8"])
def test_what_is_no_number_of_a_job(said: str) -> None:
    """It is an error: another job must not be waited for."""
    with pytest.raises(DistcacheError, match="instead of the number"):
        job_number(said)


def test_sbatch_does_not_see_the_job_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor what would overrule a script; Slurm's configuration stays."""
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "77")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "5")
    monkeypatch.setenv("SBATCH_EXPORT", "NONE")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    fake(tmp_path, monkeypatch, sbatch="env | grep -E '^(SLURM|SBATCH)_'")
    with without_variables(["SBATCH_EXPORT"]):
        assert call(["sbatch", "script"]) == "SLURM_CONF=/etc/slurm.conf\n"
    assert os.environ["SBATCH_EXPORT"] == "NONE"


def test_what_the_accounting_says() -> None:
    """The last start of a job counts, and who cancelled it does not."""
    assert parse_sacct("NODE_FAIL|1:0\nCANCELLED by 0|0:15\n") == JobState("CANCELLED", 0)
    assert parse_sacct("FAILED|8:0\n") == JobState("FAILED", 8)
    with pytest.raises(DistcacheError, match="does not know"):
        parse_sacct("")


def test_a_job_that_the_controller_has_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is looked up in the accounting; if that knows nothing either, the controller's words stay."""
    forgotten = "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1"
    fake(tmp_path, monkeypatch, scontrol=forgotten, sacct="echo 'COMPLETED|0:0'")
    assert look_at_job("7").state == "COMPLETED"
    fake(tmp_path, monkeypatch, scontrol=forgotten, sacct="exit 1")
    with pytest.raises(DistcacheError, match="Invalid job id"):
        look_at_job("7")


def test_commands_that_are_not_there_or_do_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale_time: Callable[[float], None]
) -> None:
    """Commands that are not there or do not answer are one clear error each."""
    with pytest.raises(ConfigError, match="nothing-of-this-name: No such file"):
        call(["nothing-of-this-name"])
    scale_time(0.2 / 60)
    fake(tmp_path, monkeypatch, squeue="exec sleep 60")
    with pytest.raises(DistcacheError, match="has not ended within"):
        call(["squeue"])


@pytest.mark.parametrize(
    ("library", "plugin"),
    [
        ("MPICH Version:      5.0.2\nMPICH Device: ch4", "pmi2"),
        ("Open MPI v4.1.4, package: Debian OpenMPI", "pmix"),
        ("Intel(R) MPI Library 2021.13 for Linux* OS", "pmi2"),
        ("MVAPICH2 Version      :\t2.3.7", "pmi2"),
    ],
)
def test_the_plugin_that_a_library_speaks(library: str, plugin: str) -> None:
    """The plugin that a library speaks is chosen among those that Slurm has."""
    assert choose_plugin(library, parse_plugins(PLUGINS)) == plugin


def test_libraries_without_a_plugin() -> None:
    """Libraries without a plugin are told what there is."""
    with pytest.raises(ConfigError, match="needs srun --mpi=pmix, but Slurm has none, pmi2"):
        choose_plugin("Open MPI v5.0.3", {"pmi2", "none"})
    with pytest.raises(ConfigError, match="unknown MPI library 'Tandem'"):
        choose_plugin("Tandem\nmore", {"pmi2"})
    assert choose_plugin("CRAY MPICH version 8.1", {"cray_shasta", "pmi2"}) == "cray_shasta"


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("30", 30),
        ("30:01", 31),
        ("2:00:00", 120),
        ("1-0", 1440),
        ("1-2:30", 1590),
        ("0-0:0:1", 1),
        ("00:30:00", 30),
    ],
)
def test_time_limits(text: str, minutes: int) -> None:
    """In all forms that sbatch takes."""
    assert parse_minutes(text) == minutes


@pytest.mark.parametrize("text", ["", "0", "0:00", "-5", "1h", "1:2:3:4", "UNLIMITED"])
def test_what_is_no_time_limit(text: str) -> None:
    """What is no time limit is refused."""
    with pytest.raises(ConfigError, match="--time"):
        parse_minutes(text)
