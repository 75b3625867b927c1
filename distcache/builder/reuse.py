"""Copy sections and blends from other caches that have them under the same keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from distcache.builder.arrays import write_in_chunks
from distcache.cache import Cache, open_cache
from distcache.cache.format import ARRAY_NAMES
from distcache.errors import CacheCorrupt
from distcache.plan.layout import ArrayPlace
from distcache.plan.model import Plan
from distcache.storage.unfinished_file import UnfinishedFile


class Reusable(msgspec.Struct, frozen=True):
    """An item in another cache: its path, and the row of a table."""

    path: str
    table: str
    row: int


def find_reusable(plan: Plan, paths: Sequence[Path]) -> dict[int, Reusable]:
    """Find the items of a plan that other caches have.

    Parameters
    ----------
    plan : Plan
        The plan.
    paths : sequence of path
        Finished caches; an item is copied from the first that has it.

    Returns
    -------
    dict of int to Reusable
        Arrays that can be copied, by index into `Plan.items`.

    Raises
    ------
    NotReady, CacheCorrupt
        If one of them cannot be opened.
    """
    found: dict[str, Reusable] = {}
    for path in paths:
        cache = open_cache(path.absolute())
        for table in ARRAY_NAMES:
            for row, key in enumerate(cache.table(table)["key"].tolist()):
                known = Reusable(str(cache.path), table, row)
                found.setdefault(key.decode("ascii", "replace"), known)
    return {item: found[entry.key] for item, entry in enumerate(plan.items) if entry.key in found}


def reuse(
    found: Reusable,
    places: Mapping[str, ArrayPlace],
    file: UnfinishedFile,
    opened: Callable[[str], Cache],
) -> dict[str, str]:
    """Copy the arrays of an item, and verify their digests.

    Parameters
    ----------
    found : Reusable
        Result of `find_reusable`.
    places : mapping of str to ArrayPlace
        Place of each array in the file.
    file : UnfinishedFile
        The unfinished cache.
    opened : callable
        Opens a cache, or returns the open one.

    Returns
    -------
    dict of str to str
        The digest of each array.

    Raises
    ------
    CacheCorrupt
        If an array differs from its digest, or has another type or shape.
    """
    cache = opened(found.path)
    digests: dict[str, str] = {}
    for name, view in cache.arrays(found.table, found.row).items():
        place = places[name]
        fits = (view.dtype.str, view.shape) == (place.dtype, place.shape)
        if fits:
            digests[name] = write_in_chunks(file, place, cache.read(view)).finish()
        cache.require_intact()
        if not fits or digests[name] != view.digest:
            raise CacheCorrupt(
                f"{cache.path}: {name} at byte {view.offset} differs from its digest, so it cannot "
                "be reused; leave this --reuse out, or build that cache again"
            )
    return digests
