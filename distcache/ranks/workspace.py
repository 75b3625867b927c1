"""The hidden directory of unfinished files: who may work there, its stamp, and publication."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

import msgspec

from distcache.errors import ConfigError, DistcacheError
from distcache.ranks.heartbeat import BEATS
from distcache.ranks.owner import OWNER, Monitor, Owner
from distcache.ranks.progress import Progress
from distcache.storage.files import (
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
from distcache.storage.timeouts import limits
from distcache.storage.watchdog import tick

# Others can open the heartbeat, whose name they know, but not list the directory.
MODE: Final = 0o711
STAMP: Final = "stamp"
PUBLISHED: Final = "published.json"
MAX_STAMP_BYTES: Final = 4096
MAX_PUBLISHED_BYTES: Final = 1 << 26
GUARDS: Final = (OWNER, *BEATS)
# Left by a job that was killed before it had a stamp.
UNSTAMPED: Final = re.compile(rf"\.{STAMP}\.[0-9a-f]{{8}}\.part|{OWNER}\.[0-9a-f]{{8}}")
CLAIM_POLL: Final = 0.5  # seconds between two inspections of another job
NOTE_EVERY: Final = 60.0  # seconds between two messages about it
NO_RENAME2: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
NOREPLACE: Final = 1  # of renameat2(2)
HERE: Final = -100  # AT_FDCWD


def hidden_directory(final: Path, suffix: str) -> Path:
    """Return the workspace of an output, the same for all jobs that make it."""
    return final.with_name(f".{final.name}.{suffix}")


class Workspace:
    """A hidden directory beside an output, in which all jobs of the same output make it.

    Rank 0 claims it, and owns it until `release` or `remove`; all ranks write in it.

    Parameters
    ----------
    path : Path
        The directory.
    otherwise : str
        Advice for the user if the directory cannot be made or claimed, for messages.
    """

    def __init__(self, path: Path, otherwise: str = "choose another output") -> None:
        self.path = path
        self.otherwise = otherwise
        self._stamp = path / STAMP
        self._published = path / PUBLISHED
        self._owner = Owner(path)
        self._directory: int | None = None  # descriptor, while this process owns it

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
            try:
                found = os.lstat(self.path)
            except FileNotFoundError:
                return False  # it has just been removed
            if not stat.S_ISDIR(found.st_mode):
                raise DistcacheError(
                    f"{self.path}: is not a directory; remove it, or {self.otherwise}"
                ) from None
            return found.st_uid == os.geteuid()
        with (
            contextlib.suppress(FileNotFoundError),  # another process has removed it
            closing_fd(open_directory(self.path)) as descriptor,
        ):
            set_mode(descriptor, MODE)  # whatever the umask
        return True

    def take(self, *, silent: bool = False) -> bool:
        """Become the owner, if the workspace is this user's and no other process owns it.

        Parameters
        ----------
        silent : bool
            Whether a process of another machine counts as dead.
        """
        if not (self.make() and self._owner.take(silent=silent)):
            return False
        self._close()
        self._directory = open_directory(self.path)
        return True

    def is_mine(self) -> bool:
        """Return whether no other process has taken the workspace over.

        Another process does if it has seen no heartbeat for too long. Always true on ranks that
        have not claimed it.
        """
        return self._directory is None or self._owner.is_mine()

    def require_mine(self) -> None:
        """Refuse to continue in a workspace that another process has taken over.

        Raises
        ------
        DistcacheError
            If it is.
        """
        if not self.is_mine():
            raise DistcacheError(
                f"{self.path}: another process has taken it over, because it saw no heartbeat "
                "of this process for too long; run again to wait for it"
            )

    @property
    def stamp(self) -> str | None:
        """The digest of what the files here are made from; None if there is no stamp."""
        if not is_plain_file(self._stamp):
            return None
        return read_file(self._stamp, MAX_STAMP_BYTES, follow=False).decode("ascii", "replace")

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
        if self.stamp == stamp:
            return
        self._clear()
        with atomic_write(self._stamp) as stream:
            stream.write(stamp.encode("ascii"))

    def _files_of_others(self) -> list[str]:
        """Return the names in a directory without a stamp that no job has made."""
        if os.path.lexists(self._stamp):
            return []
        names = [name for name in os.listdir(self.path) if not UNSTAMPED.fullmatch(name)]
        return [name for name in names if name not in GUARDS]

    def _clear(self) -> None:
        """Remove everything but the stamp, owner and heartbeat."""
        stamp = (STAMP,) if is_plain_file(self._stamp) else ()
        empty_directory(self.path, (*GUARDS, *stamp), self._directory)

    def publish(self, names: Sequence[tuple[str, str]]) -> str | None:
        """Give files that are complete and synced their final names, in order.

        A file that has its final name is skipped, so that repeating completes a killed publication:
        size and time of each file are noted before the first is renamed.

        Parameters
        ----------
        names : sequence of (str, str)
            The unfinished file and its final name, in the directory above.

        Returns
        -------
        str or None
            The first final name that another file has; that file is unchanged, and the rest is not
            published. None if all are published.

        Raises
        ------
        DistcacheError
            If another process has taken the workspace over.
        """
        self.require_mine()
        noted = self._notes() | {
            final: _facts(unfinished) for unfinished, final in names if os.path.lexists(unfinished)
        }
        with atomic_write(self._published) as stream:
            stream.write(msgspec.json.encode(noted))
        done = self.published()
        for unfinished, final in names:
            if final in done and not os.path.lexists(unfinished):
                continue
            if not (os.path.lexists(unfinished) and _rename_to_free(unfinished, final)):
                return final
        sync_directory(self.path.parent)
        return None

    def published(self) -> set[str]:
        """Return the final names that this workspace has given, and that its files still have."""
        found = set()
        for final, facts in self._notes().items():
            with contextlib.suppress(FileNotFoundError):
                found |= {final} if _facts(final) == facts else set()
        return found

    def _notes(self) -> dict[str, tuple[int, int]]:
        """Return size and time of files that are published, or will be, by their final names."""
        if not is_plain_file(self._published):
            return {}
        content = read_file(self._published, MAX_PUBLISHED_BYTES, follow=False)
        with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
            return msgspec.json.decode(content, type=dict[str, tuple[int, int]])
        return {}

    def release(self) -> None:
        """Stop being the owner. Unfinished files stay."""
        if self._directory is not None:
            self._owner.release()
            _discard_empty(self.path)
        self._close()

    def remove(self) -> None:
        """Remove the workspace, unless another process has taken it over.

        Files that no job has made stay.
        """
        with contextlib.suppress(OSError):
            if self.is_mine():
                if not self._files_of_others():
                    self._clear()
                    empty_directory(self.path, (OWNER,), self._directory)
                self._owner.release()
        self._close()
        # Another process may have begun to write; network filesystems may keep a name for a while.
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def _close(self) -> None:
        if self._directory is not None:
            os.close(self._directory)
            self._directory = None


def claim(
    workspace: Workspace,
    is_finished: Callable[[], bool],
    what: str,
    progress: Progress,
    made_from: str,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Claim the workspace of an output, or wait for the job that makes it.

    The workspace of a job that has died is resumed. A job of another machine that only seems to
    have died writes the same bytes as this one if it comes to life; so one that makes something
    else is never taken over.

    Parameters
    ----------
    workspace : Workspace
        The workspace.
    is_finished : callable
        Returns whether the output exists; may raise if something else has its name.
    what : str
        Description for messages.
    progress : Progress
        Receives for which job this one waits.
    made_from : str
        The first word of the workspace's stamp, where the same is made.
    clock : callable
        Seconds.

    Returns
    -------
    bool
        Whether this process owns the workspace; false if the output exists.

    Raises
    ------
    DistcacheError
        If the other job has shown no heartbeat for too long, or does not end.
    """
    monitor = Monitor(workspace.path, clock)
    begin, noted = clock(), -NOTE_EVERY
    while not is_finished():
        silent = not monitor.hidden and monitor.silence > limits().hung
        if workspace.take(silent=silent and _makes_the_same(workspace, made_from)):
            if not is_finished():
                return True
            workspace.remove()
            continue
        tick()
        monitor.look()
        now = clock()
        who = "another user's job" if monitor.hidden else str(monitor.beat or "another job")
        _require_alive(workspace, monitor, who, now - begin)
        if now - noted >= NOTE_EVERY:
            progress.note(f"waiting for {who}, which is making {what}")
            noted = now
        time.sleep(CLAIM_POLL)
    _sweep(workspace)
    return False


