"""The temporary credentials of a node: those of the newest job of an account serve all.

Ranks and jobs of one account may have sessions of their own, which end at different times. Each
client offers its session when it connects, and the fetcher uses the one that was offered last. If a
store refuses that one, the newest of the others takes its place.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

from distcache.storage.access import SESSION, session_of
from distcache.storage.place import use_variables


class Sessions:
    """The sessions that clients have offered; from any thread."""

    def __init__(self) -> None:
        own = session_of(os.environ)
        self._offered: list[dict[str, str]] = [own] if own else []
        self._lock = threading.Lock()

    @property
    def current(self) -> Mapping[str, str]:
        """The session in use; empty if credentials come from elsewhere."""
        with self._lock:
            return self._offered[-1] if self._offered else {}

    def offer(self, session: dict[str, str]) -> None:
        """Use a session that is new."""
        with self._lock:
            if session and session not in self._offered:
                self._offered.append(session)
                use_variables({name: session.get(name) for name in SESSION})

    def replace(self, refused: Mapping[str, str], *, has_ended: bool) -> bool:
        """Use another session than one that a store has refused; return whether there is one.

        One that has ended is forgotten. Another may only lack the right to one object.
        """
        with self._lock:
            others = [session for session in self._offered if session != refused]
            if not others:
                return False
            if self._offered[-1] == refused:
                use_variables({name: others[-1].get(name) for name in SESSION})
            kept = [] if has_ended else [session for session in self._offered if session == refused]
            self._offered = [*kept, *others]
            return True

    @property
    def count(self) -> int:
        """How many there are."""
        with self._lock:
            return len(self._offered)
