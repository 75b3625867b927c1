"""Which corpora have the same documents: by files, links, views, copies, merges and shards.

Parts of corpora are compared in the spaces that they have in common (`document_spaces`). What a
receipt says is believed if tokens are equal: corpora of documents of one length have equal indices,
whatever their tokens are.
"""

from __future__ import annotations

import itertools
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distcache.corpus.ancestry import documents_of
from distcache.corpus.document_spaces import Key, Part, Runs, Share, is_copy, shares_of
from distcache.corpus.idx import bin_path, open_idx
from distcache.storage.files import open_regular
from distcache.storage.url import is_url

__all__ = ["Part", "SameDocuments", "same_documents"]

MAX_PAIRS: Final = 1000  # pairs of parts that are yielded
COMPARED_BYTES: Final = 512  # bytes at each place where two files are compared
PLACES: Final = 32  # such places
Pair = tuple[int, int]


class SameDocuments(NamedTuple):
    """Two parts that have documents in common.

    Attributes
    ----------
    one, other : int
        Numbers of the parts.
    documents : int
        Documents of the other part of which tokens are in the first one, too.
    of_documents : int
        All documents of the other part.
    """

    one: int
    other: int
    documents: int
    of_documents: int


def same_documents(parts: Sequence[Part], most: int | None = MAX_PAIRS) -> Iterator[SameDocuments]:
    """Yield the pairs of parts that have documents in common.

    Unknown pairs are left out. The indices of objects in a bucket are not here, so only whole
    corpora with equal indices are found; copies are found by their receipts, and if their files
    are equal.

    Parameters
    ----------
    parts : sequence of Part
        Parts of corpora that have been examined.
    most : int or None
        Pairs that are yielded at most; None for all.
    """
    # Entries of one corpus and range are compared once: of several, each has what the others have.
    entries: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for number, part in enumerate(parts):
        entries[(part.facts.prefix, part.begin, part.end)].append(number)
    numbers = list(entries.values())
    distinct = [parts[own[0]] for own in numbers]
    local = [None if is_url(part.facts.prefix) else part for part in distinct]
    found = _shared_here(local, math.inf if most is None else most)
    pairs = itertools.chain(
        _of_equal_entries(distinct, numbers),
        (
            SameDocuments(one, other, *_counts(distinct[second], documents))
            for (first, second), documents in sorted(found.items())
            for one, other in itertools.product(numbers[first], numbers[second])
            if one < other
        ),
        _shared_by_index(parts),
    )
    yield from sorted(itertools.islice(pairs, most))


def _of_equal_entries(
    distinct: Sequence[Part], numbers: Sequence[Sequence[int]]
) -> Iterator[SameDocuments]:
    """Yield the pairs of entries that are the same range of the same corpus."""
    for part, own in zip(distinct, numbers, strict=True):
        if len(own) > 1 and not is_url(part.facts.prefix):
            idx = open_idx(part.facts.prefix)
            filled = part.begin + np.flatnonzero(idx.lengths[part.begin : part.end])
            documents, count = _counts(part, documents_of(idx, filled))
            for one, other in itertools.combinations(own, 2) if documents else ():
                yield SameDocuments(one, other, documents, count)


def _counts(part: Part, documents: NDArray[np.int64]) -> tuple[int, int]:
    """Return how many different documents these are, and how many the part has."""
    idx = open_idx(part.facts.prefix)
    ends = documents_of(idx, np.array([part.begin, max(part.end - 1, part.begin)]))
    ascending = np.sort(documents)
    count = int(np.count_nonzero(np.diff(ascending))) + 1 if len(ascending) else 0
    return count, int(ends[1] - ends[0]) + 1


def _shared_here(parts: Sequence[Part | None], most: float) -> dict[Pair, NDArray[np.int64]]:
    """Return the documents of the second of two parts that the first has, too, of each pair."""
    local = [(number, part) for number, part in enumerate(parts) if part is not None]
    keys = _keys_of_files({bin_path(part.facts.prefix) for _, part in local})
    copies = any(is_copy(part.facts) for _, part in local)
    spaces: dict[Key, list[tuple[int, Share]]] = defaultdict(list)
    for number, part in local:
        for share in shares_of(part, keys, copies=copies):
            spaces[share.key].append((number, share))
    found: dict[Pair, list[NDArray[np.int64]]] = defaultdict(list)
    for own in spaces.values():
        if len({number for number, _ in own}) > 1 and not _are_apart(own):
            compare = _compared_copies if own[0][1].key[0] == "documents" else _compared
            for pair, documents in compare(own, lambda pair: pair in found or len(found) < most):
                found[pair].append(documents)
    return {pair: np.concatenate(own) for pair, own in found.items()}


