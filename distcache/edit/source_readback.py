"""Read documents back from a finished corpus and from its sources, and compare them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.corpus import Fault, Idx, bin_path, open_idx
from distcache.corpus.ancestry import documents_of, find_sorted, root_of_view
from distcache.corpus.idx import ITEM_TYPES
from distcache.corpus.receipt import VIEWS, InputReceipt, PieceReceipt, Receipt, find_receipt
from distcache.corpus.view_bytes import open_tokens
from distcache.edit.padded_source import Padding, fill_up
from distcache.errors import BuildInterrupted, CorpusError, DistcacheError
from distcache.ingest.document_buffer import DocumentBuffer, Memory, PieceFacts
from distcache.ingest.ingest_work import Reader
from distcache.ingest.inputs import TextOptions, TokenOptions, find_inputs
from distcache.ingest.pieces import InputPiece
from distcache.ingest.readers.tables import with_groups
from distcache.ingest.readers.text import make_text_reader
from distcache.ingest.readers.token_shards import ShardReader
from distcache.ingest.tokenizers.find import find_tokenizer
from distcache.ingest.tokenizers.tokenizer import (
    TokenizerOptions,
    TokenizerSource,
    template_digest,
)
from distcache.ranks.agreement import on_all_ranks, on_rank_0, own_share
from distcache.ranks.communicator import Communicator


class Document(NamedTuple):
    """A document: its tokens, and the length of each of its sequences."""

    tokens: NDArray[Any]
    lengths: NDArray[np.int32]

    def equals(self, other: Document) -> bool:
        """Return whether both are equal."""
        return np.array_equal(self.tokens, other.tokens) and np.array_equal(
            self.lengths, other.lengths
        )


class Sample(NamedTuple):
    """Documents of one piece: their numbers in the corpus, by the number in the piece."""

    entry: InputReceipt
    piece: PieceReceipt
    documents: dict[int, int]


class SourceReader(Protocol):
    """Reads documents from the sources of a corpus."""

    def read(self, sample: Sample) -> dict[int, Document]:
        """Return documents by their number in the piece, if they still exist."""
        ...


def read_back(
    communicator: Communicator,
    prefix: str,
    receipt: Receipt,
    count: int,
    tokenizer: str | None = None,
) -> list[Fault]:
    """Read evenly spread documents of a corpus again, and return what differs. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks, which divide the pieces.
    prefix : str
        Prefix of the corpus.
    receipt : Receipt
        Receipt of the corpus, with whose counts it agrees.
    count : int
        Number of documents.
    tokenizer : str or None
        Path of the tokenizer; by default the one in the receipt.

    Raises
    ------
    DistcacheError
        If the tokenizer cannot be loaded, or is another one.
    """
    source = None
    _, root = root_of(communicator, prefix, receipt)
    if root.kind == "text":
        source = on_rank_0(
            communicator,
            lambda: find_tokenizer(_tokenizer_of(root, tokenizer)),
            TokenizerSource,
            "reading the tokenizer",
        )
    samples = choose(receipt, count)
    own = own_share(communicator, samples)
    found = on_all_ranks(
        communicator,
        lambda: list(_compare(prefix, receipt, own, tokenizer, source)),
        "reading back",
    )
    shares = communicator.allgather(found, list[Fault], "documents that differ")
    return [fault for share in shares for fault in share]


def choose(receipt: Receipt, count: int) -> list[Sample]:
    """Return evenly spread documents, grouped by their pieces."""
    count = min(count, receipt.documents)
    return by_piece(
        receipt, [(2 * index + 1) * receipt.documents // (2 * count) for index in range(count)]
    )


def by_piece(receipt: Receipt, wanted: Sequence[int]) -> list[Sample]:
    """Return documents by their ascending numbers, grouped by their pieces."""
    samples: list[Sample] = []
    first = chosen = 0
    for entry in receipt.inputs:
        for piece in entry.pieces:
            documents: dict[int, int] = {}
            while chosen < len(wanted) and wanted[chosen] < first + piece.documents:
                documents[piece.before + wanted[chosen] - first] = wanted[chosen]
                chosen += 1
            if documents:
                samples.append(Sample(entry, piece, documents))
            first += piece.documents
    return samples


def root_of(communicator: Communicator, prefix: str, receipt: Receipt) -> tuple[str, Receipt]:
    """Return the corpus into which a view points, and its receipt. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks.
    prefix : str
        Prefix of a corpus.
    receipt : Receipt
        Receipt of the corpus.

    Returns
    -------
    prefix : str
        Prefix of the root; the same if the corpus is no view.
    receipt : Receipt
        Receipt of the root; that of the corpus if it has none.

    Raises
    ------
    CorpusError
        If views are of one another.
    """

    def find() -> tuple[str, Receipt]:
        root = root_of_view(prefix)
        return root, receipt if root == prefix else find_receipt(root) or receipt

    return on_rank_0(communicator, find, tuple[str, Receipt], "reading receipts")


def _compare(
    prefix: str,
    receipt: Receipt,
    samples: Sequence[Sample],
    tokenizer: str | None,
    source: TokenizerSource | None,
) -> Iterator[Fault]:
    if not samples:
        return
    idx = open_idx(prefix)
    dtype = ITEM_TYPES[idx.type_code]
    sources = _sources(prefix, receipt, dtype, tokenizer, source)
    for sample in samples:
        try:
            there = sources.read(sample)
        except BuildInterrupted:
            raise
        except (DistcacheError, OSError, EOFError, IndexError) as error:
            numbers = ", ".join(map(str, sample.documents.values()))
            message = f"document {numbers} cannot be read from its source: {error}"
            yield Fault(prefix, sample.entry.path, message)
            continue
        for place, document in sample.documents.items():
            here = read_document(idx, prefix, document)
            if here is None or place not in there or not here.equals(there[place]):
                message = (
                    f"document {document} is not what document {place} of {sample.entry.path} from "
                    f"{sample.piece.begin} to {sample.piece.end} is; one of the two has changed"
                )
                yield Fault(prefix, bin_path(prefix), message)


def _tokenizer_of(receipt: Receipt, tokenizer: str | None) -> TokenizerOptions:
    """Return the options of a corpus's tokenizer: encoding by its own library, and maybe moved."""
    with _as_options(receipt):
        wanted = msgspec.convert(receipt.options.get("tokenizer"), TokenizerOptions)
    facts = receipt.tokenizer
    return msgspec.structs.replace(
        wanted,
        name=wanted.name if tokenizer is None else tokenizer,
        engine="tokenizers" if facts is not None and facts.kind == "huggingface" else "auto",
    )


