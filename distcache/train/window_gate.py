"""The gate of training processes to windows of shards: they wait, and say how long."""

from __future__ import annotations

import os
import secrets
import struct
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from distcache.cache.contents import Contents
from distcache.errors import NoSpace, NotReady, ShardWaitWarning
from distcache.io.files import closing_fd, read_range
from distcache.node.windows import Windows
from distcache.staging.locks import try_lock
from distcache.timeouts import limits

__all__ = ["POSITION", "WindowGate", "dataset_name", "least_of", "live_positions"]

POSITION: Final = struct.Struct("<16sQ")  # name of a dataset, and the position in it
POLL: Final = 0.01  # seconds
MOST_TIMES: Final = 100  # that something is read
Result = TypeVar("Result")


class WindowGate:
    """What a process has to do with the feeder of its node.

    Parameters
    ----------
    windows : Windows
        Of the cache.
    contents : Contents
        Of the cache.

    Attributes
    ----------
    waits : int
        How often this process has waited for shards.
    seconds : float
        How long, in all.
    """

    def __init__(self, windows: Windows, contents: Contents) -> None:
        self._windows = windows
        self._contents = contents
        self._process = 0
        self._position: int | None = None
        self.waits = 0
        self.seconds = 0.0

    def __del__(self) -> None:
        if self._position is not None and self._process == os.getpid():
            os.close(self._position)

    def publish(self, split: str, number: int, position: int) -> None:
        """Tell the feeder which sample of a dataset comes next."""
        if self._position is None or self._process != os.getpid():
            path = self._windows.root / f"position.{os.getpid()}.{secrets.token_hex(4)}"
            self._position, self._process = try_lock(path), os.getpid()
        if self._position is not None:
            name = dataset_name(split, number).encode("ascii")
            os.pwrite(self._position, POSITION.pack(name, position), 0)

    def read(self, needed: Sequence[tuple[int, int]], action: Callable[[], Result]) -> Result:
        """Read when all shards are there; again, if one was given up meanwhile.

        Parameters
        ----------
        needed : sequence of (int, int)
            Source and shard.
        action : callable
            Reads.

        Raises
        ------
        NotReady
            If a shard does not come, or shards go as fast as they come.
        NoSpace
            If the feeder's budget does not hold what is needed.
        """
        for _ in range(MOST_TIMES):
            before = self._wait(needed)
            result = action()
            if self._generations(needed) == before:
                return result
        raise NotReady(
            f"{self._windows.root}: what was read was given up {MOST_TIMES} times meanwhile; give "
            "`distcache feed` more --budget"
        )

    def _wait(self, needed: Sequence[tuple[int, int]]) -> list[int]:
        begin = time.monotonic()
        waiting = False
        while True:
            found = self._generations(needed)
            missing = [place for place, value in zip(needed, found, strict=True) if not value]
            if waiting:
                self.seconds += time.monotonic() - begin
                begin = time.monotonic()
            if not missing:
                return found
            if not waiting:
                self._require_budget(needed)
                waiting, started = True, begin
                self.waits += 1
                warnings.warn(
                    f"waiting for shard {missing[0][1]} of corpus {missing[0][0]}, and "
                    f"{len(missing) - 1} others; is `distcache feed` running on this node, with a "
                    "budget of two windows of each corpus?",
                    ShardWaitWarning,
                    stacklevel=4,
                )
            if time.monotonic() - started > limits().stalled:
                raise NotReady(
                    f"{self._windows.root}: shard {missing[0][1]} of corpus {missing[0][0]} has "
                    f"not come in {limits().stalled:.0f} s; start `distcache feed` on this node"
                )
            if self._position is not None:
                os.utime(self._position)  # who waits is not past
            time.sleep(POLL)

    def _require_budget(self, needed: Sequence[tuple[int, int]]) -> None:
        sizes = (self._contents.shards_of(source)["raw_size"][shard] for source, shard in needed)
        size, budget = sum(map(int, sizes)), self._windows.budget()
        if 0 < budget < size:
            raise NoSpace(
                f"{self._windows.root}: a batch needs {len(needed)} shards of {size} bytes, more "
                f"than the --budget {budget} of `distcache feed`; give it more than {2 * size}, or "
                "read smaller batches"
            )

    def _generations(self, needed: Sequence[tuple[int, int]]) -> list[int]:
        known = {source: self._windows.generations(source) for source in {s for s, _ in needed}}
        return [int(known[source][shard]) for source, shard in needed]


def dataset_name(split: str, number: int) -> str:
    """Return a name for a dataset: of a split, or one of its validation sets."""
    return f"{split}.{number}"


def live_positions(root: Path) -> dict[str, int]:
    """Return the least position in each dataset of the processes that live; forget the others.

    One that has not read for long while others do, such as a main process that has looked at a
    sample, holds nobody up.
    """
    found: dict[str, list[tuple[float, int]]] = {}
    for path in root.glob("position.*"):
        descriptor = try_lock(path, make=False)
        if descriptor is not None:  # nobody holds it
            path.unlink(missing_ok=True)
            os.close(descriptor)
            continue
        try:
            with closing_fd(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as stream:
                name, position = POSITION.unpack(read_range(stream, 0, POSITION.size))
                modified = os.fstat(stream).st_mtime
        except (OSError, EOFError):
            continue  # it has just been made, or removed
        dataset = name.rstrip(b"\0").decode("ascii", "replace")
        found.setdefault(dataset, []).append((modified, position))
    return {dataset: least_of(positions) for dataset, positions in found.items()}


def least_of(positions: Sequence[tuple[float, int]]) -> int:
    """Return the least position of those that are not much older than the last one.

    Parameters
    ----------
    positions : sequence of (float, int)
        When each was told, in seconds, and the position.
    """
    last = max(when for when, _ in positions)
    return min(position for when, position in positions if when >= last - limits().hung)