def _makes_the_same(workspace: Workspace, made_from: str) -> bool:
    """Return whether the files of a workspace, if it has any, are made from the same."""
    stamp = workspace.stamp
    return stamp is None or stamp.split(" ")[0] == made_from


def _require_alive(workspace: Workspace, monitor: Monitor, who: str, waited: float) -> None:
    reason = ""
    if not monitor.hidden and monitor.silence > limits().abandoned:
        reason = f"has shown no heartbeat for {limits().abandoned:.0f} s"
    elif waited > 0.9 * limits().collective:  # before the other ranks stop waiting for this one
        reason = f"has not ended for {waited:.0f} s"
    if reason:
        raise DistcacheError(
            f"{workspace.path}: {who} works there, and {reason}; end it, or {workspace.otherwise}"
        )


def _sweep(workspace: Workspace) -> None:
    """Remove this user's abandoned workspace of a finished output."""
    with contextlib.suppress(OSError, DistcacheError):
        if os.path.lexists(workspace.path) and workspace.take():
            workspace.remove()


def _facts(path: str) -> tuple[int, int]:
    """Return size and modification time of a file or a link."""
    found = os.lstat(path)
    return found.st_size, found.st_mtime_ns


def _rename_to_free(unfinished: str, final: str) -> bool:
    """Rename a file; false if another file has the name.

    Where the filesystem has no rename that refuses to replace, another program may take the name in
    between; no job of distcache does, since only the owner of the workspace publishes.
    """
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # since glibc 2.28
    if call is not None:
        done = call(HERE, os.fsencode(unfinished), HERE, os.fsencode(final), NOREPLACE)
        number = ctypes.get_errno() if done else 0
        if number not in (0, errno.EEXIST, *NO_RENAME2):
            raise OSError(number, os.strerror(number), final)
        if number not in NO_RENAME2:
            return number == 0
    if os.path.lexists(final):
        return False
    os.rename(unfinished, final)
    return True


