"""Workspaces of builds, and builds that end in a phase."""

from __future__ import annotations

from pathlib import Path

from distcache.cache.readiness import building_directory
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
