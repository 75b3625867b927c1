"""The copies of whole objects that this process has on its disk, and reads in their place.

A command fetches what it needs of a bucket before it opens anything (`corpus.fetched`); the code
that opens a file asks here first. Nothing is ever fetched from here.
"""

from __future__ import annotations

from typing import NamedTuple

from distcache.storage.files import FileVersion


class ObjectCopy(NamedTuple):
    """A copy of an object."""

    path: str  # path of the file
    version: FileVersion  # version of the object


_copies: dict[str, ObjectCopy] = {}


def register_copy(url: str, copy: ObjectCopy) -> None:
    """Let this process read a copy in the place of an object."""
    _copies[url] = copy


def copy_of(path: str) -> ObjectCopy | None:
    """Return the copy that this process has of an object, if there is one."""
    return _copies.get(path)


def forget_copies(urls: list[str]) -> None:
    """Forget copies that will be removed."""
    for url in urls:
        _copies.pop(url, None)
