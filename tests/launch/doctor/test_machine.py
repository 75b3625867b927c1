"""What a machine lacks is found; `tests/judges/test_doctor.py` asks Megatron itself."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from distcache.errors import ConfigError, DistcacheError
from distcache.launch.doctor import machine
from distcache.launch.doctor.machine import Finding, examine_machine
from tests.support.processes import start


def finding(topic: str, environment: dict[str, str] | None = None) -> Finding:
    """Return what is found on one topic."""
    return {found.topic: found for found in examine_machine(environment or {})}[topic]


def test_the_local_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The local disk is named, large enough, and not memory."""
    assert "not set" in finding("local disk").text
    named = {"DISTCACHE_LOCAL_DIR": str(tmp_path / "a" / "b")}
    monkeypatch.setattr(machine, "LITTLE_SPACE", 0)
    assert finding("local disk", named).level == "ok"
    monkeypatch.setattr(machine, "LITTLE_SPACE", 1 << 60)
    assert finding("local disk", named).level == "warning"
    memory = finding("local disk", {"DISTCACHE_LOCAL_DIR": "/dev/shm/x"})
    assert "is memory" in memory.text


def test_few_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few descriptors are enough, but slow."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 512))
    assert finding("descriptors").level == "warning"


@pytest.mark.parametrize(
    ("error", "level"),
    [(ConfigError("no plugin"), "problem"), (DistcacheError("no controller"), "warning")],
)
def test_slurm(
    error: Exception, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library without a plugin is a problem; a Slurm that does not answer may be elsewhere."""

    def find(_: int) -> str:
        raise error

    monkeypatch.setattr(machine, "find_spec", lambda name: name)
    monkeypatch.setattr(machine.shutil, "which", lambda _: "/usr/bin/srun")
    monkeypatch.setattr(machine, "find_plugin", find)
    assert finding("MPI and Slurm").level == level
    monkeypatch.setattr(machine, "find_plugin", lambda _: "pmi2")
    assert finding("MPI and Slurm").text.startswith("srun --mpi=pmi2")
    monkeypatch.setattr(machine.shutil, "which", lambda _: None)
    assert "no srun" in finding("MPI and Slurm").text
    monkeypatch.setattr(machine, "find_spec", lambda _: None)
    assert "no mpi4py" in finding("MPI and Slurm").text


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


def test_limits_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its quota, memory and processes are said, and what to do where they are few."""
    limits = {"memory.max": "1073741824", "pids.max": "64"}
    monkeypatch.setattr(machine, "cgroup_limits", lambda name: iter([limits.get(name, "max")]))
    monkeypatch.setattr(machine, "usable_cores", lambda: 1)
    monkeypatch.setattr(machine, "SHARED_MEMORY", tmp_path / "none")
    found = finding("limits")
    assert found.level == "warning"
    for text in ("1 of ", "1.0 GiB of memory", "64 processes", "--threads 1", "--shm-size"):
        assert text in found.text
    monkeypatch.setattr(machine, "SHARED_MEMORY", tmp_path)
    limits.clear()
    assert finding("limits").level == "ok"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces")
def test_a_pid_namespace_of_its_own() -> None:
    """It is that of a process beside which the kernel's are not to be seen."""
    unshared = ["unshare", "--pid", "--fork", "--mount-proc"]
    program = "from distcache.launch.doctor.machine import _limits; print(_limits().text)"
    found = [
        subprocess.run(
            [*before, sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        for before in ([], unshared)
    ]
    assert "a PID namespace of its own" in found[1]
    second = Path("/proc/2/comm")
    here = second.is_file() and second.read_text(encoding="utf-8") == "kthreadd\n"
    assert ("a PID namespace of its own" in found[0]) == (not here)
