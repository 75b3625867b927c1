"""The right `srun --mpi` for the MPI that mpi4py loads.

A wrong one starts as many worlds of one rank as there are tasks, often without an error. So it is
found out here, and every rank compares its world with what Slurm started (`ranks.connect`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from typing import Final

from distcache.errors import ConfigError
from distcache.launch.slurm import call
from distcache.programs import run_program
from distcache.timeouts import limits

__all__ = ["choose_plugin", "find_plugin", "parse_plugins"]

# What each library speaks, the best first. Open MPI's pmi2 needs a build with Slurm's own library.
PLUGINS_OF: Final = {
    "Open MPI": ("pmix",),
    "CRAY MPICH": ("cray_shasta", "pmi2"),
    "MVAPICH": ("pmi2",),
    "Intel(R) MPI": ("pmi2",),
    "MPICH": ("pmi2", "pmix"),
}


def find_plugin(tasks: int) -> str:
    """Return the plugin with which Slurm must start so many tasks.

    Raises
    ------
    ConfigError
        If mpi4py is missing, or Slurm has no plugin that its library speaks.
    """
    if tasks == 1:
        return "none"
    return choose_plugin(_library(), parse_plugins(call(["srun", "--mpi=list"])))


def choose_plugin(library: str, plugins: Collection[str]) -> str:
    """Return the plugin for a library, which ``MPI_Get_library_version`` describes.

    Raises
    ------
    ConfigError
        If there is none.
    """
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
    """Read ``srun --mpi=list``: a plugin a line, and then versions of some."""
    lines = text.splitlines()[1:]
    return {line.strip() for line in lines if re.fullmatch(r"\s*\w+\s*", line)}


def _library() -> str:
    done = run_program(
        [sys.executable, "-P", "-m", "distcache.ranks.library"], limits().first_import
    )
    if done.returncode:
        problem = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ConfigError(
            f"several tasks need MPI, but mpi4py cannot be loaded ({problem}); install "
            "distcache[mpi] and an MPI library, or use --nodes 1 --ntasks-per-node 1"
        )
    return done.stdout
