"""The table of schedulers, and which one is here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

from distcache.errors import ConfigError
from distcache.launch.schedulers.flux import FLUX
from distcache.launch.schedulers.lsf import LSF
from distcache.launch.schedulers.pbs import PBS
from distcache.launch.schedulers.scheduler import Scheduler
from distcache.launch.schedulers.sge import SGE
from distcache.launch.schedulers.slurm_text import SLURM

SchedulerName = Literal["slurm", "pbs", "flux", "lsf", "sge"]
SCHEDULERS: Final[dict[SchedulerName, Scheduler]] = {
    "slurm": SLURM,
    "pbs": PBS,
    "flux": FLUX,
    "lsf": LSF,
    "sge": SGE,
}


def find_scheduler(
    environment: Mapping[str, str], which: Callable[[str], str | None]
) -> SchedulerName:
    """Return the scheduler of a machine, by its environment and its commands.

    Flux runs inside of jobs of others, and Slurm and PBS may have each other's commands: so the
    order matters.

    Parameters
    ----------
    environment : mapping of str to str
        Variables of the environment.
    which : callable
        Function from a command to its path, or None.

    Raises
    ------
    ConfigError
        If there is none.
    """
    if "FLUX_URI" in environment and which("flux"):
        return "flux"
    if which("sbatch"):
        return "slurm"
    if which("bsub"):
        return "lsf"
    if which("flux"):
        return "flux"
    if which("qsub"):
        return "sge" if "SGE_ROOT" in environment or which("qconf") else "pbs"
    raise ConfigError(
        "no scheduler is here: none of sbatch, bsub, flux and qsub is in PATH; run this on a login "
        "node, or name one with --scheduler and --print, which only writes the scripts"
    )
