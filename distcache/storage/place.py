"""One interface to the bytes of files, of objects, and of copies of objects on this disk."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from distcache.errors import ObjectMissing, StorageError
from distcache.extras import needing
from distcache.storage.files import FileVersion, closing_fd, open_regular, version_of
from distcache.storage.url import address_of, is_url
from distcache.storage.watchdog import tick

if TYPE_CHECKING:
    from distcache.storage.bucket import Bucket

STAT_REQUESTS: Final = 16  # that are asked for at a time
GAP_BYTES: Final = 512  # bytes between two ranges that cost less than a request
PIECE_BYTES: Final = 8 << 20  # bytes of an object that are requested at a time


class Place(Protocol):
    """Bytes that can be read at any offset; from any thread."""

    @property
    def version(self) -> FileVersion:
        """What identifies the bytes; of an object the one that `open_place` was given."""
        ...

    def read_into(self, out: NDArray[np.uint8], begin: int) -> None:
        """Fill an array with the bytes from `begin` on.

        Raises
        ------
        OSError
            If they cannot be read; `StorageError` of an object, after retries.
        ObjectChanged
            If it is another object than the one of the version.
        """
        ...


class FilePlace:
    """A file.

    Parameters
    ----------
    path : str
        Path of the file.
    descriptor : int
        Open for reading; it stays the caller's.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @property
    def version(self) -> FileVersion:
        """Size, time and inode."""
        return version_of(os.fstat(self._descriptor))

    def read_into(self, out: NDArray[np.uint8], begin: int) -> None:
        """Fill an array.

        Raises
        ------
        OSError
            With ENODATA if the file ends before.
        """
        done = 0
        while done < out.size:
            count = os.preadv(self._descriptor, [out[done:].data], begin + done)
            if count == 0:
                raise OSError(
                    errno.ENODATA,
                    f"it ends at byte {begin + done}, expected {begin + out.size}",
                    self._path,
                )
            done += count
            tick()


@contextlib.contextmanager
def open_place(path: str, version: FileVersion | None = None) -> Iterator[Place]:
    """Open a file or an object for reading.

    Parameters
    ----------
    path : str
        A path or a URL.
    version : FileVersion or None
        Version of an object: any other is refused. By default the current one.

    Raises
    ------
    OSError
        If it cannot be opened.
    """
    if is_url(path):
        yield bucket_of(path).open(path, version)
        return
    with closing_fd(open_regular(path)) as descriptor:
        yield FilePlace(path, descriptor)


def version_at(path: str) -> FileVersion:
    """Return what identifies the bytes at a path or URL.

    Raises
    ------
    OSError
        If there is none: `ObjectMissing` of an object.
    """
    if is_url(path):
        return bucket_of(path).version(path)
    return version_of(os.stat(path))


def version_or_none(path: str) -> FileVersion | None:
    """Return what identifies the bytes at a path or URL; None if nothing is there.

    Raises
    ------
    OSError
        If it cannot be determined.
    """
    try:
        return version_at(path)
    except FileNotFoundError:
        return None


def exists(path: str) -> bool:
    """Return whether there is a file, or a link, or an object."""
    return version_or_none(path) is not None if is_url(path) else os.path.lexists(path)


def require_answer(error: OSError) -> None:
    """Raise the error of a store that does not say whether it has an object.

    What is missing, or cannot be read of a file, is a fault of that file.

    Raises
    ------
    StorageError
        If it is one, and not that there is no such object.
    """
    if isinstance(error, StorageError) and not isinstance(error, ObjectMissing):
        raise error


def pieces_of(place: Place, begin: int, end: int, size: int) -> Iterator[NDArray[np.uint8]]:
    """Yield bytes [begin, end) of a place in pieces, all in the same buffer.

    Raises
    ------
    OSError
        If they cannot be read; with ENODATA if there are not so many.
    """
    buffer = np.empty(min(size, end - begin), np.uint8)
    for offset in range(begin, end, size):
        piece = buffer[: end - offset]
        place.read_into(piece, offset)
        yield piece


def threads_for(paths: Iterable[str], threads: int) -> int:
    """Return how many places are asked at a time: more if any is an object, which takes longer."""
    return max(threads, STAT_REQUESTS) if any(map(is_url, paths)) else threads


def read_place(path: str, begin: int, end: int, version: FileVersion | None = None) -> bytes:
    """Return bytes [begin, end) of a file or object.

    Raises
    ------
    OSError, ObjectChanged
        As `Place.read_into`.
    """
    with open_place(path, version) as place:
        return read_all(place, begin, end)


def read_all(place: Place, begin: int, end: int) -> bytes:
    """Return bytes [begin, end) of an open place.

    Raises
    ------
    OSError, ObjectChanged
        As `Place.read_into`.
    """
    out = np.empty(end - begin, np.uint8)
    place.read_into(out, begin)
    return out.tobytes()


def bucket_of(url: str) -> Bucket:
    """Return the bucket of a URL, with this process's connections to it.

    Raises
    ------
    ConfigError
        If the client is not installed.
    """
    import_client(url)
    from distcache.storage.bucket import find_bucket  # noqa: PLC0415

    return find_bucket(address_of(url))


def use_variables(variables: Mapping[str, str | None]) -> None:
    """Set variables of the environment, or unset them, for all requests that follow."""
    from distcache.storage.bucket import forget_buckets  # noqa: PLC0415  of an extra

    forget_buckets(variables)


def import_client(url: str) -> None:
    """Import the client of stores, which `bucket_of` needs; first by the thread that starts others.

    A signal interrupts an import of the main thread only: it would wait for one of another thread.

    Raises
    ------
    ConfigError
        If it is not installed.
    """
    with needing(url):
        import distcache.storage.bucket  # noqa: F401, PLC0415  imports obstore


class ObjectCopy(NamedTuple):
    """A copy of an object."""

    path: str  # path of the file
    version: FileVersion  # version of the object


_copies: dict[str, ObjectCopy] = {}


def register_copy(url: str, copy: ObjectCopy) -> None:
    """Let this process read a copy instead of an object."""
    _copies[url] = copy


def copy_of(path: str) -> ObjectCopy | None:
    """Return the copy that this process has of an object, if there is one."""
    return _copies.get(path)


def forget_copies(urls: list[str]) -> None:
    """Forget copies that will be removed."""
    for url in urls:
        _copies.pop(url, None)


class Joined(NamedTuple):
    """Bytes [begin, end), and which of the ranges are in them, by their places."""

    begin: int
    end: int
    members: list[int]


def join_ranges(ranges: Sequence[tuple[int, int]], gap: int, most: int) -> list[Joined]:
    """Join ranges (first byte, bytes) of one object.

    Parameters
    ----------
    ranges : sequence of (int, int)
        Ranges in any order; they may overlap. Empty ones are left out.
    gap : int
        Bytes between two ranges that cost less than a request.
    most : int
        Bytes of a request, unless one range alone has more.

    Returns
    -------
    list of Joined
        Joined ranges in ascending order; each range is in exactly one.
    """
    found: list[Joined] = []
    for place in sorted(range(len(ranges)), key=ranges.__getitem__):
        begin, size = ranges[place]
        if not size:
            continue
        if found:
            last = found[-1]
            end = max(last.end, begin + size)
            if begin <= last.end + gap and end - last.begin <= most:
                found[-1] = Joined(last.begin, end, [*last.members, place])
                continue
        found.append(Joined(begin, begin + size, [place]))
    return found
