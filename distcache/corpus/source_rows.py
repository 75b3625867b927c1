"""Which rows of which files documents were made of, as far as receipts say it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distcache.corpus.ancestry import COPIES, documents_of, find_sorted, root_of_view
from distcache.corpus.idx import Idx, open_idx
from distcache.corpus.kept_runs import KeptRuns
from distcache.corpus.mds.shard_table import has_table, read_table, shards_at
from distcache.corpus.receipt import VIEWS, Ancestor, InputReceipt, Receipt, find_receipt
from distcache.errors import CorpusError, DistcacheError, NotReady

UNKNOWN: Final = -1
BLOCK_SEQUENCES: Final = 1 << 20  # sequences


class SourceRows(NamedTuple):
    """Rows of files, one for each document that was asked for.

    Attributes
    ----------
    paths : list of str
        The files.
    files : ndarray of int32, shape (documents,)
        Index into `paths` of each; -1 if it is not known.
    rows : ndarray of int64, shape (documents,)
        Row of the file, or record of the shard, from 0; -1 if it is not known, or is a line.
    lines : ndarray of int64, shape (documents,)
        Line of the file, from 1; -1 if it is not known, or the file has no lines.
    """

    paths: list[str]
    files: NDArray[np.int32]
    rows: NDArray[np.int64]
    lines: NDArray[np.int64]


class FoundRows(NamedTuple):
    """Documents that rows of a file became.

    Attributes
    ----------
    documents : ndarray of int64
        Documents of the corpus, ascending.
    of_root : int
        Number of documents that the rows became in the corpus from which a view was selected.
    """

    documents: NDArray[np.int64]
    of_root: int


class _Rows:
    """Rows that are found some at a time."""

    def __init__(self, count: int) -> None:
        self._paths: dict[str, int] = {}
        self._files = np.full(count, UNKNOWN, np.int32)
        self._rows = np.full(count, UNKNOWN, np.int64)
        self._lines = np.full(count, UNKNOWN, np.int64)

    def set_file(self, places: NDArray[np.int64], path: str) -> None:
        self._files[places] = self._paths.setdefault(path, len(self._paths))

    def set_rows(
        self, places: NDArray[np.int64], numbers: NDArray[np.int64], *, lines: bool
    ) -> None:
        (self._lines if lines else self._rows)[places] = numbers + lines

    def add(self, places: NDArray[np.int64], found: SourceRows) -> None:
        for number, path in enumerate(found.paths):
            self.set_file(places[found.files == number], path)
        self._rows[places] = found.rows
        self._lines[places] = found.lines

    def found(self) -> SourceRows:
        return SourceRows(list(self._paths), self._files, self._rows, self._lines)


class CorpusSources:
    """The sources of a corpus.

    Parameters
    ----------
    prefix : str
        Prefix at which the corpus is now.
    idx : Idx
        Index of the corpus.
    seen : tuple of str
        Corpora that were made from it.

    Attributes
    ----------
    root : str
        The corpus into which it points, if it is a view; else itself.
    notes : dict of str to None
        Why sources are not known, or not exactly; each once.

    Raises
    ------
    CorpusError
        If a receipt, or a table of shards, cannot be read.
    """

    def __init__(self, prefix: str, idx: Idx, seen: tuple[str, ...] = ()) -> None:
        self.root = root_of_view(prefix)
        self.notes: dict[str, None] = {}
        self._seen = (*seen, prefix, self.root)
        self._view, self._idx = idx, idx
        self._receipt: Receipt | None = None
        self._searched: dict[tuple[str, str], NDArray[np.int64] | None] = {}
        try:
            if self.root != prefix:
                self._idx = open_idx(self.root)
            self._receipt = find_receipt(self.root)
        except NotReady as error:
            self._note(f"{error}; {prefix} is a view of it")
            self._table = None
            return
        self._table = read_table(self.root) if has_table(self.root) else None
        if self._receipt is None:
            self._note(f"{self.root}: has no receipt, which would say what it was made of")
        elif self._receipt.kind in VIEWS:
            self._note(f"{self.root}: is a view, and its receipt does not name a corpus")
            self._receipt = None
        elif not _is_receipt_of(self._receipt, self._idx):
            self._note(f"{self.root}: its receipt is that of another corpus")
            self._receipt = None

    def _note(self, text: str) -> None:
        self.notes[text] = None

    def find(self, sequences: NDArray[np.int64]) -> SourceRows:
        """Return the rows that sequences of the corpus were made of.

        Parameters
        ----------
        sequences : ndarray of int64, shape (sequences,)
            Sequences, in any order.
        """
        found = _Rows(len(sequences))
        if self._receipt is None or not len(sequences):
            return found.found()
        with self._contradictions_as_error():
            offsets = np.asarray(self._view.offsets[sequences], np.int64)
            if self._idx is not self._view:
                sequences = find_sorted(self._idx.offsets, offsets) - 1
            if self._table is not None:
                self._find_records(found, self._receipt, sequences, offsets)
            else:
                documents = documents_of(self._idx, sequences)
                self._find_in(found, np.arange(len(documents)), documents, self._receipt)
        return found.found()

    @contextlib.contextmanager
    def _contradictions_as_error(self) -> Iterator[None]:
        try:
            yield
        except DistcacheError:
            raise
        except (ValueError, IndexError, OverflowError, RecursionError) as error:
            raise CorpusError(f"the receipt of {self.root} contradicts itself: {error}") from error

    def find_documents(self, documents: NDArray[np.int64]) -> SourceRows:
        """Return the rows that documents were made of; unknown for empty documents of a view."""
        if self._receipt is not None and self._idx is self._view and self._table is None:
            found = _Rows(len(documents))
            with self._contradictions_as_error():
                self._find_in(found, np.arange(len(documents)), documents, self._receipt)
            return found.found()
        begins, ends = self._view.bounds[documents], self._view.bounds[documents + 1]
        rows = self.find(np.minimum(begins, len(self._view.lengths) - 1))
        for values in (rows.files, rows.rows, rows.lines):
            values[begins == ends] = UNKNOWN
        return rows

    def _find_records(
        self,
        found: _Rows,
        receipt: Receipt,
        sequences: NDArray[np.int64],
        offsets: NDArray[np.int64],
    ) -> None:
        """Find records of MDS shards, by the bytes at which their tokens are."""
        assert self._table is not None, "the caller has looked"
        rows = self._table.rows
        shards = shards_at(rows["base"].astype(np.int64), offsets)
        exact = self._has_all_records(receipt)
        for shard, here in grouped(shards):
            found.set_file(here, self._table.path_of(shard))
            if exact:
                own = sequences[here] - int(rows["first_sequence"][shard])
                found.set_rows(here, own, lines=False)

    def _find_in(
        self,
        found: _Rows,
        places: NDArray[np.int64],
        documents: NDArray[np.int64],
        node: Receipt | Ancestor,
    ) -> None:
        """Find documents of a corpus in its inputs, or in what these were made of."""
        if node.kind in VIEWS:  # an ancestor: the view itself points into its root
            (entry,) = node.inputs
            self._find_beyond(found, places, KeptRuns(entry.kept).numbers(documents), entry)
            return
        ends = np.cumsum([entry.documents for entry in node.inputs], dtype=np.int64)
        numbers = np.searchsorted(ends, documents, "right")
        for number, here in grouped(numbers):
            if number == len(ends):  # the receipt is of a corpus with fewer
                continue
            entry = node.inputs[number]
            own = documents[here] - (int(ends[number]) - entry.documents)
            if node.kind in COPIES:
                self._find_beyond(found, places[here], own, entry)
            else:
                self._find_rows(found, places[here], own, entry, is_whole=_has_all(node))

    def _find_beyond(
        self,
        found: _Rows,
        places: NDArray[np.int64],
        documents: NDArray[np.int64],
        entry: InputReceipt,
    ) -> None:
        """Find documents of a corpus that was copied: by its receipt of then, or that beside it."""
        node = self._ancestor(entry)
        if node is not None:
            self._find_in(found, places, documents, node)
        elif (parent := self._parent(entry)) is not None:
            found.add(places, parent.find_documents(documents))
            self.notes |= parent.notes

    def _ancestor(self, entry: InputReceipt) -> Ancestor | None:
        """Return what the receipt says of a corpus that was copied; of shards only a table does."""
        assert self._receipt is not None, "the caller has looked"
        known = (one for one in self._receipt.origins if one.corpus == entry.path)
        found = next((one for one in known if one.idx_digest == entry.digest), None)
        return None if found is not None and found.kind == "mds" else found

    def _parent(self, entry: InputReceipt) -> CorpusSources | None:
        """Return a corpus that was copied, if it is still there; else note it."""
        receipt = None if entry.path in self._seen else find_receipt(entry.path)
        if receipt is not None and receipt.idx_digest == entry.digest:
            with contextlib.suppress(NotReady):
                return CorpusSources(entry.path, open_idx(entry.path), self._seen)
        self._note(
            f"{entry.path}: is gone, or another one now, and the receipt of {self.root} says only "
            "that it was made from it, as of a view in another order, of pieces or of shards"
        )
        return None

    def _find_rows(
        self,
        found: _Rows,
        places: NDArray[np.int64],
        documents: NDArray[np.int64],
        entry: InputReceipt,
        *,
        is_whole: bool,
    ) -> None:
        """Find documents of an input in the file."""
        found.set_file(places, entry.path)
        firsts = _firsts(entry, is_whole=is_whole)
        ends = np.cumsum([piece.documents for piece in entry.pieces], dtype=np.int64)
        numbers = np.searchsorted(ends, documents, "right")
        begins = [
            end - piece.documents - piece.before
            for end, piece in zip(ends, entry.pieces, strict=True)
        ]
        own = documents - np.array(begins, np.int64)[numbers]
        for number, here in grouped(numbers):
            if entry.pieces[number].kept:
                own[here] = KeptRuns(entry.pieces[number].kept).numbers(own[here])
        found.set_rows(places, firsts[numbers] + own, lines=entry.lines)

    def _has_all_records(self, receipt: Receipt) -> bool:
        """Return whether each record of MDS shards is a document, so that numbers are known."""
        found = all(entry.rows == entry.documents for entry in receipt.inputs)
        if not found:
            self._note(f"{self.root}: records of its shards were left out: which, is not known")
        return found

    def documents_from(self, path: str, numbers: NDArray[np.int64] | None) -> FoundRows | None:
        """Return the documents of the corpus that rows of a file became.

        Parameters
        ----------
        path : str
            The file, as a receipt names it, or the end of its path from a slash on.
        numbers : ndarray of int64, or None
            Numbers of its rows, from 0, or lines, from 1; None for all of them.

        Returns
        -------
        FoundRows or None
            None if no receipt names the file.
        """
        if self._receipt is None:
            return None
        if self._table is not None:
            found = self._sequences_from(path, numbers, self._receipt)
            documents = None if found is None else documents_of(self._idx, found)
        else:
            self._searched.clear()
            with self._contradictions_as_error():
                documents = self._search(self._receipt, path, numbers)
        if documents is None:
            return None
        documents = np.unique(documents)
        own = documents if self._idx is self._view else self._of_view(documents)
        return FoundRows(own, len(documents))

    def _of_view(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the documents of the view that have tokens of documents of its root."""
        wanted = np.zeros(len(self._idx.bounds), bool)
        wanted[documents] = True
        found = [np.empty(0, np.int64)]
        for begin in range(0, len(self._view.offsets), BLOCK_SEQUENCES):
            offsets = np.array(self._view.offsets[begin : begin + BLOCK_SEQUENCES])
            own = documents_of(self._idx, find_sorted(self._idx.offsets, offsets) - 1)
            found.append(documents_of(self._view, begin + np.flatnonzero(wanted[own])))
        return np.unique(np.concatenate(found))

    def _sequences_from(
        self, path: str, numbers: NDArray[np.int64] | None, receipt: Receipt
    ) -> NDArray[np.int64] | None:
        """Return the sequences that records of shards became."""
        assert self._table is not None, "the caller has looked"
        firsts = [*self._table.rows["first_sequence"].tolist(), self._table.sequences]
        shards = range(len(self._table.rows))
        named = [shard for shard in shards if is_path(path, self._table.path_of(shard))]
        if not named or (numbers is not None and not self._has_all_records(receipt)):
            return None
        found = []
        for shard in named:
            own = np.arange(firsts[shard], firsts[shard + 1], dtype=np.int64)
            chosen = np.arange(len(own)) if numbers is None else numbers
            found.append(own[chosen[(chosen >= 0) & (chosen < len(own))]])
        return np.concatenate(found)

    def _search(
        self, node: Receipt | Ancestor, path: str, numbers: NDArray[np.int64] | None
    ) -> NDArray[np.int64] | None:
        """Return the documents of a corpus that rows of a file became."""
        found: list[NDArray[np.int64]] = []
        before = 0
        for entry in node.inputs:
            own: NDArray[np.int64] | None = None
            if node.kind in (*COPIES, *VIEWS):
                own = self._search_beyond(entry, path, numbers)
                if own is not None and node.kind in VIEWS:
                    own = KeptRuns(entry.kept).find(own)
                    own = own[own >= 0]
            elif is_path(path, entry.path):
                own = _documents_of_rows(entry, numbers, is_whole=_has_all(node))
            if own is not None:
                found.append(before + own[own < entry.documents])
            before += entry.documents
        return np.concatenate(found) if found else None

    def _search_beyond(
        self, entry: InputReceipt, path: str, numbers: NDArray[np.int64] | None
    ) -> NDArray[np.int64] | None:
        """Return the documents of a corpus that was copied; each corpus is searched once."""
        key = entry.path, entry.digest
        if key in self._searched:
            return self._searched[key]
        self._searched[key] = found = None  # of one that a damaged receipt makes its own ancestor
        node = self._ancestor(entry)
        if node is not None:
            found = self._search(node, path, numbers)
        elif (parent := self._parent(entry)) is not None:
            rows = parent.documents_from(path, numbers)
            self.notes |= parent.notes
            found = None if rows is None else rows.documents
        self._searched[key] = found
        return found


