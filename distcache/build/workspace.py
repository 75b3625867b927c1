"""The directory of an unfinished cache: every path in it, its lock, and who owns it."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import time
from enum import Enum
from pathlib import Path
from typing import Final

from distcache import life
from distcache.errors import ConfigError, DistcacheError
from distcache.files import (
    make_directories,
    may_write,
    no_space_as_error,
    require_links,
    write_whole,
)
from distcache.locks import LOCK, NO_LOCKS, discard_empty, empty_directory, try_lock
from distcache.owner import OWNER, Owner
from distcache.timeouts import limits

__all__ = ["Lock", "Workspace", "sweep"]

# Others may pass through to the heartbeat and the lock, whose names they know, but see no more.
MODE: Final = 0o711


class Lock(Enum):
    """How trying to lock a workspace ended."""

    HELD = "held"
    BUSY = "busy"
    FOREIGN = "another user's"
    UNSUPPORTED = "unsupported"


class Workspace:
    """A hidden directory beside the cache that is built in it.

    Parameters
    ----------
    final : Path
        The cache's path.
    private : str
        Empty, or what makes the workspace this process's own.
    """

    def __init__(self, final: Path, private: str = "") -> None:
        self.private = private
        self.path = life.building_directory(final, private)
        self.data = str(self.path / "data")
        self.scratch = str(self.path / "layout")
        self._lock = self.path / LOCK
        self._stamp = self.path / "plan"
        self._descriptor: int | None = None
        self._owner = Owner(self.path)

    @classmethod
    def of_this_process(cls, final: Path) -> Workspace:
        """Return a workspace that no other process shares."""
        return cls(final, secrets.token_hex(4))

    def make(self) -> bool:
        """Make the directory, unless it is there; tell whether it was made, or is this user's.

        Raises
        ------
        ConfigError
            If it cannot be made there.
        DistcacheError
            If something else has its name.
        """
        parent = self.path.parent
        try:
            with may_write(parent, "choose another directory with -o"):
                make_directories(parent)
                self.path.mkdir(mode=MODE)
        except FileExistsError:
            if not parent.is_dir():
                raise ConfigError(f"{parent}: is not a directory") from None
            found = os.lstat(self.path)
            if not stat.S_ISDIR(found.st_mode):
                raise DistcacheError(
                    f"{self.path}: is not a directory; remove it, or build under another --name"
                ) from None
            return found.st_uid == os.geteuid()
        self._open_up()
        return True

    def _open_up(self) -> None:
        """Give the directory its mode, whatever the umask; not what may have taken its place."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path, flags)
        try:
            os.fchmod(descriptor, MODE)
        finally:
            os.close(descriptor)

    def lock(self) -> Lock:
        """Try to become the only builder; the lock lasts until `leave` or the process ends."""
        existed = os.path.lexists(self.path)
        if not self.make():
            return Lock.FOREIGN
        try:
            self._descriptor = try_lock(self._lock)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            if not existed:
                discard_empty(self.path)
            return Lock.UNSUPPORTED
        if self._descriptor is None:
            return Lock.BUSY
        os.fchmod(self._descriptor, life.VISIBLE)
        return Lock.HELD

    def take(self) -> bool:
        """Become the owner of the directory, whose lock is held; false if its owner lives."""
        return self._owner.take()

    def is_mine(self) -> bool:
        """Tell whether no other process has taken the directory over, where locks do not exclude.

        One does if it has seen no heartbeat for too long, as on a filesystem that has hung.
        """
        return self._descriptor is None or not self._owner.is_another()

    def require_mine(self) -> None:
        """Refuse to go on in a directory that is another process's now.

        Raises
        ------
        DistcacheError
            If it is.
        """
        if not self.is_mine():
            raise DistcacheError(
                f"{self.path}: another process has taken this build over, since it saw no "
                "heartbeat of it for too long; run again, which waits for that one"
            )

    def leave(self) -> None:
        """Let others build; a private workspace, which nobody could resume, is removed."""
        if self.private:
            self.remove()
        elif self._descriptor is not None:
            self._owner.release()
            discard_empty(self.path, (LOCK, *life.SIGNS))
        self._unlock()

    def remove(self) -> None:
        """Remove the workspace, unless another process has become its owner; let others build."""
        with contextlib.suppress(OSError):
            if self.is_mine():
                empty_directory(self.path, (LOCK, OWNER), self._descriptor)
                self._owner.release()
                self._lock.unlink(missing_ok=True)
        self._unlock()
        with contextlib.suppress(OSError):
            self.path.rmdir()  # a network filesystem keeps the name of a lock until it is closed

    def _unlock(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def prepare(self, key: str, size: int) -> None:
        """Make it ready for a plan: keep what was built for the same one, remove all else.

        Parameters
        ----------
        key : str
            Of the plan.
        size : int
            Bytes of the finished file; the data file gets them without taking any space.

        Raises
        ------
        ConfigError
            If the finished file could not get its name by a hard link.
        """
        require_links(self.path, self.path.parent)
        stamp = f"{key} {size}\n".encode()
        found = self._stamp.read_bytes() if self._stamp.is_file() else None
        if found != stamp:
            empty_directory(self.path, (LOCK, OWNER, *life.SIGNS), self._descriptor)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.data, flags, 0o644)
        try:
            with no_space_as_error(self.path.parent):
                os.ftruncate(descriptor, size)
        finally:
            os.close(descriptor)
        with write_whole(self._stamp) as stream:
            stream.write(stamp)

    def journals(self) -> list[str]:
        """Return the journals of all attempts so far, the last written last."""
        found = self.path.glob("journal.*.jsonl")
        return [str(path) for path in sorted(found, key=lambda path: (path.stat().st_mtime, path))]

    def journal(self, attempt: str, rank: int) -> str:
        """Return the path of a rank's journal."""
        return str(self.path / f"journal.{attempt}.{rank}.jsonl")


def sweep(final: Path) -> None:
    """Remove this user's workspaces of a finished cache that nobody builds in any more.

    That is the shared one if its lock is free, and private ones without life for an hour.
    """
    for path, private in list(life.building_directories(final)):
        with contextlib.suppress(OSError, DistcacheError):
            found = os.lstat(path)
            workspace = Workspace(final, private)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                continue
            if private and time.time() - found.st_mtime > limits().leftover:
                workspace.remove()
            elif not private and workspace.lock() is Lock.HELD:
                workspace.remove() if workspace.take() else workspace.leave()
