"""Create objects that never replace others, also large ones, which stores write in parts.

A small object is created by one request, which stores refuse if the name is taken. A large one is
written in parts, without such a condition: until then a small object claims its name.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from distcache.errors import DistcacheError, KeyMismatch
from distcache.storage.files import FileVersion, version_of
from distcache.storage.place import bucket_of, exists, read_place, version_at, version_or_none

WHOLE: Final = 64 << 20  # bytes that are sent in one request
CLAIM: Final = ".uploading"


def create_object(url: str, path: Path) -> FileVersion | None:
    """Send a file, and return the version of the object; None if one has the name already.

    Raises
    ------
    KeyMismatch
        If another job is sending an object of this name.
    StorageError
        If it cannot be written.
    """
    bucket = bucket_of(url)
    size = path.stat().st_size
    if size <= WHOLE:
        tag = bucket.create(url, path)
        if tag is None:
            return None
        return FileVersion(size, 0, 0, tag) if tag else version_at(url)
    if exists(url):
        return None
    claim, token = f"{url}{CLAIM}", claim_token(path)
    if bucket.create(claim, token) is None and not _is_ours(claim, token):
        raise KeyMismatch(
            f"{claim}: another file is being uploaded under this name; if no job is running, "
            "remove this claim and upload again"
        )
    try:
        created = not exists(url)
        if created:
            bucket.put_parts(url, path)
    except BaseException:
        with contextlib.suppress(DistcacheError):  # the first error is what matters
            bucket.remove(claim)
        raise
    with contextlib.suppress(DistcacheError):  # not everybody may remove; the object is there
        bucket.remove(claim)
    return version_at(url) if created else None


def claim_token(path: Path) -> bytes:
    """Return what identifies a file: a run that continues a killed one has the same."""
    origin = (str(path.absolute()), version_of(path.stat()))
    return repr(origin).encode("utf-8", "surrogateescape")


def _is_ours(claim: str, token: bytes) -> bool:
    """Return whether a claim is for the same file, as that of a killed run is."""
    version = version_or_none(claim)
    if version is None:
        return True  # its owner has just finished: the object is there
    return version.size == len(token) and read_place(claim, 0, len(token), version) == token
