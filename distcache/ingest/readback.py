"""Read documents back through a finished pair and through what it was made of, and compare."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.corpus import Fault, Idx, bin_path, open_idx
from distcache.corpus.idx import ITEM_TYPES
from distcache.corpus.legacy import is_legacy, open_legacy
from distcache.corpus.receipt import InputReceipt, PieceReceipt, Receipt
from distcache.corpus.source import Source, open_source
from distcache.errors import CorpusError, DistcacheError
from distcache.files import open_regular, read_range
from distcache.ingest.blocks import Blocks
from distcache.ingest.encode import TextReader
from distcache.ingest.inputs import find_inputs
from distcache.ingest.options import TextOptions, TokenOptions
from distcache.ingest.parquet import with_groups
from distcache.ingest.part import Part, PieceFacts
from distcache.ingest.pieces import Piece
from distcache.ingest.token_shards import ShardReader
from distcache.ingest.tokenizer import TokenizerOptions, load_tokenizer
from distcache.ingest.workers import Reader
from distcache.ranks.agreement import together
from distcache.ranks.communicator import Communicator

__all__ = ["Readback"]


class Document(NamedTuple):
    """A document: its tokens, and the length of each of its sequences."""

    tokens: NDArray[Any]
    lengths: NDArray[np.int32]

    def equals(self, other: Document) -> bool:
        """Tell whether both are the same."""
        return np.array_equal(self.tokens, other.tokens) and np.array_equal(
            self.lengths, other.lengths
        )


class Readback:
    """Reads documents of a corpus back.

    Parameters
    ----------
    prefix : str
        Of the corpus.
    receipt : Receipt
        Of the corpus.
    tokenizer : str or None
        Where the tokenizer is; by default where the receipt says.
    """

    def __init__(self, prefix: str, receipt: Receipt, tokenizer: str | None) -> None:
        self._prefix = prefix
        self._receipt = receipt
        self._tokenizer = tokenizer
        self._dtype: np.dtype[Any] = ITEM_TYPES[receipt.type_code]

    def check(self, communicator: Communicator, count: int) -> list[Fault]:
        """Compare so many documents, evenly spread, and return what differs. Collective."""
        documents = self._receipt.documents
        count = min(count, documents)
        chosen = [(2 * index + 1) * documents // (2 * count) for index in range(count)]
        own = chosen[communicator.rank :: communicator.size]
        found = together(communicator, lambda: list(self._compare(own)), "reading back")
        shares = communicator.gather_all(found, list[Fault], "documents that differ")
        return [fault for share in shares for fault in share]

    def _compare(self, documents: list[int]) -> Iterator[Fault]:
        if not documents:
            return
        idx = open_idx(self._prefix)
        again = self._sources()
        for document in documents:
            entry, piece, place = _locate(self._receipt, document)
            try:
                there = again(entry, piece, place)
            except (DistcacheError, OSError, EOFError) as error:
                message = f"document {document} cannot be read from its source: {error}"
                yield Fault(self._prefix, entry.path, message)
                continue
            here = _from_pair(idx, bin_path(self._prefix), self._dtype, document)
            if here is None or not here.equals(there):
                message = (
                    f"document {document} is not what document {place} of {entry.path} from "
                    f"{piece.begin} to {piece.end} is; one of both has changed"
                )
                yield Fault(self._prefix, bin_path(self._prefix), message)

    def _sources(self) -> Any:
        if self._receipt.kind in ("text", "tokens"):
            return _FileSources(self._receipt, self._dtype, self._tokenizer)
        return _CorpusSources(self._dtype)


def _locate(receipt: Receipt, document: int) -> tuple[InputReceipt, PieceReceipt, int]:
    """Return the input and the piece that a document came from, and which of the piece it is."""
    for entry in receipt.inputs:
        if document >= entry.documents:
            document -= entry.documents
            continue
        for piece in entry.pieces:
            if document < piece.documents:
                return entry, piece, piece.before + document
            document -= piece.documents
    raise CorpusError("the receipt's inputs have fewer documents than its corpus")


def _from_pair(idx: Idx, path: str, dtype: np.dtype[Any], document: int) -> Document | None:
    """Read a document at the offsets that its `.idx` has; None if they lead nowhere."""
    if document + 1 >= len(idx.bounds):
        return None
    first, last = int(idx.bounds[document]), int(idx.bounds[document + 1])
    lengths = np.array(idx.lengths[first:last])
    descriptor = open_regular(path)
    try:
        parts = []
        for offset, length in zip(idx.offsets[first:last], lengths, strict=True):
            begin = int(offset)
            parts.append(read_range(descriptor, begin, begin + int(length) * dtype.itemsize))
    except (EOFError, OSError):
        return None
    finally:
        os.close(descriptor)
    return Document(np.frombuffer(b"".join(parts), dtype), lengths)


class _CorpusSources:
    """Reads documents of the corpora that were merged or converted."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._open: dict[str, Source] = {}

    def __call__(self, entry: InputReceipt, piece: PieceReceipt, place: int) -> Document:
        prefix = entry.path
        if prefix not in self._open:
            legacy = is_legacy(prefix)
            self._open[prefix] = open_legacy(prefix) if legacy else open_source(prefix, entry.size)
        source = self._open[prefix]
        if place + 1 >= len(source.bounds):
            raise CorpusError(f"has {len(source.bounds) - 1} documents now")
        first, last = int(source.bounds[place]), int(source.bounds[place + 1])
        begin = int(source.lengths[:first].sum(dtype=np.int64)) * self._dtype.itemsize
        lengths = np.array(source.lengths[first:last])
        end = begin + int(lengths.sum(dtype=np.int64)) * self._dtype.itemsize
        descriptor = open_regular(bin_path(prefix))
        try:
            return Document(np.frombuffer(read_range(descriptor, begin, end), self._dtype), lengths)
        finally:
            os.close(descriptor)


