"""Create files atomically and durably, without overwriting others."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from distcache.errors import ConfigError, NoSpace
from distcache.storage.watchdog import tick

READ: Final = 4 << 20  # bytes that are digested at a time
TEMPORARY: Final = re.compile(r"\.(.+)\.[0-9a-f]{8}\.part")
NO_SYNC: Final = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF)  # of directories
NO_MODES: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NOT_ALLOWED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
MAX_TEXT_BYTES: Final = 64 << 20  # of a configuration, a script or a list
UNLIMITED: Final = 1 << 14  # descriptors that are asked for, where there is no limit


class FileVersion(msgspec.Struct, frozen=True, array_like=True):
    """What identifies unchanged bytes: size, modification time in nanoseconds, inode.

    Of an object: size, time, 0 and its ETag.
    """

    size: int
    modified: int
    inode: int
    tag: str = ""


def version_of(found: os.stat_result) -> FileVersion:
    """Return the version of a file."""
    return FileVersion(found.st_size, found.st_mtime_ns, found.st_ino)


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
        Also if it is not a regular file: opening a pipe could block forever.
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


@contextlib.contextmanager
def closing_fd(descriptor: int) -> Iterator[int]:
    """Close a descriptor when the block ends."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_to_write(path: str | Path) -> int:
    """Open an existing file for writing, and return its descriptor; links are not followed."""
    return os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def open_unnamed(directory: str | Path) -> int:
    """Open a new file without a name, whose space the filesystem gets back when it is closed.

    Parameters
    ----------
    directory : path
        Directory on the file's filesystem.

    Raises
    ------
    OSError
        If it cannot be made.
    """
    with contextlib.suppress(OSError):  # some filesystems only have files with names
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    descriptor, path = tempfile.mkstemp(dir=directory)
    os.unlink(path)
    return descriptor


def open_directory(path: str | Path) -> int:
    """Open a directory, and return its descriptor; links are not followed."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def read_file(path: str | Path, most: int, *, follow: bool = True) -> bytes:
    """Return the content of a file, or its first `most` bytes.

    Raises
    ------
    OSError
        As `open_regular`, or if it cannot be read.
    """
    content = bytearray()
    with closing_fd(open_regular(path, follow=follow)) as descriptor:
        while piece := os.read(descriptor, min(READ, most - len(content))):
            content += piece
    return bytes(content)


def read_text(path: str | Path, most: int = MAX_TEXT_BYTES) -> str:
    """Return the text of a file that a user, or another file, names; a byte order mark is left out.

    Raises
    ------
    OSError
        If the file cannot be read, or has more than `most` bytes.
    UnicodeDecodeError
        If it is not UTF-8.
    """
    content = read_file(path, most + 1)
    if len(content) > most:
        raise OSError(errno.EINVAL, f"Larger than {most >> 20} MiB", str(path))
    return content.decode("utf-8-sig")


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


def digest_range(
    path: str | Path, begin: int, end: int, stopped: Callable[[], bool] = lambda: False
) -> str:
    """Return the XXH3-128 of bytes [begin, end) of a file, or of those that exist, unless stopped.

    The file is read, not mapped: a mapping could show later writes of others.
    """
    digest = xxhash.xxh3_128()
    with closing_fd(open_regular(path)) as descriptor:
        while (
            begin < end
            and not stopped()
            and (block := os.pread(descriptor, min(READ, end - begin), begin))
        ):
            digest.update(block)
            begin += len(block)
            tick()
    return digest.hexdigest()


def write_range(descriptor: int, offset: int, data: bytes | memoryview | NDArray[Any]) -> None:
    """Write all bytes at an offset of an open file."""
    view = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
    done = 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done:].data, offset + done)
        tick()


def is_plain_file(path: str | Path) -> bool:
    """Return whether a path is a regular file, and no link."""
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
        if error.errno not in NO_SYNC:  # some network filesystems cannot sync directories
            error.filename = str(path)
            raise
    finally:
        os.close(descriptor)


def set_mode(descriptor: int, mode: int) -> None:
    """Set the mode of an open file, where its filesystem has modes (9p and SMB may have none)."""
    try:
        os.fchmod(descriptor, mode)
    except OSError as error:
        if error.errno not in NO_MODES:
            raise


def set_time(target: int | str | Path, modified: int | None = None) -> None:
    """Set when a file was modified, in nanoseconds since 1970, by default now.

    Does nothing on filesystems that refuse it.
    """
    try:
        if modified is None:
            os.utime(target)
        else:
            os.utime(target, ns=(modified, modified), follow_symlinks=isinstance(target, int))
    except OSError as error:
        if error.errno not in NO_MODES:
            raise


def make_link(path: Path, target: str, otherwise: str) -> None:
    """Make a symbolic link.

    Raises
    ------
    ConfigError
        If the filesystem has none; `otherwise` says what to do.
    """
    try:
        os.symlink(target, path)
    except OSError as error:
        if error.errno not in NO_MODES:
            raise
        raise ConfigError(
            f"{path.parent}: its filesystem has no symbolic links; {otherwise}"
        ) from error


def sync_file(path: str | Path) -> None:
    """Wait until what a file holds is on its disk."""
    with closing_fd(open_to_write(path)) as descriptor:
        os.fsync(descriptor)


def make_directories(directory: Path) -> None:
    """Make a directory and its missing parents, and sync each parent."""
    if directory.is_dir():
        return
    make_directories(directory.parent)
    directory.mkdir(exist_ok=True)
    with contextlib.suppress(PermissionError):  # a directory that may be written to, but not read
        sync_directory(directory.parent)


def temporary_name(path: Path) -> Path:
    """Return a new hidden name beside a path, for an unfinished file."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


