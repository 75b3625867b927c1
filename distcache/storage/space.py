"""The free space of a filesystem: required before something is written, and reserved for a file."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Final

import msgspec

from distcache.errors import NoSpace

UNKNOWN: Final = 1 << 62  # free bytes of a filesystem that does not report them
MEMORY_BACKED: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})
M_MMAP_THRESHOLD: Final = -3  # of malloc.h


class Space(msgspec.Struct, frozen=True):
    """The space of a filesystem."""

    # bytes that this user may still write; where they are memory, not more than is available
    free: int
    in_memory: bool  # whether its files are held in memory


def space_at(directory: Path) -> Space:
    """Return the space of the filesystem that holds a directory."""
    found = os.statvfs(directory)
    free = found.f_bavail * found.f_frsize
    in_memory = filesystem_type(directory) in MEMORY_BACKED
    if in_memory:
        memory = _available_memory()
        free = min(free, memory) if found.f_blocks else memory  # ramfs counts no blocks
    elif not found.f_blocks:
        free = UNKNOWN
    return Space(free, in_memory)


def filesystem_type(directory: Path, mounts: str | None = None) -> str:
    """Return the type of the filesystem of a directory, empty if unknown.

    Parameters
    ----------
    directory : Path
        Any.
    mounts : str or None
        The text of ``/proc/self/mounts``.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
    real = os.path.realpath(directory)
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split()
        point = fields[1].replace("\\040", " ") if len(fields) > 2 else ""
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if point and inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def _available_memory() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def allocated(path: Path) -> int:
    """Return the bytes of a file on its disk; 0 if it does not exist."""
    try:
        return 512 * os.lstat(path).st_blocks
    except FileNotFoundError:
        return 0


def require_space(
    directory: Path, needed: int, advice: str, *, spare: int = 0, written: int = 0
) -> None:
    """Require free space, before anything is written.

    Parameters
    ----------
    directory : Path
        Directory on the filesystem.
    needed : int
        Bytes to write.
    advice : str
        Advice for the user, for the message.
    spare : int
        Bytes that are to stay free.
    written : int
        Bytes that earlier runs have written already.

    Raises
    ------
    NoSpace
        If the filesystem reports its size, and has less.
    """
    space = space_at(directory)
    left = needed - written
    if left > 0 and left + spare > space.free:
        keep = f" and {spare} are to stay free" if spare else ""
        kind = " (in memory)" if space.in_memory else ""
        raise NoSpace(
            f"{directory}: {left} bytes are needed{keep}, {space.free} are free{kind}; {advice}"
        )


def reserve(descriptor: int, size: int, path: Path) -> None:
    """Set the length of a file and allocate its blocks, if the filesystem supports that.

    Raises
    ------
    NoSpace
        If there is not enough.
    """
    try:
        if size > 0:
            os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise NoSpace(
                f"{path}: cannot be given {size} bytes: {os.strerror(error.errno or 0)}"
            ) from error
    os.ftruncate(descriptor, size)


def return_large_memory(size: int) -> None:
    """Return freed memory of at least so many bytes to the system at once (mallopt(3)).

    Otherwise glibc raises that size with the largest memory that was freed, up to 32 MiB, and the
    heap of each thread keeps what it has taken. Other C libraries are left alone.
    """
    import ctypes  # noqa: PLC0415  takes 10 ms, and few need it

    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, size)
