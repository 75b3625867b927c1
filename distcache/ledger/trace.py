"""What a split gives training: samples, documents and source rows, in both directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distcache.cache.split_members import SplitArrays
from distcache.corpus.ancestry import documents_of
from distcache.errors import ConfigError
from distcache.ledger.source_rows import SourceRows
from distcache.ledger.traced_split import TracedSamples, TracedSplit, open_for_trace


class Trace:
    """The samples of a split, and what they consist of; made by `trace`.

    A corpus is given by its number in `corpora`, or by its path there.

    Parameters
    ----------
    split : TracedSplit
        The open split.

    Attributes
    ----------
    split : TracedSplit
        The open split.
    corpora : list of str
        The corpora of the cache, as its configuration named them.
    """

    def __init__(self, split: TracedSplit) -> None:
        self.split = split
        self.corpora = split.cache.prefixes

    def __repr__(self) -> str:
        return f"<trace of {len(self)} samples in {self.split.cache.path}>"

    def __len__(self) -> int:
        return self.split.size

    @property
    def notes(self) -> list[str]:
        """Why sources of documents that were asked for are not known."""
        return self.split.notes

    @property
    def cache(self) -> SplitArrays:
        """The open cache."""
        return self.split.cache

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
        return self.split.trace(np.atleast_1d(np.asarray(positions, np.int64)))

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
        return self.split.find({self.number_of(corpus): wanted})

    def documents(self, corpus: int | str, sequences: ArrayLike) -> NDArray[np.int64]:
        """Return the documents of sequences of a corpus."""
        source = self.number_of(corpus)
        wanted = np.atleast_1d(np.asarray(sequences, np.int64))
        if self.split.is_plain(source):
            return wanted
        return documents_of(self.split.idx(source), wanted)

    def sequences(self, corpus: int | str, documents: ArrayLike) -> NDArray[np.int64]:
        """Return the sequences of documents of a corpus.

        Raises
        ------
        ConfigError
            If the corpus has no such document.
        """
        source = self.number_of(corpus)
        bounds = self.split.idx(source).bounds
        wanted = np.unique(np.atleast_1d(np.asarray(documents, np.int64)))
        if len(wanted) and not 0 <= wanted[0] <= wanted[-1] < len(bounds) - 1:
            raise ConfigError(
                f"{self.corpora[source]}: has {len(bounds) - 1} documents, and not numbers "
                f"{wanted[0]} to {wanted[-1]}"
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
        return self.split.sources(source).find(np.atleast_1d(np.asarray(sequences, np.int64)))

    def number_of(self, corpus: int | str) -> int:
        """Return the number of a corpus.

        Raises
        ------
        ConfigError
            If the cache has no such corpus.
        """
        if isinstance(corpus, str):
            places = [self.split.place(source) for source in range(len(self.corpora))]
            for names in (self.corpora, places):
                if corpus in names:
                    return names.index(corpus)
        elif 0 <= corpus < len(self.corpora):
            return int(corpus)
        raise ConfigError(
            f"{self.cache.path}: has no corpus {corpus!r}; its corpora are {_listed(self.corpora)}"
        )


def _listed(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def trace(
    cache: str | Path,
    split: str = "train",
    *,
    dataset: int = 0,
    prefixes: Mapping[str, str] | None = None,
) -> Trace:
    """Open a split of a cache, to ask what its samples consist of.

    Parameters
    ----------
    cache : path
        Path of the cache, or of a directory with Megatron's own `.npy` files.
    split : str
        "train", "valid" or "test".
    dataset : int
        Number of the validation set, where there are several.
    prefixes : mapping of str to str, or None
        Directories of corpora at the time of the build, and now.

    Raises
    ------
    NotReady, CacheCorrupt
        If there is no such cache, or it is damaged.
    ConfigError
        If it has no such split.
    """
    return Trace(TracedSplit(open_for_trace(cache, prefixes, split), split, dataset))
