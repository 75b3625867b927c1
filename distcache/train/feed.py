"""The feeder of a node: decompresses shards before they are read, and deletes them afterwards."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np

from distcache.errors import ConfigError, NoSpace, NotReady
from distcache.node.store import Store
from distcache.node.windows import Windows, windowed_sources
from distcache.ranks.progress import Progress
from distcache.storage.locks import try_lock
from distcache.train.open_files import OpenFiles
from distcache.train.split import OpenSplit, dataset_count
from distcache.train.window_gate import dataset_name, live_readers

BLOCK: Final = 256  # positions whose shards are looked up at a time
KEPT_BLOCKS: Final = 4096
POLL: Final = 0.1  # seconds

Needed = list[tuple[int, int]]
"""Source and shard, in the order in which training needs them."""
TRAIN: Final = dataset_name("train", 0)


class Feeder:
    """Fills and empties the windows of a localized cache.

    Parameters
    ----------
    opened : OpenFiles
        This node's copy.
    budget : int
        Bytes that all shards together may take.
    threads : int
        Shards that are unpacked at a time.
    start : int
        Position in training, before any process has announced its own.

    Raises
    ------
    NotReady
        If the cache was not localized with ``--shards windows``, or another process feeds it.
    ConfigError
        If training has no such position.
    """

    def __init__(self, opened: OpenFiles, budget: int, threads: int = 1, start: int = 0) -> None:
        cache = opened.cache
        if not opened.windows_of:
            raise NotReady(
                f"{cache.path}: was not localized for windows (`distcache localize --shards "
                "windows`), or has no compressed shards, so that there is nothing to feed"
            )
        self._opened = opened
        self._budget = budget
        self._threads = threads
        store = Store(Path(opened.handle.store))
        self._windows = Windows(store, opened.handle.name)
        self._sources = set(windowed_sources(cache))
        count = len(cache.table("sources"))
        self._sizes = [cache.shards_of(s)["raw_size"].astype(np.int64) for s in range(count)]
        self._datasets = {}
        for split in cache.splits:
            for number in range(dataset_count(opened, split)):
                found = OpenSplit(opened, split, number)
                self._datasets[dataset_name(split, number)] = found
        self._position = _start_of(self._datasets, start)
        self._blocks: dict[tuple[str, int], Needed] = {}
        self._present: dict[tuple[int, int], None] = {}
        lock = try_lock(self._windows.lock)
        if lock is None:
            raise NotReady(f"{self._windows.lock}: another process feeds this cache")
        self._lock = lock
        self._windows.clear(cache)
        self._windows.tell_budget(budget)
        self.unpacked = 0

    def close(self) -> None:
        """Let another process feed; the shards stay until it does."""
        self._windows.tell_budget(0)
        os.close(self._lock)

    def run(self, progress: Progress, stopped: Callable[[], bool] = lambda: False) -> None:
        """Feed until stopped."""
        progress.phase("feeding")
        while not stopped():
            if not self.step():
                time.sleep(POLL)

    def step(self) -> bool:
        """Give up what is not needed, and unpack what is needed next; return whether there was any.

        Raises
        ------
        CorpusError
            If a shard is not the one that was indexed.
        NoSpace
            If the budget does not hold what one sample needs, or the disk is full.
        """
        needed = self._needed_now()
        missing = [place for place in needed if place not in self._present][: self._threads]
        if not missing:
            return False
        kept = set(needed)
        taken = sum(map(self._size, [*self._present, *missing]))
        for place in list(self._present):
            if taken > self._budget and place not in kept:
                taken -= self._drop(place)
        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(self._fill, missing))
        return True

    def _needed_now(self) -> Needed:
        """Return what fits into the budget: what is waited for, then what comes next."""
        readers = live_readers(self._windows.root)
        live = readers.positions
        self._position |= {name: live[name] for name in self._position if name in live}
        positions = self._position | live
        streams = [
            self._ahead(name, positions[name]) for name in positions if name in self._datasets
        ]
        waited = (
            place
            for place in readers.waited
            if place[0] in self._sources and place[1] < len(self._sizes[place[0]])
        )
        found: dict[tuple[int, int], None] = {}
        left = self._budget
        for place in itertools.chain(waited, _in_turns(streams)):
            if place not in found:
                left -= self._size(place)
                if left < 0:
                    break
                found[place] = None
        if left < 0 and not found:
            raise NoSpace(f"--budget {self._budget}: does not hold a single shard")
        return list(found)

    def _size(self, place: tuple[int, int]) -> int:
        return int(self._sizes[place[0]][place[1]])

    def _ahead(self, name: str, position: int) -> Iterator[tuple[int, int]]:
        """Yield the shards of the samples of a dataset from a position on."""
        size = self._datasets[name].size
        for block in range(position // BLOCK, -(-size // BLOCK)):
            yield from self._block(name, block, max(position - block * BLOCK, 0))

    def _block(self, name: str, block: int, skipped: int) -> Needed:
        """Return the shards of a block of samples; a partly consumed first block is not cached."""
        if not skipped and (name, block) in self._blocks:
            return self._blocks[name, block]
        found = self._datasets[name]
        begin = block * BLOCK + skipped
        positions = np.arange(begin, min((block + 1) * BLOCK, found.size))
        members, samples = found.look_up(positions)
        needed = found.shards_of(members, samples)
        needed = [place for place in needed if place[0] in self._sources]
        if not skipped:
            if len(self._blocks) >= KEPT_BLOCKS:
                self._blocks.clear()
            self._blocks[name, block] = needed
        return needed

    def _fill(self, place: tuple[int, int]) -> None:
        source, shard = place
        cache = self._opened.cache
        row = cache.shards_of(source)[shard]
        self._windows.fill(source, shard, row, cache.shard_path(row))
        self._present[place] = None
        self.unpacked += 1

    def _drop(self, place: tuple[int, int]) -> int:
        source, shard = place
        self._windows.drop(source, shard, self._opened.cache.shards_of(source)[shard])
        del self._present[place]
        return self._size(place)


def _start_of(datasets: Mapping[str, OpenSplit], start: int) -> dict[str, int]:
    """Return where training starts, if the cache is of any."""
    size = datasets[TRAIN].size if TRAIN in datasets else 0
    if start > size:
        raise ConfigError(f"--start {start}: training has {size} samples")
    return {TRAIN: start} if size else {}


def _in_turns(streams: Sequence[Iterator[tuple[int, int]]]) -> Iterator[tuple[int, int]]:
    """Yield an item of each stream in turn that no stream had before, until all are at an end."""
    seen: set[tuple[int, int]] = set()
    left = list(streams)
    while left:
        for stream in list(left):
            place = next((place for place in stream if place not in seen), None)
            if place is None:
                left.remove(stream)
            else:
                seen.add(place)
                yield place
