"""Errors of a network filesystem that pass, and how long to wait before a retry."""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

Result = TypeVar("Result")

MAX_ATTEMPTS: Final = 8
FIRST_PAUSE: Final = 0.05  # seconds; each is twice the last, and a factor of 0.5 to 1.5
# What a network filesystem returns while a server restarts or a connection is restored.
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
    """Return the seconds to wait before a retry, with random jitter; attempts count from 1."""
    return FIRST_PAUSE * 2.0 ** (attempt - 1) * random.uniform(0.5, 1.5)  # noqa: S311


def retried(action: Callable[[], Result]) -> Result:
    """Return the result of an action, which is called again after errors that pass.

    Raises
    ------
    OSError
        If an error does not pass.
    """
    for attempt in range(1, MAX_ATTEMPTS):
        try:
            return action()
        except OSError as error:
            if error.errno not in TRANSIENT:
                raise
            time.sleep(pause_before(attempt))
    return action()
