"""A whole large section, built by one rank in steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from distcache.builder.arrays import ArrayWriter, LargeArray, write_in_chunks
from distcache.builder.document_index import (
    IndexPart,
    LaterPart,
    fill_passes,
    read_across,
    shuffle_last,
    shuffle_lower,
    shuffle_samples,
    shuffle_upper,
    skip_upper,
)
from distcache.builder.section_slice import LengthTable, RowCutter
from distcache.corpus import Idx
from distcache.kernels import Mt19937
from distcache.plan.layout import ArrayPlace
from distcache.plan.memory import CHUNK_BYTES, CHUNK_DOCUMENTS, pivot_of
from distcache.plan.model import SectionPlan
from distcache.storage.unfinished_file import UnfinishedFile

CUT_DOCUMENTS: Final = 1 << 15  # documents that are cut while their lengths are in the caches
InOrder = Callable[[Callable[[int], NDArray[np.int32]], range], Iterator[NDArray[np.int32]]]
"""Applies a function to numbers, and yields the results in their order."""
Rest = tuple[NDArray[Any], LargeArray, str]
"""The lower positions, the documents of the last pass, and the digest of the shuffle index."""


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
    memory = LargeArray(section.first_documents)
    if workers < 2:
        return _build_alone(section, idx, memory, places, file)
    pivot, upper = pivot_of(section, workers), memory.values

    def rest(generator: Mt19937) -> Rest:
        lower = shuffle_lower(pivot, generator)
        last = shuffle_last(section, generator)
        return lower, last, _write_shuffle(section, generator, places, file)

    with ThreadPoolExecutor(1) as helper:
        half = upper.size // 2
        filled = helper.submit(fill_passes, section, upper[half:], half)
        fill_passes(section, upper[:half], 0)
        filled.result()
        done = helper.submit(lambda: rest(skip_upper(section, pivot)))
        shuffle_upper(pivot, upper, Mt19937(section.seed))
        lower, last, shuffle_digest = done.result()
        parts = (IndexPart(0, memory, lower), IndexPart(upper.size, last))
        lengths = LengthTable(idx, section.begin, section.end)
        cut = cut_section(section, lengths, parts, places, file, partial(_one_ahead, helper))
    return cut | {"shuffle_index": shuffle_digest}


def _build_alone(
    section: SectionPlan,
    idx: Idx,
    memory: LargeArray,
    places: dict[str, ArrayPlace],
    file: UnfinishedFile,
) -> dict[str, str]:
    """Build a section by one thread: the last pass is shuffled when the others are written."""
    generator = Mt19937(section.seed)
    fill_passes(section, memory.values, 0)
    shuffle_upper(0, memory.values, generator)
    last = LaterPart(
        section.first_documents, section.documents, lambda: shuffle_last(section, generator)
    )
    lengths = LengthTable(idx, section.begin, section.end)
    cut = cut_section(section, lengths, (IndexPart(0, memory), last), places, file, map)
    return cut | {"shuffle_index": _write_shuffle(section, generator, places, file)}


def _write_shuffle(
    section: SectionPlan, generator: Mt19937, places: dict[str, ArrayPlace], file: UnfinishedFile
) -> str:
    """Write the shuffle index, and return its digest."""
    samples = shuffle_samples(section, generator)
    return write_in_chunks(file, places["shuffle_index"], samples).finish()


def cut_section(
    section: SectionPlan,
    lengths: LengthTable,
    parts: tuple[IndexPart | LaterPart, ...],
    places: dict[str, ArrayPlace],
    file: UnfinishedFile,
    in_order: InOrder,
) -> dict[str, str]:
    """Write the document index, and cut and write the sample index, chunk by chunk.

    Parameters
    ----------
    section : SectionPlan
        Section to build.
    lengths : LengthTable
        Lengths of its sequences.
    parts : tuple of IndexPart or LaterPart
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
    writer = ArrayWriter(file, places["document_index"])
    rows = ArrayWriter(file, places["sample_index"])
    room = CHUNK_BYTES // (2 * np.dtype(section.sample_type).itemsize)
    cutter = RowCutter(section, (0, section.size.samples + 1), (0, 0), room, rows.append)

    def write_documents(begin: int) -> NDArray[np.int32]:
        chunk = read_across(parts, begin, min(begin + CHUNK_DOCUMENTS, section.documents))
        writer.append(chunk)
        return chunk

    begins = range(0, section.documents, CHUNK_DOCUMENTS)
    for begin, documents in zip(begins, in_order(write_documents, begins), strict=True):
        for first in range(0, len(documents), CUT_DOCUMENTS):
            some = documents[first : first + CUT_DOCUMENTS]
            cutter.feed(lengths.look_up(some), begin + first)
        for part in parts:
            part.release(begin, begin + CHUNK_DOCUMENTS)
    cutter.finish()
    return {"document_index": writer.finish(), "sample_index": rows.finish()}


def _one_ahead(
    helper: ThreadPoolExecutor, action: Callable[[int], NDArray[np.int32]], begins: range
) -> Iterator[NDArray[np.int32]]:
    """Yield results in order, while the helper computes the next one."""
    if not begins:
        return
    coming = helper.submit(action, begins[0])
    for begin in begins[1:]:
        ready, coming = coming.result(), helper.submit(action, begin)
        yield ready
    yield coming.result()
