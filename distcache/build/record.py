"""The build record: what differs from run to run, kept beside the cache and never in it."""

from __future__ import annotations

import os
import platform
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np

from distcache import __version__
from distcache.errors import CacheCorrupt, NotReady
from distcache.files import open_sized, read_range, write_whole
from distcache.progress import Stopwatch

__all__ = [
    "BuildRecord",
    "RankRecord",
    "peak_memory",
    "rank_record",
    "read_build_record",
    "record_path",
    "write_record",
]

LARGEST: Final = 64 << 20  # bytes; a rank takes less than one KiB


# No number of a file is trusted: one that no build can have would end in an overflow later.
Seconds = dict[str, Annotated[float, msgspec.Meta(ge=0, le=1e9)]]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class RankRecord(msgspec.Struct, frozen=True):
    """One rank.

    Attributes
    ----------
    rank, host : int, str
        Which, and where it ran.
    seconds : dict of str to float
        By phase.
    peak_memory, predicted_memory : int
        The most that it held, and was expected to hold, in bytes.
    waited : dict of str to float
        The seconds of each phase that it waited for other ranks; earlier versions did not say.
    """

    rank: int
    host: str
    seconds: Seconds
    peak_memory: Bytes
    predicted_memory: Bytes
    waited: Seconds = {}


class BuildRecord(msgspec.Struct, frozen=True):
    """One build that published a cache.

    Attributes
    ----------
    cache, key : str
        What was built.
    finished : str
        Coordinated universal time, ISO 8601.
    versions : dict of str to str
        Of distcache and of what it runs on.
    threads : int
        Units that each rank worked on at a time.
    resumed, adopted : int
        Sections and blends that an earlier build, or another cache, had.
    ranks : list of RankRecord
        Every rank.
    """

    cache: str
    key: str
    finished: str
    versions: dict[str, str]
    threads: int
    resumed: int
    adopted: int
    ranks: Annotated[list[RankRecord], msgspec.Meta(min_length=1)]


def rank_record(rank: int, watch: Stopwatch, predicted_memory: int) -> RankRecord:
    """Return this rank's part of the record."""
    seconds, waited = (
        {phase: round(taken, 4) for phase, taken in times.items()}
        for times in (watch.seconds, watch.waits)
    )
    return RankRecord(rank, socket.gethostname(), seconds, peak_memory(), predicted_memory, waited)


def peak_memory() -> int:
    """Return the most memory that this process has held, in bytes.

    Not ``ru_maxrss``: a process inherits that from the one that started it.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def record_path(final: Path) -> Path:
    """Return where the build record of a cache lies."""
    return final.with_name(f"{final.name}.build.json")


def write_record(
    final: Path, key: str, threads: int, resumed: int, adopted: int, ranks: list[RankRecord]
) -> None:
    """Write the build record of a cache that has been published."""
    import h5py  # noqa: PLC0415  rank 0 has it, the others do not need it

    record = BuildRecord(
        cache=final.name,
        key=key,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={
            "distcache": __version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "h5py": h5py.__version__,
            "hdf5": h5py.version.hdf5_version,
            "kernel": platform.release(),
        },
        threads=threads,
        resumed=resumed,
        adopted=adopted,
        ranks=ranks,
    )
    with write_whole(record_path(final)) as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")


def read_build_record(final: Path) -> BuildRecord:
    """Read the build record of a cache.

    Raises
    ------
    NotReady
        If there is none.
    CacheCorrupt
        If it is not one.
    """
    path = record_path(final)
    try:
        descriptor, size = open_sized(path)
    except OSError as error:
        raise NotReady(f"{path}: no build record can be read here: {error.strerror}") from error
    try:
        content = read_range(descriptor, 0, min(size, LARGEST))
        return msgspec.json.decode(content, type=BuildRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, EOFError, RecursionError) as error:
        raise CacheCorrupt(f"{path}: is not a build record: {error}") from error
    finally:
        os.close(descriptor)
