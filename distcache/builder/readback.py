"""Read back what an earlier build left in the unfinished file, and what this one has written."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from distcache.builder.arrays import read_digest
from distcache.builder.job import Digests, Job, Record
from distcache.cache.digests import block_digest, block_range, blocks_in
from distcache.errors import DistcacheError
from distcache.io.threads import map_in_threads
from distcache.io.unfinished_file import UnfinishedFile
from distcache.partition import balance
from distcache.plan.layout import SMALL
from distcache.ranks.agreement import on_all_ranks

__all__ = ["digest_blocks", "require_written", "still_there"]

Found = TypeVar("Found")
PAUSES: Final = (2.0, 5.0, 15.0)  # seconds


def still_there(job: Job, records: Mapping[int, Record]) -> Digests:
    """Return what an earlier build has journaled and the file still has. Collective.

    Parameters
    ----------
    job : Job
        The build that resumes it.
    records : mapping of int to Record
        From the journals, the same on all ranks.
    """
    known = {item: record.digests for item, record in records.items() if _fits(job, record)}
    equal = _compare(job, known, "reading back what was built before")
    return {item: known[item] for item in sorted(equal)}


def require_written(job: Job, digests: Digests) -> None:
    """Read arrays back and compare their digests. Collective.

    Clients of network filesystems may show old bytes for a second or more, so arrays that differ
    are read again before they count as lost.

    Raises
    ------
    DistcacheError
        If any differs: the filesystem has not kept what was written to it.
    """
    lost = digests.keys() - _compare(job, digests, "reading back what was written")
    for pause in PAUSES:
        if not lost:
            return
        job.watch.note(f"{len(lost)} items differ after read-back; reading again")
        time.sleep(pause)
        again = {item: digests[item] for item in lost}
        lost = again.keys() - _compare(job, again, "reading back once more")
    if lost:
        raise DistcacheError(
            *(
                f"{job.data}: {job.describe(item)} differs after read-back; the filesystem "
                "does not keep what is written to it. Run again to rebuild that part"
                for item in sorted(lost)
            )
        ).of_all_ranks()  # all ranks have compared all findings


def digest_blocks(job: Job) -> list[int]:
    """Return the digest of every block of the file, in order. Collective."""
    tables_begin = job.layout.tables_begin

    def digest(block: int, file: UnfinishedFile) -> int:
        return block_digest(file.descriptor, block, tables_begin)

    blocks = range(blocks_in(tables_begin))
    costs = [end - begin for begin, end in (block_range(block, tables_begin) for block in blocks)]
    found = _share(job, costs, digest, int, "digesting blocks")
    return [found[block] for block in blocks]


def _fits(job: Job, record: Record) -> bool:
    in_plan = 0 <= record.item < len(job.plan.items)
    return in_plan and record.digests.keys() == job.places(record.item).keys()


def _compare(job: Job, digests: Digests, what: str) -> set[int]:
    """Return the items whose arrays in the file have the given digests. Collective."""
    arrays = [(item, place) for item in sorted(digests) for place in job.places(item).values()]

    def is_equal(index: int, file: UnfinishedFile) -> bool:
        item, place = arrays[index]
        return read_digest(file, place) == digests[item][place.name]

    costs = [place.nbytes for _, place in arrays]
    found = _share(job, costs, is_equal, bool, what)
    return digests.keys() - {arrays[index][0] for index, equal in found.items() if not equal}


def _share(
    job: Job,
    costs: Sequence[int],
    action: Callable[[int, UnfinishedFile], Found],
    kind: type[Found],
    what: str,
) -> dict[int, Found]:
    """Distribute tasks that read the file, by their costs; return what was found. Collective."""
    communicator = job.communicator
    # Who has read a small file may see its tables late: that is rank 0, which writes them.
    readers = 1 if job.layout.tables_begin <= SMALL else communicator.size
    own = communicator.rank < readers
    share = balance(costs, readers)[communicator.rank] if own else []

    def run() -> dict[int, Found]:
        # Opened anew: a filesystem with close-to-open consistency shows here what others wrote.
        with UnfinishedFile(job.data) as file:
            results = map_in_threads(lambda task: action(task, file), share, job.threads)
            return dict(zip(share, results, strict=True))

    found: dict[int, Found] = {}
    mine = on_all_ranks(communicator, run, what)
    for part in communicator.allgather(mine, dict[int, kind], what):  # type: ignore[valid-type]
        found |= part
    return found
