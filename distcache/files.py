"""Make files appear: whole, synced, and never in the place of another."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from distcache.errors import NoSpace

__all__ = [
    "NO_SPACE",
    "create_anew",
    "is_plain_file",
    "no_space_as_error",
    "open_regular",
    "open_sized",
    "passing_name",
    "publish",
    "read_range",
    "sync_directory",
    "write_whole",
]

NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def open_regular(path: str | Path, *, follow: bool = True) -> int:
    """Open a file for reading, and return its descriptor.

    Parameters
    ----------
    path : path
        The file.
    follow : bool
        Whether it may be a link.

    Raises
    ------
    OSError
        Also if it is not a regular file: a pipe would be waited for, without end.
    """
    return open_sized(path, follow=follow)[0]


def open_sized(path: str | Path, *, follow: bool = True) -> tuple[int, int]:
    """Open a file as `open_regular` does, and return its descriptor and its length in bytes."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return descriptor, found.st_size


def read_range(descriptor: int, begin: int, end: int) -> bytes:
    """Read bytes [begin, end) of an open file.

    Raises
    ------
    EOFError
        If the file ends before.
    """
    content = bytearray()
    while begin + len(content) < end:
        piece = os.pread(descriptor, end - begin - len(content), begin + len(content))
        if not piece:
            raise EOFError(f"the file ends at byte {begin + len(content)}, expected {end}")
        content += piece
    return bytes(content)


def is_plain_file(path: str | Path) -> bool:
    """Tell whether there is a regular file, and no link, under a name."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def sync_directory(path: str | Path) -> None:
    """Sync a directory, so that a name in it survives a crash."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network filesystems cannot sync directories
            raise
    finally:
        os.close(descriptor)


def publish(temporary: str | Path, final: str | Path) -> bool:
    """Give a synced file its final name, unless the name is taken.

    Parameters
    ----------
    temporary, final : path
        In the same filesystem.

    Returns
    -------
    bool
        False if there is a file under the final name; it is left as it is, and so is the
        temporary one.
    """
    try:
        os.link(temporary, final, follow_symlinks=False)
    except FileExistsError:
        return False
    os.unlink(temporary)
    sync_directory(Path(final).parent)
    return True


def passing_name(path: Path) -> Path:
    """Return a hidden name, never used before, for what is to get a final one."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


def create_anew(path: str | Path) -> BinaryIO:
    """Open a new file for writing; whatever has its name is removed, and never followed."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o644), "wb")


@contextlib.contextmanager
def write_whole(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file that appears, replacing any other, when the block ends without an error.

    Parameters
    ----------
    path : path
        The final name.

    Yields
    ------
    binary file
        To write to; it is synced and renamed at the end, or removed after an error.
    """
    path = Path(path)
    temporary = passing_name(path)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_directory(path.parent)


@contextlib.contextmanager
def no_space_as_error(path: str | Path) -> Iterator[None]:
    """Turn a full disk or quota into `NoSpace`, which names the place."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise NoSpace(
                f"{path}: {os.strerror(error.errno)}; free space and run again"
            ) from error
        raise
