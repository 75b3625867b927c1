"""File locks, which end with the process that holds them."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Final

from distcache.storage.files import NOT_ALLOWED

LOCK: Final = "lock"
"""Name of the lock file of a directory that one job fills."""


def try_lock(path: str | Path, *, shared: bool = False, make: bool = True) -> int | None:
    """Try to lock a file.

    Parameters
    ----------
    path : path
        The file; not a link.
    shared : bool
        Whether to take a shared lock.
    make : bool
        Whether to make the file if it does not exist.

    Returns
    -------
    int or None
        A descriptor that keeps the lock until it is closed. None if another process has the lock,
        or if the file does not exist or has just been removed.

    Raises
    ------
    OSError
        One of `distcache.storage.files.NO_LOCKS` if the filesystem has none.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if make else 0)
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileNotFoundError:
        return None
    except OSError as error:
        if not shared or error.errno not in NOT_ALLOWED:
            raise
        # A shared lock of a file on a filesystem that is read-only needs no right to write.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
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
