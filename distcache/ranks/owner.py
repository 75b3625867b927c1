"""The owner of a workspace: the one process that may publish what is made there.

Exclusive creation of a file excludes on all filesystems. A lock may not: it may be local to a
machine, as on Lustre mounted with ``localflock`` and on NFS with ``local_lock``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from distcache.ranks.heartbeat import VISIBLE, Beat, read_beat
from distcache.ranks.job_environment import NODE_NAME
from distcache.storage.files import closing_fd, no_space_as_error, read_file, set_mode
from distcache.storage.timeouts import limits

OWNER: Final = "owner"
MAX_OWNER_BYTES: Final = 1 << 12  # bytes of the file; more are not read
OWNER_POLL: Final = 0.1  # seconds in which another process may become the owner, too


class _Process(NamedTuple):
    """A process: its machine, its PID namespace there, its PID, its start time."""

    machine: str
    namespace: str
    number: str
    started: str


def _machine() -> str:
    """Return an identifier of this machine, which its containers share."""
    if named := os.environ.get(NODE_NAME):
        return "".join(named.split())
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def _started(number: str) -> str:
    """Return the start time of a process of this machine; empty if it has ended."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _me() -> _Process:
    """Return what identifies this process."""
    number = str(os.getpid())
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = "-"
    return _Process(_machine(), namespace, number, _started(number))


def _read(path: Path) -> bytes | None:
    """Return the content of an owner's file, empty during its creation; None if there is none."""
    try:
        return read_file(path, MAX_OWNER_BYTES, follow=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ELOOP):
            return b""  # something that is no file, and names nobody
        raise


def _lives(owner: bytes) -> bool | None:
    """Return whether an owner's process lives; None if only its heartbeat can tell."""
    words = owner.decode("utf-8", "replace").split()
    if len(words) == 5 and (words[0], words[1]) == _me()[:2]:
        return _started(words[2]) == words[3]
    return None


class Monitor:
    """Watches the owner of a workspace and its heartbeat, by the clock of this process only.

    Parameters
    ----------
    directory : Path
        Directory of the job's unfinished files.
    clock : callable
        Seconds.

    Attributes
    ----------
    beat : Beat or None
        The last heartbeat.
    hidden : bool
        Whether this user may not read it; then nothing is known of the job.
    """

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._clock = clock
        self._since = self._looked = clock()
        self._owner: bytes | None = None
        self.beat: Beat | None = None
        self.hidden = False

    def look(self) -> None:
        """Read the heartbeat, and who the owner is."""
        now, before = self._clock(), (self.beat, self._owner)
        # A filesystem that stands still stops this process as it does the owner.
        self._since += max(0.0, now - self._looked - limits().hung / 2)
        self._looked = now
        try:
            self.beat, self._owner = read_beat(self._directory), _read(self._directory / OWNER)
        except PermissionError:
            self.hidden = True
            return
        except OSError:  # of a directory that goes, on a network filesystem
            return
        self.hidden = False
        if (self.beat, self._owner) != before:
            self._since = self._clock()

    @property
    def is_owned(self) -> bool:
        """Whether there is an owner that has not ended, as far as this node can see."""
        return self.hidden or (self._owner is not None and _lives(self._owner) is not False)

    @property
    def silence(self) -> float:
        """Seconds since the last heartbeat, or the last change of owner."""
        return self._clock() - self._since


class Owner:
    """The file that names the process which may write in a workspace.

    Parameters
    ----------
    directory : Path
        The workspace.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / OWNER
        self._text = " ".join((*_me(), secrets.token_hex(8))).encode() + b"\n"

    def take(self, *, silent: bool = False) -> bool:
        """Become the owner, unless another process is the owner and alive.

        Parameters
        ----------
        silent : bool
            Whether there has been no heartbeat for so long that a process of another machine counts
            as dead. A process of this machine is alive if it exists.

        Returns
        -------
        bool
            Whether this process is the owner now; false if the directory is gone.
        """
        contested = False
        while not (made := self._make(contested=contested)):
            if made is None:
                return False
            found = _read(self._path)
            if found == self._text:
                return True
            if found is None:
                continue
            lives = _lives(found)
            if lives or (lives is None and not silent):
                return False
            self._put_aside(found)
            contested = True
        return True

    def is_mine(self) -> bool:
        """Return whether this process is the owner still: others may have taken it for dead."""
        found = _read(self._path)
        if found is None:  # one that puts a dead owner aside puts this one back at once
            time.sleep(OWNER_POLL)
            found = _read(self._path)
        return found == self._text

    def release(self) -> None:
        """Stop being the owner."""
        with contextlib.suppress(OSError):
            if _read(self._path) == self._text:
                self._path.unlink()

    def _make(self, *, contested: bool) -> bool | None:
        """Create the file; if contested, check that no other process has moved it aside.

        None if the directory is gone.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(self._path, flags, 0o600)
        except FileExistsError:
            return False
        except FileNotFoundError:
            return None
        with closing_fd(descriptor), no_space_as_error(self._path):
            try:
                set_mode(descriptor, VISIBLE)
                os.write(descriptor, self._text)
            except BaseException:  # an owner without a text would be waited for
                self._path.unlink(missing_ok=True)
                raise
        if contested:
            time.sleep(OWNER_POLL)
        return not contested or _read(self._path) == self._text

    def _put_aside(self, owner: bytes) -> None:
        """Remove the file of a dead owner; of several processes that try, one succeeds."""
        aside = self._path.with_name(f"{OWNER}.{secrets.token_hex(4)}")
        try:
            os.rename(self._path, aside)
        except FileNotFoundError:
            return
        if _read(aside) != owner:  # another process has become the owner
            with contextlib.suppress(OSError):
                os.link(aside, self._path)
        with contextlib.suppress(OSError):
            aside.unlink()
