"""Wait for a cache without a collective: by its file, and the sign of life of who builds it."""

from __future__ import annotations

import contextlib
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
from distcache.life import Pulse, building_directories
from distcache.timeouts import limits

__all__ = ["Readiness", "State", "Watch", "look", "wait"]

POLL: Final = 0.5  # seconds
LONGEST_PAUSE: Final = 3.0  # seconds


class State(StrEnum):
    """What becomes of a cache."""

    absent = "not started"
    building = "in progress"
    ready = "ready"
    dead = "the builder has died"
    hung = "the builder hangs"


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
    quiet : str
        Which ranks have not moved for long.
    """

    path: str
    state: State
    phase: str = ""
    fraction: float | None = None
    builder: str = ""
    sign: str = ""
    locked: bool = False
    quiet: str = ""

    @property
    def advice(self) -> str:
        """What to do where a builder has died or hangs."""
        if self.state is State.hung:
            return "end that job, then build again, which resumes"
        return "build it again, which resumes"

    def __str__(self) -> str:
        if self.state in (State.absent, State.ready):
            return f"{self.path}: {self.state}"
        done = "" if self.fraction is None else f" {self.fraction:.0%}"
        phase = f"{self.phase}{done}, " if self.phase else ""
        quiet = f"; {self.quiet}" if self.quiet else ""
        return f"{self.path}: {self.state} ({phase}{self.builder or 'no heartbeat'}{quiet})"


class Watch:
    """Looks at a cache again and again; only this process's own clock counts.

    Parameters
    ----------
    path : path
        The cache.
    clock : callable
        Seconds.
    sparing : bool
        Whether to look at a builder's lock only when its heartbeat is missing: a look holds the
        lock for a moment, and thousands that wait would keep a builder from getting it.
    """

    def __init__(
        self,
        path: str | Path,
        clock: Callable[[], float] = time.monotonic,
        *,
        sparing: bool = False,
    ) -> None:
        self._path = Path(os.path.abspath(path))
        self._clock = clock
        self._sparing = sparing
        self._seen: dict[Path, Pulse] = {}
        limits()  # what is wrong with them is said at once

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
        for state in (State.building, State.hung, State.dead):
            for entry in found:
                if entry.state is state:
                    return entry
        return Readiness(str(self._path), State.absent)

    def _look_at(self, directory: Path) -> Readiness:
        pulse = self._seen.setdefault(directory, Pulse(directory, self._clock))
        pulse.look()
        missing = pulse.silence > limits().silent
        locked = (missing or not self._sparing) and pulse.locked
        found = Readiness(str(self._path), self._state_of(pulse, locked=locked), locked=locked)
        if pulse.hidden:
            return msgspec.structs.replace(found, builder="of another user, and not to be seen")
        if (sign := pulse.sign) is None:
            return found
        return msgspec.structs.replace(
            found,
            phase=sign.phase,
            fraction=sign.fraction,
            builder=f"process {sign.process} on {sign.host}",
            sign=sign.sign,
            quiet=sign.quiet,
        )

    def _state_of(self, pulse: Pulse, *, locked: bool) -> State:
        """Say whether a builder lives; of one that cannot be seen nobody says that it does not."""
        if pulse.hidden:
            return State.building
        if pulse.silence > (limits().hung if locked else limits().silent):
            return State.dead
        return State.hung if pulse.stillness > limits().stalled else State.building


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
    given: tuple[object, object] = path, timeout
    seconds = isinstance(given[1], int | float) and math.isfinite(given[1])
    if not (isinstance(given[0], str | os.PathLike) and seconds):
        raise ConfigError(f"wait({path!r}, {timeout!r}): expected a path, and seconds")
    watch = Watch(path, sparing=True)
    end = time.monotonic() + timeout
    last, pause = "", POLL
    while (found := watch.look()).state is not State.ready:
        if found.state in (State.dead, State.hung):
            raise BuildInterrupted(f"{found}; {found.advice}")
        if str(found) != last and tell is not None:
            tell(found)
        last = str(found)
        if (left := end - time.monotonic()) <= 0:
            raise NotReady(f"{found}, after {timeout:.0f} s")
        # Many wait: not all at the same moment, and less often the longer they do.
        time.sleep(min(pause * random.uniform(0.5, 1.5), left))  # noqa: S311
        pause = min(1.2 * pause, LONGEST_PAUSE)
    return found
