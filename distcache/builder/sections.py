"""A whole large section, built by one rank in steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distcache.builder.arrays import ArrayWriter, write_in_chunks
from distcache.builder.entries import (
    Entries,
    EntryMemory,
    LaterEntries,
    documents_of,
    fill_passes,
    read_across,
    shuffle_last,
    shuffle_lower,
    shuffle_samples,
    shuffle_upper,
    skip_upper,
)
from distcache.builder.section_slice import RowCutter
from distcache.corpus import Idx
from distcache.kernels import Mt19937
from distcache.plan.layout import ArrayPlace
from distcache.plan.memory import CHUNK_BYTES, ENTRY_BYTES, pivot_of
from distcache.plan.model import SectionPlan
from distcache.storage.unfinished_file import UnfinishedFile

CHUNK_ENTRIES: int = CHUNK_BYTES // ENTRY_BYTES
InOrder = Callable[[Callable[[int], NDArray[np.int64]], range], Iterator[NDArray[np.int64]]]
"""Applies a function to numbers, and yields the results in their order."""
Rest = tuple[NDArray[Any], EntryMemory, str]
"""The lower positions, the entries of the last pass, and the digest of the shuffle index."""


def build_section(
    section: SectionPlan,
    idx: Idx,
    _shards: NDArray[np.int64],
    places: dict[str, ArrayPlace],
    file: UnfinishedFile,
    workers: int = 1,
) -> dict[str, str]:
    """Build and write a whole section.

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
    workers : int
        Number of threads; with 2 or more, a second thread takes half of the work.

    Returns
    -------
    dict of str to str
        The digest of each array.
    """
    memory = EntryMemory(section.first_documents)
    if workers < 2:
        return _build_alone(section, idx, memory, places, file)
    pivot, upper = pivot_of(section, workers), memory.values

    def rest(generator: Mt19937) -> Rest:
        lower = shuffle_lower(pivot, generator)
        last = shuffle_last(section, idx, generator)
        return lower, last, _write_shuffle(section, generator, places, file)

    with ThreadPoolExecutor(1) as helper:
        half = upper.size // 2
        filled = helper.submit(fill_passes, section, idx, upper[half:], half)
        fill_passes(section, idx, upper[:half], 0)
        filled.result()
        done = helper.submit(lambda: rest(skip_upper(section, pivot)))
        shuffle_upper(pivot, upper, Mt19937(section.seed))
        lower, last, shuffle_digest = done.result()
        parts = (Entries(0, memory, lower), Entries(upper.size, last))
        cut = cut_section(section, parts, places, file, partial(_one_ahead, helper))
    return cut | {"shuffle_index": shuffle_digest}


def _build_alone(
    section: SectionPlan,
    idx: Idx,
    memory: EntryMemory,
    places: dict[str, ArrayPlace],
    file: UnfinishedFile,
) -> dict[str, str]:
    """Build a section by one thread: the last pass is shuffled when the others are written."""
    generator = Mt19937(section.seed)
    fill_passes(section, idx, memory.values, 0)
    shuffle_upper(0, memory.values, generator)
    last = LaterEntries(
        section.first_documents, section.documents, lambda: shuffle_last(section, idx, generator)
    )
    cut = cut_section(section, (Entries(0, memory), last), places, file, map)
    return cut | {"shuffle_index": _write_shuffle(section, generator, places, file)}


def _write_shuffle(
    section: SectionPlan, generator: Mt19937, places: dict[str, ArrayPlace], file: UnfinishedFile
) -> str:
    """Write the shuffle index, and return its digest."""
    samples = shuffle_samples(section, generator)
    return write_in_chunks(file, places["shuffle_index"], samples).finish()


def cut_section(
    section: SectionPlan,
    parts: tuple[Entries | LaterEntries, ...],
    places: dict[str, ArrayPlace],
    file: UnfinishedFile,
    in_order: InOrder,
) -> dict[str, str]:
    """Write the document index, and cut and write the sample index, chunk by chunk.

    Parameters
    ----------
    section : SectionPlan
        Section to build.
    parts : tuple of Entries
        All of its document index, which is released.
    places : dict of str to ArrayPlace
        Place of each array in the file.
    file : UnfinishedFile
        The unfinished cache.
    in_order : callable
        Function like `map`, which may work ahead.

    Returns
    -------
    dict of str to str
        The digests of both.
    """
    documents = ArrayWriter(file, places["document_index"])
    rows = ArrayWriter(file, places["sample_index"])
    room = CHUNK_BYTES // (2 * np.dtype(section.sample_type).itemsize)
    cutter = RowCutter(section, (0, section.size.samples + 1), (0, 0), room, rows.append)

    def write_documents(begin: int) -> NDArray[np.int64]:
        entries = read_across(parts, begin, min(begin + CHUNK_ENTRIES, section.documents))
        documents.append(documents_of(entries))
        return entries

    begins = range(0, section.documents, CHUNK_ENTRIES)
    for begin, entries in zip(begins, in_order(write_documents, begins), strict=True):
        cutter.feed(entries, begin)
        for part in parts:
            part.release(begin, begin + CHUNK_ENTRIES)
    cutter.finish()
    return {"document_index": documents.finish(), "sample_index": rows.finish()}


def _one_ahead(
    helper: ThreadPoolExecutor, action: Callable[[int], NDArray[np.int64]], begins: range
) -> Iterator[NDArray[np.int64]]:
    """Yield results in order, while the helper computes the next one."""
    if not begins:
        return
    coming = helper.submit(action, begins[0])
    for begin in begins[1:]:
        ready, coming = coming.result(), helper.submit(action, begin)
        yield ready
    yield coming.result()
