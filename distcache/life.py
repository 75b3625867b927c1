"""The heartbeat of a build, which lies beside the cache that is to come.

A build works in a hidden directory beside the cache's final name. In it, a small file is replaced
every two seconds: whoever waits for the cache sees by it that the build goes on, and how far it is.
Everybody may look at it, and at the lock, but at nothing else in the directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from distcache.locks import LOCK

__all__ = [
    "COUNTS",
    "SIGNS",
    "Pulse",
    "Sign",
    "building_directories",
    "building_directory",
    "read_sign",
    "show",
]

NAME: Final = "progress.json"
COUNTS: Final = "counts"
SIGNS: Final = (NAME, f"{NAME}.part", COUNTS)
"""The files of a heartbeat."""
SUFFIX: Final = ".building"
LONGEST: Final = 1 << 16  # bytes that are read of a sign
VISIBLE: Final = 0o644  # the mode of what everybody may look at


class Sign(msgspec.Struct, frozen=True):
    """What a build tells of itself.

    Attributes
    ----------
    host, process : str, int
        Where rank 0 runs.
    phase : str
        What it does.
    fraction : float or None
        How much of the phase is done, from 0 to 1.
    sign : str
        Another one each time.
    moved : int or None
        Another one whenever any rank has moved; None of a version that does not say.
    quiet : str
        Who has not moved for long, though it does not wait for others.
    """

    host: str
    process: int
    phase: str
    fraction: float | None
    sign: str
    moved: int | None = None
    quiet: str = ""

    def __str__(self) -> str:
        done = "" if self.fraction is None else f" {self.fraction:.0%}"
        quiet = f"; {self.quiet}" if self.quiet else ""
        return f"process {self.process} on {self.host} ({self.phase}{done}{quiet})"


def building_directory(final: Path, private: str = "") -> Path:
    """Return where a cache is built: one place for all, or one of a process's own."""
    return final.with_name(f".{final.name}{SUFFIX}{private and '-' + private}")


def building_directories(final: Path) -> Iterator[tuple[Path, str]]:
    """Yield the directories of builds of a cache that there are, and what makes them private."""
    shared = building_directory(final)
    private = re.compile(re.escape(shared.name) + r"(?:-([0-9a-f]{8}))?")
    try:
        names = os.listdir(final.parent)
    except OSError:
        return
    for name in sorted(names):
        if found := private.fullmatch(name):
            yield final.with_name(name), found.group(1) or ""


def show(
    directory: Path,
    phase: str,
    fraction: float | None,
    moved: int | None = None,
    quiet: str = "",
) -> None:
    """Write a heartbeat into a build's directory."""
    token = secrets.token_hex(8)
    sign = Sign(socket.gethostname(), os.getpid(), phase, fraction, token, moved, quiet)
    temporary = directory / f"{NAME}.part"
    temporary.unlink(missing_ok=True)  # never write through a link or into a pipe
    with open(temporary, "xb") as stream:
        os.fchmod(stream.fileno(), VISIBLE)
        stream.write(msgspec.json.encode(sign))
    os.replace(temporary, directory / NAME)


def read_sign(directory: Path) -> Sign | None:
    """Return the last heartbeat in a build's directory, or None.

    Raises
    ------
    PermissionError
        If this user may not look.
    """
    descriptor = _open(directory / NAME)
    if descriptor is None:
        return None
    try:
        return msgspec.json.decode(os.read(descriptor, LONGEST), type=Sign)
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(descriptor)


def _open(path: Path) -> int | None:
    """Open what a builder shows; None if it is not there. PermissionError is raised."""
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        raise
    except OSError:
        return None


def is_locked(directory: Path) -> bool:
    """Tell whether a builder holds the lock of its directory, as far as this node can see.

    Raises
    ------
    PermissionError
        If this user may not look.
    """
    descriptor = _open(directory / LOCK)
    if descriptor is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


class Pulse:
    """What is seen of a builder over time; only this process's own clock counts.

    Parameters
    ----------
    directory : Path
        Of the build.
    clock : callable
        Seconds.

    Attributes
    ----------
    sign : Sign or None
        The last heartbeat.
    hidden : bool
        Whether this user may not look: then nothing is known of it.
    """

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._clock = clock
        self._beat = self._motion = clock()
        self.sign: Sign | None = None
        self.hidden = False

    def look(self) -> None:
        """Read the heartbeat."""
        now, before = self._clock(), self.sign
        self.hidden = False
        try:
            self.sign = read_sign(self._directory)
        except PermissionError:
            self.hidden = True
            return
        if self.sign != before:
            self._beat = now
            known = None not in (before, self.sign) and before.moved is not None  # type: ignore[union-attr]
            if not known or before.moved != self.sign.moved:  # type: ignore[union-attr]
                self._motion = now

    @property
    def silence(self) -> float:
        """Seconds since the heartbeat was another one."""
        return self._clock() - self._beat

    @property
    def stillness(self) -> float:
        """Seconds since any rank has moved."""
        return self._clock() - self._motion

    @property
    def locked(self) -> bool:
        """Whether the builder holds its lock, as far as can be seen; true if it cannot."""
        with contextlib.suppress(PermissionError):
            return is_locked(self._directory)
        return True
