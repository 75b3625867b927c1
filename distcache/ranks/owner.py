"""The owner of a workspace, for filesystems on which locks do not exclude.

A lock may be local to a machine: on Lustre mounted with ``localflock``, on NFS with ``local_lock``.
Exclusive creation of a file excludes on all filesystems.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from pathlib import Path
from typing import Final, NamedTuple

from distcache.ranks.heartbeat import Monitor
from distcache.ranks.job_environment import NODE_NAME
from distcache.storage.files import closing_fd, no_space_as_error
from distcache.storage.timeouts import limits

OWNER: Final = "owner"
MAX_OWNER_BYTES: Final = 1 << 12  # bytes of the file; more are not read
OWNER_POLL: Final = 0.1  # seconds between two inspections of an owner that may be dead


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


class Owner:
    """The file that names the process which may write in a workspace.

    Parameters
    ----------
    directory : Path
        The workspace; its lock is held.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / OWNER
        number = str(os.getpid())
        try:
            namespace = os.readlink("/proc/self/ns/pid")
        except OSError:
            namespace = "-"
        self._me = _Process(_machine(), namespace, number, _started(number))
        self._text = " ".join((*self._me, secrets.token_hex(8))).encode() + b"\n"

    def take(self) -> bool:
        """Become the owner, unless another process is the owner and alive.

        A process of this machine is alive if it exists, one of another machine if its heartbeat
        continues; to see that takes some seconds.

        Returns
        -------
        bool
            Whether this process is the owner now; false if the directory is gone.
        """
        contested = False
        while not (made := self._make(contested=contested)):
            if made is None:
                return False
            found = self._read()
            if found == self._text:
                return True
            if found is None:
                continue
            if self._is_alive(found):
                return False
            self._put_aside(found)
            contested = True
        return True

    def is_another(self) -> bool:
        """Return whether another process is the owner."""
        return self._read() not in (None, self._text)

    def release(self) -> None:
        """Stop being the owner."""
        with contextlib.suppress(OSError):
            if self._read() == self._text:
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
            os.write(descriptor, self._text)
        if contested:
            time.sleep(OWNER_POLL)
        return not contested or self._read() == self._text

    def _read(self, path: Path | None = None) -> bytes | None:
        """Return the content of the file, empty during its creation; None if there is none."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            with closing_fd(os.open(path or self._path, flags)) as descriptor:
                return os.read(descriptor, MAX_OWNER_BYTES)
        except FileNotFoundError:
            return None

    def _is_alive(self, owner: bytes) -> bool:
        words = owner.decode("utf-8", "replace").split()
        if len(words) == 5 and (words[0], words[1]) == self._me[:2]:
            return _started(words[2]) == words[3]
        monitor = Monitor(self._directory)
        monitor.look()
        first = monitor.beat
        while monitor.silence <= limits().silent:
            if monitor.beat != first or self._read() != owner:
                return True
            time.sleep(OWNER_POLL)
            monitor.look()
        return False

    def _put_aside(self, owner: bytes) -> None:
        """Remove the file of a dead owner; of several processes that try, one succeeds."""
        aside = self._path.with_name(f"{OWNER}.{secrets.token_hex(4)}")
        try:
            os.rename(self._path, aside)
        except FileNotFoundError:
            return
        if self._read(aside) != owner:  # another process has become the owner
            with contextlib.suppress(OSError):
                os.link(aside, self._path)
        aside.unlink(missing_ok=True)
