"""The hidden directory of unfinished files: its lock, its owner, its stamp, and publication."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Collection, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Final

from distcache.errors import ConfigError, DistcacheError
from distcache.ranks.heartbeat import BEATS, VISIBLE
from distcache.ranks.owner import OWNER, Owner
from distcache.ranks.publication import give_name, link_problem
from distcache.storage.files import (
    NO_LOCKS,
    PROBE,
    atomic_write,
    closing_fd,
    is_plain_file,
    make_directories,
    may_write,
    open_directory,
    read_file,
    set_mode,
    sync_directory,
)
from distcache.storage.locks import LOCK, try_lock
from distcache.storage.timeouts import limits

# Others can open the heartbeat and the lock, whose names they know, but not list the directory.
MODE: Final = 0o711
STAMP: Final = "stamp"
LONGEST_STAMP: Final = 4096  # bytes
GUARDS: Final = (LOCK, OWNER, *BEATS)
# Left by a job that was killed before it had a stamp.
UNSTAMPED: Final = re.compile(
    rf"\.{STAMP}\.[0-9a-f]{{8}}\.part|{OWNER}\.[0-9a-f]{{8}}|{PROBE.pattern}"
)


class Lock(Enum):
    """The result of trying to lock a workspace."""

    HELD = "held"
    BUSY = "busy"
    FOREIGN = "another user's"
    UNSUPPORTED = "unsupported"


def hidden_directory(final: Path, suffix: str) -> Path:
    """Return the workspace of an output, the same for all jobs that make it."""
    return final.with_name(f".{final.name}.{suffix}")


def directories_of(shared: Path) -> Iterator[tuple[Path, str]]:
    """Yield the existing workspaces of an output, with the token of each private one."""
    pattern = re.compile(re.escape(shared.name) + r"(?:-([0-9a-f]{8}))?")
    try:
        names = os.listdir(shared.parent)
    except OSError:
        return
    for name in sorted(names):
        if found := pattern.fullmatch(name):
            yield shared.with_name(name), found.group(1) or ""


class Workspace:
    """A hidden directory beside an output, in which jobs make it.

    Rank 0 claims it (`distcache.ranks.claim`), and has its lock until `release` or `remove`; all
    ranks write in it.

    Parameters
    ----------
    shared : Path
        The directory that all jobs of the same output use.
    private : str
        The token of a private workspace, which is not resumed; by default the shared one.
    otherwise : str
        Advice for the user if the directory cannot be made, for messages.
    """

    def __init__(
        self, shared: Path, private: str = "", otherwise: str = "choose another output"
    ) -> None:
        self.shared = shared
        self.private = private
        self.otherwise = otherwise
        self.path = shared.with_name(f"{shared.name}-{private}") if private else shared
        self._stamp = self.path / STAMP
        self._lock: int | None = None
        self._made = False
        self._links: bool | None = None  # between this directory and the one above
        self._owner = Owner(self.path)

    def as_private(self) -> Workspace:
        """Make and return a private workspace of the same output."""
        private = Workspace(self.shared, secrets.token_hex(4), self.otherwise)
        private.make()
        private._made = True
        return private

    def make(self) -> bool:
        """Make the directory if it does not exist; return whether it is this user's.

        Raises
        ------
        ConfigError
            If it cannot be made there.
        DistcacheError
            If something else has its name.
        """
        parent = self.path.parent
        try:
            with may_write(parent, self.otherwise):
                make_directories(parent)
                self.path.mkdir(mode=MODE)
        except FileExistsError:
            if not parent.is_dir():
                raise ConfigError(f"{parent}: is not a directory") from None
            found = os.lstat(self.path)
            if not stat.S_ISDIR(found.st_mode):
                raise DistcacheError(
                    f"{self.path}: is not a directory; remove it, or {self.otherwise}"
                ) from None
            return found.st_uid == os.geteuid()
        with closing_fd(open_directory(self.path)) as descriptor:
            set_mode(descriptor, MODE)  # whatever the umask
        return True

    def lock(self) -> Lock:
        """Try to lock the workspace; the lock lasts until `release` or the process ends."""
        existed = os.path.lexists(self.path)
        if not self.make():
            return Lock.FOREIGN
        try:
            self._lock = try_lock(self.path / LOCK)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            if not existed:
                discard_empty(self.path)
            return Lock.UNSUPPORTED
        if self._lock is None:
            return Lock.BUSY
        set_mode(self._lock, VISIBLE)
        return Lock.HELD

    def take(self) -> bool:
        """Become the owner of the locked workspace; false if its owner is alive."""
        return self._owner.take()

    def is_mine(self) -> bool:
        """Return whether no other process has taken the workspace over, where locks do not exclude.

        Another process does if it has seen no heartbeat for too long.
        """
        return self._lock is None or not self._owner.is_another()

    def require_mine(self) -> None:
        """Refuse to continue in a workspace that another process has taken over.

        Raises
        ------
        DistcacheError
            If it is.
        """
        if not self.is_mine():
            raise DistcacheError(
                f"{self.path}: another process has taken it over, since it saw no heartbeat of "
                "this one for too long; run again, which waits for that one"
            )

    @property
    def stamp(self) -> str | None:
        """The digest of what the files here are made from; None if there is no stamp."""
        if not is_plain_file(self._stamp):
            return None
        return read_file(self._stamp, LONGEST_STAMP, follow=False).decode("ascii", "replace")

    def prepare(self, stamp: str) -> None:
        """Keep files that were made from the same, and remove others. The workspace is claimed.

        Parameters
        ----------
        stamp : str
            Identity of everything that the files depend on.

        Raises
        ------
        DistcacheError
            If the directory has files but no stamp: then no job has made them.
        """
        if others := self._files_of_others():
            raise DistcacheError(
                f"{self.path}: has files of somebody else ({', '.join(others[:3])}); move it "
                f"away, or {self.otherwise}"
            )
        self._links = not link_problem(self.path)
        self._take_back()
        if self.stamp == stamp:
            self._discard_published()
            return
        self._clear()
        with atomic_write(self._stamp) as stream:
            stream.write(stamp.encode("ascii"))

    def _files_of_others(self) -> list[str]:
        """Return the names in a directory without a stamp that no job has made."""
        if self._made or os.path.lexists(self._stamp):
            return []
        names = [name for name in os.listdir(self.path) if not UNSTAMPED.fullmatch(name)]
        return [name for name in names if name not in GUARDS]

    def _take_back(self) -> None:
        """Take back the files that a killed publication has put aside, without links."""
        if self._links:
            return
        prefix = f"{self.path.name}."
        for name in os.listdir(self.path.parent):
            if not name.startswith(prefix):
                continue
            aside, own = self.path.with_name(name), self.path / name.removeprefix(prefix)
            with contextlib.suppress(FileNotFoundError):
                found = aside.lstat()
                if found.st_nlink > 1 or os.path.lexists(own):
                    aside.unlink()
                elif not stat.S_ISDIR(found.st_mode):
                    os.rename(aside, own)

    def _discard_published(self) -> None:
        """Unlink files that have another name too: a killed job has published them.

        They are complete, and must not be written to again, whatever their other name is now.
        """
        for path in self.path.iterdir():
            with contextlib.suppress(FileNotFoundError):  # the heartbeat's, of another thread
                found = path.lstat()
                if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
                    path.unlink()

    def _clear(self) -> None:
        """Remove everything but the stamp, lock, owner and heartbeat."""
        stamp = (STAMP,) if is_plain_file(self._stamp) else ()
        empty_directory(self.path, (*GUARDS, *stamp), self._lock)

    def publish(self, names: Sequence[tuple[str, str]]) -> str | None:
        """Give files that are complete and synced their final names, in order.

        A file that already has its final name is skipped, so that repeating completes a killed
        publication.

        Parameters
        ----------
        names : sequence of (str, str)
            The unfinished file and its final name, in the directory above.

        Returns
        -------
        str or None
            The first final name that another file has; that file is unchanged, and the rest is not
            published. None if all are published; then the unfinished names are removed.

        Raises
        ------
        DistcacheError
            If another process has taken the workspace over.
        """
        self.require_mine()
        if self._links is None:
            self._links = not link_problem(self.path)
        for unfinished, final in names:
            if is_same_file(unfinished, final):
                continue
            if not self._links:
                # The file's name while it is published.
                hidden = self.path.with_name(f"{self.path.name}.{os.path.basename(unfinished)}")
                if not give_name(Path(unfinished), Path(final), hidden):
                    return final
                continue
            try:
                os.link(unfinished, final, follow_symlinks=False)
            except FileExistsError:
                return final
        sync_directory(self.path.parent)
        for unfinished, _ in names:
            Path(unfinished).unlink(missing_ok=True)
        return None

    def release(self) -> None:
        """Unlock the workspace. Unfinished files stay; a private workspace is removed."""
        if self._made:
            self.remove()
        elif self._lock is not None:
            self._owner.release()
            discard_empty(self.path, (LOCK, *BEATS))
        self._unlock()

    def remove(self) -> None:
        """Remove and unlock the workspace, unless another process has taken it over.

        Files that no job has made stay.
        """
        with contextlib.suppress(OSError):
            if self.is_mine():
                if not self._files_of_others():
                    self._clear()
                    empty_directory(self.path, (LOCK, OWNER), self._lock)
                self._owner.release()
                (self.path / LOCK).unlink(missing_ok=True)
        self._unlock()
        # Another process may have begun to write; network filesystems may keep a name for a while.
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def is_same_file(unfinished: str, final: str) -> bool:
    """Return whether two names are of the same file, as after a killed publication."""
    try:
        return os.path.samestat(os.lstat(unfinished), os.lstat(final))
    except FileNotFoundError:
        return False


def sweep(shared: Path, *, finished: bool) -> None:
    """Remove this user's abandoned workspaces of an output.

    These are private ones without a heartbeat for an hour, and, if the output is finished, the
    shared one if its lock is free.
    """
    for path, private in list(directories_of(shared)):
        with contextlib.suppress(OSError, DistcacheError):
            found = os.lstat(path)
            workspace = Workspace(shared, private)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                continue
            if private and time.time() - found.st_mtime > limits().leftover:
                workspace.remove()
            elif finished and not private and workspace.lock() is Lock.HELD:
                workspace.remove() if workspace.take() else workspace.release()


def discard_empty(directory: Path, remains: Collection[str] = (LOCK,)) -> None:
    """Remove a directory if it has nothing but files of some names."""
    with contextlib.suppress(OSError):
        if set(os.listdir(directory)).issubset(remains):
            for name in remains:
                (directory / name).unlink(missing_ok=True)
            directory.rmdir()


def empty_directory(path: Path, keep: Collection[str] = (), lock: int | None = None) -> None:
    """Remove what a directory has, but for some names; another process may remove the same.

    Parameters
    ----------
    path : Path
        A directory of this user. Anybody who may write to the one above it could have put a link,
        or another directory of this user, in its place.
    keep : collection of str
        Names that stay.
    lock : int or None
        A descriptor of its lock, by which it is known to be the right one.

    Raises
    ------
    OSError
        If it is another directory, or something cannot be removed.
    """
    with closing_fd(open_directory(path)) as descriptor:
        if not _is_own(descriptor, lock):
            raise PermissionError(
                errno.EPERM,
                "Is not the directory that was locked: it or its lock was removed or exchanged",
                str(path),
            )
        for name in os.listdir(descriptor):
            if name not in keep:
                _remove(name, descriptor)


def _is_own(descriptor: int, lock: int | None) -> bool:
    if os.fstat(descriptor).st_uid != os.geteuid():
        return False
    if lock is None:
        return True
    try:
        found = os.stat(LOCK, dir_fd=descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(lock))


def _remove(name: str, directory: int) -> None:
    """Remove a file or link, or a directory that somebody has put in a file's place."""
    with contextlib.suppress(FileNotFoundError):
        try:
            os.unlink(name, dir_fd=directory)
        except IsADirectoryError:
            shutil.rmtree(name, dir_fd=directory)
