"""What a store has already: units that need not be fetched."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from distcache.cache.contents import read_contents
from distcache.errors import DistcacheError
from distcache.files import is_plain_file, open_regular, read_range
from distcache.node.landing import differs, digest_of, read_shared, unit_matches
from distcache.node.record import Ready, read_records
from distcache.node.store import Store
from distcache.node.wanted import CACHE, File, Unit, Wanted, block_units

__all__ = [
    "Elsewhere",
    "Inventory",
    "find_elsewhere",
    "require_same_content",
    "take_inventory",
]


class Inventory(msgspec.Struct, frozen=True):
    """What is there of a cache's files.

    Attributes
    ----------
    complete : frozenset of int
        Files that are right, under their final names.
    right : frozenset of int
        Units that are right, in complete files and in others.
    dated : frozenset of int
        Complete files that are older or younger than the shared ones, which may have changed.
    """

    complete: frozenset[int]
    right: frozenset[int]
    dated: frozenset[int] = frozenset()


class Elsewhere(msgspec.Struct, frozen=True):
    """Where another cache of the store has the bytes of a unit."""

    path: str
    begin: int


def take_inventory(
    wanted: Wanted, threads: int, advance: Callable[[float], None], trusted: Ready | None = None
) -> Inventory:
    """Compare every unit that is in the store with its digest.

    Parameters
    ----------
    wanted : Wanted
        What is looked for.
    threads : int
        Units that are read at a time.
    advance : callable
        Told of the bytes of every unit.
    trusted : Ready or None
        The record of a copy: files that are as old and as long as it says are not read.

    Returns
    -------
    Inventory
        What is right of it.
    """
    known = frozenset() if trusted is None else _as_recorded(wanted, trusted)

    def look(number: int) -> int | None:
        unit = wanted.units[number]
        right = unit.file in known or _is_right(wanted.files[unit.file], unit)
        advance(unit.size)
        return number if right else None

    with ThreadPoolExecutor(threads) as pool:
        found = pool.map(look, range(len(wanted.units)))
        right = frozenset(number for number in found if number is not None)
    complete = set(range(len(wanted.files)))
    complete -= {unit.file for number, unit in enumerate(wanted.units) if number not in right}
    complete = {file for file in complete if _has_final(wanted.files[file])}
    if CACHE in complete and CACHE not in known and not _frame_matches(wanted):
        complete.discard(CACHE)
    dated = {file for file in complete if not _is_as_old(wanted.files[file])}
    return Inventory(frozenset(complete), right, frozenset(dated))


def _as_recorded(wanted: Wanted, record: Ready) -> frozenset[int]:
    """Return the files that are as long, and as old, as a record and the shared ones say."""
    found = {
        number
        for number, file in enumerate(wanted.files)
        if number != CACHE and _has_final(file) and _is_as_old(file)
    }
    cache = wanted.files[CACHE]
    if _has_final(cache) and os.lstat(cache.final).st_mtime_ns == record.modified:
        found.add(CACHE)
    return frozenset(found)


def _has_final(file: File) -> bool:
    """Tell whether a file of the right length, which is not being mended, has its name."""
    if os.path.lexists(file.part):
        return False
    return is_plain_file(file.final) and os.lstat(file.final).st_size == file.size


def _is_as_old(file: File) -> bool:
    """Tell whether a file is as old as the shared one, where that matters."""
    return file.modified in (0, os.lstat(file.final).st_mtime_ns)


def _is_right(file: File, unit: Unit) -> bool:
    if unit.file == CACHE:
        # A cache that was moved back to be mended has only its unfinished name.
        path = file.part if os.path.lexists(file.part) else file.final
    elif _has_final(file):
        path = file.final
    else:
        return False  # nothing is kept of an unfinished index: only the whole has a digest
    try:
        descriptor = open_regular(path, follow=False)
    except OSError:
        return False
    try:
        return unit_matches(descriptor, unit)
    finally:
        os.close(descriptor)


def require_same_content(wanted: Wanted, files: Iterable[int]) -> None:
    """Read shared indices, and compare them with what the cache was built from.

    Raises
    ------
    CorpusError
        If one is another now.
    Unreadable
        If one cannot be read.
    """
    by_file = {unit.file: unit for unit in wanted.units if unit.file != CACHE}
    for file in files:
        unit, digest = by_file[file], digest_of(by_file[file])
        for piece in read_shared(wanted.files[file].shared, 0, unit.end):
            digest.update(piece.data)
        if digest.hexdigest() != unit.digest:
            raise differs(wanted, unit)


def _frame_matches(wanted: Wanted) -> bool:
    """Compare the header and the tables of the local cache with the shared one's."""
    header = wanted.contents.header
    try:
        descriptor = open_regular(wanted.files[CACHE].final, follow=False)
    except OSError:
        return False
    try:
        page = header.pack()
        if read_range(descriptor, 0, len(page)) != page:
            return False
        tables = read_range(descriptor, header.tables_begin, header.file_size)
        return tables == bytes(wanted.contents.tables)
    except (OSError, EOFError):
        return False
    finally:
        os.close(descriptor)


def find_elsewhere(
    store: Store, wanted: Wanted, missing: Iterable[int]
) -> Iterator[tuple[int, Elsewhere]]:
    """Yield the units that another complete cache of the store seems to have.

    They are found by their digests, and compared with them again when they are copied.
    """
    sought: dict[tuple[str, int], list[int]] = {}
    for number in missing:
        unit = wanted.units[number]
        if unit.file == CACHE:
            sought.setdefault((unit.digest, unit.size), []).append(number)
    for record in read_records(store):
        if not sought or record.name == wanted.name:
            continue
        path = store.cache(record.name)
        for block in _blocks_of(path):
            for number in sought.pop((block.digest, block.size), []):
                yield number, Elsewhere(str(path), block.begin)


def _blocks_of(path: Path) -> list[Unit]:
    try:
        return block_units(read_contents(path))
    except DistcacheError:
        return []
