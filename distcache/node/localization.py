"""What all steps of one localization share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from distcache.node.manifest import Manifest
from distcache.node.records import LocalizeOptions
from distcache.node.staged_files import StagedFiles
from distcache.node.store import Store
from distcache.ranks.agreement import on_all_ranks_watched
from distcache.ranks.communicator import Communicator
from distcache.ranks.progress import Progress

Result = TypeVar("Result")


@dataclass(frozen=True)
class Localization:
    """The localization of one cache, on one of its agents.

    Attributes
    ----------
    agents : Communicator
        One of each node.
    readers : tuple of int
        The agents that see the shared cache, and read for the others.
    store : Store
        This node's, locked.
    manifest : Manifest
        The same files and blocks on all nodes.
    options : LocalizeOptions
        Options, with what earlier runs were asked for; the transport is "mpi" or "copy".
    progress : Progress
        Receives the progress of this agent.
    staged : StagedFiles
        The unfinished files on this node.
    """

    agents: Communicator
    readers: tuple[int, ...]
    store: Store
    manifest: Manifest
    options: LocalizeOptions
    progress: Progress
    staged: StagedFiles

    def on_all_agents_watched(self, action: Callable[[], Result], what: str) -> Result:
        """Run an action on local files as `on_all_ranks_watched` does. Collective."""
        return on_all_ranks_watched(self.agents, action, what)

    def bytes_of(self, blocks: Iterable[int]) -> int:
        """Return the bytes of some blocks."""
        return sum(self.manifest.blocks[number].size for number in blocks)
