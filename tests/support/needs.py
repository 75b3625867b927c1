"""Marks of tests by their folder, and what they need that a machine may lack.

``pytest`` alone skips what cannot run here, and says why; with ``DISTCACHE_REQUIRE=all``, which
`.ci/run` sets, what is skipped is an error.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from importlib import metadata
from pathlib import Path

TESTS = Path(__file__).parents[1]
# The longest path that a test is in decides.
MARKS = {
    "aarch64": ("aarch64",),
    "cache": ("wild",),
    "cluster": ("cluster",),
    "corpus": ("wild",),
    "jobs": ("jobs",),
    "jobs/store": ("jobs", "store"),
    "judges": ("judge",),
    "judges/test_bridge.py": ("bridge",),
    "judges/test_streaming.py": ("streaming",),
    "kernels": ("wild",),
}
# Megatron's training is in its wheels from this release on.
SINCE = {"judges/test_provider.py": "0.17", "judges/test_training.py": "0.17"}
CLUSTER = (
    "slurmctld slurmd slurmdbd sbatch munged mariadbd ip tc nsenter unshare setpriv "
    "glusterd gluster mount.glusterfs mkfs.ext4 mpirun.openmpi"
)


def marks_of(path: Path) -> tuple[str, ...]:
    """Return the marks of a file's folder; what asks for nothing special is local."""
    parts = path.relative_to(TESTS).parts if path.is_relative_to(TESTS) else ()
    found: tuple[str, ...] = ()
    for size in range(1, len(parts) + 1):
        found = MARKS.get("/".join(parts[:size]), found)
    return found if set(found) - {"wild"} else (*found, "local")


def since(path: Path) -> str:
    """Return the release of Megatron-Core from which on a file can be imported, or nothing."""
    return SINCE.get(str(path.relative_to(TESTS)), "") if path.is_relative_to(TESTS) else ""


def missing(mark: str) -> str:
    """Return what tests with a mark need and this machine lacks, or nothing."""
    match mark:
        case "jobs":
            return _without(("mpi4py", "torch"), "mpiexec mpirun.openmpi", root=True)
        case "store":
            return _without((), "weed")
        case "cluster":
            return _without(("mpi4py",), CLUSTER, root=True)
        case "judge":
            return _without(("torch", "megatron.core"), "")
        case "bridge":
            return _without(("torch", "megatron.bridge"), "")
        case "streaming":
            return _without(("torch", "streaming"), "")
        case "aarch64":
            return "" if "DISTCACHE_JUDGE" in os.environ else "scripts/aarch64 runs it under qemu"
    return ""


def _without(modules: tuple[str, ...], programs: str, *, root: bool = False) -> str:
    """Return the modules and programs that are not here."""
    lacking = [name for name in modules if not is_installed(name)]
    lacking += [name for name in programs.split() if shutil.which(name) is None]
    if root and os.geteuid() != 0:
        lacking.append("root, who mounts filesystems")
    return f"this machine lacks {', '.join(lacking)}" if lacking else ""


def is_installed(module: str) -> bool:
    """Return whether a module can be found."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is in
        return False


def megatron_release() -> tuple[int, ...]:
    """Return the release of the Megatron-Core that comes first on the path; nothing without one."""
    try:
        return tuple(map(int, metadata.version("megatron-core").split(".")[:2]))
    except metadata.PackageNotFoundError:
        return ()


def is_due(release: str) -> bool:
    """Return whether the Megatron-Core here is this release, or a later one."""
    return megatron_release() >= tuple(map(int, release.split(".")))