def _has_all(node: Receipt | Ancestor) -> bool:
    """Return whether a corpus is known to have all of its inputs, and no other corpus a part."""
    return isinstance(node, Receipt) and node.corpora == 1


def _firsts(entry: InputReceipt, *, is_whole: bool) -> NDArray[np.int64]:
    """Return the lines, or rows, of an input before each of its pieces.

    Raises
    ------
    CorpusError
        If the numbers of a piece contradict one another. `is_whole` says that no part of the input
        is in another corpus; else the first piece may begin, and the last one continue, there.
    """
    for number, piece in enumerate(entry.pieces):
        begins = not piece.before  # rows are counted where their piece begins
        impossible = piece.documents > piece.rows if begins else piece.rows > 0
        if impossible or (is_whole and not piece.kept and piece.documents != piece.rows):
            raise CorpusError(
                f"{entry.path}: a receipt says that {piece.rows} rows became "
                f"{piece.before + piece.documents} documents, and not which: it is damaged"
            )
        if is_whole and (not begins or (number == 0 and piece.first)):
            raise CorpusError(
                f"{entry.path}: a receipt says that it has all of it, and that a part of it is in "
                "another corpus: it is damaged"
            )
    return np.array([piece.first for piece in entry.pieces], np.int64)


def _is_receipt_of(receipt: Receipt, idx: Idx) -> bool:
    """Return whether a receipt has the numbers of an index."""
    known = receipt.documents, receipt.sequences, receipt.idx_size
    return known == (len(idx.bounds) - 1, len(idx.lengths), len(idx.map))


