"""What a machine or a launcher lacks is found; `tests/judges/test_doctor.py` asks Megatron."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from distcache.errors import ConfigError, DistcacheError
from distcache.launch.doctor.machine import (
    LITTLE_SPACE,
    UNLIMITED,
    Finding,
    Limits,
    examine_launcher,
    examine_machine,
    judge_descriptors,
    judge_disk,
    judge_launcher,
    judge_limits,
    judge_mpi,
)
from distcache.storage.space import space_at
from tests.support.processes import start


def finding(topic: str, environment: dict[str, str] | None = None) -> Finding:
    """Return what is found on one topic."""
    return {found.topic: found for found in examine_machine(environment or {})}[topic]


def test_the_local_disk() -> None:
    """The local disk is named, large enough, and not memory."""
    assert "not set" in finding("local disk").text
    memory = finding("local disk", {"DISTCACHE_LOCAL_DIR": "/dev/shm/x"})
    assert "is memory" in memory.text
    for free, level in ((LITTLE_SPACE, "ok"), (LITTLE_SPACE - 1, "warning")):
        space = msgspec.structs.replace(space_at(Path("/")), free=free, in_memory=False)
        assert judge_disk(Path("/local"), space).level == level


def test_few_descriptors() -> None:
    """Few descriptors are enough, but slow."""
    assert judge_descriptors(256, 512).level == "warning"
    assert judge_descriptors(256, 1 << 20).level == "ok"


def test_slurm() -> None:
    """A library without a plugin is a problem; a Slurm that does not answer may be elsewhere."""

    def fail(error: Exception) -> Callable[[], str]:
        def find() -> str:
            raise error

        return find

    with pytest.raises(ConfigError):
        judge_mpi(True, True, fail(ConfigError("no plugin")))
    assert judge_mpi(True, True, fail(DistcacheError("no controller"))).level == "warning"
    assert judge_mpi(True, True, lambda: "pmi2").text.startswith("srun --mpi=pmi2")
    assert "no srun" in judge_mpi(True, False, lambda: "pmi2").text
    assert "no mpi4py" in judge_mpi(False, True, lambda: "pmi2").text


def test_the_command(tmp_path: Path) -> None:
    """A line for each finding, or JSON; a directory comes before the training command."""
    done = start(["doctor"])
    assert done.returncode == 0, done.stderr
    assert "local disk" in done.stdout
    document = json.loads(start(["doctor", "--json"]).stdout)
    assert document["ready"]
    assert {"level", "topic", "text"} == document["findings"][0].keys()
    alone = start(["doctor", tmp_path])
    assert (alone.returncode, "give the training command" in alone.stderr) == (2, True)
    typo = start(["doctor", tmp_path, "--shard", "x"])
    assert (typo.returncode, "--shard x" in typo.stderr) == (2, True)
    wrong = start(["doctor", "--", "torchrun", "pretrain_gpt.py"])
    assert wrong.returncode == 2
    assert "torchrun: is not a directory" in wrong.stderr


def test_limits_of_a_container() -> None:
    """Its quota, memory and processes are said, and what to do where they are few."""
    found = judge_limits(Limits(1, 8, 1 << 30, 64, 0, own_processes=False))
    assert found.level == "warning"
    for text in ("1 of 8", "1.0 GiB of memory", "64 processes", "--threads 1", "--shm-size"):
        assert text in found.text
    assert (
        judge_limits(Limits(8, 8, UNLIMITED, UNLIMITED, 1 << 30, own_processes=True)).level == "ok"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces")
def test_a_pid_namespace_of_its_own() -> None:
    """It is that of a process beside which the kernel's are not to be seen."""
    unshared = ["unshare", "--pid", "--fork", "--mount-proc"]
    program = "from distcache.launch.doctor.machine import limits_here; print(limits_here())"
    found = [
        subprocess.run(
            [*before, sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        for before in ([], unshared)
    ]
    assert "own_processes=True" in found[1]
    second = Path("/proc/2/comm")
    here = second.is_file() and second.read_text(encoding="utf-8") == "kthreadd\n"
    assert ("own_processes=True" in found[0]) == (not here)


HYDRA = "HYDRA build details:\n    Version: 5.0.2\n"
OPEN = "mpirun (Open MPI) 4.1.4\n"


def test_the_mpi_of_this_environment() -> None:
    """Its launcher fits."""
    finding = examine_launcher()
    assert finding.level == "ok"
    assert "as mpi4py's library" in finding.text


@pytest.mark.parametrize(
    ("version", "library", "level"),
    [
        (HYDRA, "MPICH Version: 5.0.2", "ok"),
        (HYDRA, "Intel(R) MPI Library 2021.11", "ok"),
        (HYDRA, "Open MPI v4.1.4", "problem"),
        (OPEN, "Open MPI v4.1.4", "ok"),
        (OPEN, "MPICH Version: 5.0.2", "problem"),
        ("something else", "MPICH Version: 5.0.2", "ok"),
    ],
)
def test_the_launcher(version: str, library: str, level: str) -> None:
    """One of another MPI would start ranks that do not know of each other."""
    finding = judge_launcher("/usr/bin/mpiexec", version, library)
    assert finding.level == level
    if level == "problem":
        assert "every rank would be alone" in finding.text
