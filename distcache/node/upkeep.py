"""Look after a store: list its caches, and read them back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from distcache.cache import open_cache
from distcache.cache.export import wrong_files
from distcache.cache.verify import verify_cache
from distcache.corpus import bin_path, idx_path
from distcache.errors import BuildInterrupted, CacheCorrupt, DistcacheError, NotReady
from distcache.files import open_sized
from distcache.node.landing import unit_matches
from distcache.node.lock import is_used
from distcache.node.record import Ready, read_records
from distcache.node.space import allocated
from distcache.node.store import Store, existing_store
from distcache.node.view import renamer
from distcache.node.wanted import Unit

__all__ = ["Held", "list_store", "open_store", "tree_bytes", "verify_store"]


class Held(msgspec.Struct, frozen=True):
    """A cache in a store.

    Attributes
    ----------
    record : Ready
        What it is.
    nbytes : int
        What it takes on the disk by itself; corpora may be shared with other caches.
    last_use : float
        Seconds since the epoch.
    used : bool
        Whether a process uses it now.
    """

    record: Ready
    nbytes: int
    last_use: float
    used: bool


def open_store(root: Path) -> Store:
    """Return the store at a path.

    Raises
    ------
    NotReady
        If there is none.
    DistcacheError
        If it is not one.
    """
    store = existing_store(root)
    if store is None:
        raise NotReady(f"{root}: there is no store; `distcache localize` makes one")
    return store


def list_store(store: Store) -> list[Held]:
    """Return the complete caches of a store, the one that was used last first."""
    mapped = _mapped_paths(store)
    held = [_held(store, record, mapped) for record in read_records(store)]
    return sorted(held, key=lambda entry: -entry.last_use)


def _held(store: Store, record: Ready, mapped: set[str]) -> Held:
    lock = store.use(record.name)
    own = str(store.view(record.name)) + "/"
    cache = str(store.cache(record.name))
    return Held(
        record=record,
        nbytes=allocated(store.cache(record.name)) + tree_bytes(store.view(record.name)),
        last_use=lock.stat().st_mtime if lock.exists() else 0.0,
        used=is_used(lock) or any(path == cache or path.startswith(own) for path in mapped),
    )


def _mapped_paths(store: Store) -> set[str]:
    """Return the files of a store that processes have mapped: Megatron takes no lock."""
    start = os.path.realpath(store.root) + "/"  # as the kernel names them
    found = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            text = maps.read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            continue
        found |= {
            f"{store.root}/{line.partition(start)[2]}"
            for line in text.splitlines()
            if start in line
        }
    return found


def tree_bytes(directory: Path) -> int:
    """Return what the files under a directory take on the disk; 0 if it is a link or not there."""
    if directory.is_symlink() or not directory.is_dir():
        return 0
    return sum(allocated(path) for path in directory.rglob("*"))


def verify_store(store: Store, threads: int = 2) -> list[str]:
    """Read every complete copy back, and return what is wrong with them."""
    problems: dict[str, None] = {}
    for record in read_records(store):
        for problem in _verify_copy(store, record, threads):
            problems[problem] = None
    return list(problems)


def _verify_copy(store: Store, record: Ready, threads: int) -> Iterator[str]:
    try:
        cache = open_cache(store.cache(record.name))
    except BuildInterrupted:
        raise
    except DistcacheError as error:
        yield from error.problems
        return
    try:
        verify_cache(cache, threads)
    except CacheCorrupt as error:
        yield from error.problems
    digests = [digest.decode("ascii", "replace") for digest in cache.table("sources")["idx_digest"]]

    def compare(number: int) -> str | None:
        corpus = record.corpora[number]
        path = idx_path(store.prefix(corpus.stem))
        return _compare(path, Unit(0, 0, corpus.idx_size, digests[number]))

    with ThreadPoolExecutor(threads) as pool:
        yield from filter(None, pool.map(compare, range(len(record.corpora))))
    if record.megatron is not None:
        rename = renamer(store, cache.prefixes, record.corpora)
        yield from wrong_files(cache, store.view(record.name), rename, record.tokenizer)
    if record.linked:
        for corpus in record.corpora:
            link = bin_path(store.prefix(corpus.stem))
            if not os.path.islink(link):
                yield f"{link}: the link to the tokens is gone"


def _compare(path: str, unit: Unit) -> str | None:
    try:
        descriptor, size = open_sized(path, follow=False)
    except OSError as error:
        return f"{path}: cannot be opened: {error.strerror}"
    try:
        right = size == unit.end and unit_matches(descriptor, unit)
        return None if right else f"{path}: differs from its digest"
    finally:
        os.close(descriptor)
