"""The directory of an unfinished cache: every path in it, and its lock."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import time
from enum import Enum
from pathlib import Path
from typing import Final

from distcache.cache import life
from distcache.errors import ConfigError, DistcacheError
from distcache.locks import NO_LOCKS, try_lock

__all__ = ["Lock", "Workspace", "sweep"]

ABANDONED: Final = 3600.0  # seconds; a live build renames a file in its workspace every two


class Lock(Enum):
    """How trying to lock a workspace ended."""

    HELD = "held"
    BUSY = "busy"
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
        self._lock = self.path / life.LOCK
        self._stamp = self.path / "plan"
        self._descriptor: int | None = None

    @classmethod
    def of_this_process(cls, final: Path) -> Workspace:
        """Return a workspace that no other process shares."""
        return cls(final, secrets.token_hex(4))

    def make(self) -> None:
        """Make the directory, unless it is there.

        Raises
        ------
        DistcacheError
            If something else has its name, or another user made it.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise ConfigError(f"{self.path.parent}: is not a directory") from error
        try:
            self.path.mkdir(mode=0o700)
        except FileExistsError:
            found = os.lstat(self.path)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise DistcacheError(
                    f"{self.path}: is not a directory of this user; move it away, or build under "
                    "another --name"
                ) from None

    def lock(self) -> Lock:
        """Try to become the only builder; the lock lasts until `leave` or the process ends."""
        self.make()
        try:
            self._descriptor = try_lock(self._lock)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            self._remove_files()
            return Lock.UNSUPPORTED
        return Lock.BUSY if self._descriptor is None else Lock.HELD

    def leave(self) -> None:
        """Let others build; a private workspace, which nobody could resume, is removed."""
        if self.private:
            self.remove()
        self._unlock()

    def remove(self) -> None:
        """Remove the workspace, and let others build."""
        self._remove_files()
        self._unlock()
        with contextlib.suppress(OSError):
            self.path.rmdir()  # a network filesystem keeps the name of a lock until it is closed

    def _unlock(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _remove_files(self) -> None:
        with contextlib.suppress(OSError):
            for entry in self.path.iterdir():
                _remove(entry)
            self.path.rmdir()

    def prepare(self, key: str, size: int) -> None:
        """Make it ready for a plan: keep what was built for the same one, remove all else.

        Parameters
        ----------
        key : str
            Of the plan.
        size : int
            Bytes of the finished file; the data file gets them without taking any space.
        """
        stamp = f"{key} {size}\n".encode()
        found = self._stamp.read_bytes() if self._stamp.is_file() else None
        if found != stamp:
            for entry in self.path.iterdir():
                if entry != self._lock:
                    _remove(entry)
        descriptor = os.open(
            self.data, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644
        )
        try:
            os.ftruncate(descriptor, size)
        finally:
            os.close(descriptor)
        self._stamp.write_bytes(stamp)

    def journals(self) -> list[str]:
        """Return the journals of all attempts so far."""
        return sorted(str(path) for path in self.path.glob("journal.*.jsonl"))

    def journal(self, attempt: str, rank: int) -> str:
        """Return the path of a rank's journal."""
        return str(self.path / f"journal.{attempt}.{rank}.jsonl")


def sweep(final: Path) -> None:
    """Remove the workspaces of a finished cache that nobody builds in any more.

    That is the shared one if its lock is free, and private ones without life for an hour.
    """
    shared = Workspace(final)
    is_directory = shared.path.is_dir() and not shared.path.is_symlink()
    if is_directory and shared.lock() is Lock.HELD:
        shared.remove()
    for path, private in list(life.building_directories(final)):
        if private and time.time() - os.lstat(path).st_mtime > ABANDONED:
            Workspace(final, private).remove()


def _remove(entry: Path) -> None:
    """Remove a file or link, or a directory that somebody has put in a file's place."""
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()
