"""The sign of life of a build, which lies beside the cache that is to come.

A build works in a hidden directory beside the cache's final name. In it, a small file is replaced
every two seconds: whoever waits for the cache sees by it that the build goes on, and how far it is.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

__all__ = [
    "INTERVAL",
    "LOCK",
    "Sign",
    "building_directories",
    "building_directory",
    "read_sign",
    "show",
]

INTERVAL: Final = 2.0  # seconds between signs
NAME: Final = "progress.json"
LOCK: Final = "lock"
SUFFIX: Final = ".building"
LONGEST: Final = 1 << 16  # bytes that are read of a sign


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
    """

    host: str
    process: int
    phase: str
    fraction: float | None
    sign: str

    def __str__(self) -> str:
        done = "" if self.fraction is None else f" {self.fraction:.0%}"
        return f"process {self.process} on {self.host} ({self.phase}{done})"


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


def show(directory: Path, phase: str, fraction: float | None) -> None:
    """Give a sign of life in a build's directory."""
    sign = Sign(socket.gethostname(), os.getpid(), phase, fraction, secrets.token_hex(8))
    temporary = directory / f"{NAME}.part"
    temporary.unlink(missing_ok=True)  # never write through a link or into a pipe
    with open(temporary, "xb") as stream:
        stream.write(msgspec.json.encode(sign))
    os.replace(temporary, directory / NAME)


def read_sign(directory: Path) -> Sign | None:
    """Return the last sign of life in a build's directory, or None."""
    try:
        descriptor = os.open(
            directory / NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
    except OSError:
        return None
    try:
        return msgspec.json.decode(os.read(descriptor, LONGEST), type=Sign)
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(descriptor)
