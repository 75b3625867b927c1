"""How long a machine and a filesystem take for the parts of a build, by small runs of them."""

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
from distcache.errors import ConfigError
from distcache.kernels import Blender, Mt19937, build_small_sections
from distcache.plan.costs import BLEND_CORPORA, REFERENCE, Costs
from distcache.plan.memory import CHUNK_BYTES
from distcache.storage.files import closing_fd, may_write, open_unnamed, write_range

# Of all streams together, by which each part takes some hundredths of a second.
MEMORY: Final = 128 << 20  # bytes; as values, they are more than the caches hold
LEAST_MEMORY: Final = 16 << 20  # bytes of a stream
FILES: Final = 64 << 20  # bytes
SLOW: Final = 0.3  # seconds of files, after which they are not written once more
# Of each stream.
DOCUMENTS: Final = 25_000  # of a small section
SECTIONS: Final = 40
STEPS: Final = 1 << 18  # of a blend
ROUNDS: Final = 3  # after one that does not count: it may wait for memory
TREE: Final = {"text": "a document of some tokens", "tokens": list(range(40)), "end": None}
INTERPRETED: Final = 5.8e-3  # seconds of `_interpret` on the machine of `REFERENCE`


def calibrate(directory: str | Path, streams: int) -> Costs:
    """Measure this machine and a filesystem, in about a second.

    The first use of memory counts as no less than that of `REFERENCE`: a large build may have to
    wait for more of it than a probe.

    Parameters
    ----------
    directory : path
        Existing directory on the filesystem of caches. Files without names are written there, of 64
        MiB together or 8 MiB for each stream, twice if that is fast.
    streams : int
        Threads that work at the same time, as those of all ranks of a node do. Each takes some 50
        MiB of memory; fewer take more, 150 MiB together.

    Raises
    ------
    ConfigError
        If there is no such directory, or it cannot be written to.
    NoSpace
        If there is no space for the files.
    """
    place = Path(directory)
    if not place.is_dir():
        raise ConfigError(f"{place}: is not a directory; name that of the caches")
    interpreted = _seconds(_interpret)
    with may_write(place, "name another directory"), ThreadPoolExecutor(streams) as pool:

        def at_once(part: Callable[[], list[float]]) -> list[float]:
            """Return the means of what all streams measure at the same time."""
            tasks = [pool.submit(part) for _ in range(streams)]
            found = np.array([task.result() for task in tasks])
            return [float(mean) for mean in found.mean(axis=0)]

        values = max(MEMORY // streams, LEAST_MEMORY) // 8
        touched, shuffled = at_once(lambda: _shuffle(values))
        chunks = max(FILES // streams // CHUNK_BYTES, 1)
        begin = time.perf_counter()
        written, synced, read = at_once(lambda: _use_files(place, chunks))
        if time.perf_counter() - begin < SLOW:  # the first ones may wait for memory, too
            written, synced, read = at_once(lambda: _use_files(place, chunks))
        (small,) = at_once(_build_sections)
        (blended,) = at_once(_blend)
    return Costs(
        shuffled=shuffled,
        small=small,
        blended=blended,
        written=written,
        synced=synced,
        read=read,
        touched=max(touched, REFERENCE.touched),
        interpreted=interpreted / INTERPRETED,
    )


def _interpret() -> None:
    """Run some Python code."""
    for _ in range(2000):
        parts = [f"{name}={value}" for name, value in TREE.items()]
        msgspec.json.decode(msgspec.json.encode({part: len(part) for part in parts}))


def _use_files(directory: Path, chunks: int) -> list[float]:
    """Return the nanoseconds per byte of a file for writing, syncing and reading it."""
    chunk = np.random.default_rng(0).integers(0, 256, CHUNK_BYTES, np.uint8)
    size = chunks * CHUNK_BYTES
    with closing_fd(open_unnamed(directory)) as descriptor:
        begin = time.perf_counter()
        for offset in range(0, size, CHUNK_BYTES):
            write_range(descriptor, offset, chunk)
            leaves_of(chunk)
        written = time.perf_counter()
        os.fsync(descriptor)
        synced = time.perf_counter()
        for piece in read_pieces(descriptor, 0, size):
            leaves_of(piece)
        read = time.perf_counter()
    return [1e9 * seconds / size for seconds in (written - begin, synced - written, read - synced)]


def _shuffle(size: int) -> list[float]:
    """Return the nanoseconds per byte of new memory, and per value of a shuffle in it."""
    values = np.empty(size, np.int64)
    begin = time.perf_counter()
    values[:] = 0
    touched = time.perf_counter() - begin
    generator = Mt19937(1)
    shuffled = _seconds(lambda: generator.shuffle(values), rounds=1)
    return [1e9 * touched / values.nbytes, 1e9 * shuffled / values.size]


def _build_sections() -> list[float]:
    """Return the nanoseconds per document of small sections."""
    lengths = np.random.default_rng(0).integers(100, 1100, DOCUMENTS).astype(np.int32)
    samples = int(lengths.sum()) // 4096
    rule = (0, DOCUMENTS, DOCUMENTS, samples, 1, DOCUMENTS, samples + 1, samples)
    arrays = (
        np.zeros(SECTIONS * DOCUMENTS, np.int32),
        np.zeros((SECTIONS * (samples + 1), 2), np.int32),
        np.zeros(SECTIONS * samples, np.uint32),
    )

    def build() -> None:
        build_small_sections(
            (lengths,) * SECTIONS, np.array([rule] * SECTIONS), 4096, True, *arrays
        )

    return [1e9 * _seconds(build) / (SECTIONS * DOCUMENTS)]


def _blend() -> list[float]:
    """Return the nanoseconds per step of a blend."""
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
