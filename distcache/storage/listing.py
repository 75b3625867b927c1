"""Versions of many objects by one listing of each directory, instead of a request for each.

A listing is a view of one moment: it answers within a block, and code that has to notice a change
lists again. Where a store refuses, or a directory has much else in it, each object is asked for.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from distcache.errors import DistcacheError, ObjectMissing
from distcache.storage.files import FileVersion
from distcache.storage.place import bucket_of, import_client, version_at
from distcache.storage.url import is_url

MIN_LISTED: Final = 16  # objects of a directory; fewer are asked for one by one
MAX_OTHERS: Final = 4  # objects in a directory for each that is looked for

UNLISTED: Final = "unlisted"
# Of all blocks of this process, whose threads share a listing.
_lock = threading.Lock()
_listings: list[dict[str, FileVersion | None]] = []


@contextlib.contextmanager
def listed(paths: Iterable[str]) -> Iterator[None]:
    """Let `listed_version` answer from listings of the directories, for the time of the block.

    The client of stores is imported before, by this thread.
    """
    groups: dict[str, list[str]] = {}
    for path in paths:
        if is_url(path):
            groups.setdefault(path.rpartition("/")[0], []).append(path)
    told: dict[str, FileVersion | None] = {}
    for directory, urls in groups.items():
        import_client(directory)
        if len(urls) >= MIN_LISTED:
            # Who may not list, or gets no answer, asks for each, and hears why.
            with contextlib.suppress(DistcacheError):
                found = bucket_of(directory).versions_below(directory, MAX_OTHERS * len(urls))
                told |= {} if found is None else _trusted(urls, found)
    with _lock:
        _listings.append(told)
    try:
        yield
    finally:  # blocks of several threads may overlap
        with _lock:
            _listings[:] = [known for known in _listings if known is not told]


def objects_below(url: str) -> dict[str, FileVersion]:
    """Return the URLs and versions of all objects below a directory, by one listing.

    Raises
    ------
    StorageError
        If the store does not say.
    """
    found = bucket_of(url).objects_below(url)
    told = _trusted(found, found)
    return {name: told.get(name) or version_at(name) for name in found}


def _trusted(
    urls: Iterable[str], found: Mapping[str, FileVersion]
) -> dict[str, FileVersion | None]:
    """Return the versions in a listing: none of objects whose ETag is weak, or not listed."""
    return {
        url: found.get(url) for url in urls if url not in found or found[url].tag.startswith('"')
    }


def listed_version(path: str, *, confirm_missing: bool = True) -> FileVersion:
    """Return what identifies the bytes at a path or URL.

    Parameters
    ----------
    path : str
        A path or a URL.
    confirm_missing : bool
        Whether what is not listed is asked for: stores may list an object some time after it is
        made.

    Raises
    ------
    OSError
        If there is none: `ObjectMissing` of an object.
    """
    known = (told[path] for told in reversed(_listings.copy()) if path in told)
    found = next(known, UNLISTED)
    if found is None and not confirm_missing:
        raise ObjectMissing(path, "no such object")
    return found if isinstance(found, FileVersion) else version_at(path)
