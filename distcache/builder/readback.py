"""Read back what an earlier build left in the unfinished file, and what this one has written."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec
import numpy as np
import xxhash

from distcache.builder.arrays import read_digest
from distcache.builder.job import Digests, Job, Record
from distcache.cache.digests import block_range, blocks_in, joined_digest, read_pieces
from distcache.cache.format import LEAF_SIZE
from distcache.errors import DistcacheError
from distcache.plan.layout import SMALL
from distcache.ranks.agreement import on_all_ranks, on_rank_0
from distcache.ranks.partition import balance
from distcache.storage.files import set_time
from distcache.storage.threads import map_in_threads
from distcache.storage.unfinished_file import UnfinishedFile

PAUSES: Final = (2.0, 5.0, 15.0, None)  # seconds after each reading; none after the last


class BlockRead(msgspec.Struct, frozen=True):
    """What a block of the unfinished file was when it was read."""

    block: int  # number of the block
    digest: int  # digest of the block
    # an array, the first of its leaves that has bytes in the block, and the digests of these
    # leaves, as u64
    leaves: tuple[tuple[int, int, bytes], ...]


def intact_items(job: Job, records: Mapping[int, Record]) -> Digests:
    """Return the journaled items whose arrays still match their digests. Collective.

    Parameters
    ----------
    job : Job
        The build that resumes it.
    records : mapping of int to Record
        Records of the journals, the same on all ranks.
    """
    known = {item: record.digests for item, record in records.items() if _fits(job, record)}
    arrays = [(item, place) for item in sorted(known) for place in job.places(item).values()]
    # A reader of a small file may see its tables late: so rank 0, which writes them, reads it.
    readers = 1 if job.layout.tables_begin <= SMALL else job.communicator.size
    shares = balance([place.nbytes for _, place in arrays], readers)
    share = shares[job.communicator.rank] if job.communicator.rank < readers else []

    def is_lost(index: int, file: UnfinishedFile) -> bool:
        item, place = arrays[index]
        return read_digest(file, place) != known[item][place.name]

    def run() -> list[int]:
        with UnfinishedFile(job.unfinished) as file:
            differ = map_in_threads(partial(is_lost, file=file), share, job.options.threads)
        return [arrays[index][0] for index, lost in zip(share, differ, strict=True) if lost]

    what = "reading back what was built before"
    mine = on_all_ranks(job.communicator, run, what)
    lost = {item for part in job.communicator.allgather(mine, list[int], what) for item in part}
    return {item: known[item] for item in sorted(known.keys() - lost)}


def read_back(job: Job) -> list[int]:
    """Compare all arrays with their digests; return the digest of every block. Collective.

    Clients of network filesystems may show old bytes for a second or more, so what differs is read
    again before it counts as lost. Both digests come from one reading: of two, each might show
    other bytes.

    Returns
    -------
    list of int
        Digests in the order of the file.

    Raises
    ------
    DistcacheError
        If any differs: the filesystem has not kept what was written to it.
    """
    arrays = _Arrays(job)
    found: dict[int, BlockRead] = {}
    todo: Iterable[int] = range(blocks_in(job.layout.tables_begin))
    for pause in PAUSES:
        found |= _read_blocks(job, arrays, todo)
        lost = arrays.lost(found[block] for block in sorted(found))
        if not lost or pause is None:
            break
        job.watch.note(f"{len(lost)} items differ after read-back; reading again")
        time.sleep(pause)
        todo = [
            block
            for block in found
            if any(arrays.items[leaves[0]] in lost for leaves in found[block].leaves)
        ]
    if lost:
        raise DistcacheError(
            *(
                f"{job.unfinished}: {job.describe(item)} differs after read-back; the filesystem "
                "does not keep what is written to it. Run again to rebuild that part"
                for item in sorted(lost)
            )
        ).of_all_ranks()  # all ranks have compared all findings
    return [found[block].digest for block in sorted(found)]


class _Leaf(NamedTuple):
    """A leaf of an array: its number in it, and its bytes [begin, end) of the file."""

    array: int
    number: int
    begin: int
    end: int


class _Arrays:
    """All arrays of a cache in the order of the file.

    Parameters
    ----------
    job : Job
        All of its items are built.

    Attributes
    ----------
    places : list of ArrayPlace
        Place of each array.
    items : list of int
        Index of the item of each array.
    """

    def __init__(self, job: Job) -> None:
        found = [
            (place, item)
            for item in range(len(job.plan.items))
            for place in job.places(item).values()
            if place.nbytes
        ]
        found.sort(key=lambda entry: entry[0].offset)
        self.places = [place for place, _ in found]
        self.items = [item for _, item in found]
        self._digests = job.digests

    def within(self, begin: int, end: int) -> range:
        """Return the arrays that have bytes of [begin, end) of the file."""
        first = bisect_right(self.places, begin, key=lambda place: place.offset + place.nbytes)
        return range(first, bisect_left(self.places, end, key=attrgetter("offset")))

    def leaves(self, begin: int, end: int) -> Iterator[_Leaf]:
        """Yield the leaves that have bytes of [begin, end) of the file, in its order."""
        for array in self.within(begin, end):
            place = self.places[array]
            first = max(0, begin - place.offset) // LEAF_SIZE
            stop = place.offset + place.nbytes
            starts = range(place.offset + first * LEAF_SIZE, min(stop, end), LEAF_SIZE)
            for number, start in enumerate(starts, first):
                yield _Leaf(array, number, start, min(start + LEAF_SIZE, stop))

    def lost(self, blocks: Iterable[BlockRead]) -> set[int]:
        """Return the items with an array whose leaves do not match its digest, in order."""
        found = [bytearray() for _ in self.places]
        lost = set()
        for array, first, packed in (entry for block in blocks for entry in block.leaves):
            known = found[array]
            overlap = len(known) - 8 * first  # a leaf on a border is read with either block
            if overlap < 0 or known[8 * first :] != packed[:overlap]:
                lost.add(self.items[array])
            known += packed[overlap:]
        for place, item, leaves in zip(self.places, self.items, found, strict=True):
            if joined_digest([bytes(leaves)]) != self._digests[item][place.name]:
                lost.add(item)
        return lost


def _read_blocks(job: Job, arrays: _Arrays, blocks: Iterable[int]) -> dict[int, BlockRead]:
    """Let each rank read its share of some blocks; return what all have found. Collective."""
    # The front is in the first block: rank 0 reads it, which has written it.
    share = [block for block in blocks if block % job.communicator.size == job.communicator.rank]
    # Clients drop what they keep of a file whose time has changed. Its own writes do not count for
    # a client, and hide those that others have made since (GlusterFS's io-cache, and NFS).
    on_rank_0(
        job.communicator, lambda: set_time(job.unfinished), None, "touching the unfinished file"
    )

    def run() -> list[BlockRead]:
        # Reopened: a filesystem with close-to-open consistency shows here what others wrote.
        with UnfinishedFile(job.unfinished) as file:
            read = partial(_read_block, file.descriptor, arrays, job.layout.tables_begin)
            return list(map_in_threads(read, share, job.options.threads))

    what = "reading back what was written"
    mine = on_all_ranks(job.communicator, run, what)
    parts = job.communicator.allgather(mine, list[BlockRead], what)
    return {found.block: found for part in parts for found in part}


def _read_block(descriptor: int, arrays: _Arrays, tables_begin: int, block: int) -> BlockRead:
    """Read a block, and beyond it the rest of the leaves that have bytes in it."""
    begin, end = block_range(block, tables_begin)
    leaves = list(arrays.leaves(begin, end))
    offset = min(begin, leaves[0].begin) if leaves else begin
    last = max(end, leaves[-1].end) if leaves else end
    whole, digests = xxhash.xxh3_64(), []
    leaf_digest, coming = xxhash.xxh3_64(), iter(leaves)
    leaf = next(coming, None)
    for piece in read_pieces(descriptor, offset, last):
        view = piece.data
        whole.update(view[max(0, begin - offset) : max(0, end - offset)])
        while leaf is not None and leaf.begin < offset + len(view):
            leaf_digest.update(view[max(0, leaf.begin - offset) : leaf.end - offset])
            if leaf.end > offset + len(view):
                break
            digests.append(leaf_digest.intdigest())
            leaf_digest.reset()
            leaf = next(coming, None)
        offset += len(view)
    return BlockRead(block, whole.intdigest(), tuple(_by_array(leaves, digests)))


def _by_array(leaves: Sequence[_Leaf], digests: Sequence[int]) -> Iterator[tuple[int, int, bytes]]:
    """Yield `BlockRead.leaves` from the leaves of a block and their digests."""
    packed = np.array(digests, "<u8").tobytes()
    done = 0
    for array, count in Counter(leaf.array for leaf in leaves).items():
        yield array, leaves[done].number, packed[8 * done : 8 * (done + count)]
        done += count


def _fits(job: Job, record: Record) -> bool:
    in_plan = 0 <= record.item < len(job.plan.items)
    return in_plan and record.digests.keys() == job.places(record.item).keys()