class _FileSources:
    """Reads documents of the files that were ingested, by reading their piece again."""

    def __init__(self, receipt: Receipt, dtype: np.dtype[Any], tokenizer: str | None) -> None:
        self._dtype = dtype
        known = receipt.options
        self._reader: Reader
        if receipt.kind == "tokens":
            options = msgspec.convert(known, TokenOptions)
            self._column, self._reader = options.column, ShardReader(options)
            return
        chosen = msgspec.convert(known, TextOptions)
        wanted = msgspec.convert(known.get("tokenizer"), TokenizerOptions)
        if tokenizer is not None:
            wanted = msgspec.structs.replace(wanted, name=tokenizer)
        loaded = load_tokenizer(wanted)
        if receipt.tokenizer is not None and loaded.facts.digest != receipt.tokenizer.digest:
            raise CorpusError(
                f"the tokenizer {loaded.facts.name} has digest {loaded.facts.digest}, the receipt "
                f"says {receipt.tokenizer.digest}; name the right one with --tokenizer"
            )
        self._column, self._reader = chosen.text_key, TextReader(loaded, chosen)

    def __call__(self, entry: InputReceipt, piece: PieceReceipt, place: int) -> Document:
        (source,) = find_inputs([entry.path], ["jsonl", "txt", "parquet"])
        if source.size != entry.size:
            raise CorpusError(f"has {source.size} bytes, the receipt says {entry.size}")
        if source.format == "parquet":
            source = with_groups(source, self._column)
        with Part(self._dtype, Blocks(), None) as part:
            part.pieces.append(PieceFacts(""))
            again = Piece(0, piece.begin, piece.end, 0, 0, 0)
            self._reader.read(source, again, part, lambda: False)
            if place >= len(part.counts):
                raise CorpusError(f"its piece has {len(part.counts)} documents now")
            first = int(part.counts[:place].sum())
            last = first + int(part.counts[place])
            begin = int(part.lengths[:first].sum(dtype=np.int64))
            lengths = part.lengths[first:last]
            tokens = np.concatenate(list(part.blocks())).view(self._dtype)
            return Document(tokens[begin : begin + int(lengths.sum(dtype=np.int64))], lengths)
