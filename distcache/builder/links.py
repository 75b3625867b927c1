"""A large section, built by all ranks together; none holds more than its slice.

Every rank gets a slice of the shuffled document index, knows from the prefix sums of the lengths
where its tokens start, and cuts and writes the samples that begin in them. A step of the shuffle
draws a position and takes the value that an earlier step left there: such links are a forest of
short chains, whose ends are the values (`shuffled_slice`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distcache.builder.arrays import ArrayWriter
from distcache.builder.job import Job
from distcache.builder.section_slice import SectionSlice, draw_bounds, joined_digests, windows
from distcache.kernels import NO_LINK, Mt19937, draws_within, gather, group_by_range, link_steps
from distcache.plan.memory import CHUNK_DOCUMENTS, DOCUMENT_BYTES
from distcache.plan.model import STRIPE, SectionPlan
from distcache.ranks.agreement import on_all_ranks
from distcache.ranks.communicator import Communicator
from distcache.ranks.partition import slice_bounds
from distcache.storage.unfinished_file import UnfinishedFile

PIECE_STEPS: Final = 1 << 22  # steps that a rank examines, or sends values of, at a time
Numbers = NDArray[np.uint32]


def build_linked(job: Job, item: int, file: UnfinishedFile) -> dict[str, str]:
    """Build and write a section. Collective.

    Parts that are shuffled apart have less than 2^32 - 1 entries.

    Parameters
    ----------
    job : Job
        The build.
    item : int
        Index of the section into `Plan.items`.
    file : UnfinishedFile
        The unfinished cache.

    Returns
    -------
    dict of str to str
        The digest of each array, on all ranks.
    """
    communicator, section = job.communicator, job.plan.sections[item]
    generator = Mt19937(section.seed)
    bounds = slice_bounds(section.documents, communicator.size, STRIPE // DOCUMENT_BYTES)
    documents, lengths = _shuffled_documents(job, section, generator, bounds)
    tokens = communicator.allgather(int(lengths.sum(dtype=np.int64)), int, "sums of lengths")
    firsts = [0, *itertools.accumulate(tokens[:-1])]
    part = SectionSlice(communicator, section, job.places(item), file, bounds, firsts)
    first = bounds[communicator.rank]
    for step in windows(bounds, CHUNK_DOCUMENTS):
        begin, end = step[communicator.rank]
        own = slice(begin - first, end - first)
        on_all_ranks(
            communicator,
            partial(part.feed, begin, documents[own], lengths[own]),
            "writing documents",
        )
    leaves = part.finish()
    del documents, lengths  # with their memory, before the samples take theirs
    leaves["shuffle_index"] = _write_samples(job, item, file, generator)
    return joined_digests(communicator, leaves)


def _shuffled_documents(
    job: Job, section: SectionPlan, generator: Mt19937, bounds: Sequence[int]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return this rank's slice of the document index, and the lengths of it. Collective."""
    communicator = job.communicator
    positions = _shuffle(
        communicator, generator, section.first_documents, section.documents, bounds
    )

    def look_up() -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        idx = job.idx(section)
        numbers = np.concatenate(positions)
        numbers %= np.uint32(section.end - section.begin)
        numbers += np.uint32(section.begin)
        documents = numbers.view(np.int32)
        lengths = np.empty(documents.shape, np.int32)
        # Not by a `LengthTable`, which would take time and memory for all sequences on every rank.
        gather(idx.lengths, documents, lengths)
        idx.release_lengths(section.begin, section.end)
        idx.require_intact()
        return documents, lengths

    return on_all_ranks(communicator, look_up, "looking up lengths")


