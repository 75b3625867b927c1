"""Take over sections and blends from other caches that have them under equal keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from distcache.build.data_file import ArrayWriter, DataFile
from distcache.cache import ArrayView, Cache, open_cache
from distcache.cache.format import ARRAY_NAMES
from distcache.errors import CacheCorrupt
from distcache.plan.assignment import CHUNK_BYTES
from distcache.plan.layout import ArrayPlace
from distcache.plan.model import Plan

__all__ = ["adopt", "find_adoptable"]

Found = tuple[Cache, dict[str, ArrayView]]


def find_adoptable(plan: Plan, paths: Sequence[Path]) -> dict[int, Found]:
    """Find what other caches have of a plan.

    Parameters
    ----------
    plan : Plan
        What is to be built.
    paths : sequence of path
        Finished caches; the first that has an item gives it.

    Returns
    -------
    dict of int to (Cache, dict of str to ArrayView)
        By index into `Plan.items`.

    Raises
    ------
    NotReady, CacheCorrupt
        If one of them cannot be opened.
    """
    found: dict[str, Found] = {}
    for path in paths:
        cache = open_cache(path)
        for table in ARRAY_NAMES:
            for row, key in enumerate(cache.table(table)["key"].tolist()):
                found.setdefault(key.decode("ascii"), (cache, cache.arrays(table, row)))
    return {item: found[entry.key] for item, entry in enumerate(plan.items) if entry.key in found}


def adopt(found: Found, places: Mapping[str, ArrayPlace], file: DataFile) -> dict[str, str]:
    """Copy the arrays of an item, and compare them with their digests on the way.

    Parameters
    ----------
    found : (Cache, dict of str to ArrayView)
        From `find_adoptable`.
    places : mapping of str to ArrayPlace
        Where to write each array.
    file : DataFile
        The unfinished cache.

    Returns
    -------
    dict of str to str
        The digest of each array.

    Raises
    ------
    CacheCorrupt
        If an array is not what its digest says.
    """
    cache, views = found
    digests = {}
    for name, view in views.items():
        writer = ArrayWriter(file, places[name])
        array = cache.read(view).reshape(-1)
        step = CHUNK_BYTES // array.itemsize
        for begin in range(0, array.size, step):
            writer.append(array[begin : begin + step])
        digests[name] = writer.finish()
        if digests[name] != view.digest:
            raise CacheCorrupt(
                f"{cache.path}: {name} at byte {view.offset} differs from its digest, so it cannot "
                "be taken over; leave this --reuse out, or build that cache again"
            )
    return digests
