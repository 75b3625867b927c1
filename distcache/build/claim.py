"""Decide who builds a cache: this job, another one that is at it, or nobody because it is there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from distcache.activity import moved
from distcache.build.workspace import Lock, Workspace, sweep
from distcache.cache import open_cache
from distcache.errors import DistcacheError, KeyMismatch
from distcache.life import Pulse
from distcache.progress import Progress
from distcache.timeouts import limits

__all__ = ["claim", "is_finished"]

POLL: Final = 0.5  # seconds between looks at another job's build
NOTE_EVERY: Final = 60.0  # seconds between messages about it


def is_finished(final: Path, key: str) -> bool:
    """Tell whether a cache is there and passes the checks that opening it makes.

    Raises
    ------
    CacheCorrupt
        If the file is not a whole cache.
    KeyMismatch
        If it is another cache.
    """
    if not os.path.lexists(final):
        return False
    if not final.exists():
        raise DistcacheError(f"{final}: a dangling symbolic link has this name; remove it")
    if not final.is_file():
        raise DistcacheError(
            f"{final}: has the cache's name, and is no file; move it away, or build under another "
            "--name"
        )
    found = open_cache(final).key
    if found != key:
        raise KeyMismatch(
            f"{final}: has key {found}, this configuration has {key}; `distcache explain` says "
            "what differs. Build under another --name, or move the file away"
        )
    return True


def claim(
    final: Path, key: str, progress: Progress, clock: Callable[[], float] = time.monotonic
) -> Workspace | None:
    """Become the builder of a cache, or wait for the one that there is.

    A builder that is gone leaves its lock, and its workspace is resumed. One that does not go on,
    and one of another user that is gone, is left alone: this job then builds in a workspace of its
    own, and whoever is done first publishes.

    Parameters
    ----------
    final : Path
        The cache's path.
    key : str
        What must be in it.
    progress : Progress
        Told whom this job waits for.
    clock : callable
        Seconds.

    Returns
    -------
    Workspace or None
        The workspace, this process's own; None if the cache is there.

    Raises
    ------
    CacheCorrupt, KeyMismatch
        As `is_finished`.
    """
    workspace = Workspace(final)
    pulse = Pulse(workspace.path, clock)
    noted = -NOTE_EVERY
    while not is_finished(final, key):
        state = workspace.lock()
        if state is Lock.HELD:
            if not workspace.take():
                workspace.leave()  # its lock does not exclude, and its builder lives
            elif not is_finished(final, key):
                return workspace
            else:
                workspace.remove()
                continue
        moved()
        pulse.look()
        if (reason := _reason_to_build_apart(state, pulse)) is not None:
            return _private(final, reason, progress)
        now = clock()
        if now - noted >= NOTE_EVERY:
            who = "another user" if pulse.hidden else pulse.sign or "another job"
            progress.note(f"waiting for {who}, which is building {final}")
            noted = now
        time.sleep(POLL)
    sweep(final)
    return None


def _reason_to_build_apart(state: Lock, pulse: Pulse) -> str | None:
    """Return why not to wait for another builder any longer, or None."""
    if state is Lock.UNSUPPORTED:
        return "the filesystem has no locks, so an unfinished build cannot be resumed"
    time_limits = limits()
    gone = state is Lock.FOREIGN and not pulse.hidden and not pulse.locked
    longest = time_limits.silent if gone else time_limits.abandoned
    if pulse.silence > longest:
        who = "another user's build" if state is Lock.FOREIGN else "the other builder"
        return f"{who} has shown no heartbeat for {longest:.0f} s"
    if pulse.stillness > time_limits.stalled:
        return f"no rank of the other build has moved for {time_limits.stalled:.0f} s"
    return None


def _private(final: Path, reason: str, progress: Progress) -> Workspace:
    progress.note(f"building apart from other jobs: {reason}")
    workspace = Workspace.of_this_process(final)
    workspace.make()
    return workspace
