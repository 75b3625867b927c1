"""Data sets of MDS shards in a bucket: brought once to a directory that all nodes share.

Shards are read again after they are indexed, by training or by `localize`, so that what is brought
stays. A run that was killed continues: the version of each object is beside its file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import PurePosixPath

from distcache.errors import ConfigError, NotReady
from distcache.ingest.objects import Fetched, fetch_objects
from distcache.progress import Progress
from distcache.ranks.communicator import Communicator
from distcache.storage import listed, listed_version, located
from distcache.storage.place import bucket_of

__all__ = ["mirror"]


def mirror(communicator: Communicator, places: Mapping[str, str], progress: Progress) -> None:
    """Bring all objects below URLs to directories, unless they are there. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks, which share the objects.
    places : mapping of str to str
        Directory for the objects below each URL.
    progress : Progress
        Receiver of the bytes.

    Raises
    ------
    NotReady
        If there are no objects below a URL.
    DistcacheError
        On all ranks the same.
    """
    if not places:
        return

    def find() -> list[Fetched]:
        found: list[Fetched] = []
        for url, directory in places.items():
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
