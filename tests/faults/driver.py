"""Run distcache's command line, and do something terrible at a chosen place.

    python -m tests.faults.driver PLACE RANK ACTION -- WORDS...

PLACE is the name of a phase, or write:N or sync:N for the N-th write to, or sync of, the unfinished
file; an ingest has write:N only, and cuts small inputs into many pieces.
ACTION is ``lose`` (the disk says that it is full),
``kill`` (this rank, at once), ``fill`` (the disk under the directory after -o), ``raise`` (an
error that nothing estimates), ``term``, ``usr1`` or ``usr2`` (a signal that asks this rank to end),
``twice`` (two of them), or ``hang`` (this rank does nothing more).
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from distcache.cli.main import main
from distcache.ranks.connect import connected
from distcache.ranks.progress import Stopwatch
from distcache.storage.unfinished_file import UnfinishedFile

PLACE, RANK, ACTION = sys.argv[1], int(sys.argv[2]), sys.argv[3]
WORDS = sys.argv[5:]


def strike() -> None:
    """Do it, if this is the chosen rank."""
    communicator = connected()
    if communicator is None or communicator.rank != RANK:
        return
    if ACTION == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif ACTION in ("term", "usr1", "usr2"):
        os.kill(os.getpid(), signal.Signals[f"SIG{ACTION.upper()}"])
    elif ACTION == "twice":
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGUSR1)
    elif ACTION == "hang":
        time.sleep(1000)
    elif ACTION == "lose":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    elif ACTION == "raise":
        raise RuntimeError("nobody foresaw this")
    elif ACTION == "fill":
        fill(Path(WORDS[WORDS.index("-o") + 1]))


def fill(directory: Path) -> None:
    """Leave no room on a disk."""
    try:
        with open(directory / "filler", "wb", buffering=0) as stream:
            while True:
                stream.write(bytes(1 << 16))
    except OSError:
        return


def phase(self: Stopwatch, name: str, total: float = 0, original: Any = Stopwatch.phase) -> None:
    """Strike when a phase begins."""
    original(self, name, total)
    if name == PLACE:
        strike()


def write(
    self: UnfinishedFile, offset: int, data: Any, original: Any = UnfinishedFile.write
) -> None:
    """Strike before the N-th write."""
    write.count += 1  # type: ignore[attr-defined]
    if f"write:{write.count}" == PLACE:  # type: ignore[attr-defined]
        strike()
    original(self, offset, data)


def sync(self: UnfinishedFile, original: Any = UnfinishedFile.sync) -> None:
    """Strike before the N-th sync."""
    sync.count += 1  # type: ignore[attr-defined]
    if f"sync:{sync.count}" == PLACE:  # type: ignore[attr-defined]
        strike()
    original(self)


def put(self: Any, part: Any, segments: Any, original: Any = None) -> None:
    """Strike before the N-th task of an ingest is written."""
    write.count += 1  # type: ignore[attr-defined]
    if f"write:{write.count}" == PLACE:  # type: ignore[attr-defined]
        strike()
    original(self, part, segments)


def prepare_ingest() -> None:
    """Cut small inputs into many pieces, and strike where an ingest writes."""
    from functools import partialmethod  # noqa: PLC0415

    from distcache.ingest import pieces  # noqa: PLC0415
    from distcache.ingest.token_store import TokenStore  # noqa: PLC0415

    pieces.MIN_PIECE_BYTES = 20_000  # type: ignore[misc]
    pieces.ROUND_BYTES = 1  # type: ignore[misc]
    TokenStore.write = partialmethod(put, original=TokenStore.write)  # type: ignore[assignment]


sync.count = 0  # type: ignore[attr-defined]
write.count = 0  # type: ignore[attr-defined]
if "ingest" in WORDS:
    prepare_ingest()
else:
    UnfinishedFile.sync = sync  # type: ignore[method-assign]
    UnfinishedFile.write = write  # type: ignore[method-assign]
Stopwatch.phase = phase  # type: ignore[method-assign]
sys.argv = ["distcache", *WORDS]
main()
