"""Wait for a cache without a collective: by its file, and the sign of life of who builds it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from distcache.cache.contents import read_contents
from distcache.cache.life import LOCK, Sign, building_directories, read_sign
from distcache.errors import BuildInterrupted, NotReady

__all__ = ["Readiness", "State", "Watch", "look", "wait"]

POLL: Final = 0.5  # seconds
LONGEST_PAUSE: Final = 3.0  # seconds
# A builder gives a sign every two seconds; a network filesystem may show it late.
SILENT: Final = 8.0  # seconds without a sign, of a builder that does not hold its lock
HUNG: Final = 60.0  # seconds without a sign, of one that does, or of whom nobody can say


class State(StrEnum):
    """What becomes of a cache."""

    absent = "not started"
    building = "in progress"
    ready = "ready"
    dead = "the builder has died"


class Readiness(msgspec.Struct, frozen=True):
    """What one look at a cache shows.

    Attributes
    ----------
    path : str
        The cache.
    state : State
        What becomes of it.
    phase : str
        What its builder does, if there is one.
    fraction : float or None
        How much of the phase is done, from 0 to 1.
    builder : str
        Process and host.
    sign : str
        Its last sign of life, another one each time.
    locked : bool
        Whether it holds its lock.
    """

    path: str
    state: State
    phase: str = ""
    fraction: float | None = None
    builder: str = ""
    sign: str = ""
    locked: bool = False

    def __str__(self) -> str:
        if self.state in (State.absent, State.ready):
            return f"{self.path}: {self.state}"
        done = "" if self.fraction is None else f" {self.fraction:.0%}"
        what = f"{self.phase}{done}, {self.builder}" if self.builder else "no sign of it"
        return f"{self.path}: {self.state} ({what})"


class Watch:
    """Looks at a cache again and again; only this process's own clock counts.

    Parameters
    ----------
    path : path
        The cache.
    clock : callable
        Seconds.
    """

    def __init__(self, path: str | Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = Path(os.path.abspath(path))
        self._clock = clock
        self._seen: dict[Path, tuple[Sign | None, float]] = {}

    def look(self) -> Readiness:
        """Look once.

        Raises
        ------
        CacheCorrupt
            If there is a file that is not a whole cache.
        """
        with contextlib.suppress(NotReady):
            read_contents(self._path)
            return Readiness(str(self._path), State.ready)
        # A network filesystem may list a directory for a while after it has gone.
        directories = [path for path, _ in building_directories(self._path) if path.is_dir()]
        found = [self._look_at(directory) for directory in directories]
        if not any(entry.state is State.building for entry in found):
            with contextlib.suppress(NotReady):  # it may have been published in between
                read_contents(self._path)
                return Readiness(str(self._path), State.ready)
        for state in (State.building, State.dead):
            for entry in found:
                if entry.state is state:
                    return entry
        return Readiness(str(self._path), State.absent)

    def _look_at(self, directory: Path) -> Readiness:
        sign, now = read_sign(directory), self._clock()
        known, since = self._seen.get(directory, (None, now))
        if directory not in self._seen or sign != known:
            since = now
            self._seen[directory] = (sign, now)
        silence = now - since
        locked = _is_locked(directory)
        limit = HUNG if locked else SILENT
        state = State.dead if silence > limit else State.building
        found = Readiness(str(self._path), state, locked=locked)
        if sign is None:
            return found
        return msgspec.structs.replace(
            found,
            phase=sign.phase,
            fraction=sign.fraction,
            builder=f"process {sign.process} on {sign.host}",
            sign=sign.sign,
        )


def _is_locked(directory: Path) -> bool:
    """Tell whether a builder holds the lock of its directory, as far as this node can see."""
    try:
        descriptor = os.open(
            directory / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def look(path: str | Path) -> Readiness:
    """Say what becomes of a cache, after some seconds if a builder does not hold its lock.

    Raises
    ------
    CacheCorrupt
        If there is a file that is not a whole cache.
    """
    watch = Watch(path)
    first = found = watch.look()
    while found.state is State.building and found.sign == first.sign and not found.locked:
        time.sleep(POLL)
        found = watch.look()
    return found


def wait(
    path: str | Path,
    timeout: float = 1800.0,
    tell: Callable[[Readiness], None] | None = None,
) -> Readiness:
    """Wait until a cache is ready. No collective: every process looks for itself.

    Parameters
    ----------
    path : path
        The cache.
    timeout : float
        Seconds after which to give up.
    tell : callable or None
        Told whenever something new is seen.

    Returns
    -------
    Readiness
        That it is ready; at once, if it is.

    Raises
    ------
    BuildInterrupted
        Within seconds, if its builder has died; building again resumes.
    NotReady
        If it is not ready in time.
    CacheCorrupt
        If there is a file that is not a whole cache.
    """
    watch = Watch(path)
    end = time.monotonic() + timeout
    last, pause = "", POLL
    while (found := watch.look()).state is not State.ready:
        if found.state is State.dead:
            raise BuildInterrupted(f"{found}; build it again, which resumes")
        if str(found) != last and tell is not None:
            tell(found)
        last = str(found)
        if (left := end - time.monotonic()) <= 0:
            raise NotReady(f"{found}, after {timeout:.0f} s")
        # Many wait: not all at the same moment, and less often the longer they do.
        time.sleep(min(pause * random.uniform(0.5, 1.5), left))  # noqa: S311
        pause = min(1.2 * pause, LONGEST_PAUSE)
    return found
