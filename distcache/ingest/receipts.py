"""Make receipts from the records of pieces."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import xxhash

from distcache.corpus.corpus import CorpusFacts
from distcache.corpus.idx import ITEM_TYPES
from distcache.corpus.kept_runs import encode_numbers
from distcache.corpus.receipt import (
    EngineReceipt,
    InputReceipt,
    Origin,
    PieceReceipt,
    Receipt,
    Skipped,
    receipt_of,
)
from distcache.ingest.document_buffer import Counts, PieceFacts
from distcache.ingest.ingest_work import Work, locate
from distcache.ingest.inputs import Input
from distcache.ingest.pieces import InputPiece
from distcache.ingest.readers.formats import FORMATS

ENGINE: Final = "gigatoken"  # the one that is faster than the tokenizers' own libraries
LISTED_PER_RECEIPT: Final = 100_000  # invalid rows whose places a receipt lists; all are counted


@dataclass
class _Share:
    """The share of one input in one corpus. Rows are counted where their piece begins."""

    entry: Input
    digest: str
    begin: int
    rows: int = 0
    empty: int = 0
    skipped: int = 0
    by_library: int = 0
    compared: int = 0
    pieces: list[PieceReceipt] = field(default_factory=list)

    def add(
        self, piece: InputPiece, facts: PieceFacts, first: int, before: Counts, size: Counts
    ) -> None:
        """Add a piece, or the rest of one that begins in an earlier corpus."""
        rows = 0
        if not before.documents:
            rows = facts.rows
            self.rows += rows
            self.empty += facts.empty
            self.skipped += facts.skipped
            self.by_library += facts.by_library
            self.compared += facts.compared
        self.pieces.append(
            PieceReceipt(
                piece.begin,
                piece.end,
                rows,
                size.documents,
                size.sequences,
                size.tokens,
                before.documents,
                first,
                _kept_of(facts),
            )
        )

    def receipt(self, item_size: int, *, documents_are_files: bool) -> InputReceipt:
        """Return its receipt."""
        tokens = sum(piece.tokens for piece in self.pieces)
        sequences = sum(piece.sequences for piece in self.pieces)
        return InputReceipt(
            path=self.entry.name,
            size=self.entry.size,
            digest=self.digest,
            rows=self.rows,
            documents=sum(piece.documents for piece in self.pieces),
            empty=self.empty,
            skipped=self.skipped,
            sequences=sequences,
            tokens=tokens,
            first_offset=self.begin * item_size if sequences else None,
            pieces=tuple(self.pieces),
            lines=FORMATS[self.entry.format].cut == "lines"
            and not (documents_are_files and self.entry.format == "txt"),
        )


def _kept_of(facts: PieceFacts) -> bytes:
    """Return which places became documents; also if those that did not are the last ones."""
    dropped = facts.rows - facts.documents
    if facts.kept or dropped <= 0:
        return facts.kept
    return encode_numbers(np.array([facts.documents, dropped]))


def make_receipts(
    work: Work, facts: Sequence[CorpusFacts], bin_digests: Sequence[str], origin: Origin
) -> list[Receipt]:
    """Make the receipts of all corpora of an ingest.

    Parameters
    ----------
    work : Work
        All pieces, which are finished.
    facts : sequence of CorpusFacts
        Facts of each corpus.
    bin_digests : sequence of str
        Digest of the tokens of each corpus.
    origin : Origin
        Everything that the corpora have in common.
    """
    digests = _input_digests(work)
    shares: list[dict[int, _Share]] = [{} for _ in facts]
    skipped: list[list[Skipped]] = [[] for _ in facts]
    for record, first in zip(work.records, work.firsts(work.records), strict=True):
        piece, entry = work.pieces[record.piece], work.input_of(record.piece)
        before = Counts()
        for segment in record.segments:
            share = shares[segment.shard].setdefault(
                piece.source, _Share(entry, digests[piece.source], segment.first.tokens)
            )
            share.add(piece, record.facts, first, before, segment.size)
            before += segment.size
        listed = skipped[record.segments[0].shard]
        room = max(LISTED_PER_RECEIPT - len(listed), 0)
        listed += [locate(entry, problem, first) for problem in record.facts.problems[:room]]
    names = [work.store.output.name(shard) for shard in range(len(facts))]
    return [
        receipt_of(
            entry,
            name,
            origin,
            [
                part.receipt(
                    ITEM_TYPES[entry.type_code].itemsize,
                    documents_are_files=origin.options.get("documents") == "file",
                )
                for part in share.values()
            ],
            left_out,
            len(facts),
            _engine(origin, share.values()),
            bin_digest,
        )
        for name, entry, bin_digest, share, left_out in zip(
            names, facts, bin_digests, shares, skipped, strict=True
        )
    ]


def _engine(origin: Origin, shares: Collection[_Share]) -> EngineReceipt | None:
    version = origin.versions.get(ENGINE)
    if version is None:
        return None
    by_library = sum(share.by_library for share in shares)
    return EngineReceipt(ENGINE, version, by_library, sum(share.compared for share in shares))


def _input_digests(work: Work) -> dict[int, str]:
    found: dict[int, list[str]] = {}
    for record in work.records:
        found.setdefault(work.pieces[record.piece].source, []).append(record.facts.digest)
    return {source: _digest_of_pieces(digests) for source, digests in found.items()}


def _digest_of_pieces(digests: Sequence[str]) -> str:
    """Return the digest of a file: that of its one piece, or that of the pieces' digests."""
    if len(digests) == 1:
        return digests[0]
    return xxhash.xxh3_128(b"".join(map(bytes.fromhex, digests))).hexdigest()
