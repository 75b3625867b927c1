"""Locks of a store: for changes, and for users of a cache."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from distcache.errors import DistcacheError
from distcache.ranks.agreement import on_all_ranks
from distcache.ranks.communicator import Communicator
from distcache.ranks.progress import Progress
from distcache.storage.files import NO_LOCKS, set_time
from distcache.storage.locks import try_lock
from distcache.storage.timeouts import limits

NOTE_EVERY: Final = 60.0  # seconds between two messages
LOCK_POLL: Final = 0.5  # seconds
LOOK: Final = 0.01  # seconds between attempts to use a lock
LOOKS: Final = 500


def try_exclusive(path: Path) -> int | None:
    """Try to take an exclusive lock; return its descriptor, or None if it is taken.

    Raises
    ------
    DistcacheError
        If the filesystem has no locks: a store is local, where they are.
    """
    try:
        return try_lock(path)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise DistcacheError(
            f"{path.parent}: its filesystem has no locks ({error.strerror}), which a store needs; "
            "choose a directory on another one with --store"
        ) from error


def try_shared(path: Path) -> int | None:
    """Take a shared lock of a file that exists, and set the file's time.

    Usage checks hold the lock briefly, so retry.

    Returns
    -------
    int or None
        The descriptor that holds it, which belongs to the caller; None if the cache is being
        removed, or was.
    """
    with contextlib.suppress(OSError):
        for _ in range(LOOKS):
            if (descriptor := try_lock(path, shared=True, make=False)) is not None:
                with contextlib.suppress(OSError):  # of a store that may only be read
                    set_time(descriptor)
                return descriptor
            if not path.exists():
                break
            time.sleep(random.uniform(0.5, 1.5) * LOOK)  # noqa: S311
    return None


def is_used(path: Path) -> bool:
    """Return whether anybody has a lock."""
    descriptor = try_lock(path, make=False)
    if descriptor is None:
        return path.exists()
    os.close(descriptor)
    return False


@contextlib.contextmanager
def exclusive(
    agents: Communicator,
    path: Path,
    progress: Progress,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[bool]:
    """Hold the locks of the stores of all nodes, or of none, so that jobs cannot deadlock.

    Yields
    ------
    bool
        Whether another job had to be waited for, on any node.

    Raises
    ------
    DistcacheError
        On all agents, if others keep them for too long.
    """
    begin, noted, waited = clock(), -NOTE_EVERY, False
    with contextlib.ExitStack() as held:

        def try_lock() -> bool:
            descriptor = try_exclusive(path)
            if descriptor is not None:
                held.callback(os.close, descriptor)
            return descriptor is not None

        while True:
            mine = on_all_ranks(agents, try_lock, "locking the store")
            locks = agents.allgather(mine, bool, "locks of the stores")
            if all(locks):
                break
            waited = True
            held.close()
            if clock() - noted >= NOTE_EVERY:
                progress.note(f"waiting for another process that changes {path.parent}")
                noted = clock()
            late = agents.allgather(clock() - begin > limits().store_lock, bool, "patience")
            if any(late):
                raise DistcacheError(
                    f"{path}: another process has held this lock for "
                    f"{limits().store_lock:.0f} s; see who "
                    f"it is with `fuser {path}`"
                ).of_all_ranks(rank for rank, has in enumerate(locks) if not has)
            pause = random.uniform(LOCK_POLL / 2, 2 * LOCK_POLL)  # noqa: S311
            time.sleep(agents.broadcast(pause, float, "a pause"))
        yield waited
