"""Build caches in this process, for tests of what comes after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distcache.build.run import Options, Outcome, build
from distcache.plan.decode import config_from_mapping
from distcache.progress import Silent
from distcache.ranks.communicator import SerialCommunicator

__all__ = ["Dying", "build_here"]


class Dying(Silent):
    """A progress whose build ends, as by an error of its own, when a phase begins."""

    def __init__(self, phase: str) -> None:
        self._phase = phase

    def phase(self, name: str, total: float = 0) -> None:
        """Raise in the chosen phase."""
        if name == self._phase:
            raise RuntimeError(f"ended in {name}")


def build_here(
    fields: dict[str, Any], directory: Path, name: str | None = None, **more: Any
) -> Outcome:
    """Build with one process; more are the fields of `Options`, or `progress`."""
    progress = more.pop("progress", None)
    config = config_from_mapping(fields)
    return build(SerialCommunicator(), config, directory, name, Options(**more), progress)
