"""Open a finished cache: one file, one mapping, and views at known offsets."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distcache.cache.contents import ArrayView, Contents, open_cache_file
from distcache.cache.format import Header
from distcache.errors import CacheCorrupt
from distcache.kernels import Mapping

__all__ = ["ArrayView", "Cache", "open_cache"]


class Cache(Contents):
    """An open cache. Its arrays are read-only views of one mapping of the file.

    Parameters
    ----------
    path : path
        For messages.
    header : Header
        Its checked header.
    mapped : Mapping
        The whole file.
    """

    def __init__(self, path: Path, header: Header, mapped: Mapping) -> None:
        super().__init__(path, header, memoryview(mapped)[header.tables_begin :])
        self.map = mapped

    def require_intact(self) -> None:
        """Refuse a file of which some bytes could not be read, and so were read as zeros.

        Raises
        ------
        CacheCorrupt
            If it has been cut short since it was opened, or its filesystem has failed.
        """
        if not self.map.intact:
            raise CacheCorrupt(
                f"{self.path}: could not be read to its end: it was cut short while it was open, "
                "or its filesystem failed; see `distcache verify`"
            )

    def read(self, view: ArrayView) -> NDArray[Any]:
        """Return an array as a read-only view of the mapping; nothing is copied."""
        count = math.prod(view.shape)
        return np.frombuffer(memoryview(self.map), view.dtype, count, view.offset).reshape(
            view.shape
        )


def open_cache(path: str | Path) -> Cache:
    """Open a finished cache and check everything that opening reads.

    Parameters
    ----------
    path : path
        A file that `distcache build` published.

    Returns
    -------
    Cache
        Its header, length and tables are as they were written. The arrays are not read;
        `distcache verify` does that.

    Raises
    ------
    NotReady
        If there is no such file.
    CacheCorrupt
        If it is not a whole cache.
    """
    path = Path(path)
    descriptor, header = open_cache_file(path)
    try:
        mapped = Mapping(descriptor, header.file_size)
    except OSError as error:
        raise CacheCorrupt(f"{path}: cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    cache = Cache(path, header, mapped)
    cache.require_intact()
    return cache
