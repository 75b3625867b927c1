"""One corpus out of several: every rank copies an equal share of the bytes to where they stay."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from distcache.corpus.corpus import CorpusFacts
from distcache.corpus.examine import require_sound
from distcache.corpus.idx import bin_path, idx_path
from distcache.corpus.idx_writer import (
    IdxPlan,
    lay_out_idx,
    write_bounds,
    write_lengths,
)
from distcache.corpus.output import Output
from distcache.corpus.source import Source
from distcache.errors import CorpusError
from distcache.files import create_anew, no_space_as_error, open_regular, write_range
from distcache.progress import Progress
from distcache.ranks.agreement import from_rank_0, together
from distcache.ranks.balance import slice_bounds
from distcache.ranks.communicator import Communicator

__all__ = ["join"]

STRIPE: Final = 1 << 20  # bytes; two ranks never write into the same one of a `.bin`
COPY: Final = 16 << 20  # bytes at a time
SEQUENCES: Final = 1 << 18  # at a time


def join(
    communicator: Communicator,
    sources: Sequence[Source],
    output: Output,
    threads: int,
    progress: Progress,
) -> CorpusFacts:
    """Put corpora together, in order, under an unfinished name. Collective.

    Parameters
    ----------
    communicator : Communicator
        Of all ranks.
    sources : sequence of Source
        Of one token type, all with modes or all without.
    output : Output
        Claimed by rank 0.
    threads : int
        For examining what was made.
    progress : Progress
        Told of the bytes that this rank has copied.

    Returns
    -------
    CorpusFacts
        Of the corpus, which is synced and sound.

    Raises
    ------
    DistcacheError
        On all ranks the same.
    """
    plan = IdxPlan(
        sources[0].type_code,
        sum(len(source.lengths) for source in sources),
        sum(len(source.bounds) - 1 for source in sources),
        sources[0].modes is not None,
    )
    total = sum(source.nbytes for source in sources)
    prefix = output.unfinished(0)
    from_rank_0(communicator, lambda: _lay_out(prefix, plan, total), None, "laying out")
    stripes = slice_bounds(total, communicator.size, STRIPE)
    begin, end = stripes[communicator.rank], stripes[communicator.rank + 1]
    progress.phase("copying tokens", end - begin)
    together(
        communicator, lambda: _copy_tokens(prefix, sources, begin, end, progress), "copying tokens"
    )
    progress.phase("writing the index")
    together(
        communicator,
        lambda: _write_index(prefix, plan, sources, communicator.rank, communicator.size),
        "writing the index",
    )
    progress.phase("examining")
    return require_sound(communicator, [prefix], threads)[prefix]


def _lay_out(prefix: str, plan: IdxPlan, total: int) -> None:
    """Make both files at their sizes, with the bytes of the index that belong to no sequence."""
    lay_out_idx(prefix, plan)
    path = bin_path(prefix)
    with no_space_as_error(path), create_anew(path) as stream:
        stream.truncate(total)


def _shares(sizes: Sequence[int], begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield which part of which source lies in [begin, end) of all, and where that begins."""
    bounds = [0, *itertools.accumulate(sizes)]
    for index, (first, last) in enumerate(itertools.pairwise(bounds)):
        low, high = max(first, begin), min(last, end)
        if low < high:
            yield index, low - first, high - first, low


def _copy_tokens(
    prefix: str, sources: Sequence[Source], begin: int, end: int, progress: Progress
) -> None:
    path = bin_path(prefix)
    target = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    room = np.empty(COPY, np.uint8)
    try:
        with no_space_as_error(path):
            shares = _shares([source.nbytes for source in sources], begin, end)
            for index, low, high, at in shares:
                source = open_regular(bin_path(sources[index].prefix))
                try:
                    _copy(source, low, high, target, at, room, progress)
                except EOFError as error:
                    message = (
                        f"{bin_path(sources[index].prefix)}: was truncated while it was copied"
                    )
                    raise CorpusError(message) from error
                finally:
                    os.close(source)
            os.fsync(target)
    finally:
        os.close(target)


def _copy(
    source: int,
    low: int,
    high: int,
    target: int,
    at: int,
    room: np.ndarray[tuple[int], np.dtype[np.uint8]],
    progress: Progress,
) -> None:
    while low < high:
        count = os.preadv(source, [room[: high - low].data], low)
        if not count:
            raise EOFError
        write_range(target, at, room[:count])
        low, at = low + count, at + count
        progress.advance(count)


def _write_index(
    prefix: str, plan: IdxPlan, sources: Sequence[Source], rank: int, ranks: int
) -> None:
    """Write a rank's share of the sequences, and of the documents but for the last boundary."""
    path = idx_path(prefix)
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    sequences = [len(source.lengths) for source in sources]
    documents = [len(source.bounds) - 1 for source in sources]
    sequences_before = [0, *itertools.accumulate(sequences)]
    tokens_before = [0, *itertools.accumulate(source.tokens for source in sources)]
    begin, end = slice_bounds(plan.sequences, ranks, 1)[rank : rank + 2]
    first, last = slice_bounds(plan.documents, ranks, 1)[rank : rank + 2]
    try:
        with no_space_as_error(path):
            for index, low, high, at in _shares(sequences, begin, end):
                before = tokens_before[index]
                _write_sequences(descriptor, plan, sources[index], range(low, high), at, before)
            for index, low, high, at in _shares(documents, first, last):
                for some in range(low, high, SEQUENCES):
                    bounds = sources[index].bounds[some : min(some + SEQUENCES, high)]
                    write_bounds(
                        descriptor, plan, at + some - low, bounds + sequences_before[index]
                    )
                _require_intact(sources[index])
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_sequences(
    descriptor: int, plan: IdxPlan, source: Source, part: range, at: int, before: int
) -> None:
    """Write some sequences of a source, the first as number `at`, with tokens `before` it."""
    tokens = before + int(source.lengths[: part.start].sum(dtype=np.int64))
    for begin in range(part.start, part.stop, SEQUENCES):
        lengths = source.lengths[begin : min(begin + SEQUENCES, part.stop)]
        place = at + begin - part.start
        write_lengths(descriptor, plan, place, tokens, lengths)
        tokens += int(lengths.sum(dtype=np.int64))
        if source.modes is not None:
            modes = np.ascontiguousarray(source.modes[begin : begin + len(lengths)])
            write_range(descriptor, plan.modes_begin + place, modes)
    _require_intact(source)


def _require_intact(source: Source) -> None:
    if source.idx is not None:
        source.idx.require_intact()
