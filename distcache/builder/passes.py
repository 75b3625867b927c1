"""Sections in orders of our own: whole passes, shuffled over all, within windows, or not.

In ``passes`` every pass over the sequences is a separate permutation, so that none comes twice
before all have come once; Megatron's order shuffles those of all passes together. In ``windows``
a pass permutes the shards, and shuffles only within windows of so many successive ones: a job that
trains in this order needs two windows of shards at a time. Samples are cut as Megatron cuts them,
then shuffled within the samples that end in one window: a section of more passes begins with the
samples of one of fewer. In ``none`` a pass is the corpus as it is, and samples follow one another.

The sequences of each pass come from a separate MT19937, seeded with the first 32 bits of the
SHA-256 of the section's seed and the number of the pass, as decimal numbers with a space between
them; all samples come from one generator, as if of pass -1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from distcache.builder.arrays import ArrayWriter, LargeArray, write_in_chunks
from distcache.builder.document_index import IndexPart
from distcache.builder.section_slice import LengthTable
from distcache.builder.sections import cut_section
from distcache.corpus import Idx
from distcache.kernels import Mt19937
from distcache.plan.layout import ArrayPlace
from distcache.plan.model import SectionPlan
from distcache.plan.orders import ORDERS
from distcache.plan.sizes import Cut
from distcache.storage.unfinished_file import UnfinishedFile

CHUNK_SEQUENCES: Final = 1 << 20  # sequences whose lengths are looked up at a time


def build_passes(
    section: SectionPlan,
    idx: Idx,
    shards: NDArray[np.int64],
    places: dict[str, ArrayPlace],
    file: UnfinishedFile,
    _workers: int = 1,
) -> dict[str, str]:
    """Build and write a section in passes or windows.

    Parameters
    ----------
    section : SectionPlan
        Section to build.
    idx : Idx
        Index of the section's corpus.
    shards : ndarray of int64
        The first sequence of each shard of the corpus; empty if it has none.
    places : dict of str to ArrayPlace
        Place of each array in the file.
    file : UnfinishedFile
        The unfinished cache.

    Returns
    -------
    dict of str to str
        The digest of each array.
    """
    if section.rows:
        writer = ArrayWriter(file, places["document_index"])
        for window in _all_windows(section, shards):
            writer.append(window)
        return {"document_index": writer.finish()}
    memory = LargeArray(section.documents)
    lengths = LengthTable(idx, section.begin, section.end)
    tokens = [0]
    done = 0
    for window in _all_windows(section, shards):
        memory.values[done : done + len(window)] = window
        done += len(window)
        own = _tokens_of(window, lengths) if section.window else section.tokens
        tokens.append(tokens[-1] + own)
    bounds = sample_bounds(np.array(tokens), section.cut)
    samples = _shuffle_within(section, bounds)
    digest = write_in_chunks(file, places["shuffle_index"], samples).finish()
    del samples
    parts = (IndexPart(0, memory),)
    return cut_section(section, lengths, parts, places, file, map) | {"shuffle_index": digest}


def _tokens_of(window: NDArray[np.int32], lengths: LengthTable) -> int:
    """Return the tokens of a window, of which a few sequences are looked up at a time."""
    begins = range(0, len(window), CHUNK_SEQUENCES)
    pieces = (lengths.look_up(window[begin : begin + CHUNK_SEQUENCES]) for begin in begins)
    return sum(int(piece.sum(dtype=np.int64)) for piece in pieces)


def _all_windows(section: SectionPlan, shards: NDArray[np.int64]) -> Iterator[NDArray[np.int32]]:
    """Yield the sequences of each window, shuffled, pass after pass."""
    for number in range(section.size.passes):
        yield from pass_windows(section, shards, number)


def pass_windows(
    section: SectionPlan, shards: NDArray[np.int64], number: int
) -> Iterator[NDArray[np.int32]]:
    """Yield the sequences of each window of one pass, shuffled.

    Parameters
    ----------
    section : SectionPlan
        The section; without a window the whole pass is one.
    shards : ndarray of int64
        The first sequence of each shard; empty if the corpus has none, so that there is one window.
    number : int
        Number of the pass.
    """
    if not ORDERS[section.order].is_shuffled:
        yield np.arange(section.begin, section.end, dtype=np.int32)
        return
    generator = Mt19937(seed_from(section.seed, number))
    firsts = shards[(shards > section.begin) & (shards < section.end)]
    bounds = np.unique([section.begin, *firsts, section.end]).astype(np.int64)
    order = np.arange(len(bounds) - 1, dtype=np.int32)
    size = section.window or max(len(order), 1)
    if section.window:
        generator.shuffle(order)
    for begin in range(0, len(order), size):
        chosen = order[begin : begin + size]
        parts = [np.arange(bounds[i], bounds[i + 1], dtype=np.int32) for i in chosen]
        window = parts[0] if len(parts) == 1 else np.concatenate(parts)
        generator.shuffle(window)
        yield window


def seed_from(*parts: object) -> int:
    """Return the seed of a generator: the first 32 bits of the SHA-256 of its parts."""
    text = " ".join(map(str, parts)).encode("ascii")
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big")


def sample_bounds(tokens: NDArray[np.int64], cut: Cut) -> NDArray[np.int64]:
    """Return the number of samples that lie in the windows before each one, then in all.

    A sample that reaches into the next window belongs to that one, so that whatever comes after a
    window, also another pass, changes nothing of the samples before.

    Parameters
    ----------
    tokens : ndarray of int64, shape (windows + 1,)
        Tokens before each window, then all tokens.
    cut : Cut
        Rules for cutting samples.
    """
    usable = np.maximum(tokens - int(cut.extra_token), 0)
    bounds: NDArray[np.int64] = usable // cut.sequence_length
    return bounds


def _shuffle_within(section: SectionPlan, bounds: NDArray[np.int64]) -> NDArray[Any]:
    """Return all samples, shuffled within each window if they are at all."""
    samples = np.arange(section.size.samples, dtype=section.shuffle_type)
    if not ORDERS[section.order].is_shuffled:
        return samples
    generator = Mt19937(seed_from(section.seed, -1))
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        generator.shuffle(samples[begin:end])
    return samples
