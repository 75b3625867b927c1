"""Places of bytes: files, and objects of a bucket; the only importer of obstore."""

from distcache.storage.place import PIECE, Place, exists, open_place, read_place, version_at
from distcache.storage.url import is_url, located, located_in, require_file

__all__ = [
    "PIECE",
    "Place",
    "exists",
    "is_url",
    "located",
    "located_in",
    "open_place",
    "read_place",
    "require_file",
    "version_at",
]
