"""Data sets of MDS shards in a bucket: brought once to a directory that all nodes share.

Shards are read again after they are indexed, by training or by `localize`, so that what is brought
stays. A run that was killed continues: the version of each object is beside its file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from distcache.errors import ConfigError, NotReady
from distcache.ingest.objects import Fetched, fetch_objects
from distcache.progress import Progress
from distcache.ranks.communicator import Communicator
from distcache.storage import listed, listed_version, located
from distcache.storage.place import bucket_of

__all__ = ["Mirrored", "mirror", "mirrored"]


class Mirrored(NamedTuple):
    """A data set in a bucket, and its place on a filesystem.

    Attributes
    ----------
    url, directory : str
        URL and directory of the shards, with the split.
    """

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
        raise ConfigError(f"--split {split}: expected the name of a subdirectory").of_all_ranks()
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
            names = bucket_of(url).names_below(url)
            if not names:
                raise NotReady(f"{url}: there are no objects below it")
            with listed(names):
                found += [
                    Fetched(name, listed_version(name), _path(directory, url, name))
                    for name in names
                ]
        return found

    fetch_objects(communicator, find, progress)


def _path(directory: str, url: str, name: str) -> str:
    """Return where an object goes: its name below the URL, below the directory."""
    inner = name.removeprefix(f"{located(url).rstrip('/')}/")
    if inner == name or ".." in PurePosixPath(inner).parts:
        raise ConfigError(f"{name}: has a name that is no path below {url}")
    return os.path.join(directory, inner)
