"""Start distcache in processes of its own, alone or under an MPI launcher, with a time limit."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.support.secrets import MARK

LIMIT = 240  # seconds, after which a test has hung; disks of noisy machines stall for a minute
SCRIPTS = Path(sys.executable).parent
ABORT = 20  # seconds for the ranks of a test that has hung to say where they are
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
}


def clean_environment(extra: Mapping[str, str] = {}) -> dict[str, str]:
    """Return this process's environment without a launcher's variables, and with ours."""
    starts = ("OMPI_", "PMI", "SLURM_", "MPI4PY_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(starts)}
    # A crash within MPI, and a rank that has to be aborted, print where they are.
    always = {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONFAULTHANDLER": "1"}
    return {**kept, **always, **extra}


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
    text: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run distcache with some input to its end; one that is too long, or tells a secret, fails."""
    before, needed = launch(launcher, ranks) if ranks > 1 else ([], {})
    with subprocess.Popen(
        [*before, *program, *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment({**needed, **environment}),
    ) as process:
        try:
            output, errors = process.communicate(text, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end within {LIMIT} s:\n{_aborted(process)}") from None
        except BaseException:
            _signal_all(family(process.pid), signal.SIGKILL)
            raise
    assert MARK not in output + errors
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def _aborted(process: subprocess.Popen[str]) -> str:
    """End a process and all that it has started; return what they wrote, and where ranks were."""
    all_started = family(process.pid)
    # Python's handler of faults prints what each thread of a rank is at.
    _signal_all(filter(_is_python, all_started), signal.SIGABRT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        return "\n".join(process.communicate(timeout=ABORT))
    _signal_all(all_started, signal.SIGKILL)
    return "\n".join(process.communicate(timeout=ABORT))


def _signal_all(processes: Iterable[int], number: signal.Signals) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _is_python(process: int) -> bool:
    return os.path.realpath(f"/proc/{process}/exe") == os.path.realpath(sys.executable)


def family(process: int) -> set[int]:
    """Return a process and its descendants, which launchers give sessions of their own."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (entry / "stat").read_text("utf-8", "replace")
            parents[int(entry.name)] = int(text.rpartition(")")[2].split()[1])
    found, size = {process}, 0
    while len(found) > size:
        size = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found
