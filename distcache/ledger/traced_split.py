"""A split that is open for its arrays: the samples at positions, and the positions of samples."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distcache.cache.contents import open_cache
from distcache.cache.corpus_places import corpus_places, find_moves, moves_from, moves_of
from distcache.cache.mapped_section import map_section, open_own_idx
from distcache.cache.split_members import SplitArrays, SplitMembers
from distcache.corpus import Idx
from distcache.errors import CacheCorrupt, ConfigError
from distcache.kernels import Section, find_positions, find_samples, trace_parts
from distcache.ledger.megatron_cache import MegatronCache, is_stem
from distcache.ledger.source_rows import CorpusSources
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


def open_for_trace(
    path: str | Path, prefixes: Mapping[str, str] | None = None, split: str = "train"
) -> SplitArrays:
    """Open a cache, or a directory of Megatron's, and find out where its corpora are now.

    Parameters
    ----------
    path : path
        Path of the cache; or a directory with Megatron's own `.npy` files, or the start of the
        names of a blend or dataset in it.
    prefixes : mapping of str to str, or None
        Directories of corpora at the time of the build, and now; by default as
        ``DISTCACHE_PREFIX`` says, or what is written beside the cache.
    split : str
        Split that is read of a directory.

    Raises
    ------
    NotReady
        If there is no such cache, or files of the directory are missing.
    CacheCorrupt
        If the cache, or a file of the directory, is damaged.
    ConfigError
        If the directory has several blends or datasets of the split.
    """
    moves = moves_of(prefixes.items()) if prefixes else moves_from([], os.environ)
    if not is_url(path) and (Path(path).is_dir() or is_stem(Path(path))):
        return MegatronCache(Path(path), split, str(Path.cwd()), moves)
    cache = open_cache(path)
    cache.moves = moves
    if not cache.moves:
        cache.moves = find_moves(path, cache.prefixes, str(Path.cwd()))
    return cache


class TracedSplit(SplitMembers):
    """A split of a cache, whose sections are mapped when they are first looked into.

    Parameters
    ----------
    cache : SplitArrays
        The open cache, from `open_for_trace`.
    split : str
        "train", "valid" or "test".
    number : int
        Number of the validation set, where there are several.

    Raises
    ------
    ConfigError
        If there is no such split.
    """

    def __init__(self, cache: SplitArrays, split: str = "train", number: int = 0) -> None:
        super().__init__(cache, split, number)
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

    def sources(self, source: int) -> CorpusSources:
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

    @property
    def notes(self) -> list[str]:
        """Why sources of documents that were asked for are not known."""
        return [note for sources in self._sources.values() for note in sources.notes]

    def trace(self, positions: NDArray[np.int64]) -> TracedSamples:
        """Return the samples at positions.

        Raises
        ------
        ConfigError
            If a position is outside of the split.
        CacheCorrupt
            If the arrays lead outside of one another.
        """
        positions = np.asarray(positions, np.int64)
        if len(positions) and not 0 <= positions.min() <= positions.max() < self.size:
            wrong = positions[(positions < 0) | (positions >= self.size)][0]
            raise ConfigError(
                f"{self.cache.path}: has no position {wrong}; the split has {self.size} samples"
            )
        return self.trace_samples(positions, *self.look_up(positions))

    def trace_samples(
        self, positions: NDArray[np.int64], members: NDArray[np.int16], samples: NDArray[np.int64]
    ) -> TracedSamples:
        """Return the parts of samples of members; raises as `trace`."""
        for member in np.unique(members).tolist():
            self.section(member)
        with self.checked():
            bounds, sequences, begins, ends = trace_parts(
                self._sections, np.ascontiguousarray(members), np.ascontiguousarray(samples)
            )
        label_only = np.zeros(len(sequences), np.int8)
        if self.cache.add_extra_token:
            overlaps = self._has_boundaries[members] & (np.diff(bounds) > 0)
            label_only[bounds[1:][overlaps] - 1] = 1
        corpora = self._source_of[members]
        return TracedSamples(
            positions, corpora, samples, bounds, sequences, begins, ends, label_only
        )

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

    def _bits(self, source: int, sequences: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return a bit for each sequence of a corpus."""
        count = int(self.cache.table("sources")["sequences"][source])
        sequences = np.asarray(sequences, np.int64)
        if len(sequences) and not 0 <= sequences.min() <= sequences.max() < count:
            raise ConfigError(
                f"{self.cache.prefixes[source]}: has {count} sequences, and not numbers "
                f"{sequences.min()} to {sequences.max()}"
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
