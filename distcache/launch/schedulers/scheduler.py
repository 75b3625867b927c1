"""What a scheduler is made of, and what most have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from distcache.errors import ConfigError
from distcache.storage.units import parse_size

SIGNAL_DELAY: Final = 90  # seconds before the time limit at which a build is interrupted
# Fields of the options of a job that only some schedulers have words for.
NOT_EVERYWHERE: Final = ("memory", "qos", "constraint", "srun", "mpi")


class Shape(NamedTuple):
    """What a job asks for."""

    name: str
    nodes: int
    tasks: int  # ranks of each node
    cpus: int  # of each rank
    minutes: int
    memory: str | None  # of each node, as sbatch reads it
    queue: str | None
    account: str | None
    logs: Path  # directory
    mpiexec: str = "mpiexec"  # that of mpi4py's library
    # Slurm's: plugin of srun, options of it, and of sbatch
    mpi: str | None = None
    srun: tuple[str, ...] = ()
    qos: str | None = None
    constraint: str | None = None

    @property
    def ranks(self) -> int:
        """Ranks of the job."""
        return self.nodes * self.tasks

    def texts(self) -> list[str]:
        """Return what a script says in words that were given."""
        named = (self.memory, self.queue, self.account, self.qos, self.constraint, self.mpi)
        return [str(self.logs), *filter(None, named), *self.srun]

    @property
    def signal_delay(self) -> int:
        """Seconds before the time limit at which it is interrupted: at most a quarter of it."""
        return min(SIGNAL_DELAY, 15 * self.minutes)


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
    number: str = ""  # variable with the number of a job, which stays when it starts again
    enter: str = ""  # shell command that enters the directory of the submission
    takes_input: bool = False  # whether the script is the command's standard input
    takes: tuple[str, ...] = ()  # those of `NOT_EVERYWHERE` that it has words for
    # beginnings of resources that set a time limit which the signal before it would not follow
    limits: tuple[str, ...] = ()
    # names of directives, and those whose place they take besides the one of the same name
    replaced: Mapping[str, str] = {}
    # returns a given directive as a script has it, or raises `ConfigError`
    read_directive: Callable[[str], str] = str
    misread: str = "%\\\"'$:,{} "  # characters that may not be in the paths of logs
    # variables with which its command would overrule a script of this text
    overruling: Callable[[str], Iterable[str]] = lambda _: ()


def mpiexec(shape: Shape) -> Sequence[str]:
    """Return the launcher of an MPI that knows the hosts of the job by itself."""
    return () if shape.ranks == 1 else (shape.mpiexec, "-n", str(shape.ranks))


def clock(minutes: int) -> str:
    """Return a time as hours, minutes and seconds."""
    return f"{minutes // 60}:{minutes % 60:02d}:00"


def gibibytes(memory: str) -> int:
    """Return an amount of memory, as sbatch reads it, in GiB, rounded up.

    Raises
    ------
    ConfigError
        If it is 0, with which only sbatch asks for all memory of a node.
    """
    size = parse_size(f"{memory}M" if memory.isdecimal() else memory)
    if size == 0:
        raise ConfigError("--mem 0: only Slurm takes it for all memory of a node; give an amount")
    return -(-size >> 30)


def with_directives(
    own: Iterable[str], given: Sequence[str], replaced: Mapping[str, str] = {}
) -> list[str]:
    """Return directives, in which given ones take the place of those of the same name.

    The name of ``-l walltime=1:00:00`` is ``-l walltime``, that of ``--time=60`` is ``--time``. One
    that ends with ``=`` only leaves out. `replaced` names whose place one takes besides.
    """
    names = {_name_of(word) for word in given}
    names |= {replaced[name] for name in names if name in replaced}
    kept = [word for word in own if _name_of(word) not in names]
    return [*kept, *(word for word in given if not word.endswith("="))]


def _name_of(directive: str) -> str:
    found = re.match(r"--[\w-]+|-\w+(?:\s+[\w-]+(?==))?", directive)
    return re.sub(r"\s+", " ", found[0]) if found else directive
