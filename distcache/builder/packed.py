"""Sections of rows that are packed with whole documents.

A pass shuffles the sequences of each group, and packs them by best-fit decreasing, tails first, so
that equal lengths fall together in another way each time; then the rows of the pass are shuffled. A
row begins where its first document begins, or at a multiple of its length in a longer document, and
ends where the next row begins: Megatron-Core's ``GPTDataset`` reads what is between, and pads it.
The last entry of the document index is in no row: the last row ends before it.

Each group of each pass, and the rows of each pass, have an MT19937 of their own, seeded with the
first 32 bits of the SHA-256 of the section's seed, the number of the pass, and the number of the
group or ``rows``, with spaces between them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from distcache.builder.arrays import ArrayWriter
from distcache.builder.job import Job
from distcache.builder.passes import seed_from
from distcache.builder.section_slice import ArraySlice, joined_digests
from distcache.corpus import Idx
from distcache.kernels import Mt19937, fill_entries, pack_documents
from distcache.plan.layout import ArrayPlace
from distcache.plan.model import SectionPlan
from distcache.plan.packing import Packed
from distcache.ranks.agreement import on_all_ranks
from distcache.ranks.partition import slice_bounds
from distcache.storage.unfinished_file import UnfinishedFile

NAMES: Final = ("document_index", "sample_index", "shuffle_index")


class _Tasks:
    """The groups of all passes, in the order of the arrays, and what is before each."""

    def __init__(self, section: SectionPlan) -> None:
        self._packed = packing_of(section)
        self._count = max(len(self._packed.groups), 1)
        self.total = section.size.passes * self._count

    def of(self, task: int) -> tuple[int, int]:
        """Return the pass and the group of a task."""
        return divmod(task, self._count)

    def documents_before(self, task: int) -> int:
        """Return the documents of the tasks before one."""
        number, group = self.of(task)
        before = sum(other.documents for other in self._packed.groups[:group])
        return number * self._packed.documents + before

    def rows_before(self, task: int) -> int:
        """Return the rows of the tasks before one."""
        number, group = self.of(task)
        before = sum(other.rows for other in self._packed.groups[:group])
        return number * self._packed.rows + before

    def shuffled_before(self, task: int) -> int:
        """Return the rows of the passes that begin before one: who has its first group shuffles."""
        return -(-task // self._count) * self._packed.rows


def build_packed(
    section: SectionPlan,
    idx: Idx,
    _shards: NDArray[np.int64],
    places: dict[str, ArrayPlace],
    file: UnfinishedFile,
    _workers: int = 1,
) -> dict[str, str]:
    """Build and write a packed section.

    Parameters
    ----------
    section : SectionPlan
        Section to build.
    idx : Idx
        Index of the section's corpus.
    places : dict of str to ArrayPlace
        Place of each array in the file.
    file : UnfinishedFile
        The unfinished cache.

    Returns
    -------
    dict of str to str
        The digest of each array.
    """
    writers = {name: ArrayWriter(file, places[name]) for name in NAMES}
    _write_tasks(section, idx, range(_Tasks(section).total), writers)
    return {name: writer.finish() for name, writer in writers.items()}


def build_packed_collectively(job: Job, item: int, file: UnfinishedFile) -> dict[str, str]:
    """Build and write a packed section, of which each rank packs some groups. Collective.

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
    communicator, places = job.communicator, job.places(item)
    section = job.plan.sections[item]
    tasks = _Tasks(section)
    bounds = slice_bounds(tasks.total, communicator.size, 1)
    before = {
        "document_index": [tasks.documents_before(task) for task in bounds],
        "sample_index": [tasks.rows_before(task) for task in bounds],
        "shuffle_index": [tasks.shuffled_before(task) for task in bounds],
    }
    slices = {}
    for name, begins in before.items():
        place = places[name]
        row = np.dtype(place.dtype).itemsize * math.prod(place.shape[1:])
        ends = [begin * row for begin in begins[:-1]]
        slices[name] = ArraySlice(communicator, place, file, [*ends, place.nbytes])
    own = range(bounds[communicator.rank], bounds[communicator.rank + 1])

    def pack() -> None:
        idx = job.idx(section)
        _write_tasks(section, idx, own, slices)
        idx.require_intact()

    on_all_ranks(communicator, pack, "packing documents")
    return joined_digests(communicator, {name: slices[name].finish() for name in NAMES})


def _write_tasks(
    section: SectionPlan, idx: Idx, own: range, writers: Mapping[str, ArrayWriter | ArraySlice]
) -> None:
    """Pack the groups of some tasks, and shuffle the rows of the passes that begin in them."""
    tasks = _Tasks(section)
    for task in own:
        number, group = tasks.of(task)
        if packing_of(section).groups:
            documents, starts = pack_group(section, idx, number, group)
            writers["document_index"].append(documents)
            writers["sample_index"].append(starts)
            del documents, starts
        if group == 0:
            writers["shuffle_index"].append(shuffled_rows(section, number))
    if own.stop == tasks.total and own:
        documents, starts = end_of(section, idx)
        writers["document_index"].append(documents)
        writers["sample_index"].append(starts)


def packing_of(section: SectionPlan) -> Packed:
    """Return how a section is packed, which it is."""
    assert section.packed is not None, "its order is packed"
    return section.packed


def pack_group(
    section: SectionPlan, idx: Idx, number: int, group: int
) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Pack a group of one pass.

    Returns
    -------
    documents : ndarray of int32, shape (documents,)
        Part of the document index.
    starts : ndarray of int32 or int64, shape (rows, 2)
        Part of the sample index.
    """
    packed = packing_of(section)
    rules, own = packed.rules, packed.groups[group]
    entries = np.empty(own.end - own.begin, np.int64)
    fill_entries(idx.lengths, own.begin, entries)
    Mt19937(seed_from(section.seed, number, group)).shuffle(entries)
    documents = np.empty(own.documents, np.int32)
    starts = np.empty((own.rows, 2), section.sample_type)
    tasks = _Tasks(section)
    pack_documents(
        entries,
        rules.row_length,
        rules.most_documents,
        rules.cuts_longer,
        rules.multiple,
        tasks.documents_before(number * len(packed.groups) + group),
        documents,
        starts,
    )
    return documents, starts


def shuffled_rows(section: SectionPlan, number: int) -> NDArray[Any]:
    """Return the part of the shuffle index of one pass."""
    rows = packing_of(section).rows
    found = np.arange(number * rows, (number + 1) * rows, dtype=section.shuffle_type)
    Mt19937(seed_from(section.seed, number, "rows")).shuffle(found)
    return found


def end_of(section: SectionPlan, idx: Idx) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Return the last entry of the document index, and the last row of the sample index.

    The entry is the document with which the next pass would begin, so that a section of more passes
    begins with the same arrays: Megatron reads its first token after the last row.
    """
    end = np.array([[section.documents - 1, 0]], section.sample_type)
    if not section.size.samples:
        return np.zeros(1, np.int32), end
    groups = packing_of(section).groups
    first = next(number for number, group in enumerate(groups) if group.rows)
    return pack_group(section, idx, section.size.passes, first)[0][:1], end
