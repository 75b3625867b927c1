"""The heartbeat of a job: that rank 0 is alive, and how far it is.

Every two seconds rank 0 replaces a small file in the workspace, which waiting jobs read. Everybody
may read it, but not list the directory.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from pathlib import Path
from typing import Final

import msgspec

from distcache.ranks.progress import Stopwatch
from distcache.storage.files import read_file, set_mode
from distcache.storage.threads import decodable
from distcache.storage.timeouts import limits

NAME: Final = "progress.json"
BEATS: Final = (NAME, f"{NAME}.part")
"""The files of a heartbeat."""
MAX_HEARTBEAT_BYTES: Final = 1 << 16  # bytes of a heartbeat; more are not read
VISIBLE: Final = 0o644  # the mode of files that everybody may read


@decodable
class Beat(msgspec.Struct, frozen=True):
    """One heartbeat, in ``progress.json``."""

    # host and process of rank 0
    host: str
    process: int
    phase: str  # the current phase
    fraction: float | None  # progress of the phase, from 0 to 1
    id: str  # random; differs in every heartbeat

    def __str__(self) -> str:
        done = "" if self.fraction is None else f" {self.fraction:.0%}"
        return f"process {self.process} on {self.host} ({self.phase}{done})"


def write_beat(directory: Path, phase: str, fraction: float | None) -> None:
    """Write a heartbeat into a directory of unfinished files."""
    token = secrets.token_hex(8)
    beat = Beat(socket.gethostname(), os.getpid(), phase, fraction, token)
    temporary = directory / f"{NAME}.part"
    temporary.unlink(missing_ok=True)  # never write through a link or into a pipe
    with open(temporary, "xb") as stream:
        set_mode(stream.fileno(), VISIBLE)
        stream.write(msgspec.json.encode(beat))
    os.replace(temporary, directory / NAME)


def read_beat(directory: Path) -> Beat | None:
    """Return the last heartbeat in a directory of unfinished files, or None.

    Raises
    ------
    PermissionError
        If this user may not read it.
    """
    try:
        text = read_file(directory / NAME, MAX_HEARTBEAT_BYTES, follow=False)
        return msgspec.json.decode(text, type=Beat)
    except PermissionError:
        raise
    except (OSError, ValueError, RecursionError):
        return None


class Heartbeat:
    """Writes the heartbeat from a thread of rank 0; a context manager.

    Parameters
    ----------
    directory : Path
        Directory of the unfinished files.
    watch : Stopwatch
        The progress of this rank.
    """

    def __init__(self, directory: Path, watch: Stopwatch) -> None:
        self._directory = directory
        self._watch = watch
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop writing, so that the workspace can be removed."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            # Errors such as a full disk are ignored here: the build itself reports them.
            with contextlib.suppress(OSError):
                write_beat(self._directory, self._watch.current, self._watch.fraction)
            if self._ended.wait(limits().heartbeat):
                return
