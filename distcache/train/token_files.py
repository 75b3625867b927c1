"""Open `.bin` files: a bounded number of them, and reads that are tried again.

A shared file is never mapped: an error of the filesystem would end the process with SIGBUS, where a
read returns it.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from distcache.errors import CorpusError
from distcache.files import open_sized

__all__ = ["CAPACITY", "TRANSIENT", "TokenFiles", "pause_before"]

CAPACITY: Final = 56  # a loader keeps to 64 descriptors, with its lock and what comes and goes
ATTEMPTS: Final = 8
FIRST_PAUSE: Final = 0.05  # seconds; each is twice the one before, and a factor of 0.5 to 1.5
# What a network filesystem returns while a server restarts or a connection is made anew.
TRANSIENT: Final = frozenset(
    {
        errno.EAGAIN,
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EINTR,
        errno.EIO,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENOTCONN,
        errno.EREMOTEIO,
        errno.ESHUTDOWN,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)


def pause_before(attempt: int) -> float:
    """Return the seconds to wait before another attempt, counted from 1; never twice the same."""
    return FIRST_PAUSE * 2.0 ** (attempt - 1) * random.uniform(0.5, 1.5)  # noqa: S311


class TokenFiles:
    """Descriptors of `.bin` files, at most `CAPACITY`, those that were used last.

    Parameters
    ----------
    capacity : int
        How many.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self._open: OrderedDict[str, int] = OrderedDict()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close all."""
        while self._open:
            os.close(self._open.popitem()[1])

    def drop(self, path: str) -> None:
        """Close a file, so that it is opened anew."""
        descriptor = self._open.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def descriptors(self, files: Sequence[tuple[str, int]]) -> list[int]:
        """Return descriptors of files, at most `capacity` different ones.

        Parameters
        ----------
        files : sequence of (str, int)
            Paths, and the bytes that each must have.

        Raises
        ------
        CorpusError
            If a file has another length.
        OSError
            If a file cannot be opened, after several attempts where that may help.
        """
        needed = dict(files)
        for path in needed:
            if path in self._open:
                self._open.move_to_end(path)
        missing = [path for path in needed if path not in self._open]
        while self._open and len(self._open) + len(missing) > self.capacity:
            os.close(self._open.popitem(last=False)[1])
        for path in missing:
            self._open[path] = self._open_file(path, needed[path])
        return [self._open[path] for path, _ in files]

    def _open_file(self, path: str, size: int) -> int:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                descriptor, found = open_sized(path)
                break
            except OSError as error:
                if attempt == ATTEMPTS or error.errno not in TRANSIENT:
                    raise
                time.sleep(pause_before(attempt))
        if found != size:
            os.close(descriptor)
            raise CorpusError(
                f"{path}: has {found} bytes, the cache was built from {size}; build it again"
            )
        return descriptor
