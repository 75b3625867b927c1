"""Where a training process reads: the node's ready copy of a cache, or the shared files."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import msgspec

from distcache.cache import Cache, open_cache
from distcache.corpus import Idx, bin_path, open_idx
from distcache.errors import CacheCorrupt, CorpusError, NotReady, SharedFileWarning
from distcache.node.lock import use
from distcache.node.lookup import find_copy
from distcache.node.record import read_record
from distcache.node.store import Store

__all__ = ["Location", "Opened", "locate", "open_location"]


class Location(msgspec.Struct, frozen=True):
    """What a process needs to know to open a cache: little enough to be sent to every worker.

    Attributes
    ----------
    path : str
        The shared cache, absolute.
    store, name : str
        This node's store and the name of the copy in it; empty where the shared files are read.
    directory : str
        What relative paths of shared corpora start from.
    reason : str
        Why there, in a few words.
    """

    path: str
    store: str
    name: str
    directory: str
    reason: str


class Opened:
    """A cache that this process has open, and the paths of its corpora.

    Attributes
    ----------
    cache : Cache
        Mapped.
    is_local : bool
        Whether it is this node's copy.
    """

    def __init__(
        self, cache: Cache, indices: Sequence[str], tokens: Sequence[str], lock: int | None
    ) -> None:
        self.cache = cache
        self.is_local = lock is not None
        self._indices = indices
        self._tokens = tokens
        self._lock = lock

    def __del__(self) -> None:
        if self._lock is not None:
            os.close(self._lock)

    def bin_of(self, source: int) -> str:
        """Return the path of a corpus's tokens, which are shared."""
        return bin_path(self._tokens[source])

    def idx_of(self, source: int) -> Idx:
        """Map a corpus's index.

        Raises
        ------
        NotReady, CorpusError
            If it is not there, or not the one that the cache was built from.
        """
        idx = open_idx(self._indices[source])
        entry = self.cache.table("sources")[source]
        if (idx.size, len(idx.lengths)) != (int(entry["idx_size"]), int(entry["sequences"])):
            raise CorpusError(
                f"{idx.path}: is not the index that {self.cache.path} was built from; localize it "
                "again, or build it again"
            )
        return idx


def locate(path: str | Path, root: Path | None) -> Location:
    """Say where to read a cache from.

    Parameters
    ----------
    path : path
        The shared cache.
    root : Path or None
        This node's store, if there may be one.
    """
    source, here = os.path.abspath(path), os.getcwd()  # noqa: PTH109
    if root is None:
        return Location(source, "", "", here, "no local directory is set")
    found = find_copy(source, root)
    if isinstance(found, str):
        return Location(source, "", "", here, found)
    os.close(found.lock)
    return Location(source, str(root), found.record.name, here, "it is ready on this node")


def open_location(location: Location) -> Opened:
    """Open a cache where it was found, or else the shared file.

    A copy cannot be removed until it is closed.

    Raises
    ------
    NotReady
        If the shared file is not there.
    CacheCorrupt
        If it is not whole.
    """
    if not location.name:
        return _open_shared(location)
    try:
        return _open_copy(location)
    except (NotReady, CacheCorrupt) as error:
        # Another job may be mending it at this moment, or a cleaner may have taken it.
        warnings.warn(
            f"{location.path} is read from the shared filesystem: {error}",
            SharedFileWarning,
            stacklevel=2,
        )
        return _open_shared(location)


def _open_shared(location: Location) -> Opened:
    cache = open_cache(location.path)
    shared = [os.path.join(location.directory, prefix) for prefix in cache.prefixes]
    return Opened(cache, shared, shared, None)


def _open_copy(location: Location) -> Opened:
    store = Store(Path(location.store))
    lock = use(store.use(location.name))
    record = read_record(store, location.name)
    if lock is None or record is None:
        if lock is not None:
            os.close(lock)
        raise NotReady(f"{store.cache(location.name)}: is not ready any more; localize it again")
    try:
        cache = open_cache(store.cache(location.name))
    except BaseException:
        os.close(lock)
        raise
    local = [store.prefix(corpus.stem) for corpus in record.corpora]
    return Opened(cache, local, [corpus.shared for corpus in record.corpora], lock)
