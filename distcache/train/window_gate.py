"""The gate of training processes to windows of shards: they wait, and say how long."""

from __future__ import annotations

import itertools
import os
import secrets
import struct
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import numpy as np

from distcache.cache.contents import Contents
from distcache.errors import NoSpace, NotReady, ShardWaitWarning
from distcache.node.windows import Windows
from distcache.storage.files import closing_fd, read_range, set_time
from distcache.storage.locks import try_lock
from distcache.storage.timeouts import limits

POSITION: Final = struct.Struct("<16sQ")  # name of a dataset, and the position in it
WAIT: Final = struct.Struct("<dI")  # since when, and for how many shards: pairs of u32
LONGEST: Final = 1 << 24  # bytes of what a process publishes
POLL: Final = 0.01  # seconds
MOST_TIMES: Final = 100  # that something is read
Result = TypeVar("Result")


class WindowGate:
    """What a process has to do with the feeder of its node.

    Parameters
    ----------
    windows : Windows
        Windows of the cache.
    contents : Contents
        Header and tables of the cache.

    Attributes
    ----------
    waits : int
        Number of waits of this process for shards.
    seconds : float
        Seconds of these waits.
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
        self._write(POSITION.pack(dataset_name(split, number).encode("ascii"), position), 0)

    def _tell_wait(self, needed: Sequence[tuple[int, int]]) -> None:
        """Tell the feeder which shards this process waits for: they come before all others."""
        pairs = itertools.chain.from_iterable(needed)
        shards = np.fromiter(pairs, np.uint32, 2 * len(needed))
        head = WAIT.pack(time.monotonic(), len(needed))
        self._write(head + shards.tobytes(), POSITION.size)

    def _write(self, content: bytes, at: int) -> None:
        while self._position is None or self._process != os.getpid():
            # The feeder may inspect a new file before it is locked, and take it for a dead one.
            path = self._windows.root / f"position.{os.getpid()}.{secrets.token_hex(4)}"
            self._position, self._process = try_lock(path), os.getpid()
        os.pwrite(self._position, content, at)

    def read(self, needed: Sequence[tuple[int, int]], action: Callable[[], Result]) -> Result:
        """Read when all shards are there; again, if one was discarded since.

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
            f"{self._windows.root}: shards were discarded {MOST_TIMES} times while they were "
            "read; give `distcache feed` more --budget"
        )

    def _wait(self, needed: Sequence[tuple[int, int]]) -> list[int]:
        """Return the generations of shards, as soon as all are there."""
        found = self._generations(needed)
        if all(found):
            return found
        self._require_budget(needed)
        self._tell_wait(needed)
        self.waits += 1
        missing = [place for place, value in zip(needed, found, strict=True) if not value]
        warnings.warn(
            f"waiting for shard {missing[0][1]} of corpus {missing[0][0]}, and {len(missing) - 1} "
            "others; is `distcache feed` running on this node, with a budget of two windows of "
            "each corpus?",
            ShardWaitWarning,
            stacklevel=4,
        )
        begin = time.monotonic()
        try:
            return self._wait_for(needed, begin)
        finally:
            self.seconds += time.monotonic() - begin
            self._tell_wait([])

    def _wait_for(self, needed: Sequence[tuple[int, int]], begin: float) -> list[int]:
        while True:
            found = self._generations(needed)
            missing = [place for place, value in zip(needed, found, strict=True) if not value]
            if not missing:
                return found
            if time.monotonic() - begin > limits().stalled:
                raise NotReady(
                    f"{self._windows.root}: shard {missing[0][1]} of corpus {missing[0][0]} has "
                    f"not come in {limits().stalled:.0f} s; start `distcache feed` on this node"
                )
            if self._position is not None:
                set_time(self._position)  # keep this reader's position fresh while it waits
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


class WindowReaders(NamedTuple):
    """What live processes have published."""

    # The least position in each dataset. A process that has not read for long while others do, such
    # as a main process that has looked at a sample, holds nobody up.
    positions: dict[str, int]
    # source and shard of all that processes wait for, the longest wait first
    waited: list[tuple[int, int]]


def live_readers(root: Path) -> WindowReaders:
    """Return what live processes have published; forget the others."""
    found: dict[str, list[tuple[float, int]]] = {}
    waits: list[tuple[float, list[tuple[int, int]]]] = []
    for path in root.glob("position.*"):
        descriptor = try_lock(path, make=False)
        if descriptor is not None:  # nobody holds it
            path.unlink(missing_ok=True)
            os.close(descriptor)
            continue
        try:
            with closing_fd(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as stream:
                content = read_range(stream, 0, min(os.fstat(stream).st_size, LONGEST))
                modified = os.fstat(stream).st_mtime
        except (OSError, EOFError):
            continue  # it has just been removed
        if len(content) >= POSITION.size:
            name, position = POSITION.unpack_from(content)
            dataset = name.rstrip(b"\0").decode("ascii", "replace")
            found.setdefault(dataset, []).append((modified, position))
            waits.append(_waited(content[POSITION.size :]))
    positions = {dataset: least_of(told) for dataset, told in found.items()}
    waited = [place for _, places in sorted(waits) for place in places]
    return WindowReaders(positions, waited)


def _waited(content: bytes) -> tuple[float, list[tuple[int, int]]]:
    """Return since when, and for which sources and shards, a process waits."""
    since, count = WAIT.unpack_from(content) if len(content) >= WAIT.size else (0.0, 0)
    if len(content) < WAIT.size + 8 * count:
        return since, []  # it is being written
    numbers = np.frombuffer(content, np.uint32, 2 * count, WAIT.size).tolist()
    return since, list(zip(numbers[::2], numbers[1::2], strict=True))


def least_of(positions: Sequence[tuple[float, int]]) -> int:
    """Return the least position of those that are not much older than the last one.

    Parameters
    ----------
    positions : sequence of (float, int)
        When each was published, in seconds, and the position.
    """
    last = max(when for when, _ in positions)
    return min(position for when, position in positions if when >= last - limits().hung)
