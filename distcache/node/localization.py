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
    """The localization of one cache, on one of its agents."""

    agents: Communicator  # one of each node
    readers: tuple[int, ...]  # the agents that see the shared cache, and read for the others
    store: Store  # this node's, locked
    manifest: Manifest  # the same files and blocks on all nodes
    # options, with what earlier runs were asked for; the transport is "mpi" or "copy"
    options: LocalizeOptions
    progress: Progress  # receives the progress of this agent
    staged: StagedFiles  # the unfinished files on this node

    def on_all_agents_watched(self, action: Callable[[], Result], what: str) -> Result:
        """Run an action on local files as `on_all_ranks_watched` does. Collective."""
        return on_all_ranks_watched(self.agents, action, what)

    def bytes_of(self, blocks: Iterable[int]) -> int:
        """Return the bytes of some blocks."""
        return sum(self.manifest.blocks[number].size for number in blocks)
