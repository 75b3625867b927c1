"""Every time limit of distcache, and what is read again after an error that passes.

``DISTCACHE_TIMEOUT_SCALE`` multiplies all limits.
docs/operations.md lists those that users meet, and a test compares them.
"""

from __future__ import annotations

import errno
import functools
import math
import os
import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from distcache.errors import ConfigError

SCALE: Final = "DISTCACHE_TIMEOUT_SCALE"
MAX_SCALE: Final = 100_000  # the longest limit is then 45 years
MAX_ATTEMPTS: Final = 8
FIRST_PAUSE: Final = 0.05  # seconds; each is twice the last, and a factor of 0.5 to 1.5
Result = TypeVar("Result")
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


class TimeLimits(msgspec.Struct, frozen=True):
    """All limits in seconds."""

    # a rank waits for the others in a collective; they may be waiting for another job
    collective: float = 4 * 3600.0
    # seconds without progress, on a node that localizes, or as MPI joins the ranks
    stalled: float = 600.0
    heartbeat: float = 2.0  # seconds between two heartbeats of a builder
    # seconds without a heartbeat of a workspace without an owner, as after an error
    silent: float = 8.0
    # seconds without a heartbeat, after which a job of another machine has died
    hung: float = 60.0
    # seconds without a heartbeat, after which nobody waits any more for a job that cannot be
    # followed: it is another user's, or its process lives
    abandoned: float = 600.0
    leftover: float = 3600.0  # seconds since a killed export has written what it has left
    store_lock: float = 3600.0  # seconds for the lock of a node's store
    command: float = 60.0  # seconds for an answer of a scheduler's command, or a launcher's
    slurm_silence: float = 600.0  # seconds without any answer of Slurm, while a job is followed
    # seconds for loading the MPI library to determine its name, and for transformers
    first_import: float = 120.0
    visible: float = 60.0  # seconds until another node sees a file, on a network filesystem
    requeue: float = 15.0  # seconds until Slurm has requeued what it may requeue
    fetcher_start: float = 60.0  # seconds until a fetcher that was started answers
    fetcher_idle: float = 10.0  # seconds without a client, after which a fetcher ends
    object_silence: float = 20.0  # seconds between two bytes of a store's answer
    object_store: float = 300.0  # a store of objects does not answer, where somebody waits for it
    signal: float = 10.0  # seconds until all ranks have noticed a signal


@functools.cache
def limits() -> TimeLimits:
    """Return the limits of this process.

    Raises
    ------
    ConfigError
        If the variable is not a positive number.
    """
    text = os.environ.get(SCALE, "1")
    try:
        scale = float(text)
    except ValueError:
        scale = math.nan
    if not 0 < scale <= MAX_SCALE:
        raise ConfigError(f"{SCALE}={text!r}: expected a number from 0 to {MAX_SCALE}, such as 2")
    return TimeLimits(
        **{name: scale * value for name, value in msgspec.structs.asdict(TimeLimits()).items()}
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
