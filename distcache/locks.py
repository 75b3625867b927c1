"""Locks between processes, on files that the holder may remove together with what they guard."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Final

__all__ = ["NO_LOCKS", "try_lock"]

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