def recreate(path: str | Path) -> BinaryIO:
    """Create a file for writing; an existing one is removed first, and links are not followed."""
    Path(path).unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o644), "wb")


@contextlib.contextmanager
def atomic_write(path: str | Path, unfinished: Path | None = None) -> Iterator[BinaryIO]:
    """Write a file atomically: it replaces the old one when the block ends without an error.

    Parameters
    ----------
    path : path
        The final name.
    unfinished : Path or None
        The name until then, on the same filesystem; by default a hidden one beside the final name.

    Yields
    ------
    binary file
        File to write to; it is synced and renamed at the end, or removed after an error.
    """
    path = Path(path)
    temporary = unfinished or temporary_name(path)
    try:
        with no_space_as_error(path), recreate(temporary) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


@contextlib.contextmanager
def no_space_as_error(path: str | Path) -> Iterator[None]:
    """Turn errors of a full disk or quota into `NoSpace`, which names the path."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            limit = error.errno == errno.EFBIG
            advice = "raise the limit of file sizes (ulimit -f)" if limit else "free space"
            raise NoSpace(f"{path}: {os.strerror(error.errno)}; {advice} and run again") from error
        raise


@contextlib.contextmanager
def may_write(directory: Path, otherwise: str) -> Iterator[None]:
    """Turn errors of missing permissions for a directory into a `ConfigError`.

    Parameters
    ----------
    directory : Path
        Directory for the message.
    otherwise : str
        Advice for the user, such as "choose another --out".
    """
    try:
        with no_space_as_error(directory):
            yield
    except NotADirectoryError as error:
        raise ConfigError(f"{directory}: is not a directory") from error
    except OSError as error:
        if error.errno == errno.EEXIST and not directory.is_dir():  # of it, or of a parent
            raise ConfigError(f"{error.filename}: is not a directory; {otherwise}") from error
        if error.errno == errno.ENOENT and _is_above(error.filename, directory):  # as below /proc
            raise ConfigError(f"{directory}: cannot be made; {otherwise}") from error
        if error.errno in NOT_ALLOWED:
            raise ConfigError(
                f"{directory}: you may not make files there ({error.strerror}); {otherwise}, or "
                "ask its owner to let you"
            ) from error
        raise


def _is_above(path: Any, directory: Path) -> bool:
    """Return whether a path is a directory or one of its parents."""
    return isinstance(path, str | Path) and Path(path) in (directory, *directory.parents)


def require_text(*names: str) -> None:
    """Refuse names that JSON cannot represent.

    Raises
    ------
    ConfigError
        If it is not UTF-8.
    """
    for name in names:
        try:
            name.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ConfigError(f"{name!r}: is not UTF-8; give it another name") from error


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = UNLIMITED if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY:
        return limit
    if soft < limit:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            return limit
    return soft
