"""The pre-job: its options, and a directory for its files that nobody else can replace."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Annotated, Final

import msgspec
import xxhash

from distcache.errors import ConfigError
from distcache.launch.slurm import parse_memory, parse_minutes
from distcache.option import Option

AS_FOR_SBATCH: Final = "The pre-job's; as for sbatch."


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the pre-job asks the scheduler for."""

    nodes: Annotated[int, Option("Nodes of the pre-job.", "--nodes -N", least=1, most=10_000)] = 1
    tasks_per_node: int = 4  # each is a rank
    cpus_per_task: Annotated[
        int,
        Option("Threads of each rank of the pre-job.", "--cpus-per-task -c", least=1, most=1024),
    ] = 2
    partition: Annotated[str | None, Option(AS_FOR_SBATCH, "--partition -p --queue")] = None
    account: Annotated[str | None, Option(AS_FOR_SBATCH, "--account -A")] = None
    qos: Annotated[str | None, Option(AS_FOR_SBATCH, "--qos -q")] = None
    constraint: Annotated[str | None, Option(AS_FOR_SBATCH, "--constraint -C")] = None
    minutes: Annotated[
        int | None,
        Option(
            "Time limit of the pre-job, as for sbatch; by default estimated.",
            "--time -t",
            parse_minutes,
        ),
    ] = None
    memory: Annotated[
        str | None,
        Option(
            "Memory of each node of the pre-job, as for sbatch; by default estimated. none: what "
            "the site gives.",
            "--mem",
            parse_memory,
        ),
    ] = None
    mpi: Annotated[
        str | None,
        Option("Plugin of srun; by default the one that mpi4py's MPI library uses."),
    ] = None
    sbatch: Annotated[
        tuple[str, ...],
        Option(
            "Any directive of the scheduler for the pre-job, as in --directive=--gres=gpu:1 or "
            "--directive='-pe orte 8'. It replaces distcache's directive of that name; "
            "--directive=--NAME= leaves it out.",
            "--directive",
        ),
    ] = ()
    srun: Annotated[
        tuple[str, ...],
        Option("Any option of the pre-job's srun, as in --srun=--container-image=IMAGE."),
    ] = ()


def make_private(directory: Path) -> None:
    """Make a directory that nobody else can replace, or check that it is one.

    The job executes what is in it. So only this user and root may write to it and to its parents,
    except to parents with the sticky bit (as ``/tmp``). Its path has no links, which could be
    replaced.

    Raises
    ------
    ConfigError
        If it is not.
    """
    _require_own(directory)
    for parent in reversed(directory.parents):
        parent.mkdir(mode=0o755, exist_ok=True)  # whatever the umask lets a group write to
    directory.mkdir(mode=0o700, exist_ok=True)
    _require_own(directory)


def _require_own(directory: Path) -> None:
    if (wrong := exchangeable(directory)) is not None:
        raise ConfigError(
            f"{directory}: {wrong} is not a directory that only you can write to, so that others "
            "could exchange what the job executes; name another directory with --logs"
        )


def exchangeable(directory: Path) -> Path | None:
    """Return the first part of a path without links that others could replace, or None.

    Parts that do not exist yet will be this user's.
    """
    for place in (directory, *directory.parents):
        try:
            found = os.lstat(place)
        except FileNotFoundError:
            continue
        mine = found.st_uid in (os.geteuid(), 0)
        others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        sticky = found.st_mode & stat.S_ISVTX and place != directory
        if not mine or not stat.S_ISDIR(found.st_mode) or (others and not sticky):
            return place
    return None


def job_directory(cache: Path) -> Path:
    """Return the directory of a pre-job's files: beside the cache, if it is safe there."""
    beside = Path(os.path.realpath(cache.with_suffix(".jobs")))
    there = next(path for path in (beside, *beside.parents) if path.exists())
    if exchangeable(beside) is None and os.access(there, os.W_OK):
        return beside
    digest = xxhash.xxh3_64_hexdigest(os.fsencode(cache))
    return Path.home() / ".distcache" / "jobs" / f"{cache.stem}-{digest}"