@contextlib.contextmanager
def _as_options(receipt: Receipt) -> Iterator[None]:
    try:
        yield
    except msgspec.ValidationError as error:
        raise CorpusError(
            f"the receipt of {receipt.corpus} has options that are not those of an ingest: {error}"
        ) from error


def _sources(
    prefix: str,
    receipt: Receipt,
    dtype: np.dtype[Any],
    tokenizer: str | None,
    source: TokenizerSource | None,
) -> SourceReader:
    if receipt.kind in VIEWS:
        return _Root(prefix, dtype, tokenizer, source)
    with _as_options(receipt):
        if receipt.kind not in ("text", "tokens"):
            return _Corpora(msgspec.convert(receipt.options, Padding))
        return _IngestedFiles(receipt, dtype, tokenizer, source)


def read_document(idx: Idx, prefix: str, document: int) -> Document | None:
    """Read a document at the offsets of its `.idx`; None if its bytes are not there."""
    if document + 1 >= len(idx.bounds):
        return None
    dtype = ITEM_TYPES[idx.type_code]
    first, last = int(idx.bounds[document]), int(idx.bounds[document + 1])
    lengths = np.array(idx.lengths[first:last])
    sizes = lengths.astype(np.int64) * dtype.itemsize
    full = np.flatnonzero(sizes)
    data = np.empty(int(sizes.sum()), np.uint8)
    try:
        with open_tokens(prefix, None) as read:
            read((np.array(idx.offsets[first:last])[full], sizes[full]), data)
    except (CorpusError, OSError):
        return None
    return Document(data.view(dtype), lengths)


class _Corpora:
    """Reads documents from the corpora that were merged, converted or materialized.

    Sequences of a corpus that was padded are filled up as its receipt says.
    """

    def __init__(self, padding: Padding = Padding()) -> None:  # noqa: B008  frozen
        self._padding = padding

    def _padded(self, document: Document) -> Document:
        lengths = document.lengths + -document.lengths % np.int32(self._padding.multiple_of)
        return Document(fill_up(document.tokens, document.lengths, self._padding), lengths)

    def read(self, sample: Sample) -> dict[int, Document]:
        """Return documents by their number in the corpus."""
        prefix = sample.entry.path
        idx, found = open_idx(prefix), {}
        for place in sample.documents:
            document = read_document(idx, prefix, place)
            if document is None:
                raise CorpusError(f"has no document {place} now")
            found[place] = self._padded(document)
        return found


