"""What is asked of Slurm before a job is submitted, and words that it reads."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from typing import Final

from distcache.errors import BuildInterrupted, ConfigError, DistcacheError
from distcache.extras import how_to_install
from distcache.launch.commands import call, run_command
from distcache.storage.timeouts import limits

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
# Amounts of memory, by default in M, and the words that leave it to the site.
MEMORY: Final = re.compile(r"\d{1,12}[KMGT]?", re.IGNORECASE)
NO_MEMORY: Final = ("none", "default")
MINUTES_PER: Final = {"days": 1440, "hours": 60, "minutes": 1}
# Prints the MPI library that mpi4py loads, without initializing MPI.
LIBRARY: Final = (
    "from mpi4py import rc; rc.initialize = False; "
    "from mpi4py import MPI; print(MPI.Get_library_version())"
)


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


def parse_memory(text: str) -> str:
    """Return an amount of memory as sbatch reads it, or ``none``.

    Raises
    ------
    ConfigError
        If it has another form.
    """
    if text.strip() in NO_MEMORY:
        return "none"
    if MEMORY.fullmatch(text) is None:
        raise ConfigError(
            f"--mem {text!r}: expected a number with K, M, G or T, as sbatch does, or none"
        )
    return text.upper()


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
            f"{how_to_install('mpi')}, and an MPI library; or name the plugin of srun "
            "with --mpi; or use --nodes 1 --ntasks-per-node 1"
        )
    try:
        plugins = parse_plugins(call(["srun", "--mpi=list"]))
    except BuildInterrupted:
        raise
    except DistcacheError:  # no cluster is here: the script is printed, or sbatch says why
        plugins = None
    return choose_plugin(done.stdout, plugins)


def choose_plugin(library: str, plugins: Collection[str] | None) -> str:
    """Return the plugin for a library, which ``MPI_Get_library_version`` describes.

    Parameters
    ----------
    library : str
        The description.
    plugins : collection of str or None
        Plugins that Slurm has; None if that is not known.

    Raises
    ------
    ConfigError
        If none of them fits.
    """
    name = next((name for name in PLUGINS_OF if name.lower() in library.lower()), None)
    if name is None:
        raise ConfigError(
            f"unknown MPI library {library.partition(chr(10))[0]!r}; name Slurm's plugin with --mpi"
        )
    fitting = [known for known in PLUGINS_OF[name] if plugins is None or known in plugins]
    if fitting:
        return fitting[0]
    known = ", ".join(sorted(plugins or ())) or "none that could be read from srun --mpi=list"
    raise ConfigError(
        f"mpi4py loads {name}, which needs srun --mpi={' or '.join(PLUGINS_OF[name])}, but Slurm "
        f"has {known}; use another MPI library, or name a plugin with --mpi"
    )


def parse_plugins(text: str) -> set[str]:
    """Read ``srun --mpi=list``: a plugin per line, then versions of some."""
    lines = text.splitlines()[1:]
    return {line.strip() for line in lines if re.fullmatch(r"\s*\w+\s*", line)}
