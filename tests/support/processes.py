"""Start distcache in processes of its own, alone or under an MPI launcher, with a time limit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.secrets import MARK

LIMIT = 240  # seconds, after which a test has hung; disks of noisy machines stall for a minute
SCRIPTS = Path(sys.executable).parent
DISTCACHE = str(SCRIPTS / "distcache")
LAUNCHERS = ("mpich", "openmpi")

# Several ranks on few cores, as root, and without network devices.
OPEN_MPI = {
    "MPI4PY_MPIABI": "openmpi",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "tcp,self,vader",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PYTHONFAULTHANDLER": "1",  # a crash within MPI says which call it was
}


def clean_environment(extra: Mapping[str, str] = {}) -> dict[str, str]:
    """Return this process's environment without a launcher's variables."""
    starts = ("OMPI_", "PMI", "SLURM_", "MPI4PY_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(starts)}
    return {**kept, "PYTHONPATH": str(Path(__file__).parents[2]), **extra}


def launch(launcher: str, ranks: int) -> tuple[list[str], dict[str, str]]:
    """Return the words that start ranks, and the environment that they need."""
    if launcher == "mpich":
        return [str(SCRIPTS / "mpiexec"), "-n", str(ranks)], {}
    open_mpi = shutil.which("mpirun.openmpi")
    assert open_mpi is not None, "Open MPI is not installed: apt-get install openmpi-bin"
    return [open_mpi, "-n", str(ranks)], OPEN_MPI


def start(
    words: Sequence[str | Path],
    ranks: int = 1,
    launcher: str = "mpich",
    environment: Mapping[str, str] = {},
    program: Sequence[str] = (DISTCACHE,),
) -> subprocess.CompletedProcess[str]:
    """Run distcache to its end; a run that takes too long, or tells a secret, fails."""
    before, needed = launch(launcher, ranks) if ranks > 1 else ([], {})
    done = subprocess.run(
        [*before, *program, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env=clean_environment({**needed, **environment}),
    )
    assert MARK not in done.stdout + done.stderr
    return done
