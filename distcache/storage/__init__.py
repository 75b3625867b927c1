"""Places of bytes: files, and objects of a bucket; the only importer of obstore."""

from distcache.storage.listing import listed, listed_version, objects_below
from distcache.storage.place import (
    OBJECTS,
    PIECE,
    Place,
    exists,
    open_place,
    pieces_of,
    read_all,
    read_place,
    require_answer,
    threads_for,
    version_at,
    version_or_none,
)
from distcache.storage.url import is_url, located, located_in, require_file

__all__ = [
    "OBJECTS",
    "PIECE",
    "Place",
    "exists",
    "is_url",
    "listed",
    "listed_version",
    "located",
    "located_in",
    "objects_below",
    "open_place",
    "pieces_of",
    "read_all",
    "read_place",
    "require_answer",
    "require_file",
    "threads_for",
    "version_at",
    "version_or_none",
]
