"""What a benchmark ran on, for its table."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def machine(directory: Path) -> dict[str, str]:
    """Return the processor, memory, kernel, and the filesystem of a directory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": _field("/proc/cpuinfo", "model name"),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "filesystem": _filesystem(directory),
    }


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return platform.machine()


def _filesystem(directory: Path) -> str:
    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, mount, kind = line.split()[:3]
        if directory.resolve().is_relative_to(mount) and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best[1]
