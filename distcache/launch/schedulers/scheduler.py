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

# What is before a comment: quoted, escaped, or no `#` that begins a word.
UNCOMMENTED: Final = re.compile(r"""(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|(?<=\S)#|[^#'"\\])*""")


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
    variables: tuple[str, ...] = ()  # names of those that the job has from its submission
    setup: str = ""  # shell lines before the ranks
    # words that start distcache; by default this Python, and nothing is imported from the
    # directory that the job was submitted in
    program: tuple[str, ...] = ()

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
    prefix: str  # beginning of a directive's line, as it is written
    directives: Callable[[Shape], Iterable[str]]
    # words before the command that every rank runs; the job has a signal before its time limit
    launch: Callable[[Shape], Sequence[str]]
    submit: tuple[str, ...]  # command that takes a script
    # options of it that make the script wait until a job has succeeded, and for what it waits by
    # its own directive, if there is one: an option takes the place of the directive
    after: Callable[[str, str], Sequence[str]]
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
    # what a script waits for by its own directive, in the directive's words, each after a `\0`;
    # none where options do not take its place
    waiting: str = ""
    reads_all: bool = False  # whether directives may be anywhere in a script
    sentinel: str = ""  # pattern of all beginnings of a directive's line; without it the prefix
    also_reads: tuple[Scheduler, ...] = ()  # other schedulers whose directives it reads

    def directive(self, line: str) -> str | None:
        """Return the directive of a line of a script, without a comment behind it, or None.

        A `#` in quotes begins no comment. A quote that is not closed is left unchanged.
        """
        found = re.match(self.sentinel or rf"{re.escape(self.prefix)}(?=\s|$)", line)
        if found is None:
            return None
        text = line[found.end() :]
        before = UNCOMMENTED.match(text)
        assert before is not None, "the pattern matches every text, even an empty one"
        return text[: before.end()] if text[before.end() :].startswith("#") else text


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
    names = set().union(*map(_names_of, given))
    names |= {replaced[name] for name in names if name in replaced}
    kept = [word for word in own if names.isdisjoint(_names_of(word))]
    return [*kept, *(word for word in given if not word.endswith("="))]


def _names_of(directive: str) -> set[str]:
    """Return the name of a directive, or those of the resources of one that asks for resources."""
    if directive.startswith("-l") and "=" in directive:  # a blank may follow, or none
        return {f"-l {name}" for name in re.findall(r"(?:^-l\s*|,\s*)([\w-]+)=", directive)}
    found = re.match(r"--[\w-]+|-\w+", directive)
    return {found[0] if found else directive}
