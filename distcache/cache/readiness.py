"""Wait for a cache without a collective: by its file, and the heartbeat of its builder."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from distcache.cache.contents import read_contents
from distcache.errors import BuildInterrupted, ConfigError, NotReady
from distcache.ranks.owner import Monitor
from distcache.ranks.workspace import hidden_directory
from distcache.storage.timeouts import limits
from distcache.storage.url import is_url, located

READY_POLL: Final = 0.5  # seconds
MAX_PAUSE: Final = 3.0  # seconds


def building_directory(final: Path) -> Path:
    """Return the workspace in which all jobs build a cache."""
    return hidden_directory(final, "building")


RESUME_ADVICE: Final = "build it again, which resumes"


class State(StrEnum):
    """The state of a cache."""

    absent = "not started"
    building = "in progress"
    ready = "ready"
    dead = "the builder has died"


class Readiness(msgspec.Struct, frozen=True):
    """The state of a cache and of its builder.

    Attributes
    ----------
    path : str
        The cache.
    state : State
        State of the cache.
    phase : str
        The current phase of its builder, if there is one.
    fraction : float or None
        Progress of the phase, from 0 to 1.
    builder : str
        Process and host.
    heartbeat_id : str
        Identity of the builder's last heartbeat; differs in each.
    """

    path: str
    state: State
    phase: str = ""
    fraction: float | None = None
    builder: str = ""
    heartbeat_id: str = ""

    def __str__(self) -> str:
        if self.state in (State.absent, State.ready):
            return f"{self.path}: {self.state}"
        done = "" if self.fraction is None else f" {self.fraction:.0%}"
        phase = f"{self.phase}{done}, " if self.phase else ""
        return f"{self.path}: {self.state} ({phase}{self.builder or 'no heartbeat'})"


class Watch:
    """Watches a cache, by the clock of this process only.

    Parameters
    ----------
    path : path
        The cache.
    clock : callable
        Seconds.
    """

    def __init__(self, path: str | Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = located(path)
        self._clock = clock
        self._monitor: Monitor | None = None
        limits()  # raises at once if they are invalid

    def look(self) -> Readiness:
        """Look once.

        Raises
        ------
        NotReady
            If the cache exists, but cannot be opened.
        CacheCorrupt
            If there is a file that is not a whole cache.
        """
        if self._exists():
            return Readiness(self._path, State.ready)
        if is_url(self._path):
            return Readiness(self._path, State.absent)  # a bucket has no signs of a builder
        directory = building_directory(Path(self._path))
        found = self._look_at(directory) if directory.is_dir() else None
        # It may have been published in between.
        if (found is None or found.state is not State.building) and self._exists():
            return Readiness(self._path, State.ready)
        return found or Readiness(self._path, State.absent)

    def _exists(self) -> bool:
        """Return whether the cache is there; raise `NotReady` if it cannot be opened."""
        try:
            read_contents(self._path)
        except NotReady as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return False
            raise
        return True

    def _look_at(self, directory: Path) -> Readiness:
        monitor = self._monitor = self._monitor or Monitor(directory, self._clock)
        monitor.look()
        found = Readiness(self._path, self._state_of(monitor))
        if monitor.hidden:
            return msgspec.structs.replace(found, builder="of another user, and not to be seen")
        if (beat := monitor.beat) is None:
            return found
        return msgspec.structs.replace(
            found,
            phase=beat.phase,
            fraction=beat.fraction,
            builder=f"process {beat.process} on {beat.host}",
            heartbeat_id=beat.id,
        )

    def _state_of(self, monitor: Monitor) -> State:
        """Return the state of a builder; one that cannot be seen counts as alive."""
        if monitor.hidden:
            return State.building
        if monitor.silence > (limits().hung if monitor.is_owned else limits().silent):
            return State.dead
        return State.building


def look(path: str | Path) -> Readiness:
    """Return the state of a cache; takes some seconds, in which a builder shows a heartbeat.

    Raises
    ------
    NotReady
        If the cache exists, but cannot be opened.
    CacheCorrupt
        If there is a file that is not a whole cache.
    """
    watch = Watch(path)
    first = found = watch.look()
    while found.state is State.building and found.heartbeat_id == first.heartbeat_id:
        time.sleep(READY_POLL)
        found = watch.look()
    return found


def wait(
    path: str | Path,
    timeout: float = 1800.0,
    tell: Callable[[Readiness], None] | None = None,
) -> Readiness:
    """Wait until a cache is ready. Not collective: every process looks for itself.

    Parameters
    ----------
    path : path
        The cache.
    timeout : float
        Seconds after which waiting ends.
    tell : callable or None
        Called whenever the state has changed.

    Returns
    -------
    Readiness
        Readiness of the cache; returned at once if the cache is ready.

    Raises
    ------
    BuildInterrupted
        Within seconds, if its builder has died; building again resumes.
    NotReady
        If it is not ready in time; at once, if it exists and cannot be opened.
    CacheCorrupt
        If there is a file that is not a whole cache.
    """
    given: tuple[object, object] = path, timeout
    seconds = isinstance(given[1], int | float) and math.isfinite(given[1])
    if not (isinstance(given[0], str | os.PathLike) and seconds):
        raise ConfigError(f"wait({path!r}, {timeout!r}): expected a path, and seconds")
    watch = Watch(path)
    end = time.monotonic() + timeout
    last, pause = "", READY_POLL
    while (found := watch.look()).state is not State.ready:
        if found.state is State.dead:
            raise BuildInterrupted(f"{found}; {RESUME_ADVICE}")
        if str(found) != last and tell is not None:
            tell(found)
        last = str(found)
        if (left := end - time.monotonic()) <= 0:
            raise NotReady(f"{found}, after {timeout:.0f} s")
        # With jitter and growing pauses, since thousands of processes may wait.
        time.sleep(min(pause * random.uniform(0.5, 1.5), left))  # noqa: S311
        pause = min(1.2 * pause, MAX_PAUSE)
    return found
