"""Where two caches give training other samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from distcache.corpus import Idx
from distcache.corpus.receipt import find_receipt
from distcache.edit.selection import GOLDEN, mix_bits
from distcache.ledger.trace import Trace
from distcache.ledger.traced_split import TracedSamples

AT_ONCE: Final = 1 << 20  # positions


class CorpusExposure(msgspec.Struct, frozen=True):
    """What training sees of a corpus in each of two caches, where they differ."""

    corpus: str  # the corpus, as the first cache that has it names it
    # tokens of the samples that differ
    tokens: int
    tokens_of_other: int


class CacheDifference(msgspec.Struct, frozen=True):
    """How the samples of two caches differ."""

    # positions of the split in each
    size: int
    size_of_other: int
    first: int | None  # first position that differs, among those that both have; None if none does
    differing: int  # positions that differ, among those that both have
    share: float  # that part of them
    exposures: tuple[CorpusExposure, ...]  # of corpora that are in samples that differ


def difference(
    one: Trace, other: Trace, advance: Callable[[float], None] = lambda _: None
) -> CacheDifference:
    """Compare the samples of two splits, by the content of their corpora.

    Corpora are the same if their indices are, and the digests of their tokens, as far as receipts
    say them. Samples are equal if they consist of the same tokens
    of the same sequences.

    Parameters
    ----------
    one, other : Trace
        The splits.
    advance : callable
        Receives the positions that have been compared.

    Raises
    ------
    CacheCorrupt, CorpusError, NotReady
        If a cache, or the index of a corpus, is damaged or missing.
    """
    both = min(len(one), len(other))
    known: list[_Content] = []
    identities = [_identities(trace, known) for trace in (one, other)]
    same = one.cache.key == other.cache.key and one.split.pairs == other.split.pairs
    if same and np.array_equal(identities[0], identities[1]):
        return CacheDifference(len(one), len(other), None, 0, 0.0, ())
    exposures = np.zeros((2, len(known)), np.int64)
    first, differing = None, 0
    for begin in range(0, both, AT_ONCE):
        end = min(begin + AT_ONCE, both)
        traced = [trace.samples(np.arange(begin, end)) for trace in (one, other)]
        digests = [_digests(*pair) for pair in zip(traced, identities, strict=True)]
        differs = digests[0] != digests[1]
        if differs.any():
            first = begin + int(np.argmax(differs)) if first is None else first
            differing += int(np.count_nonzero(differs))
            for number in (0, 1):
                exposures[number] += _exposure(
                    traced[number], identities[number], differs, len(known)
                )
        advance(end - begin)
    found = [
        CorpusExposure(corpus.prefix, int(exposures[0, number]), int(exposures[1, number]))
        for number, corpus in enumerate(known)
        if exposures[:, number].any()
    ]
    return CacheDifference(
        len(one), len(other), first, differing, differing / max(both, 1), tuple(found)
    )


class _Content(NamedTuple):
    """What a corpus of a cache consists of, and its name there."""

    prefix: str
    idx_digest: str
    bin_digest: str  # empty if it is not known


def _identities(trace: Trace, known: list[_Content]) -> NDArray[np.int64]:
    """Return a number for each corpus of a cache, which equal ones of both have in common."""
    digests = trace.cache.table("sources")["idx_digest"].tolist()
    found: list[int] = []
    for source, (prefix, raw) in enumerate(zip(trace.corpora, digests, strict=True)):
        # Megatron's own files do not have it.
        digest = raw.decode("ascii", "replace") or digest_of(trace.split.idx(source))
        receipt = find_receipt(trace.split.place(source))
        own = _Content(prefix, digest, "")
        if receipt is not None and receipt.idx_digest == digest:
            own = own._replace(bin_digest=receipt.bin_digest or "")
        found.append(_number_of(own, known, found))
    return np.array(found, np.int64)


def _number_of(own: _Content, known: list[_Content], taken: list[int]) -> int:
    """Return the number of a content; two corpora of a cache are not the same one."""
    for number, other in enumerate(known):
        tokens = own.bin_digest == other.bin_digest or not (own.bin_digest and other.bin_digest)
        if own.idx_digest == other.idx_digest and tokens and number not in taken:
            return number
    known.append(own)
    return len(known) - 1


def digest_of(idx: Idx) -> str:
    """Return the digest of an index, as caches have it."""
    return xxhash.xxh3_128_hexdigest(memoryview(idx.map))


def _digests(traced: TracedSamples, identities: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a number for each sample that depends on all its parts, and their order."""
    counts = np.diff(traced.bounds)
    values = np.repeat(identities[traced.corpora], counts).astype(np.uint64)
    for part in (traced.sequences, traced.begins, traced.ends):
        values = mix_bits(values ^ part.astype(np.uint64))
    places = np.arange(len(values)) - np.repeat(traced.bounds[:-1], counts)
    values = mix_bits(values + places.astype(np.uint64) * GOLDEN)
    sums: NDArray[np.uint64] = np.concatenate([[np.uint64(0)], np.cumsum(values)])
    found: NDArray[np.uint64] = sums[traced.bounds[1:]] - sums[traced.bounds[:-1]]
    return found


def _exposure(
    traced: TracedSamples,
    identities: NDArray[np.int64],
    differs: NDArray[np.bool_],
    count: int,
) -> NDArray[np.int64]:
    """Return the tokens of each corpus in the samples that differ."""
    inputs = (traced.ends - traced.begins - traced.label_only).astype(np.int64)
    sums = np.concatenate([[0], np.cumsum(inputs)])
    tokens = (sums[traced.bounds[1:]] - sums[traced.bounds[:-1]])[differs]
    found = np.zeros(count, np.int64)
    np.add.at(found, identities[traced.corpora[differs]], tokens)
    return found
