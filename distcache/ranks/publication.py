"""Give a complete file its final name: whole at once, and never in the place of another.

A hard link does both, and leaves the unfinished name. Some filesystems have none between
directories (BeeGFS up to 7, OpenAFS), or none at all (FUSE clients of buckets, SMB, 9p). There the
file is renamed beside its final name first; then it gets that name by a link within the directory,
by a rename that refuses to replace, or by a plain rename under a reservation, whichever works.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import time
from pathlib import Path
from typing import Final

from distcache.errors import DistcacheError
from distcache.storage.files import PROBE
from distcache.storage.timeouts import limits

NO_LINKS: Final = (errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
NO_RENAME2: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
NOREPLACE: Final = 1  # of renameat2(2)
HERE: Final = -100  # AT_FDCWD
RESERVATION_POLL: Final = 0.1  # seconds


def link_problem(directory: Path) -> str:
    """Return why a file of a directory cannot get a hard link in the directory above, or nothing.

    Raises
    ------
    OSError
        If the directory cannot be written to.
    """
    parent, token = directory.parent, secrets.token_hex(4)
    probe, linked = directory / f"probe.{token}", parent / f".{directory.name}.{token}"
    for earlier in map(PROBE.fullmatch, os.listdir(directory)):  # of a killed process
        if earlier is not None:
            (parent / f".{directory.name}.{earlier[1]}").unlink(missing_ok=True)
            (directory / earlier[0]).unlink(missing_ok=True)
    try:
        probe.touch()
        os.link(probe, linked, follow_symlinks=False)
        if not os.path.samestat(os.lstat(linked), os.lstat(probe)):
            return "a link becomes another file"
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        return os.strerror(error.errno)
    finally:
        linked.unlink(missing_ok=True)
        probe.unlink(missing_ok=True)
    return ""


def give_name(unfinished: Path, final: Path, aside: Path) -> bool:
    """Move a file to its final name, where its directory can have no hard link there.

    Parameters
    ----------
    unfinished : Path
        The file; complete and synced.
    final : Path
        The final name.
    aside : Path
        A hidden name beside the final one, that only this workspace uses. After a kill the file
        may have this name only.

    Returns
    -------
    bool
        Whether the file has the final name; false if another file has it, and then the file keeps
        its unfinished name.

    Raises
    ------
    DistcacheError
        If another job holds the reservation of the name for too long.
    """
    if os.path.lexists(unfinished):
        os.rename(unfinished, aside)
    taken = _by_link(aside, final)
    if taken is None:
        taken = _by_rename(aside, final)
    if taken is None:
        taken = _by_reservation(aside, final)
    if taken:
        os.rename(aside, unfinished)
    return not taken


def _by_link(aside: Path, final: Path) -> bool | None:
    """Link within the directory; return whether the name is taken, None if there are no links."""
    try:
        os.link(aside, final, follow_symlinks=False)
    except FileExistsError:
        return True
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        return None
    if not os.path.samestat(os.lstat(aside), os.lstat(final)):  # a copy, or a symbolic link
        final.unlink()
        return None
    aside.unlink()
    return False


def _by_rename(aside: Path, final: Path) -> bool | None:
    """Rename without replacing; return whether the name is taken, None if that is not supported."""
    library = ctypes.CDLL(None, use_errno=True)
    try:
        call = library.renameat2
    except AttributeError:  # glibc before 2.28
        return None
    done = call(HERE, os.fsencode(aside), HERE, os.fsencode(final), NOREPLACE)
    number = ctypes.get_errno() if done else 0
    if number == errno.EEXIST:
        return True
    if number in NO_RENAME2:
        return None
    if number:
        raise OSError(number, os.strerror(number), str(final))
    return False


def _by_reservation(aside: Path, final: Path) -> bool:
    """Rename while a reservation keeps other jobs out; return whether the name is taken."""
    reservation = final.with_name(f".{final.name}.reserved")
    seen, since = None, time.monotonic()
    while True:
        try:
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(reservation, flags, 0o644))
            break
        except FileExistsError:
            try:
                found = os.lstat(reservation)
            except FileNotFoundError:
                continue
        now = (found.st_ino, found.st_mtime_ns)
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > limits().silent:  # of a killed job: it takes milliseconds
            reservation.unlink(missing_ok=True)
        if time.monotonic() - since > limits().hung:
            raise DistcacheError(f"{reservation}: cannot be removed; remove it, and run again")
        time.sleep(RESERVATION_POLL)
    try:
        if os.path.lexists(final):
            return True
        os.rename(aside, final)
    finally:
        reservation.unlink(missing_ok=True)
    return False
