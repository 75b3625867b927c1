"""Locks of a store: of who changes it, and of who uses a cache in it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from distcache.errors import DistcacheError
from distcache.locks import NO_LOCKS
from distcache.progress import Progress
from distcache.ranks.agreement import together
from distcache.ranks.communicator import Communicator
from distcache.timeouts import limits

__all__ = ["changing", "is_used", "lock_alone", "use"]

NOTE_EVERY: Final = 60.0  # seconds between messages about who is waited for
POLL: Final = 0.5  # seconds
LOOK: Final = 0.01  # seconds between attempts to use a lock
LOOKS: Final = 500


def lock_alone(path: Path) -> int | None:
    """Take a lock that nobody else then has; the descriptor that holds it, None if it is taken.

    Raises
    ------
    DistcacheError
        If the filesystem has no locks: a store is local, where they are.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        if _flock(descriptor, fcntl.LOCK_EX) and _has_name(descriptor, path):
            held, descriptor = descriptor, -1
            return held
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise DistcacheError(
            f"{path.parent}: its filesystem has no locks ({error.strerror}), which a store needs; "
            "choose a directory on another one with --to"
        ) from error
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return None


def use(path: Path) -> int | None:
    """Take part in a lock that must be there; its time becomes now.

    Who looks whether a cache is used holds its lock for a moment, and is waited for.

    Returns
    -------
    int or None
        The descriptor that holds it, which belongs to the caller; None if the cache is being
        removed, or was.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        for _ in range(LOOKS):
            if _flock(descriptor, fcntl.LOCK_SH):
                break
            time.sleep(random.uniform(0.5, 1.5) * LOOK)  # noqa: S311
        else:
            os.close(descriptor)
            return None
        if _has_name(descriptor, path):
            os.utime(descriptor)
            return descriptor
    os.close(descriptor)
    return None


def is_used(path: Path) -> bool:
    """Tell whether anybody takes part in a lock."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _flock(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


def _flock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def _has_name(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def changing(
    agents: Communicator,
    path: Path,
    progress: Progress,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[bool]:
    """Hold the locks of the stores of all nodes: of all or of none, so that jobs do not cross.

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
            descriptor = lock_alone(path)
            if descriptor is not None:
                held.callback(os.close, descriptor)
            return descriptor is not None

        while True:
            mine = together(agents, try_lock, "locking the store")
            locks = agents.gather_all(mine, bool, "locks of the stores")
            if all(locks):
                break
            waited = True
            held.close()
            if clock() - noted >= NOTE_EVERY:
                progress.note(f"waiting for another process that changes {path.parent}")
                noted = clock()
            late = agents.gather_all(clock() - begin > limits().store_lock, bool, "patience")
            if any(late):
                error = DistcacheError(
                    f"{path}: another process has held this lock for "
                    f"{limits().store_lock:.0f} s; see who "
                    f"it is with `fuser {path}`"
                )
                error.agreed = True
                error.failed_ranks = tuple(rank for rank, has in enumerate(locks) if not has)
                raise error
            pause = random.uniform(POLL / 2, 2 * POLL)  # noqa: S311
            time.sleep(agents.broadcast(pause, float, "a pause"))
        yield waited
