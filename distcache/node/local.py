"""What an agent does on its own node, which may hang there without a word."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from distcache.activity import run_watched
from distcache.ranks.agreement import together
from distcache.ranks.communicator import Communicator
from distcache.timeouts import limits

__all__ = ["locally"]

Result = TypeVar("Result")


def locally(agents: Communicator, action: Callable[[], Result], what: str) -> Result:
    """Do something with files that may fail, or hang, on some nodes. Collective.

    As `distcache.ranks.agreement.together`; and where nothing moves on a node for as long as
    `limits().stalled`, that is the error of its agent.
    """
    return together(agents, lambda: run_watched(action, limits().stalled, what), what)
