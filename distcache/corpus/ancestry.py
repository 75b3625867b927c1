"""From which corpora the tokens of a corpus were copied, and from which documents of them."""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from distcache.corpus.idx import Idx, bin_path, open_idx
from distcache.corpus.kept_runs import encode_kept
from distcache.corpus.receipt import VIEWS, Ancestor, InputReceipt, Receipt, find_receipt
from distcache.corpus.soundness import digest_idx
from distcache.errors import CorpusError, DistcacheError
from distcache.storage.url import is_url

MAX_BISECTED: Final = 4096  # numbers that are searched for without a copy of all that are mapped
BLOCK_DOCUMENTS: Final = 1 << 20  # documents
MAX_VIEW_BYTES: Final = 192 << 20  # bytes of the documents of a view; a receipt has a third more
MAX_VIEWS: Final = 32  # of one another
COPIES: Final = ("merge", "convert", "materialize")


def find_sorted(mapped: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many numbers of an ascending, unaligned array are at most each value."""
    if len(values) <= MAX_BISECTED:
        found = [bisect.bisect_right(mapped, value) for value in values.tolist()]
        return np.array(found, np.int64)
    return np.searchsorted(mapped, values, "right")


def documents_of(idx: Idx, sequences: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the document of each sequence."""
    return find_sorted(idx.bounds, np.asarray(sequences, np.int64)) - 1


def root_of_view(prefix: str) -> str:
    """Return the corpus into whose `.bin` a view points; of another corpus, itself.

    Receipts name the corpus of a view whose `.bin` is a copy, as of one in a bucket.

    Raises
    ------
    CorpusError
        If a receipt cannot be read, or views are of one another.
    """
    for _ in range(MAX_VIEWS):
        path = bin_path(prefix)
        if not is_url(prefix) and os.path.islink(path):
            return os.path.realpath(path).removesuffix(".bin")
        receipt = find_receipt(prefix)
        if receipt is None or receipt.kind not in VIEWS or not receipt.inputs:
            return prefix
        prefix = receipt.inputs[0].path
    raise CorpusError(f"{prefix}: is a view of a view of more than {MAX_VIEWS} others")


def ancestors_of(prefixes: Sequence[str]) -> tuple[Ancestor, ...]:
    """Return the corpora that some corpora were made from, and these, as far as receipts say it.

    A view names the documents that it has of the corpus into which it points, unless they do not
    ascend, or there is no room for their numbers in a receipt.

    Raises
    ------
    CorpusError
        If a receipt cannot be read.
    """
    found: dict[tuple[str, str], Ancestor] = {}
    for prefix in prefixes:
        for ancestor in _line_of(prefix, set()):
            found.setdefault((ancestor.corpus, ancestor.idx_digest), ancestor)
    return tuple(found.values())


def _line_of(prefix: str, seen: set[str]) -> Iterator[Ancestor]:
    """Yield a corpus, then those that it was made from."""
    receipt = None if prefix in seen else find_receipt(prefix)
    if receipt is None:
        return
    seen.add(prefix)
    root = root_of_view(prefix)
    if receipt.kind in VIEWS:
        entry = _kept_of_root(prefix, root, receipt)
        if entry is None:
            return
        yield _ancestor(prefix, receipt, (entry,))
        yield from _line_of(root, seen)
        return
    yield _ancestor(prefix, receipt, receipt.inputs)
    yield from receipt.origins


def _ancestor(prefix: str, receipt: Receipt, inputs: tuple[InputReceipt, ...]) -> Ancestor:
    return Ancestor(
        corpus=prefix,
        idx_digest=receipt.idx_digest,
        kind=receipt.kind,
        documents=receipt.documents,
        sequences=receipt.sequences,
        inputs=inputs,
    )


def _kept_of_root(prefix: str, root: str, receipt: Receipt) -> InputReceipt | None:
    """Return what a view has of its root; None if that cannot be written into a receipt."""
    try:
        view, known = open_idx(prefix), open_idx(root)
        of_root = find_receipt(root)
    except DistcacheError:
        return None
    last = -1
    pieces: list[NDArray[np.int64]] = []
    for begin in range(0, len(view.bounds) - 1, BLOCK_DOCUMENTS):
        end = min(begin + BLOCK_DOCUMENTS, len(view.bounds) - 1)
        numbers = _documents_in_root(view, known, begin, end, last)
        if np.any(np.diff(numbers, prepend=last) <= 0):
            return None
        last = int(numbers[-1])
        pieces.append(numbers)
    code = encode_kept(iter(pieces))
    if len(code) > MAX_VIEW_BYTES:
        return None
    (entry,) = receipt.inputs[:1] or (None,)
    if entry is None:
        return None
    return InputReceipt(
        path=root,
        size=entry.size,
        digest=digest_idx(known) if of_root is None else of_root.idx_digest,
        rows=len(known.bounds) - 1,
        documents=receipt.documents,
        sequences=receipt.sequences,
        tokens=receipt.tokens,
        first_offset=entry.first_offset,
        kept=code,
    )


def _documents_in_root(view: Idx, root: Idx, begin: int, end: int, last: int) -> NDArray[np.int64]:
    """Return the documents of the root that documents of a view are, by where their tokens are.

    One without tokens is taken for the one after the document before it: nobody can tell.
    """
    bounds = np.array(view.bounds[begin : end + 1])
    lengths = np.array(view.lengths[bounds[0] : bounds[-1]])
    offsets = np.array(view.offsets[bounds[0] : bounds[-1]])
    filled = np.flatnonzero(lengths)
    if len(filled):
        first = np.searchsorted(filled, bounds[:-1] - bounds[0])
        place = filled[np.minimum(first, len(filled) - 1)]
        numbers = documents_of(root, find_sorted(root.offsets, offsets[place]) - 1)
    else:
        place, numbers = np.zeros(end - begin, np.int64), np.zeros(end - begin, np.int64)
    has_tokens = (place + bounds[0] >= bounds[:-1]) & (place + bounds[0] < bounds[1:])
    for empty in np.flatnonzero(~has_tokens | (len(filled) == 0)).tolist():
        numbers[empty] = (numbers[empty - 1] if empty else last) + 1
    return numbers
