"""Data sets of MDS shards in a bucket: brought once to a directory that all nodes share.

Shards are read again after they are indexed, by training or by `localize`, so that what is brought
stays. A run that was killed continues: the version of each object is beside its file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from distcache.errors import ConfigError, NotReady
from distcache.ingest.objects import Fetched, fetch_objects
from distcache.ranks.agreement import on_rank_0
from distcache.ranks.communicator import Communicator
from distcache.ranks.progress import Progress
from distcache.storage.files import make_directories, may_write
from distcache.storage.listing import objects_below
from distcache.storage.locks import LOCK, try_lock
from distcache.storage.url import located


class Mirrored(NamedTuple):
    """A data set in a bucket, and its place on a filesystem."""

    # URL and directory of the shards, with the split
    url: str
    directory: str


def mirrored(url: str, split: str, home: str) -> Mirrored:
    """Return the place of one split of a data set, below the directory of the whole.

    Raises
    ------
    ConfigError
        If the split leads elsewhere.
    """
    if split and (split.startswith("/") or ".." in PurePosixPath(split).parts):
        raise ConfigError(
            f"--subdirectory {split}: expected the name of a subdirectory"
        ).of_all_ranks()
    return Mirrored(f"{url.rstrip('/')}/{split}".rstrip("/"), os.path.join(home, split).rstrip("/"))


def mirror(communicator: Communicator, sets: Sequence[Mirrored], progress: Progress) -> None:
    """Bring all objects of data sets to their directories, unless they are there. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks, which share the objects.
    sets : sequence of Mirrored
        Data sets, some of which may be the same.
    progress : Progress
        Receiver of the bytes.

    Raises
    ------
    NotReady
        If there are no objects below a URL.
    DistcacheError
        On all ranks the same.
    """
    if not sets:
        return

    def find() -> list[Fetched]:
        found: list[Fetched] = []
        for url, directory in dict.fromkeys(sets):
            objects = objects_below(url)
            if not objects:
                raise NotReady(f"{url}: there are no objects below it")
            found += [
                Fetched(name, version, _path(directory, url, name))
                for name, version in objects.items()
            ]
        return found

    with contextlib.ExitStack() as stack:
        on_rank_0(communicator, lambda: _lock(sets, stack), None, "making directories")
        fetch_objects(communicator, find, progress)


def _lock(sets: Sequence[Mirrored], stack: contextlib.ExitStack) -> None:
    """Make the directories, and keep other jobs out of them.

    Raises
    ------
    ConfigError
        If two data sets have one of them, or another job uses one.
    """
    _require_own_places(sets)
    for directory in dict.fromkeys(found.directory for found in sets):
        path = Path(directory)
        with may_write(path.parent, "choose another directory"):
            make_directories(path)
            lock = try_lock(path / LOCK)
        if lock is None:
            raise ConfigError(f"{directory}: in use by another job; wait until it finishes")
        stack.callback(os.close, lock)


def _require_own_places(sets: Sequence[Mirrored]) -> None:
    """Refuse two data sets in one directory, where one would take the place of the other."""
    homes: dict[str, str] = {}
    for url, directory in sets:
        first = homes.setdefault(os.path.abspath(directory), url)
        if first != url:
            raise ConfigError(f"{directory}: is the place of both {first} and {url}")


def _path(directory: str, url: str, name: str) -> str:
    """Return where an object goes: its name below the URL, below the directory."""
    inner = name.removeprefix(f"{located(url).rstrip('/')}/")
    if inner == name or ".." in PurePosixPath(inner).parts:
        raise ConfigError(f"{name}: has a name that is no path below {url}")
    return os.path.join(directory, inner)
