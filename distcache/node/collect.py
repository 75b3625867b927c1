"""Remove from a store what it made and nobody uses, oldest use first, down to a budget."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from distcache.node.lock import changing, is_used, lock_alone
from distcache.node.record import LocalCorpus, read_records
from distcache.node.space import allocated
from distcache.node.store import Store
from distcache.node.upkeep import Held, list_store, tree_bytes
from distcache.node.wanted import Wanted
from distcache.progress import Progress
from distcache.ranks.communicator import SerialCommunicator

__all__ = ["Collected", "bytes_of", "collect", "make_room"]

_CACHE: Final = r"[0-9a-f]{16}-[0-9a-f]{16}"
_CORPUS: Final = r".+-[0-9a-f]{16}"
# Whatever has another name was put there by somebody else, and stays.
CACHES: Final = re.compile(rf"({_CACHE})\.(?:h5|json|lock)|\.({_CACHE})\.(?:h5|json)\..*part")
CORPORA: Final = re.compile(rf"({_CORPUS})\.(?:idx|bin)|\.({_CORPUS})\.(?:idx|bin)\..*part")
VIEWS: Final = re.compile(rf"({_CACHE})()")
VIEW_FILES: Final = re.compile(
    r"\.?(?:[0-9a-f]{32}-(?:GPT|Blended)Dataset-|distcache-[0-9a-f]{16}).*"
)


class Collected(msgspec.Struct, frozen=True):
    """What a collection came to.

    Attributes
    ----------
    removed, in_use : list of str
        Names of the caches that were removed, and of those that stay because they are used.
    freed, nbytes : int
        Bytes that the store took more before, and takes now.
    """

    removed: list[str]
    in_use: list[str]
    freed: int
    nbytes: int


def collect(store: Store, budget: int, progress: Progress, *, dry_run: bool = False) -> Collected:
    """Remove caches, the one whose last use is oldest first, until a store is within its budget.

    What no complete cache needs is removed in any case: unfinished files, and corpora of caches
    that are gone. A cache in use stays.

    Parameters
    ----------
    store : Store
        The store.
    budget : int
        Bytes that it may take.
    progress : Progress
        Told whom this waits for.
    dry_run : bool
        Whether nothing is removed, and it is only told what would be.

    Returns
    -------
    Collected
        What was, or would be, removed.
    """
    with changing(SerialCommunicator(), store.lock, progress):
        return _collect(store, budget, dry_run=dry_run)


def make_room(store: Store, budget: int, wanted: Wanted) -> Collected:
    """Remove what `collect` would, but nothing of one cache; the store must be locked.

    Parameters
    ----------
    store : Store
        The store.
    budget : int
        Bytes that it may take.
    wanted : Wanted
        What is being brought.
    """
    return _collect(store, budget, keep=wanted)


def bytes_of(store: Store) -> int:
    """Return the bytes that a store takes."""
    return sum(map(tree_bytes, (store.caches, store.corpora, store.megatron)))


def _collect(
    store: Store, budget: int, *, dry_run: bool = False, keep: Wanted | None = None
) -> Collected:
    before = now = bytes_of(store)
    kept = {record.name: _needs(record.name, record.corpora) for record in read_records(store)}
    bringing = None if keep is None else _needs(keep.name, keep.corpora)
    if bringing is not None:
        kept[bringing.name] = bringing
    gone: set[Path] = set()
    now -= _discard(_unneeded(store, kept.values(), bringing=bringing), gone, dry_run)
    removed, in_use = [], []
    for held in reversed(list_store(store)):
        name = held.record.name
        if bringing is not None and name == bringing.name:
            continue
        freed = None if held.used else 0
        if now > budget and not held.used:
            freed = _remove(store, held, kept, gone, dry_run, bringing)
        if freed is None:
            in_use.append(name)
        elif freed:
            removed.append(name)
            now -= freed
    return Collected(removed, in_use, before - now, now)


class _Needs(NamedTuple):
    """What a cache needs of a store: its own files, and corpora."""

    name: str
    stems: frozenset[str]


def _needs(name: str, corpora: Iterable[LocalCorpus]) -> _Needs:
    return _Needs(name, frozenset(corpus.stem for corpus in corpora))


def _remove(
    store: Store,
    held: Held,
    kept: dict[str, _Needs],
    gone: set[Path],
    dry_run: bool,
    bringing: _Needs | None,
) -> int | None:
    """Remove a cache and the corpora that no other needs; the bytes, or None if it is in use."""
    name = held.record.name
    descriptor = lock_alone(store.use(name))
    if descriptor is None:
        return None
    try:
        others = [needs for needs in kept.values() if needs.name != name]
        needless = [
            store.ready(name),
            *_unneeded(store, others, name, bringing),
        ]  # the record first
        freed = _discard(needless, gone, dry_run)
        del kept[name]
        return freed
    finally:
        os.close(descriptor)


def _unneeded(
    store: Store, kept: Iterable[_Needs], removed: str = "", bringing: _Needs | None = None
) -> Iterator[Path]:
    """Yield the store's files that none of some caches needs, with those of one to be removed.

    Of unfinished files only those of a cache that is being brought stay.
    """
    unfinished = {bringing.name, *bringing.stems} if bringing is not None else set()
    kept = list(kept)
    names = {needs.name for needs in kept}
    stems = {stem for needs in kept for stem in needs.stems}
    # A copy that lost its record may still be used, and nothing says which corpora it needs.
    used = {lock.stem for lock in store.caches.glob("*.lock") if is_used(lock)}
    used -= names | {removed}
    places = [(store.caches, CACHES, names | used), (store.megatron, VIEWS, names | used)]
    places += [] if used else [(store.corpora, CORPORA, stems)]
    for directory, pattern, needed in places:
        for path in directory.iterdir():
            found = pattern.fullmatch(path.name)
            if found and found.group(1) not in needed and found.group(2) not in unfinished:
                yield from _with_content(path)


def _with_content(path: Path) -> Iterator[Path]:
    """Yield a file, or what the store made in a directory and then the directory."""
    if path.is_dir() and not path.is_symlink():
        yield from (entry for entry in path.iterdir() if VIEW_FILES.fullmatch(entry.name))
    yield path


def _discard(paths: Iterable[Path], gone: set[Path], dry_run: bool) -> int:
    """Remove files and links, and directories that are empty then; return their bytes.

    What is gone already, or only would be, does not count again.
    """
    freed = 0
    for path in list(paths):
        if path in gone:
            continue
        gone.add(path)
        nbytes = allocated(path)
        with contextlib.suppress(OSError):
            if not dry_run:
                is_directory = stat.S_ISDIR(os.lstat(path).st_mode)
                (path.rmdir if is_directory else path.unlink)()
            freed += nbytes
    return freed
