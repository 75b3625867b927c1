"""How long a machine and a filesystem take for the parts of a build, measured in about a second."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from distcache.cache.digests import leaves_of, read_pieces
from distcache.kernels import Blender, Mt19937, build_small_sections
from distcache.plan.costs import BLEND_CORPORA, REFERENCE, Costs
from distcache.plan.memory import CHUNK_BYTES
from distcache.storage.files import closing_fd, no_space_as_error, open_unnamed, write_range

# Sizes by which each part takes some hundredths of a second.
TOUCHED: Final = 128 << 20  # bytes of memory; as values, they are more than the caches hold
DOCUMENTS: Final = 25_000  # of a small section
SECTIONS: Final = 40
STEPS: Final = 1 << 18  # of a blend
FILE: Final = 64 << 20  # bytes
LONGEST: Final = 0.5  # seconds of writing a file
ROUNDS: Final = 3  # after one that does not count: it may wait for memory
DOCUMENT: Final = {"text": "a document of some tokens", "tokens": list(range(40)), "end": None}
INTERPRETED: Final = 5.8e-3  # seconds of `_interpret` on the machine of `REFERENCE`


def calibrate(directory: str | Path, streams: int) -> Costs:
    """Measure this machine and a filesystem.

    Parameters
    ----------
    directory : path
        Existing directory on the filesystem of caches. A file without a name is written there.
    streams : int
        Threads that work at the same time, as those of all ranks of a node do.

    Raises
    ------
    NoSpace
        If there is no space for 64 MiB of each stream.
    OSError
        If the directory cannot be written to.
    """
    interpreted = _seconds(_interpret)
    with ThreadPoolExecutor(streams) as pool:

        def at_once(part: Callable[[], list[float]]) -> list[float]:
            """Return the means of what all streams measure at the same time."""
            tasks = [pool.submit(part) for _ in range(streams)]
            found = np.array([task.result() for task in tasks])
            return [float(mean) for mean in found.mean(axis=0)]

        touched, shuffled = at_once(_shuffle)
        for _ in range(2):  # the first file may wait until a virtual machine has memory
            written, synced, read = at_once(lambda: _use_files(str(directory)))
        (small,) = at_once(_build_sections)
        (blended,) = at_once(_blend)
    return Costs(
        shuffled=shuffled,
        small=small,
        blended=blended,
        written=written,
        synced=synced,
        read=read,
        # A large build may have to wait for more of it than a probe.
        touched=max(touched, REFERENCE.touched),
        interpreted=interpreted / INTERPRETED,
    )


def _interpret() -> None:
    """Run some Python code."""
    for _ in range(2000):
        parts = [f"{name}={value}" for name, value in DOCUMENT.items()]
        msgspec.json.decode(msgspec.json.encode({part: len(part) for part in parts}))


def _use_files(directory: str) -> list[float]:
    """Return the nanoseconds of a byte that is written, synced and read."""
    chunk = np.random.default_rng(0).integers(0, 256, CHUNK_BYTES, np.uint8)
    size = 0
    with no_space_as_error(directory), closing_fd(open_unnamed(directory)) as descriptor:
        begin = time.perf_counter()
        while size < FILE and time.perf_counter() - begin < LONGEST:
            write_range(descriptor, size, chunk)
            leaves_of(chunk)
            size += chunk.nbytes
        written = time.perf_counter()
        os.fsync(descriptor)
        synced = time.perf_counter()
        for piece in read_pieces(descriptor, 0, size):
            leaves_of(piece)
        read = time.perf_counter()
    return [1e9 * seconds / size for seconds in (written - begin, synced - written, read - synced)]


def _shuffle() -> list[float]:
    """Return the nanoseconds of a byte of new memory, and of a value that is shuffled."""
    values = np.empty(TOUCHED // 8, np.int64)
    begin = time.perf_counter()
    values[:] = 0
    touched = time.perf_counter() - begin
    generator = Mt19937(1)
    shuffled = _seconds(lambda: generator.shuffle(values), rounds=1)
    return [1e9 * touched / values.nbytes, 1e9 * shuffled / values.size]


def _build_sections() -> list[float]:
    """Return the nanoseconds of a document of a small section."""
    lengths = np.random.default_rng(0).integers(100, 1100, DOCUMENTS).astype(np.int32)
    samples = int(lengths.sum()) // 4096
    rule = (0, DOCUMENTS, DOCUMENTS, samples, 1, DOCUMENTS, samples + 1, samples)
    arrays = (
        np.zeros(SECTIONS * DOCUMENTS, np.int32),
        np.zeros((SECTIONS * (samples + 1), 2), np.int32),
        np.zeros(SECTIONS * samples, np.uint32),
    )

    def build() -> None:
        build_small_sections([lengths] * SECTIONS, np.array([rule] * SECTIONS), 4096, True, *arrays)

    return [1e9 * _seconds(build) / (SECTIONS * DOCUMENTS)]


def _blend() -> list[float]:
    """Return the nanoseconds of a step of a blend."""
    weights = np.random.default_rng(0).lognormal(0, 1, BLEND_CORPORA)
    blender = Blender.by_weight(weights / weights.sum())
    corpora, samples = np.zeros(STEPS, np.int16), np.zeros(STEPS, np.int64)
    return [1e9 * _seconds(lambda: blender.next(corpora, samples)) / STEPS]


def _seconds(action: Callable[[], None], rounds: int = ROUNDS) -> float:
    """Return the mean seconds of an action, after one that does not count."""
    action()
    begin = time.perf_counter()
    for _ in range(rounds):
        action()
    return (time.perf_counter() - begin) / rounds
