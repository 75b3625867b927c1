"""Directories of unfinished files, and the lock in each, which goes when they go."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Final

__all__ = ["LOCK", "NO_LOCKS", "discard_empty", "empty_directory", "try_lock"]

LOCK: Final = "lock"

NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of filesystems that have no locks."""


def try_lock(path: str | Path) -> int | None:
    """Try to lock a file, which is made if it is not there.

    Parameters
    ----------
    path : path
        The file; not a link.

    Returns
    -------
    int or None
        A descriptor that keeps the lock until it is closed. None if another process has the lock,
        or has just removed the file or its directory.

    Raises
    ------
    OSError
        One of `NO_LOCKS` if the filesystem has none.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            held, descriptor = descriptor, -1
            return held
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return None


def discard_empty(directory: Path, remains: Collection[str] = (LOCK,)) -> None:
    """Remove a directory if there is nothing in it but files of some names, which nobody needs."""
    with contextlib.suppress(OSError):
        if set(os.listdir(directory)).issubset(remains):
            for name in remains:
                (directory / name).unlink(missing_ok=True)
            directory.rmdir()


def empty_directory(path: Path, keep: Collection[str] = (), lock: int | None = None) -> None:
    """Remove what a directory has, but for some names; another process may remove the same.

    Parameters
    ----------
    path : Path
        A directory of this user. Whoever may write to the one above it could have put a link, or
        another directory of this user, in its place.
    keep : collection of str
        Names that stay.
    lock : int or None
        A descriptor of its lock, by which it is known to be the right one.

    Raises
    ------
    OSError
        If it is another directory, or something cannot be removed.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not _is_own(descriptor, lock):
            raise PermissionError(
                errno.EPERM,
                "Is not the directory that was locked: it or its lock was removed or exchanged",
                str(path),
            )
        for name in os.listdir(descriptor):
            if name not in keep:
                _remove(name, descriptor)
    finally:
        os.close(descriptor)


def _is_own(descriptor: int, lock: int | None) -> bool:
    if os.fstat(descriptor).st_uid != os.geteuid():
        return False
    if lock is None:
        return True
    try:
        found = os.stat(LOCK, dir_fd=descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(lock))


def _remove(name: str, directory: int) -> None:
    """Remove a file or link, or a directory that somebody has put in a file's place."""
    with contextlib.suppress(FileNotFoundError):
        try:
            os.unlink(name, dir_fd=directory)
        except IsADirectoryError:
            shutil.rmtree(name, dir_fd=directory)
