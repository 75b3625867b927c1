"""Where the documents of a corpus are: in a `.bin`, in shards, and in the corpora they came from.

A *space* numbers something that corpora can have in common: the bytes of a `.bin`, the records of a
shard, or the documents of a corpus that tokens were copied from, as receipts say it. A share is
what a part of a corpus has in a space.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distcache.corpus.ancestry import COPIES, documents_of, find_sorted, root_of_view
from distcache.corpus.corpus import CorpusFacts
from distcache.corpus.idx import Idx, bin_path, open_idx
from distcache.corpus.kept_runs import KeptRuns
from distcache.corpus.mds.shard_table import has_table, read_table
from distcache.corpus.receipt import VIEWS, Ancestor, InputReceipt, Receipt, find_receipt
from distcache.corpus.soundness import digest_idx
from distcache.errors import BuildInterrupted, DistcacheError

MAX_STEPS: Final = 32  # corpora of which each was made from the one before
Key = tuple[Any, ...]
Numbers = NDArray[np.int64]
Step = Callable[[Numbers, Numbers], tuple[Numbers, Numbers]]
"""From documents of a corpus and their numbers to those that a space has, with numbers there."""
Steps = tuple[Step, ...]
Trail = tuple[tuple[str, str], ...]
"""Paths and digests of the corpora that receipts led through."""


class Part(NamedTuple):
    """Sequences [begin, end) of a corpus."""

    facts: CorpusFacts
    begin: int
    end: int


class Runs(NamedTuple):
    """Ranges of a space that a part has, ascending by their begins."""

    begins: Numbers
    ends: Numbers
    documents: Numbers  # the document of the part that each range belongs to


class Share(NamedTuple):
    """What a part has in a space, which is found when it is asked for."""

    key: Key
    part: Part
    steps: Steps = ()

    @property
    def is_copied(self) -> bool:
        """Whether documents are those of another corpus, as a receipt says."""
        return any(getattr(step, "func", None) is _within for step in self.steps)

    def runs(self) -> Runs:
        """Return its ranges; documents without tokens have none."""
        idx, part = open_idx(self.part.facts.prefix), self.part
        lengths = idx.lengths[part.begin : part.end].astype(np.int64)
        filled = part.begin + np.flatnonzero(lengths)
        if self.key[0] == "bytes":
            begins = np.asarray(idx.offsets, np.int64)[filled]
            ends = begins + lengths[filled - part.begin] * idx.item_size
            found = Runs(begins, ends, documents_of(idx, filled))
        else:
            documents = np.unique(documents_of(idx, filled))
            numbers = documents
            for step in self.steps:
                documents, numbers = step(documents, numbers)
            found = Runs(numbers, numbers + 1, documents)
        order = np.argsort(found.begins, kind="stable")
        if np.array_equal(order, np.arange(len(order))):
            return found
        return Runs(*(values[order] for values in found))


def shares_of(part: Part, file_keys: dict[str, Key], *, copies: bool) -> Iterator[Share]:
    """Yield what a part of a corpus that is here has in each space.

    Parameters
    ----------
    part : Part
        The part.
    file_keys : dict of str to tuple
        Key of the content of each `.bin`.
    copies : bool
        Whether any corpus was copied from others, so that documents have to be followed there.
    """
    prefix = part.facts.prefix
    if has_table(prefix):
        for key, steps in _shards_from(prefix, ()):
            yield Share(key, part, steps)
        return
    yield Share(file_keys[bin_path(prefix)], part)
    if copies:
        for key, steps in _origins(prefix, part.facts.idx_digest, (), ()):
            yield Share(key, part, steps)


def is_copy(facts: CorpusFacts) -> bool:
    """Return whether a corpus, or the one into which it points, was copied from others."""
    try:
        roots = {facts.prefix, root_of_view(facts.prefix)}
        receipts = [_receipt_at(root) for root in roots]
    except BuildInterrupted:
        raise
    except DistcacheError:
        return False
    return any(receipt is not None and receipt.kind in COPIES for receipt in receipts)


def _origins(prefix: str, digest: str, steps: Steps, trail: Trail) -> Iterator[tuple[Key, Steps]]:
    """Yield the spaces in which documents of a corpus that is here are, and the steps to them.

    Receipts can name one another in a circle, if a corpus took the place of what it was made from.
    """
    trail = (*trail, (prefix, digest))
    if _is_endless(trail):
        return
    if has_table(prefix):
        yield from _shards_from(prefix, steps)
        return
    yield ("documents", digest), steps
    root = root_of_view(prefix)
    if root != prefix:
        of_root = _digest_or_none(root)
        if of_root is None:
            return
        steps = (*steps, functools.partial(_in_root, prefix, root))
        yield ("documents", of_root), steps
    receipt = _receipt_at(root)
    if receipt is not None and receipt.kind in COPIES:
        yield from _copied(receipt, receipt.inputs, steps, trail)


def _copied(
    receipt: Receipt, inputs: Sequence[InputReceipt], steps: Steps, trail: Trail
) -> Iterator[tuple[Key, Steps]]:
    """Yield the spaces of inputs of a copy, one after the other, and of what these came from."""
    first = 0
    for entry in inputs:
        own: Steps = (*steps, functools.partial(_within, first, entry.documents))
        first += entry.documents
        yield from _beyond(receipt, entry, own, trail)


def _beyond(
    receipt: Receipt, entry: InputReceipt, steps: Steps, trail: Trail
) -> Iterator[tuple[Key, Steps]]:
    """Yield the spaces of a corpus that was copied: by the receipt of then, or as it is here."""
    node = _ancestor(receipt, entry)
    if node is None or node.kind == "mds":
        if _digest_or_none(entry.path) == entry.digest:
            yield from _origins(entry.path, entry.digest, steps, trail)
        else:
            yield ("documents", entry.digest), steps
        return
    trail = (*trail, (entry.path, entry.digest))
    if _is_endless(trail):
        return
    yield ("documents", entry.digest), steps
    if node.kind in VIEWS:
        (root,) = node.inputs
        kept: Steps = (*steps, functools.partial(_kept_of, root.kept))
        yield from _beyond(receipt, root, kept, trail)
    elif node.kind in COPIES:
        yield from _copied(receipt, node.inputs, steps, trail)


def _is_endless(trail: Trail) -> bool:
    """Return whether receipts lead through a corpus again, or through too many."""
    return trail[-1] in trail[:-1] or len(trail) > MAX_STEPS


def _ancestor(receipt: Receipt, entry: InputReceipt) -> Ancestor | None:
    """Return what a receipt says that a corpus that was copied came from."""
    known = (one for one in receipt.origins if one.idx_digest == entry.digest)
    return next((one for one in known if one.corpus == entry.path), None)


@functools.lru_cache(1024)
def _digest_of_file(path: str, _version: Any) -> str:
    return digest_idx(open_idx(path.removesuffix(".idx")))


def _digest_or_none(prefix: str) -> str | None:
    """Return the digest of the `.idx` of a corpus; None if it is not here, or cannot be read."""
    try:
        idx = open_idx(prefix)
        return _digest_of_file(idx.path, idx.file_version)
    except BuildInterrupted:
        raise
    except (DistcacheError, OSError):
        return None


def _receipt_at(prefix: str) -> Receipt | None:
    """Return the receipt beside a corpus, if it is of this one and can be read."""
    try:
        receipt = find_receipt(prefix)
        if receipt is None:
            return None
        idx = open_idx(prefix)
    except BuildInterrupted:
        raise
    except DistcacheError:
        return None
    here = len(idx.bounds) - 1, len(idx.lengths), idx.size
    return receipt if here == (receipt.documents, receipt.sequences, receipt.idx_size) else None


def _shards_from(prefix: str, steps: Steps) -> Iterator[tuple[Key, Steps]]:
    """Yield the spaces of MDS shards, each a shard by the digest of its raw form."""
    rows = read_table(prefix).rows
    firsts = [*rows["first_sequence"].tolist(), None]
    for number, row in enumerate(rows):
        key = ("shard", bytes(row["raw_digest"]), int(row["raw_size"]))
        step = functools.partial(_records, prefix, firsts[number], firsts[number + 1])
        yield key, (*steps, step)


def _within(
    first: int, count: int, documents: Numbers, numbers: Numbers
) -> tuple[Numbers, Numbers]:
    """Keep the documents of one input, counted from its own first."""
    here = (numbers >= first) & (numbers < first + count)
    return documents[here], numbers[here] - first


def _kept_of(code: bytes, documents: Numbers, numbers: Numbers) -> tuple[Numbers, Numbers]:
    """Go from the documents of a view to those of its root that it has."""
    return documents, KeptRuns(code).numbers(numbers)


def _in_root(view: str, root: str, documents: Numbers, numbers: Numbers) -> tuple[Numbers, Numbers]:
    """Go from the documents of a view that is here to those of its root, by their first tokens."""
    idx, known = open_idx(view), open_idx(root)
    places, has_tokens = _first_tokens(idx, numbers)
    offsets = np.asarray(idx.offsets, np.int64)[places[has_tokens]]
    found = documents_of(known, find_sorted(known.offsets, offsets) - 1)
    return documents[has_tokens], found


def _records(
    prefix: str, first: int, end: int | None, documents: Numbers, numbers: Numbers
) -> tuple[Numbers, Numbers]:
    """Keep the documents of one shard, counted by records."""
    idx = open_idx(prefix)
    sequences = np.asarray(idx.bounds, np.int64)[numbers]
    here = (sequences >= first) & (sequences < (len(idx.lengths) if end is None else end))
    return documents[here], sequences[here] - first


def _first_tokens(idx: Idx, documents: Numbers) -> tuple[Numbers, NDArray[np.bool_]]:
    """Return the first sequence with tokens of each document, and which documents have one."""
    filled = np.flatnonzero(idx.lengths)
    bounds = np.asarray(idx.bounds, np.int64)
    if not len(filled):
        return np.zeros(len(documents), np.int64), np.zeros(len(documents), bool)
    place = np.searchsorted(filled, bounds[documents])
    found = filled[np.minimum(place, len(filled) - 1)]
    return found, (place < len(filled)) & (found < bounds[documents + 1])
