"""Build caches in this process, for tests of what comes after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distcache.builder.configuration import config_from_mapping
from distcache.builder.job import BuildOptions
from distcache.builder.run import BuildOutcome, build
from distcache.cache.readiness import building_directory
from distcache.ranks.communicator import SerialCommunicator
from distcache.ranks.progress import NullProgress
from distcache.ranks.workspace import Workspace


def workspace_of(final: Path) -> Workspace:
    """Return the workspace in which all jobs build a cache."""
    return Workspace(building_directory(final))


class Dying(NullProgress):
    """A progress whose build ends, as by an error of its own, when a phase begins."""

    def __init__(self, phase: str) -> None:
        self._phase = phase

    def phase(self, name: str, total: float = 0) -> None:
        """Raise in the chosen phase."""
        if name == self._phase:
            raise RuntimeError(f"ended in {name}")


def build_here(
    fields: dict[str, Any], directory: Path, name: str | None = None, **more: Any
) -> BuildOutcome:
    """Build with one process; more are the fields of `BuildOptions`, or `progress`."""
    progress = more.pop("progress", None)
    config = config_from_mapping(fields)
    return build(SerialCommunicator(), config, directory, name, BuildOptions(**more), progress)
