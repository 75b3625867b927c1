"""Decide who builds a cache: this job, another one that is at it, or nobody because it is there."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from distcache.build.workspace import Lock, Workspace, sweep
from distcache.cache import open_cache
from distcache.cache.life import Sign, read_sign
from distcache.errors import DistcacheError, KeyMismatch
from distcache.progress import Progress

__all__ = ["claim", "is_finished"]

POLL: Final = 0.5  # seconds between looks at another job's build
NOTE_EVERY: Final = 60.0  # seconds between messages about it
PATIENCE: Final = 120.0  # seconds without a sign of life, after which a builder is taken for dead


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
        raise DistcacheError(f"{final}: the name is taken by a link to nothing; remove it")
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

    A builder that is gone leaves its lock, and its workspace is resumed. One that keeps the lock
    but shows no sign of life is left alone: this job then builds in a workspace of its own, and
    whoever is done first publishes.

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
        The workspace, locked; None if the cache is there.

    Raises
    ------
    CacheCorrupt, KeyMismatch
        As `is_finished`.
    """
    workspace = Workspace(final)
    sign: Sign | None = None
    seen, noted = clock(), -NOTE_EVERY
    while not is_finished(final, key):
        state = workspace.lock()
        if state is Lock.HELD:
            if not is_finished(final, key):
                return workspace
            workspace.leave()
            continue
        now = clock()
        if (current := read_sign(workspace.path)) != sign:
            sign, seen = current, now
        if state is Lock.UNSUPPORTED or now - seen > PATIENCE:
            return _private(final, state, progress)
        if now - noted >= NOTE_EVERY:
            progress.note(f"waiting for {sign or 'another job'}, which builds {final}")
            noted = now
        time.sleep(POLL)
    with contextlib.suppress(OSError):
        sweep(final)
    return None


def _private(final: Path, state: Lock, progress: Progress) -> Workspace:
    reason = (
        "the filesystem has no locks, so an unfinished build cannot be resumed"
        if state is Lock.UNSUPPORTED
        else f"the other builder has shown no sign of life for {PATIENCE:.0f} s"
    )
    progress.note(f"building apart from other jobs: {reason}")
    workspace = Workspace.of_this_process(final)
    workspace.make()
    return workspace