def _are_apart(own: Sequence[tuple[int, Share]]) -> bool:
    """Return whether all are ranges of one corpus that have no sequence in common, as splits."""
    if len({share.part.facts.prefix for _, share in own}) > 1:
        return False
    ranges = sorted({share.part[1:] for _, share in own})
    return all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ranges))


def _compared(
    own: Sequence[tuple[int, Share]], wanted: Callable[[Pair], bool]
) -> Iterator[tuple[Pair, NDArray[np.int64]]]:
    """Yield the documents that parts have of each other in a space of bytes, or of records."""
    runs = [share.runs() for _, share in own]
    numbers = [number for number, _ in own]
    for one, other in _near(runs):
        first, second = sorted((one, other), key=lambda place: numbers[place])
        pair = numbers[first], numbers[second]
        if pair[0] != pair[1] and wanted(pair):
            documents = runs[second].documents[_overlapping(runs[first], runs[second])]
            if len(documents):
                yield pair, documents


def _near(runs: Sequence[Runs]) -> Iterator[Pair]:
    """Yield the pairs that may overlap: all of those that overlaps connect.

    All runs are gone through by their begins. One that begins before the furthest end of those
    before it connects the two.
    """
    sizes = [len(one.begins) for one in runs]
    owners = np.repeat(np.arange(len(runs)), sizes)
    begins, ends = (np.concatenate([one[column] for one in runs]) for column in (0, 1))
    order = np.argsort(begins, kind="stable")
    owners, begins, ends = owners[order], begins[order], ends[order]
    furthest = np.maximum.accumulate(ends)
    holder = np.maximum.accumulate(np.where(ends == furthest, np.arange(len(ends)), 0))
    late = 1 + np.flatnonzero(begins[1:] < furthest[:-1])
    touching = np.unique(owners[late] * len(runs) + owners[holder[late - 1]])
    group = list(range(len(runs)))
    for code in touching.tolist():
        joined = {group[place] for place in divmod(code, len(runs))}
        group = [min(joined) if own in joined else own for own in group]
    members = defaultdict(list)
    for place, own in enumerate(group):
        members[own].append(place)
    for own_places in members.values():
        yield from itertools.combinations(own_places, 2)


def _overlapping(one: Runs, other: Runs) -> NDArray[np.int64]:
    """Return the places of the other runs that have something of the first ones."""
    if not len(one.begins) or not len(other.begins):
        return np.zeros(0, np.int64)
    # Of the first runs that begin before a run ends, one has to end after it begins: the furthest.
    furthest = np.maximum.accumulate(one.ends)
    before = np.searchsorted(one.begins, other.ends, "left") - 1
    found = (before >= 0) & (furthest[np.maximum(before, 0)] > other.begins)
    return np.flatnonzero(found)


def _compared_copies(
    own: Sequence[tuple[int, Share]], wanted: Callable[[Pair], bool]
) -> Iterator[tuple[Pair, NDArray[np.int64]]]:
    """Yield the documents that parts have of each other as those of a corpus that was copied.

    Two parts that were not copied are compared by their files instead.
    """
    runs = [share.runs() for _, share in own]
    size = max(int(each.ends.max(initial=0)) for each in runs)
    has, whose = np.zeros(size, bool), -1
    for pair in _near(runs):
        first, second = sorted(pair, key=lambda place: own[place][0])
        numbers = own[first][0], own[second][0]
        copied = any(own[place][1].is_copied for place in pair)
        if numbers[0] == numbers[1] or not copied or not wanted(numbers):
            continue
        mine, theirs = runs[first], runs[second]
        if whose != first:
            has[:], whose = False, first
            has[mine.begins] = True
        common = np.flatnonzero(has[theirs.begins])
        if not len(common):
            continue
        some = common[np.unique(np.linspace(0, len(common) - 1, PLACES, dtype=np.int64))]
        same = mine.documents[np.searchsorted(mine.begins, theirs.begins[some])]
        parts = own[first][1].part, own[second][1].part
        if _are_equal(parts, (same, theirs.documents[some])):
            yield numbers, theirs.documents[common]


