"""Make receipts from the records of tasks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import xxhash

from distcache.corpus.corpus import CorpusFacts
from distcache.corpus.idx import ITEM_TYPES
from distcache.corpus.receipt import (
    EngineReceipt,
    InputReceipt,
    Origin,
    PieceReceipt,
    Receipt,
    Skipped,
    receipt_of,
)
from distcache.ingest.inputs import Input
from distcache.ingest.part import Counts, PieceFacts
from distcache.ingest.pieces import InputPiece, overlap
from distcache.ingest.readers.formats import FORMATS
from distcache.ingest.tasks import Locator, Work

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
                facts.kept,
            )
        )

    def receipt(self, item_size: int, *, documents_are_files: bool) -> InputReceipt:
        """Return its receipt."""
        tokens = sum(piece.tokens for piece in self.pieces)
        sequences = sum(piece.sequences for piece in self.pieces)
        return InputReceipt(
            path=self.entry.path,
            size=self.entry.size,
            digest=self.digest,
            rows=self.rows,
            documents=sum(piece.documents for piece in self.pieces),
            empty=self.empty,
            skipped=self.skipped,
            sequences=sequences,
            tokens=tokens,
            first_offset=self.begin * item_size if sequences else None,
            last_offset=(self.begin + tokens) * item_size if sequences else None,
            pieces=tuple(self.pieces),
            lines=FORMATS[self.entry.format].cut == "lines"
            and not (documents_are_files and self.entry.format == "txt"),
        )


def make_receipts(
    work: Work, facts: Sequence[CorpusFacts], bin_digests: Sequence[str], origin: Origin
) -> list[Receipt]:
    """Make the receipts of all corpora of an ingest.

    Parameters
    ----------
    work : Work
        All tasks, which are finished.
    facts : sequence of CorpusFacts
        Facts of each corpus.
    bin_digests : sequence of str
        Digest of the tokens of each corpus.
    origin : Origin
        Everything that the corpora have in common.
    """
    inputs, pieces = work.inputs, work.pieces
    digests = _input_digests(work)
    locator = Locator(work)
    shares: list[dict[int, _Share]] = [{} for _ in facts]
    skipped: list[list[Skipped]] = [[] for _ in facts]
    places: dict[int, int] = {}  # of each input, so far
    for record in work.records:
        indices = work.tasks[record.task]
        wrong = list(map(locator.skipped, indices, record.pieces))
        sizes = [entry.size for entry in record.pieces]
        firsts: list[int] = []
        for index, entry in zip(indices, record.pieces, strict=True):
            piece = pieces[index]
            first = places.get(piece.source, 0)
            # A damaged row group has rows that nothing could count.
            groups = inputs[piece.source].groups[piece.begin : piece.end]
            own = sum(group.rows for group in groups) if groups else entry.places
            places[piece.source] = first + own
            firsts.append(first)
        for number, part, at, before, size in overlap(sizes, record.segments):
            segment, piece = record.segments[part], pieces[indices[number]]
            tokens = segment.first.tokens + at.tokens
            share = shares[segment.shard].setdefault(
                piece.source, _Share(inputs[piece.source], digests[piece.source], tokens)
            )
            share.add(piece, record.pieces[number], firsts[number], before, size)
            if not before.documents:
                room = LISTED_PER_RECEIPT - len(skipped[segment.shard])
                skipped[segment.shard] += wrong[number][: max(room, 0)]
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
        for index, entry in zip(work.tasks[record.task], record.pieces, strict=True):
            found.setdefault(work.pieces[index].source, []).append(entry.digest)
    return {source: _digest_of_pieces(digests) for source, digests in found.items()}


def _digest_of_pieces(digests: Sequence[str]) -> str:
    """Return the digest of a file: that of its one piece, or that of the pieces' digests."""
    if len(digests) == 1:
        return digests[0]
    return xxhash.xxh3_128(b"".join(map(bytes.fromhex, digests))).hexdigest()