def _discard_empty(directory: Path) -> None:
    """Remove a directory if it has nothing but a heartbeat."""
    with contextlib.suppress(OSError):
        if set(os.listdir(directory)).issubset(BEATS):
            for name in BEATS:
                (directory / name).unlink(missing_ok=True)
            directory.rmdir()


def empty_directory(path: Path, keep: Collection[str] = (), known: int | None = None) -> None:
    """Remove what a directory has, but for some names; another process may remove the same.

    Parameters
    ----------
    path : Path
        A directory of this user. Anybody who may write to the one above it could have put a link,
        or another directory of this user, in its place.
    keep : collection of str
        Names that stay.
    known : int or None
        A descriptor of the directory that is meant.

    Raises
    ------
    OSError
        If it is another directory, or something cannot be removed.
    """
    with closing_fd(open_directory(path)) as descriptor:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or (
            known is not None and not os.path.samestat(found, os.fstat(known))
        ):
            raise PermissionError(
                errno.EPERM, "Is not the directory that was claimed, which was removed", str(path)
            )
        for name in os.listdir(descriptor):
            if name not in keep:
                _remove(name, descriptor)


def _remove(name: str, directory: int) -> None:
    """Remove a file or link, or a directory that somebody has put in a file's place."""
    with contextlib.suppress(FileNotFoundError):
        try:
            os.unlink(name, dir_fd=directory)
        except IsADirectoryError:
            shutil.rmtree(name, dir_fd=directory)