def _write_samples(job: Job, item: int, file: UnfinishedFile, generator: Mt19937) -> bytes:
    """Shuffle and write this rank's slice of the shuffle index; return its leaves. Collective."""
    communicator, section = job.communicator, job.plan.sections[item]
    dtype: np.dtype[Any] = np.dtype(section.shuffle_type)
    size, first = section.shuffled_samples, section.first_samples
    bounds = slice_bounds(size, communicator.size, STRIPE // dtype.itemsize)
    before, after = _shuffle(communicator, generator, first, size, bounds)
    begin = dtype.itemsize * bounds[communicator.rank]
    writer = ArrayWriter(file, job.places(item)["shuffle_index"], begin)

    def write() -> None:
        values = np.empty(len(before) + len(after), dtype)
        values[: len(before)] = before
        np.add(after, first, out=values[len(before) :], dtype=dtype, casting="unsafe")
        writer.append(values)

    on_all_ranks(communicator, write, "writing samples")
    return writer.leaves().tobytes()


def _shuffle(
    communicator: Communicator, generator: Mt19937, first: int, size: int, bounds: Sequence[int]
) -> list[Numbers]:
    """Return this rank's slices of [0, first) and [first, size), both shuffled. Collective."""
    return [
        shuffled_slice(
            communicator,
            end - begin,
            generator,
            [min(max(bound, begin), end) - begin for bound in bounds],
        )
        for begin, end in ((0, first), (first, size))
    ]


class _Steps(NamedTuple):
    """The steps that have drawn positions of this rank: their own, what they drew, their links."""

    steps: Numbers
    draws: Numbers
    links: Numbers


class _Delivery:
    """An all-to-all of values to the ranks that own their keys, and of answers back.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks.
    bounds : sequence of int, length ranks + 1
        Rank r owns keys [bounds[r], bounds[r + 1]).
    keys : ndarray of uint32, shape (keys,)
        Any that are owned.
    what : str
        Description of the message, for errors.
    """

    def __init__(
        self, communicator: Communicator, bounds: Sequence[int], keys: Numbers, what: str
    ) -> None:
        self._communicator = communicator
        self._what = what
        self._order, self._sent = on_all_ranks(
            communicator, lambda: group_by_range(keys, np.array(bounds, np.int64)), what
        )
        self._received = self._sent

    def forward(self, values: Numbers) -> Numbers:
        """Send a value for each key to the key's owner, by rank and in their order. Collective."""
        arrived, self._received = self._communicator.all_to_all(
            values[self._order], self._sent, self._what
        )
        return arrived

    def back(self, answers: NDArray[Any]) -> NDArray[Any]:
        """Return an answer for each value that `forward` returned to its sender. Collective."""
        arrived, _ = self._communicator.all_to_all(answers, self._received, self._what)
        found = np.empty_like(arrived)
        found[self._order] = arrived
        return found


def shuffled_slice(
    communicator: Communicator, size: int, generator: Mt19937, bounds: Sequence[int]
) -> Numbers:
    """Return this rank's slice of the shuffled positions 0, 1, ..., size - 1. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks.
    size : int
        Less than 2^32 - 1.
    generator : Mt19937
        The same on all ranks; left after the draws.
    bounds : sequence of int, length ranks + 1
        Rank r gets [bounds[r], bounds[r + 1]) of the result; from 0 to `size`.

    Returns
    -------
    ndarray of uint32, shape (bounds[rank + 1] - bounds[rank],)
        Values that a shuffle of ``arange(size)`` by this generator leaves at these
        positions.
    """
    rank = communicator.rank
    # Rank 0's logarithms for all: other machines might round the last bit differently.
    owners: list[int] = communicator.broadcast(
        draw_bounds(size, communicator.size), list[int], "owners of positions"
    )
    begin, end = owners[rank], owners[rank + 1]
    found, latest = on_all_ranks(
        communicator, lambda: _link(size, generator, begin, end), "linking the steps of a shuffle"
    )
    last = _follow(communicator, owners, latest)
    del latest
    result = on_all_ranks(
        communicator,
        lambda: np.empty(bounds[rank + 1] - bounds[rank], np.uint32),
        "making room for a shuffle",
    )
    most = max(communicator.allgather(len(found.steps), int, "steps of a shuffle"))
    for first in range(0, most, PIECE_STEPS):
        piece = _Steps(*(column[first : first + PIECE_STEPS] for column in found))
        values = _values(communicator, owners, last, piece)
        arriving = _Delivery(communicator, bounds, piece.steps, "shuffled positions")
        places = arriving.forward(piece.steps)
        result[places - np.uint32(bounds[rank])] = arriving.forward(values)
    return result


def _link(size: int, generator: Mt19937, begin: int, end: int) -> tuple[_Steps, Numbers]:
    """Link the steps that draw positions [begin, end), and return the latest of each position."""
    latest = np.full(end - begin, NO_LINK, np.uint32)
    # The step of position 0 draws nothing: it keeps the value there.
    own = int(begin == 0 < end)
    pieces = [_Steps(*(np.zeros(own, np.uint32) for _ in _Steps._fields))]
    room = np.empty((2, min(PIECE_STEPS, max(size - 1, 0))), np.uint32)
    for first in range(size - 1, 0, -PIECE_STEPS):
        count = min(PIECE_STEPS, first)
        found = draws_within(generator, first, begin, end, room[0, :count], room[1, :count])
        steps, draws = room[0, :found].copy(), room[1, :found].copy()
        links = np.empty(found, np.uint32)
        link_steps(steps, draws, begin, latest, links)
        pieces.append(_Steps(steps, draws, links))
    if pieces[0].steps.size:
        pieces[0].links[0] = latest[0]
    return _Steps(*map(np.concatenate, zip(*pieces, strict=True))), latest


def _follow(communicator: Communicator, owners: Sequence[int], latest: Numbers) -> Numbers:
    """Return the end of the chain of each of this rank's positions. Collective."""
    begin = owners[communicator.rank]
    is_last = latest == NO_LINK
    last = np.where(is_last, np.arange(begin, begin + len(latest), dtype=np.uint32), latest)
    left = np.flatnonzero(~is_last)
    while any(communicator.allgather(len(left), int, "links of a shuffle")):
        asking = _Delivery(communicator, owners, last[left], "links of a shuffle")
        asked = asking.forward(last[left]) - np.uint32(begin)
        nexts, ended = last[asked], is_last[asked]
        last[left] = asking.back(nexts)
        is_last[left] = asking.back(ended)
        left = left[~is_last[left]]
    return last


def _values(
    communicator: Communicator, owners: Sequence[int], last: Numbers, piece: _Steps
) -> Numbers:
    """Return the value that each step leaves at its own position. Collective."""
    linked = np.flatnonzero(piece.links != NO_LINK)
    links = piece.links[linked]
    asking = _Delivery(communicator, owners, links, "values of a shuffle")
    asked = asking.forward(links) - np.uint32(owners[communicator.rank])
    values = piece.draws.copy()
    values[linked] = asking.back(last[asked])
    return values
