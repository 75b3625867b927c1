"""The build record beside a cache: when and where it was built, and which ranks were slow."""

from __future__ import annotations

import platform
import socket
import statistics
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np

from distcache import __version__
from distcache.errors import CacheCorrupt, NotReady
from distcache.ranks.progress import Stopwatch
from distcache.storage.files import atomic_write, read_file
from distcache.storage.threads import decodable

MAX_RECORD_BYTES: Final = 64 << 20  # bytes; a rank takes less than one KiB
# Numbers in a file are not trusted: impossible ones would overflow later.
Seconds = dict[str, Annotated[float, msgspec.Meta(ge=0, le=1e9)]]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
SHOWN: Final = 8  # of the slowest ranks


class RankRecord(msgspec.Struct, frozen=True):
    """One rank."""

    # number of the rank, and the host on which it ran
    rank: int
    host: str
    seconds: Seconds  # seconds by phase
    # peak memory, measured and predicted, in bytes
    peak_memory: Bytes
    predicted_memory: Bytes
    # seconds of each phase in which it waited for other ranks
    waited: Seconds = {}


@decodable
class BuildRecord(msgspec.Struct, frozen=True):
    """One build that published a cache."""

    # path and key of the cache
    cache: str
    key: str
    finished: str  # coordinated universal time, ISO 8601
    versions: dict[str, str]  # versions of distcache and of the libraries that it runs on
    threads: int  # threads of each rank
    # sections and blends from an earlier build, and from another cache
    resumed: int
    reused_items: int
    ranks: Annotated[list[RankRecord], msgspec.Meta(min_length=1)]  # every rank


def rank_record(rank: int, watch: Stopwatch, predicted_memory: int) -> RankRecord:
    """Return this rank's part of the record."""
    seconds, waited = (
        {phase: round(taken, 4) for phase, taken in times.items()}
        for times in (watch.seconds, watch.waits)
    )
    return RankRecord(rank, socket.gethostname(), seconds, peak_memory(), predicted_memory, waited)


def peak_memory() -> int:
    """Return the peak memory of this process, in bytes.

    ``ru_maxrss`` is inherited from the parent process, so it is not used.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def record_path(final: Path) -> Path:
    """Return the path of the build record of a cache."""
    return final.with_name(f"{final.name}.build.json")


def write_record(
    workspace: Path,
    final: Path,
    key: str,
    *,
    threads: int,
    resumed: int,
    reused_items: int,
    ranks: list[RankRecord],
) -> None:
    """Write the build record of a cache that has been published.

    It is made in the workspace, which the next job clears if this one is killed.
    """
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
        reused_items=reused_items,
        ranks=ranks,
    )
    with atomic_write(record_path(final), unfinished=workspace / "record") as stream:
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
        return msgspec.json.decode(read_file(path, MAX_RECORD_BYTES), type=BuildRecord)
    except OSError as error:
        raise NotReady(f"{path}: no build record can be read here: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CacheCorrupt(f"{path}: is not a build record: {error}") from error


class PhaseTiming(msgspec.Struct, frozen=True):
    """One phase: seconds of own work, without waiting for other ranks."""

    phase: str  # name of the phase
    seconds: float  # duration of the phase
    # least, median and greatest own work of all ranks, in seconds
    least: float
    median: float
    most: float
    # the rank that worked longest, and where it ran
    slowest_rank: int
    slowest_host: str


class Timings(msgspec.Struct, frozen=True):
    """How long a build took."""

    phases: tuple[PhaseTiming, ...]  # phases in the order of the build
    ranks: tuple[RankRecord, ...]  # the slowest, in this order


def own_seconds(rank: RankRecord, phase: str) -> float:
    """Return how long a rank worked in a phase, without waiting for others."""
    return max(rank.seconds.get(phase, 0.0) - rank.waited.get(phase, 0.0), 0.0)


def make_timings(record: BuildRecord, shown: int = SHOWN) -> Timings:
    """Summarize a build record.

    Parameters
    ----------
    record : BuildRecord
        Record of at least one rank.
    shown : int
        Number of the slowest ranks to name.
    """
    phases = tuple(_timing(record, phase) for phase in record.ranks[0].seconds)
    slowest = sorted(record.ranks, key=lambda rank: (-total_own_seconds(rank), rank.rank))
    return Timings(phases, tuple(slowest[:shown]))


def total_own_seconds(rank: RankRecord) -> float:
    """Return how long a rank worked in all, without waiting for others."""
    return sum(own_seconds(rank, phase) for phase in rank.seconds)


def _timing(record: BuildRecord, phase: str) -> PhaseTiming:
    own = [own_seconds(rank, phase) for rank in record.ranks]
    most = max(own)
    slowest = record.ranks[own.index(most)]
    return PhaseTiming(
        phase=phase,
        seconds=max(rank.seconds.get(phase, 0.0) for rank in record.ranks),
        least=min(own),
        median=statistics.median(own),
        most=most,
        slowest_rank=slowest.rank,
        slowest_host=slowest.host,
    )