def _are_equal(
    parts: tuple[Part, Part], documents: tuple[NDArray[np.int64], NDArray[np.int64]]
) -> bool:
    """Return whether documents begin with the same tokens."""
    readers = [_first_bytes(part, own) for part, own in zip(parts, documents, strict=True)]
    return all(first == second for first, second in zip(*readers, strict=True))


def _first_bytes(part: Part, documents: NDArray[np.int64]) -> Iterator[bytes]:
    """Yield the first bytes of documents."""
    prefix = part.facts.prefix
    idx = open_idx(prefix)
    with os.fdopen(open_regular(bin_path(prefix)), "rb") as stream:
        for document in documents.tolist():
            begin, end = idx.bounds[document : document + 2].tolist()
            filled = begin + int(np.argmax(idx.lengths[begin:end] > 0))
            stream.seek(int(idx.offsets[filled]))
            yield stream.read(min(int(idx.lengths[filled]) * idx.item_size, COMPARED_BYTES))


def _keys_of_files(paths: Iterable[str]) -> dict[str, Key]:
    """Return a key for each `.bin`: equal for names of one file, and for files that are equal."""
    inodes: dict[tuple[int, int, int], list[str]] = defaultdict(list)
    for path in sorted(paths):
        if Path(path).exists():  # a corpus of shards has none
            found = os.stat(path)
            inodes[(found.st_size, found.st_dev, found.st_ino)].append(path)
    sizes: dict[int, list[list[str]]] = defaultdict(list)
    for (size, _, _), names in inodes.items():
        sizes[size].append(names)
    keys: dict[str, Key] = {}
    for size, files in sizes.items():
        for names, key in zip(files, _contents([names[0] for names in files], size), strict=True):
            keys |= dict.fromkeys(names, ("bytes", size, *key))
    return keys


def _contents(paths: Sequence[str], size: int) -> list[tuple[bytes | int, ...]]:
    """Return equal tuples for files of one size that are equal at places all over them.

    Files without any variety, as those that `distcache mock` makes, are equal to no other.
    """
    known: list[tuple[bytes, ...]] = [()] * len(paths)
    # Most that differ do so at the first place: the others are only read where they do not.
    for places in (np.array([size // 2]), np.linspace(0, max(size - COMPARED_BYTES, 0), PLACES)):
        alike: dict[tuple[bytes, ...], list[int]] = defaultdict(list)
        for number, key in enumerate(known):
            alike[key].append(number)
        for numbers in alike.values():
            for number in numbers if len(numbers) > 1 else ():
                known[number] += tuple(_bytes_at(paths[number], places))
    return [
        key if not key or len(set(b"".join(key))) > 1 else (number,)
        for number, key in enumerate(known)
    ]


def _bytes_at(path: str, places: NDArray[np.float64] | NDArray[np.int64]) -> Iterator[bytes]:
    with os.fdopen(open_regular(path), "rb") as stream:
        for place in places.tolist():
            stream.seek(int(place))
            yield stream.read(COMPARED_BYTES)


def _shared_by_index(parts: Sequence[Part]) -> Iterator[SameDocuments]:
    """Yield the pairs of which one is in a bucket, whose index is not here: about, of a range."""
    alike: dict[Key, list[int]] = defaultdict(list)
    for number, part in enumerate(parts):
        # Corpora of sequences of one length have equal indices, whatever their tokens.
        even = part.facts.tokens % max(part.facts.sequences, 1) == 0
        whole = (part.begin, part.end) == (0, part.facts.sequences)
        key = (part.facts.idx_digest, part.facts.prefix if even else "")
        alike[(*key, "whole") if whole else (*key, part.begin, part.end)].append(number)
    for own in alike.values():
        for one, other in itertools.combinations(own, 2):
            if is_url(parts[one].facts.prefix) or is_url(parts[other].facts.prefix):
                part = parts[other]
                ratio = (part.end - part.begin) / max(part.facts.sequences, 1)
                documents = round(ratio * part.facts.documents)
                yield SameDocuments(one, other, documents, documents)
