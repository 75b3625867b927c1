"""Find the ready copy of a cache on this node, for those who only read."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from distcache.cache.contents import open_cache_file
from distcache.corpus import idx_path
from distcache.errors import NotReady
from distcache.node.lock import use
from distcache.node.record import Ready, read_record, read_records
from distcache.node.store import Store, cache_name, existing_store

__all__ = ["Copy", "find_copy"]


class Copy(msgspec.Struct, frozen=True):
    """A ready copy that is being used.

    Attributes
    ----------
    store : Store
        Where it is.
    record : Ready
        What it is.
    lock : int
        The descriptor that keeps it from being removed; it belongs to the caller.
    """

    store: Store
    record: Ready
    lock: int


def find_copy(path: str | Path, root: Path) -> Copy | str:
    """Find the copy of a shared cache in a store, and keep it from being removed.

    The shared file's header says which copy is meant; where it cannot be read any more, the copy
    that was made of this path is.

    Parameters
    ----------
    path : path
        The shared cache.
    root : Path
        The store.

    Returns
    -------
    Copy or str
        The copy, or in a few words why there is none.

    Raises
    ------
    DistcacheError
        If there is something else at `root`.
    CacheCorrupt
        If the shared file is there and is not a cache.
    """
    store = existing_store(root)
    if store is None:
        return f"there is no store at {root}"
    source = os.path.abspath(path)
    name = _name_of(store, source)
    if name is None:
        return f"{root} has no copy of it"
    lock = use(store.use(name))
    record = read_record(store, name) if lock is not None else None
    problem = None if record is None else _what_is_missing(store, record)
    if lock is not None and record is not None and problem is None:
        return Copy(store, record, lock)
    if lock is not None:
        os.close(lock)
    return problem or f"{root} has no complete copy of it"


def _name_of(store: Store, source: str) -> str | None:
    try:
        descriptor, header = open_cache_file(Path(source))
    except NotReady:
        return next((found.name for found in read_records(store) if found.source == source), None)
    os.close(descriptor)
    return cache_name(header)


def _what_is_missing(store: Store, record: Ready) -> str | None:
    """Look whether all files are there: a node's cleaner may have taken some."""
    files = {str(store.cache(record.name)): record.size}
    files |= {idx_path(store.prefix(corpus.stem)): corpus.idx_size for corpus in record.corpora}
    for path, size in files.items():
        try:
            found = os.lstat(path).st_size
        except OSError as error:
            return f"{path}: {error.strerror}; localize it again"
        if found != size:
            return f"{path} has {found} bytes, expected {size}; localize it again"
    return None
