"""Let calls of the filesystem, and allocations of buffers, fail on one rank of threads."""

from __future__ import annotations

import builtins
import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.support.threads import rank_of_thread

CALLS = (
    *("open", "read", "write", "pread", "preadv", "pwrite", "fsync", "fdatasync", "ftruncate"),
    *("fstat", "stat", "lstat", "link", "symlink", "readlink", "rename", "replace", "unlink"),
    *("mkdir", "rmdir", "listdir", "scandir", "utime", "chmod", "fchmod", "statvfs"),
    *("posix_fallocate", "posix_fadvise"),
)
ALLOCATIONS = ["empty", "zeros", "full", "arange", "concatenate", "fromiter", "empty_like"]
OURS = os.sep + "distcache" + os.sep


class Site(NamedTuple):
    """A place in the program, and what is called there."""

    name: str
    file: str
    line: int


class Striker:
    """Notes where one rank calls what may fail, and lets a call at one place fail.

    Parameters
    ----------
    rank : int
        Whose calls.
    target : Site or None
        Where to strike; None to note the places only.
    error : str
        "EIO", "ENOSPC" or "MemoryError".
    last : bool
        Whether not the first call there fails, but the second.
    """

    def __init__(
        self, rank: int, target: Site | None = None, error: str = "EIO", *, last: bool = False
    ) -> None:
        self.rank = rank
        self.target = target
        self.error = error
        self.sites: dict[Site, int] = {}
        self.struck = False
        self._left = 2 if last else 1

    def called(self, name: str) -> None:
        """Count a call, and fail it if it is the one."""
        if rank_of_thread() != self.rank or (site := _site(name)) is None:
            return
        self.sites[site] = self.sites.get(site, 0) + 1
        if site == self.target and not self.struck:
            self._left -= 1
            if not self._left:
                self.struck = True
                if self.error == "MemoryError":
                    raise MemoryError("no buffer for you")
                number = getattr(errno, self.error)
                raise OSError(number, os.strerror(number))


def _site(name: str) -> Site | None:
    """Return the place in distcache that calls, directly or through the standard library."""
    frame = sys._getframe(3)
    for _ in range(6):
        if frame is None:
            return None
        file = frame.f_code.co_filename
        if OURS in file and "site-packages" not in file and f"{os.sep}tests{os.sep}" not in file:
            return Site(name, file.rpartition(OURS)[2], frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return None


@contextmanager
def striking(striker: Striker) -> Iterator[None]:
    """Let calls go through a striker."""
    with pytest.MonkeyPatch.context() as patch:

        def wrap(module: Any, name: str) -> None:
            original = getattr(module, name)

            def call(*words: Any, **more: Any) -> Any:
                striker.called(name)
                return original(*words, **more)

            patch.setattr(module, name, call)

        for name in CALLS:
            wrap(os, name)
        wrap(builtins, "open")
        for name in ALLOCATIONS:
            wrap(np, name)
        yield
