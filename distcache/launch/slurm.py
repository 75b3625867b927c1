"""Run Slurm's commands, and parse what they report of a job."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from typing import Final

import msgspec

from distcache.errors import BuildInterrupted, ConfigError, DistcacheError
from distcache.extras import how_to_install
from distcache.launch.commands import call, run_command
from distcache.storage.timeouts import limits

# States in which a job has not ended.
LIVE: Final = (
    "COMPLETING CONFIGURING PENDING REQUEUED REQUEUE_FED REQUEUE_HOLD RESIZING RESV_DEL_HOLD "
    "RUNNING SIGNALING SPECIAL_EXIT STAGE_OUT STOPPED SUSPENDED UNKNOWN"
)
# A job that Slurm requeues is in one of these for a moment.
MAY_BE_REQUEUED: Final = ("BOOT_FAIL", "NODE_FAIL", "PREEMPTED")
# Variables of the surrounding job, which the submitted job must not inherit.
JOB_VARIABLES: Final = re.compile(r"SLURM_(?!CONF$|CLUSTERS$)\w*")
# The PMI plugins that each MPI library can use, the best first. Open MPI's pmi2 needs a build with
# Slurm's own library.
PLUGINS_OF: Final = {
    "Open MPI": ("pmix",),
    "CRAY MPICH": ("cray_shasta", "pmi2"),
    "MVAPICH": ("pmi2",),
    "Intel(R) MPI": ("pmi2",),
    "MPICH": ("pmi2", "pmix"),
}

# Time limits: minutes[:seconds], hours:minutes:seconds, days-hours[:minutes[:seconds]]
TIME_LIMIT_FORMS: Final = (
    re.compile(r"(?P<minutes>\d{1,6})(:(?P<seconds>\d{1,6}))?"),
    re.compile(r"(?P<hours>\d{1,6}):(?P<minutes>\d{1,6}):(?P<seconds>\d{1,6})"),
    re.compile(
        r"(?P<days>\d{1,6})-(?P<hours>\d{1,6})(:(?P<minutes>\d{1,6}))?(:(?P<seconds>\d{1,6}))?"
    ),
)
MINUTES_PER: Final = {"days": 1440, "hours": 60, "minutes": 1}
# Prints the MPI library that mpi4py loads, without initializing MPI.
LIBRARY: Final = (
    "from mpi4py import rc; rc.initialize = False; "
    "from mpi4py import MPI; print(MPI.Get_library_version())"
)


class JobState(msgspec.Struct, frozen=True):
    """The state of a job."""

    state: str  # state in the words of squeue and sacct, without the user who cancelled it
    exit_code: int = 0  # exit code of its script, once that has ended
    reason: str = ""  # why it waits, or why it ended
    restarts: int = 0  # number of times that it was requeued

    @property
    def ended(self) -> bool:
        """Whether it has ended, unless it is requeued."""
        return self.state not in LIVE.split()

    @property
    def may_be_requeued(self) -> bool:
        """Whether Slurm itself may start it again."""
        return self.state in MAY_BE_REQUEUED


@contextlib.contextmanager
def without_variables(names: Iterable[str] = ()) -> Iterator[None]:
    """Hide the variables of the surrounding job, and some more, from the environment.

    sbatch would use them as options of the job that it submits.
    """
    hidden = {name for name in os.environ if JOB_VARIABLES.fullmatch(name)}.union(names)
    kept = {name: os.environ.pop(name) for name in hidden if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


def job_number(said: str) -> str:
    """Read what ``sbatch --parsable`` writes: a number, maybe with the name of a cluster."""
    found = re.fullmatch(r"(\d+)(;.*)?", said.strip().rpartition("\n")[2])
    if found is None:
        raise DistcacheError(f"sbatch: says {said.strip()!r} instead of the number of a job")
    return found.group(1)


def tasks_that_fit(partition: str | None, cpus: int, most: int) -> int:
    """Return how many tasks of so many CPUs fit on every node of a partition, at most `most`.

    Where Slurm does not say it, that is `most`.
    """
    where = [] if partition is None else ["--partition", partition]
    try:
        said = call(["sinfo", "--noheader", "--format", "%P %c", *where])
    except DistcacheError:
        return most
    return parse_sinfo(said, partition, cpus, most)


def parse_sinfo(said: str, partition: str | None, cpus: int, most: int) -> int:
    """Read partitions and CPUs from ``sinfo``; a star marks the default partition.

    Returns
    -------
    int
        Number of tasks that fit on every node, at most `most`, and `most` if there is no such
        partition.
    """
    rows = [line.split() for line in said.splitlines()]
    found = [
        int(row[1].rstrip("+"))
        for row in rows
        if len(row) == 2
        and row[1].rstrip("+").isdecimal()
        and (partition is not None or row[0].endswith("*"))
    ]
    return max(1, min(most, min(found) // cpus)) if found else most


def parse_minutes(text: str) -> int:
    """Parse a time limit in any form that sbatch accepts; return minutes, rounded up.

    Raises
    ------
    ConfigError
        If it has another form, or is zero.
    """
    for form in TIME_LIMIT_FORMS:
        if (found := form.fullmatch(text.strip())) is not None:
            parts = {name: int(value or 0) for name, value in found.groupdict().items()}
            minutes = sum(size * parts.get(name, 0) for name, size in MINUTES_PER.items())
            minutes += -(-parts.get("seconds", 0) // 60)
            if minutes:
                return minutes
    raise ConfigError(
        f"--time {text!r}: expected minutes, H:MM:SS or D-HH:MM:SS, as sbatch does, and more than 0"
    )


def look_at_job(job: str) -> JobState:
    """Ask the controller about a job, and the accounting if the controller has forgotten it.

    Raises
    ------
    DistcacheError
        If neither knows.
    """
    try:
        return parse_scontrol(call(["scontrol", "show", "job", "--oneliner", job]))
    except BuildInterrupted:
        raise
    except DistcacheError as error:
        try:
            return parse_sacct(call(["sacct", "-nXP", "-j", job, "--format=State,ExitCode"]))
        except BuildInterrupted:
            raise
        except DistcacheError:
            raise error from None


def parse_scontrol(text: str) -> JobState:
    """Read ``scontrol show job --oneliner``."""
    text = re.sub(r"\bJobName=.*? (?=UserId=)", "", text)  # which may be anything
    fields = dict(re.findall(r"\b(JobState|ExitCode|Reason|Restarts)=(\S*)", text)[::-1])
    if not fields.get("JobState"):
        raise DistcacheError("scontrol: says nothing of the job's state")
    reason = fields.get("Reason", "None")
    return JobState(
        fields["JobState"],
        _number(fields.get("ExitCode", "").partition(":")[0]),
        "" if reason == "None" else reason,
        _number(fields.get("Restarts", "")),
    )


def parse_sacct(text: str) -> JobState:
    """Read one line of ``sacct -nXP --format=State,ExitCode``; the last, if a job was requeued."""
    state, _, code = text.strip().rpartition("\n")[2].partition("|")
    if not state:
        raise DistcacheError("sacct: does not know the job")
    return JobState(state.split()[0], _number(code.partition(":")[0]))


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def find_plugin(tasks: int) -> str:
    """Return the ``srun --mpi`` plugin for the MPI library of mpi4py.

    A wrong one starts a world of one rank for each task, often without an error; therefore every
    rank also compares its world with what Slurm has started (`ranks.connect.connect`).

    Raises
    ------
    ConfigError
        If mpi4py is missing, or Slurm has no plugin that its library can use.
    """
    if tasks == 1:
        return "none"
    done = run_command([sys.executable, "-P", "-c", LIBRARY], limits().first_import)
    if done.returncode:
        problem = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ConfigError(
            f"several tasks need MPI, but mpi4py cannot be loaded ({problem}): "
            f"{how_to_install('mpi')}, and an MPI library; or use --nodes 1 --ntasks-per-node 1"
        )
    return choose_plugin(done.stdout, parse_plugins(call(["srun", "--mpi=list"])))


def choose_plugin(library: str, plugins: Collection[str]) -> str:
    """Return the plugin for a library, which ``MPI_Get_library_version`` describes."""
    name = next((name for name in PLUGINS_OF if name.lower() in library.lower()), None)
    if name is None:
        raise ConfigError(
            f"unknown MPI library {library.partition(chr(10))[0]!r}; name Slurm's plugin with --mpi"
        )
    for wanted in PLUGINS_OF[name]:
        if wanted in plugins:
            return wanted
    known = ", ".join(sorted(plugins)) or "none that could be read from srun --mpi=list"
    raise ConfigError(
        f"mpi4py loads {name}, which needs srun --mpi={' or '.join(PLUGINS_OF[name])}, but Slurm "
        f"has {known}; use another MPI library, or name a plugin with --mpi"
    )


def parse_plugins(text: str) -> set[str]:
    """Read ``srun --mpi=list``: a plugin per line, then versions of some."""
    lines = text.splitlines()[1:]
    return {line.strip() for line in lines if re.fullmatch(r"\s*\w+\s*", line)}
