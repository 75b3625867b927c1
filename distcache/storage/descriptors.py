"""The limit of open files of this process."""

from __future__ import annotations

import contextlib
import resource
from typing import Final

UNLIMITED: Final = 1 << 14  # descriptors that are asked for, where there is no limit


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = UNLIMITED if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY:
        return limit
    if soft < limit:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            return limit
    return soft
