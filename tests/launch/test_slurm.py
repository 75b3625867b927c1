"""What Slurm says is read right, and what it does not say in time is an error."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from distcache.errors import ConfigError, DistcacheError
from distcache.launch.commands import call
from distcache.launch.slurm import choose_plugin, parse_memory, parse_minutes, parse_plugins

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


def test_sbatch_does_not_see_the_job_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor what would overrule a script; Slurm's configuration stays."""
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "77")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "5")
    monkeypatch.setenv("SBATCH_EXPORT", "NONE")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    fake(tmp_path, monkeypatch, sbatch="env | grep -E '^(SLURM|SBATCH)_'")
    said = call(["sbatch", "script"], hidden=["SBATCH_EXPORT"])
    assert said == "SLURM_CONF=/etc/slurm.conf\n"
    assert os.environ["SBATCH_EXPORT"] == "NONE"


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
    assert choose_plugin("MPICH Version: 5.0.2", None) == "pmi2"  # a script that is only printed


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


@pytest.mark.parametrize(
    ("text", "memory"),
    [("64000", "64000"), ("0", "0"), ("8g", "8G"), ("1T", "1T"), ("none", "none")],
)
def test_memory(text: str, memory: str) -> None:
    """Means what it means to sbatch."""
    assert parse_memory(text) == memory


@pytest.mark.parametrize(
    "text", ["", "8GiB", "1.5G", "-1", "all", "1 G", "2G\n#SBATCH --exclusive"]
)
def test_what_is_no_memory(text: str) -> None:
    """What sbatch does not take is refused."""
    with pytest.raises(ConfigError, match="--mem"):
        parse_memory(text)
