"""What a machine lacks is found; `tests/peers/test_doctor.py` asks Megatron itself."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from distcache.errors import ConfigError, DistcacheError
from distcache.launch.doctor import machine
from distcache.launch.doctor.machine import Finding, examine_machine
from tests.support.processes import start


def finding(topic: str, shared: Path, environment: dict[str, str] | None = None) -> Finding:
    """Return what is found on one topic."""
    return {found.topic: found for found in examine_machine(shared, environment or {})}[topic]


def test_a_good_directory(tmp_path: Path) -> None:
    """It has locks that exclude and hard links; nothing is left in it."""
    for topic in ("locks", "hard links"):
        assert finding(topic, tmp_path).level == "ok"
    assert list(tmp_path.iterdir()) == []


def test_directories_that_lack_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks and hard links are dispensable, the directory is not."""
    assert finding("locks", tmp_path / "none").level == "problem"
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", lambda *_: None)
        assert "do not exclude" in finding("locks", tmp_path).text

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(os, "link", refuse)
    assert finding("locks", tmp_path).level == "warning"
    links = finding("hard links", tmp_path)
    assert (links.level, "by renames" in links.text) == ("ok", True)
    assert list(tmp_path.iterdir()) == []


def test_the_local_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The local disk is named, large enough, and not memory."""
    assert "not set" in finding("local disk", tmp_path).text
    named = {"DISTCACHE_LOCAL_DIR": str(tmp_path / "a" / "b")}
    monkeypatch.setattr(machine, "LITTLE_SPACE", 0)
    assert finding("local disk", tmp_path, named).level == "ok"
    monkeypatch.setattr(machine, "LITTLE_SPACE", 1 << 60)
    assert finding("local disk", tmp_path, named).level == "warning"
    memory = finding("local disk", tmp_path, {"DISTCACHE_LOCAL_DIR": "/dev/shm/x"})
    assert "is memory" in memory.text


def test_few_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few descriptors are enough, but slow."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 512))
    assert finding("descriptors", tmp_path).level == "warning"


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
    assert finding("MPI and Slurm", tmp_path).level == level
    monkeypatch.setattr(machine, "find_plugin", lambda _: "pmi2")
    assert finding("MPI and Slurm", tmp_path).text.startswith("srun --mpi=pmi2")
    monkeypatch.setattr(machine.shutil, "which", lambda _: None)
    assert "no srun" in finding("MPI and Slurm", tmp_path).text
    monkeypatch.setattr(machine, "find_spec", lambda _: None)
    assert "no mpi4py" in finding("MPI and Slurm", tmp_path).text


def test_the_command(tmp_path: Path) -> None:
    """A line for each finding, or JSON; a directory comes before the training command."""
    done = start(["doctor", "--shared", tmp_path])
    assert done.returncode == 0, done.stderr
    assert "hard links" in done.stdout
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
    assert start(["doctor", "--shared", tmp_path / "none"]).returncode == 5


def test_limits_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its quota, memory and processes are said, and what to do where they are few."""
    limits = {"memory.max": "1073741824", "pids.max": "64"}
    monkeypatch.setattr(machine, "cgroup_limits", lambda name: iter([limits.get(name, "max")]))
    monkeypatch.setattr(machine, "usable_cores", lambda: 1)
    monkeypatch.setattr(machine, "SHARED_MEMORY", tmp_path / "none")
    found = finding("limits", tmp_path)
    assert found.level == "warning"
    for text in ("1 of ", "1.0 GiB of memory", "64 processes", "--threads 1", "--shm-size"):
        assert text in found.text
    monkeypatch.setattr(machine, "SHARED_MEMORY", tmp_path)
    limits.clear()
    assert finding("limits", tmp_path).level == "ok"


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
