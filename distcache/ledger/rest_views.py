"""Write what is left of a corpus as a view: an `.idx` over the `.bin` that has the tokens."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import xxhash

from distcache import __version__
from distcache.corpus.corpus import CorpusFacts, open_examined, require_bin
from distcache.corpus.examine import require_sound, require_unchanged
from distcache.corpus.idx import Idx, bin_path, idx_path
from distcache.corpus.idx_writer import IdxPlan, lay_out_idx, write_bounds, write_sequences
from distcache.corpus.receipt import (
    InputReceipt,
    Origin,
    PieceReceipt,
    Receipt,
    receipt_of,
    tokenizers_of,
)
from distcache.ingest.output import Output
from distcache.ledger.rest_pieces import Pieces
from distcache.ranks.communicator import SerialCommunicator
from distcache.ranks.progress import NullProgress, Stopwatch
from distcache.storage.files import closing_fd, no_space_as_error, open_to_write

Left = Callable[[Idx], Iterator[Pieces]]
"""Yields the pieces of a corpus that are left, the same ones each time."""


class _Counts(NamedTuple):
    """Numbers of a view."""

    pieces: int
    tokens: int


def count_left(left: Left, idx: Idx) -> _Counts:
    """Return the pieces that are left, and their tokens."""
    counts = tokens = 0
    for pieces in left(idx):
        counts += len(pieces.sequences)
        tokens += int((pieces.ends - pieces.begins).sum())
    return _Counts(counts, tokens)


def write_view(
    facts: CorpusFacts, out: str, left: Left, counts: _Counts, options: dict[str, Any]
) -> Receipt:
    """Write a view of what is left of a corpus, or find the one that was written before.

    Parameters
    ----------
    facts : CorpusFacts
        Facts of the corpus, which was examined.
    out : str
        Prefix of the view.
    left : callable
        Yields the pieces.
    counts : _Counts
        Numbers of them, which are not 0.
    options : dict
        Everything that they depend on besides the corpus, for the receipt.

    Raises
    ------
    CorpusError
        If the corpus is not the one any more that was examined.
    KeyMismatch
        If another corpus has the name of the view.
    NoSpace
        If the disk is full.
    """
    require_bin(facts)
    tokens = os.path.realpath(bin_path(facts.prefix))
    link = os.path.relpath(tokens, os.path.realpath(Path(out).absolute().parent))
    identity = msgspec.json.encode(["rest", facts.identity, options, link], order="sorted")
    origin = Origin(
        kind="rest",
        made_from=xxhash.xxh3_128(identity).hexdigest(),
        tokenizer=tokenizers_of({facts.prefix: facts})[facts.prefix],
        options=options,
        versions={"distcache": __version__},
    )
    output, alone = Output(out), SerialCommunicator()

    def make() -> tuple[list[Receipt], dict[int, str]]:
        prefix = output.unfinished(0)
        idx = open_examined(facts)
        plan = IdxPlan(facts.type_code, counts.pieces, counts.pieces)
        lay_out_idx(prefix, plan)
        output.link_tokens(0, tokens)
        path = idx_path(prefix)
        with no_space_as_error(path), closing_fd(open_to_write(path)) as descriptor:
            first = 0
            for pieces in left(idx):
                lengths = (pieces.ends - pieces.begins).astype(np.int32)
                offsets = idx.offsets[pieces.sequences] + pieces.begins * idx.item_size
                write_sequences(descriptor, plan, first, lengths, offsets)
                bounds = np.arange(first, first + len(lengths), dtype=np.int64)
                write_bounds(descriptor, plan, first, bounds)
                first += len(lengths)
            os.fsync(descriptor)
        idx.require_intact()
        found = require_sound(alone, [prefix], 1)[prefix]
        require_unchanged(alone, [facts])
        receipt = receipt_of(found, output.name(0), origin, [_input(facts, counts)])
        return [receipt], {0: link}

    watch = Stopwatch(NullProgress(), lambda: 0.0)
    receipts, _ = output.produce(alone, origin, watch, make)
    return receipts[0]


def _input(facts: CorpusFacts, counts: _Counts) -> InputReceipt:
    """Return what a view has of its corpus, all of it in one piece."""
    piece = PieceReceipt(
        0, facts.documents, facts.documents, counts.pieces, counts.pieces, counts.tokens
    )
    return InputReceipt(
        path=facts.prefix,
        size=facts.bin_size,
        digest=facts.idx_digest,
        rows=facts.documents,
        documents=counts.pieces,
        sequences=counts.pieces,
        tokens=counts.tokens,
        pieces=(piece,),
    )
