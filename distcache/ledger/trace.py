"""What a split gives training: samples, documents and source rows, in both directions."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distcache.cache.contents import Cache, open_cache
from distcache.cache.corpus_places import corpus_places, moves_from, moves_of
from distcache.cache.mapped_section import map_section, multiple_of, open_own_idx
from distcache.cache.split_members import SplitMembers
from distcache.corpus import Idx
from distcache.corpus.ancestry import documents_of
from distcache.corpus.source_rows import CorpusSources, SourceRows
from distcache.errors import CacheCorrupt, ConfigError
from distcache.kernels import Section, find_positions, find_samples, trace_parts
from distcache.ledger.megatron_files import MegatronFiles, is_stem
from distcache.storage.url import is_url


class TracedSamples(NamedTuple):
    """Samples, and the parts of documents that they consist of.

    Attributes
    ----------
    positions : ndarray of int64, shape (samples,)
        Positions in the split.
    corpora : ndarray of int32, shape (samples,)
        Corpus of each sample: an index into `Trace.corpora`.
    samples : ndarray of int64, shape (samples,)
        Number of each sample in its section.
    bounds : ndarray of int64, shape (samples + 1,)
        Numbers of parts up to each sample.
    sequences : ndarray of int32, shape (parts,)
        Sequence of each part in its corpus.
    begins, ends : ndarray of int32, shape (parts,)
        Range of its tokens within the sequence, with those that are labels only.
    label_only : ndarray of int8, shape (parts,)
        Number of tokens at the end of each part that are labels, but no inputs.
    """

    positions: NDArray[np.int64]
    corpora: NDArray[np.int32]
    samples: NDArray[np.int64]
    bounds: NDArray[np.int64]
    sequences: NDArray[np.int32]
    begins: NDArray[np.int32]
    ends: NDArray[np.int32]
    label_only: NDArray[np.int8]

    def first(self, count: int) -> TracedSamples:
        """Return the first samples, of at most so many."""
        bounds = self.bounds[: count + 1]
        parts = slice(0, int(bounds[-1]))
        return TracedSamples(
            self.positions[:count],
            self.corpora[:count],
            self.samples[:count],
            bounds,
            self.sequences[parts],
            self.begins[parts],
            self.ends[parts],
            self.label_only[parts],
        )


class Trace(SplitMembers):
    """The samples of a split, and what they consist of; made by `trace`.

    A corpus is given by its number in `corpora`, or by its path there. Sections are mapped when
    they are first used.

    Parameters
    ----------
    cache : Cache
        The open cache.
    split : str
        "train", "valid" or "test".
    number : int
        Number of the validation set, where there are several.

    Attributes
    ----------
    corpora : list of str
        The corpora of the cache, as its configuration named them.

    Raises
    ------
    ConfigError
        If there is no such split.
    """

    def __init__(self, cache: Cache, split: str = "train", number: int = 0) -> None:
        super().__init__(cache, split, number)
        self.corpora = cache.prefixes
        self._places = corpus_places(cache)
        self._indices: dict[int, Idx] = {}
        self._sections: list[Section | None] = [None] * len(self.pairs)
        self._sources: dict[int, CorpusSources] = {}
        self._plain: dict[int, bool] = {}
        # One of rows has none: each sample is a whole sequence.
        self._has_boundaries = np.array(
            ["sample_index" in cache.arrays("sections", section) for section, _ in self.pairs]
        )
        self._source_of = np.array([source for _, source in self.pairs], np.int32)

    def __repr__(self) -> str:
        return f"<trace of {len(self)} samples in {self.cache.path}>"

    def __len__(self) -> int:
        return self.size

    @property
    def notes(self) -> list[str]:
        """Reasons why sources of documents are not known."""
        return [note for sources in self._sources.values() for note in sources.notes]

    def place(self, source: int) -> str:
        """Return the prefix at which a corpus is now."""
        return self._places[source]

    def idx(self, source: int) -> Idx:
        """Return the index of a corpus.

        Raises
        ------
        NotReady, CorpusError
            If it does not exist, or is not the one that the cache was built from.
        """
        if source not in self._indices:
            self._indices[source] = open_own_idx(self.cache, source, self._places[source])
        return self._indices[source]

    def section(self, member: int) -> Section:
        """Return the arrays of a member; raises as `idx`."""
        row, source = self.pair(member)
        found = self._sections[member]
        if found is None:
            found = self._sections[member] = map_section(self.cache, row, self.idx(source))
        return found

    def corpus_sources(self, source: int) -> CorpusSources:
        """Return what a corpus was made of; raises as `idx`, or if a receipt is damaged."""
        if source not in self._sources:
            self._sources[source] = CorpusSources(self._places[source], self.idx(source))
        return self._sources[source]

    def is_plain(self, source: int) -> bool:
        """Return whether each sequence of a corpus is a document."""
        if source not in self._plain:
            idx = self.idx(source)
            self._plain[source] = len(idx.bounds) == len(idx.lengths) + 1 and is_range(idx.bounds)
        return self._plain[source]

    def samples(self, positions: ArrayLike) -> TracedSamples:
        """Return what the samples at positions consist of.

        Parameters
        ----------
        positions : array_like of int64
            Positions in the split, as `CachedDataset` numbers its samples.

        Raises
        ------
        ConfigError
            If a position is outside of the split.
        CacheCorrupt, CorpusError, NotReady
            If the cache, or the index of a corpus, is damaged or missing.
        """
        positions = np.atleast_1d(np.asarray(positions, np.int64))
        if len(positions) and not 0 <= positions.min() <= positions.max() < self.size:
            wrong = positions[(positions < 0) | (positions >= self.size)][0]
            raise ConfigError(
                f"{self.cache.path}: has no position {wrong}; the split has {self.size} samples"
            )
        return self.trace_samples(positions, *self.look_up(positions))

    def trace_samples(
        self, positions: NDArray[np.int64], members: NDArray[np.int16], samples: NDArray[np.int64]
    ) -> TracedSamples:
        """Return the parts of samples of members; raises as `samples`."""
        for member in np.unique(members).tolist():
            self.section(member)
        with self.checked():
            bounds, sequences, begins, ends = trace_parts(
                self._sections, np.ascontiguousarray(members), np.ascontiguousarray(samples)
            )
        label_only = np.zeros(len(sequences), np.int8)
        if self.cache.add_extra_token:
            overlaps = self._has_boundaries[members] & (np.diff(bounds) > 0)
            if multiple_of(self.cache) > 1:  # a document's end has no label
                tokens = np.concatenate([[0], np.cumsum(ends - begins, dtype=np.int64)])[bounds]
                overlaps &= np.diff(tokens) > self.cache.sequence_length
            label_only[bounds[1:][overlaps] - 1] = 1
        corpora = self._source_of[members]
        return TracedSamples(
            positions, corpora, samples, bounds, sequences, begins, ends, label_only
        )

    def positions(self, corpus: int | str, sequences: ArrayLike) -> NDArray[np.int64]:
        """Return the positions whose samples have a token of sequences, ascending.

        Parameters
        ----------
        corpus : int or str
            The corpus.
        sequences : array_like of int64
            Sequences of the corpus, from 0.

        Raises
        ------
        ConfigError
            If there is no such corpus or sequence.
        """
        wanted = np.atleast_1d(np.asarray(sequences, np.int64))
        return self.find({self.number_of(corpus): wanted})

    def find(self, wanted: Mapping[int, NDArray[np.int64]]) -> NDArray[np.int64]:
        """Return the positions whose samples have a token of wanted sequences, ascending.

        Parameters
        ----------
        wanted : mapping of int to ndarray of int64
            Wanted sequences of corpora.

        Raises
        ------
        ConfigError
            If a corpus has no such sequence.
        CacheCorrupt
            If the arrays lead outside of one another.
        """
        bits = {source: self._bits(source, sequences) for source, sequences in wanted.items()}
        none = np.empty(0, np.int64)
        found: dict[int, NDArray[np.int64]] = {}  # by section: a corpus may stand twice in a blend
        samples = []
        with self.checked():
            for member, (section, source) in enumerate(self.pairs):
                if source in bits and section not in found:
                    found[section] = find_samples(self.section(member), bits[source])
                samples.append(found[section] if source in bits else none)
            if self._blend is None:
                return samples[0][samples[0] < self.size]
            return find_positions(*self._blend, samples)

    def documents(self, corpus: int | str, sequences: ArrayLike) -> NDArray[np.int64]:
        """Return the documents of sequences of a corpus."""
        source = self.number_of(corpus)
        wanted = np.atleast_1d(np.asarray(sequences, np.int64))
        if self.is_plain(source):
            return wanted
        return documents_of(self.idx(source), wanted)

    def sequences(self, corpus: int | str, documents: ArrayLike) -> NDArray[np.int64]:
        """Return the sequences of documents of a corpus.

        Raises
        ------
        ConfigError
            If the corpus has no such document.
        """
        source = self.number_of(corpus)
        bounds = self.idx(source).bounds
        wanted = np.unique(np.atleast_1d(np.asarray(documents, np.int64)))
        if len(wanted) and not 0 <= wanted[0] <= wanted[-1] < len(bounds) - 1:
            raise ConfigError(
                f"{self.corpora[source]}: has {len(bounds) - 1} documents, with numbers from 0, "
                f"and not {wanted[0]} to {wanted[-1]}"
            )
        begins = np.asarray(bounds[wanted], np.int64)
        counts = np.asarray(bounds[wanted + 1], np.int64) - begins
        ends = np.cumsum(counts)
        return np.repeat(begins - ends + counts, counts) + np.arange(counts.sum())

    def sources(self, corpus: int | str, sequences: ArrayLike) -> SourceRows:
        """Return the rows of files that sequences of a corpus were made of.

        Raises
        ------
        CorpusError
            If a receipt is damaged.
        """
        source = self.number_of(corpus)
        return self.corpus_sources(source).find(np.atleast_1d(np.asarray(sequences, np.int64)))

    def number_of(self, corpus: int | str) -> int:
        """Return the number of a corpus.

        Raises
        ------
        ConfigError
            If the cache has no such corpus.
        """
        if isinstance(corpus, str):
            places = [self.place(source) for source in range(len(self.corpora))]
            for names in (self.corpora, places):
                if corpus in names:
                    return names.index(corpus)
        elif 0 <= corpus < len(self.corpora):
            return int(corpus)
        raise ConfigError(
            f"{self.cache.path}: has no corpus {corpus!r}; its corpora are {_listed(self.corpora)}"
        )

    def _bits(self, source: int, sequences: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return a bit for each sequence of a corpus."""
        count = int(self.cache.table("sources")["sequences"][source])
        sequences = np.asarray(sequences, np.int64)
        if len(sequences) and not 0 <= sequences.min() <= sequences.max() < count:
            raise ConfigError(
                f"{self.cache.prefixes[source]}: has {count} sequences, with numbers from 0, and "
                f"not {sequences.min()} to {sequences.max()}"
            )
        flags = np.zeros(-(-count // 64) * 64, np.uint8)
        flags[sequences] = 1
        return np.packbits(flags, bitorder="little").view(np.uint64)

    @contextlib.contextmanager
    def checked(self) -> Iterator[None]:
        """Turn an error of a kernel, whose arrays lead outside of one another, into a clear one.

        Raises
        ------
        CacheCorrupt, CorpusError
            If there is one, or a file was cut short.
        """
        try:
            yield
        except IndexError as error:
            self.cache.require_intact()
            for idx in self._indices.values():
                idx.require_intact()
            raise CacheCorrupt(f"{self.cache.path}: {error}; see `distcache verify`") from error


def is_range(bounds: NDArray[np.int64]) -> bool:
    """Return whether an array is 0, 1, 2, ..."""
    step = 1 << 20
    pieces = ((begin, bounds[begin : begin + step]) for begin in range(0, len(bounds), step))
    return all(
        np.array_equal(piece, np.arange(begin, begin + len(piece))) for begin, piece in pieces
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def trace(
    cache: str | Path,
    split: str | None = "train",
    *,
    dataset: int = 0,
    prefixes: Mapping[str, str] | None = None,
) -> Trace:
    """Open a split of a cache, to ask what its samples consist of.

    Parameters
    ----------
    cache : path
        Path of the cache; or a directory with Megatron's own `.npy` files, or the start of the
        names of a blend or dataset in it.
    split : str or None
        "train", "valid" or "test"; None for the first that the cache has.
    dataset : int
        Number of the validation set, where there are several.
    prefixes : mapping of str to str, or None
        Directories of corpora at the time of the build, and now; by default as
        ``DISTCACHE_PREFIX`` says.

    Raises
    ------
    NotReady, CacheCorrupt
        If there is no such cache, or it is damaged.
    ConfigError
        If it has no such split, or the directory has several blends or datasets of it.
    """
    moves = moves_of(prefixes.items()) if prefixes else moves_from([], os.environ)
    if not is_url(cache) and (Path(cache).is_dir() or is_stem(Path(cache))):
        split = split or "train"
        return Trace(MegatronFiles(Path(cache), split, moves), split, dataset)
    opened = open_cache(cache)
    opened.moves = moves
    return Trace(opened, split or opened.splits[0], dataset)
