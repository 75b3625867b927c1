"""What a scheduler is made of, and what most have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

SIGNAL_DELAY: Final = 90  # seconds before the time limit at which a build is interrupted


class Shape(NamedTuple):
    """What a job asks for."""

    name: str
    nodes: int
    tasks: int  # ranks of each node
    cpus: int  # of each rank
    minutes: int
    memory: int | None  # GiB of each node
    queue: str | None
    account: str | None
    logs: Path  # directory
    mpiexec: str = "mpiexec"  # that of mpi4py's library
    # Slurm's: plugin of srun, options of it, and of sbatch
    mpi: str = "pmi2"
    srun: tuple[str, ...] = ()
    qos: str | None = None
    constraint: str | None = None

    @property
    def ranks(self) -> int:
        """Ranks of the job."""
        return self.nodes * self.tasks

    @property
    def signal_delay(self) -> int:
        """Seconds before the time limit at which it is interrupted."""
        return signal_delay(self.minutes)


def signal_delay(minutes: int) -> int:
    """Return the seconds before a time limit at which a build is interrupted: at most a quarter."""
    return min(SIGNAL_DELAY, 15 * minutes)


class Scheduler(NamedTuple):
    """A scheduler: the words of its scripts and its commands."""

    title: str
    prefix: str  # beginning of a directive's line
    directives: Callable[[Shape], Iterable[str]]
    # words before the command that every rank runs; the job has a signal before its time limit
    launch: Callable[[Shape], Sequence[str]]
    submit: tuple[str, ...]  # command that takes a script
    # options of it that make the script wait until another job has succeeded
    after: Callable[[str], Sequence[str]]
    job_pattern: str  # of the job's number in what the command prints
    # shell commands that put an interrupted job into the queue again; none if that is impossible
    requeue: str
    enter: str = ""  # shell command that enters the directory of the submission
    takes_input: bool = False  # whether the script is the command's standard input
    asks_memory: bool = True  # whether it has a word for the memory of a node
    # beginnings of resources that set a time limit which the signal before it would not follow
    limits: tuple[str, ...] = ()


def mpiexec(shape: Shape) -> Sequence[str]:
    """Return the launcher of an MPI that knows the hosts of the job by itself."""
    return () if shape.ranks == 1 else (shape.mpiexec, "-n", str(shape.ranks))


def clock(minutes: int) -> str:
    """Return a time as hours, minutes and seconds."""
    return f"{minutes // 60}:{minutes % 60:02d}:00"


def with_directives(own: Iterable[str], given: Sequence[str]) -> list[str]:
    """Return directives, in which given ones take the place of those of the same name.

    The name of ``-l walltime=1:00:00`` is ``-l walltime``, that of ``--time=60`` is ``--time``. One
    that ends with ``=`` only leaves out.
    """
    names = {_name_of(word) for word in given}
    kept = [word for word in own if _name_of(word) not in names]
    return [*kept, *(word for word in given if not word.endswith("="))]


def _name_of(directive: str) -> str:
    found = re.match(r"--[\w-]+|-\w+(?:\s+[\w-]+(?==))?", directive)
    return re.sub(r"\s+", " ", found[0]) if found else directive