def is_path(word: str, path: str) -> bool:
    """Return whether a word names a path, or ends it from a slash on."""
    return path == word or path.endswith(f"/{word}")


def _documents_of_rows(
    entry: InputReceipt, numbers: NDArray[np.int64] | None, *, is_whole: bool
) -> NDArray[np.int64]:
    """Return the documents of an input that rows of it became."""
    if numbers is None:
        return np.arange(entry.documents, dtype=np.int64)
    firsts = _firsts(entry, is_whole=is_whole)
    numbers = numbers - entry.lines
    begins = np.cumsum([0, *(piece.documents for piece in entry.pieces)])
    found = [np.empty(0, np.int64)]
    pieces = np.searchsorted(firsts, numbers, "right") - 1
    numbers, pieces = numbers[pieces >= 0], pieces[pieces >= 0]
    for number, here in grouped(pieces):
        piece, own = entry.pieces[number], numbers[here] - firsts[number]
        if piece.kept:
            own = KeptRuns(piece.kept).find(own)
        own = own - piece.before
        found.append(begins[number] + own[(own >= 0) & (own < piece.documents)])
    return np.concatenate(found)


def grouped(values: NDArray[np.integer[Any]]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield each value, ascending, and where it stands; none is negative."""
    narrow = values.astype(np.uint16) if values.max(initial=0) < 1 << 16 else values
    order = np.argsort(narrow, kind="stable")  # of 16 bits by radix, which takes a tenth
    bounds = np.flatnonzero(np.diff(values[order], prepend=-2, append=-2))
    for begin, end in itertools.pairwise(bounds.tolist()):
        yield int(values[order[begin]]), order[begin:end]