class _Root:
    """Reads documents from the sources of the corpus into which a view points.

    A document of the view is a run of tokens of one of that corpus, found by its bytes.
    """

    def __init__(
        self,
        prefix: str,
        dtype: np.dtype[Any],
        tokenizer: str | None,
        source: TokenizerSource | None,
    ) -> None:
        self._prefix = root = root_of_view(prefix)
        self._view, self._root = open_idx(prefix), open_idx(root)
        self._receipt = find_receipt(root)
        self._sources: SourceReader = _Corpora()
        if self._receipt is not None:
            self._sources = _sources(root, self._receipt, dtype, tokenizer, source)

    def read(self, sample: Sample) -> dict[int, Document]:
        """Return documents by their number in the piece."""
        found: dict[int, Document] = {}
        cut: dict[int, tuple[int, int, NDArray[np.int32]]] = {}  # document, token, and lengths
        for place, number in sample.documents.items():
            some = slice(int(self._view.bounds[number]), int(self._view.bounds[number + 1]))
            lengths = np.array(self._view.lengths[some])
            full = np.flatnonzero(lengths)
            if not len(full):
                found[place] = Document(np.empty(0, ITEM_TYPES[self._root.type_code]), lengths)
                continue
            offset = self._view.offsets[some][full[:1]]
            document = int(documents_of(self._root, find_sorted(self._root.offsets, offset) - 1)[0])
            first = int(self._root.offsets[int(self._root.bounds[document])])
            cut[place] = document, (int(offset[0]) - first) // self._root.item_size, lengths
        whole = self._documents(sample, sorted({document for document, _, _ in cut.values()}))
        for place, (document, begin, lengths) in cut.items():
            if document in whole:
                end = begin + int(lengths.sum(dtype=np.int64))
                found[place] = Document(whole[document].tokens[begin:end], lengths)
        return found

    def _documents(self, sample: Sample, numbers: list[int]) -> dict[int, Document]:
        """Return documents of the root by their ascending numbers."""
        entry = msgspec.structs.replace(sample.entry, path=self._prefix)
        parts = [sample._replace(entry=entry, documents={number: number for number in numbers})]
        if self._receipt is not None:
            parts = by_piece(self._receipt, numbers)
        return {
            part.documents[place]: document
            for part in parts
            for place, document in self._sources.read(part).items()
        }


class _IngestedFiles:
    """Reads documents from the files that were ingested, by reading their piece again."""

    def __init__(
        self,
        receipt: Receipt,
        dtype: np.dtype[Any],
        tokenizer: str | None,
        source: TokenizerSource | None,
    ) -> None:
        self._dtype = dtype
        known = receipt.options
        self._reader: Reader
        if receipt.kind == "tokens":
            options = msgspec.convert(known, TokenOptions)
            self._column, self._reader = options.column, ShardReader(options)
            self._formats, self._format = options.formats, options.format
            return
        chosen = msgspec.convert(known, TextOptions)
        assert source is not None, "text needs a tokenizer"
        self._reader = reader = make_text_reader(source, _tokenizer_of(receipt, tokenizer), chosen)
        facts = reader.tokenizer.facts
        if receipt.tokenizer is not None and facts.digest != receipt.tokenizer.digest:
            raise CorpusError(
                f"the tokenizer {facts.name} has digest {facts.digest}, the receipt "
                f"says {receipt.tokenizer.digest}; name the right one with --tokenizer"
            )
        if chosen.messages is not None and known.get("template_digest") != template_digest(source):
            raise CorpusError(
                f"the chat template of {facts.name} is not the template of the ingest; restore "
                "it, or name the right directory with --tokenizer"
            )
        self._column = chosen.field
        self._formats, self._format = chosen.formats, chosen.format

    def read(self, sample: Sample) -> dict[int, Document]:
        """Return documents by their number in the piece."""
        (source,) = find_inputs([sample.entry.path], self._formats, self._format)
        if source.size != sample.entry.size:
            raise CorpusError(f"has {source.size} bytes, the receipt says {sample.entry.size}")
        if source.is_table:
            source = with_groups(source, self._column)
        picked = PickedDocuments(self._dtype, frozenset(sample.documents))
        piece = InputPiece(0, sample.piece.begin, sample.piece.end, 0, 0, 0)
        self._reader.read(source, piece, picked, picked.is_complete)
        return picked.documents


class PickedDocuments(DocumentBuffer):
    """Keeps selected documents.

    Parameters
    ----------
    dtype : dtype
        The token type.
    wanted : frozenset of int
        Numbers of the documents.
    """

    def __init__(self, dtype: np.dtype[Any], wanted: frozenset[int]) -> None:
        super().__init__(dtype, PieceFacts(""), Memory())
        self.documents: dict[int, Document] = {}
        self._wanted = wanted
        self._seen = 0

    def is_complete(self) -> bool:
        """Return whether nothing more is needed."""
        return self._seen > max(self._wanted)

    def append(
        self,
        tokens: NDArray[Any],
        lengths: NDArray[np.int32],
        counts: NDArray[np.int32],
        losses: NDArray[np.uint8] | None = None,
    ) -> None:
        """Keep the selected ones of these documents."""
        ends = np.cumsum(counts)
        token_ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        for place in self._wanted:
            if self._seen <= place < self._seen + len(ends):
                last = int(ends[place - self._seen])
                first = int(ends[place - self._seen - 1]) if place > self._seen else 0
                own = np.array(tokens[token_ends[first] : token_ends[last]])
                self.documents[place] = Document(own, np.array(lengths[first:last]))
        self._seen += len(ends)
