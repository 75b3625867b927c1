"""Read samples of one split into the arrays of a batch."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distcache.corpus import Idx
from distcache.errors import CacheCorrupt, CorpusError
from distcache.kernels import Mapping, SampleRules, Section, read_samples
from distcache.train.open import OpenCache
from distcache.train.token_files import AT_ONCE, ATTEMPTS, TRANSIENT, TokenFiles, pause_before

__all__ = ["SplitReader"]

Arrays = dict[str, NDArray[Any]]


class SplitReader:
    """What a process has open to read the samples of a split; recreated after a fork.

    Parameters
    ----------
    opened : OpenCache
        The cache.
    members : sequence of (int, int)
        Section and source of each dataset of the blend, or of the only one.
    rules : SampleRules
        How samples are made.
    """

    def __init__(
        self, opened: OpenCache, members: Sequence[tuple[int, int]], rules: SampleRules
    ) -> None:
        self._opened = opened
        self._members = members
        self._rules = rules
        self._files = TokenFiles()
        self._lock = threading.Lock()
        sources = opened.cache.table("sources")
        self._bin_sizes = sources["bin_size"].tolist()
        self._bins = [opened.bin_of(source) for source in range(len(sources))]
        self._extra = opened.cache.add_extra_token
        self._sections: dict[int, Section] = {}
        self._indices: dict[int, Idx] = {}
        self._faults = -1  # differs from the count: the cache may be damaged already

    @property
    def key(self) -> str:
        """The key of the cache."""
        return self._opened.cache.key

    def _section(self, member: int) -> Section:
        if member not in self._sections:
            self._sections[member] = self._open_section(member)
        return self._sections[member]

    def _open_section(self, member: int) -> Section:
        """Open a section and the index of its corpus."""
        cache = self._opened.cache
        if not 0 <= member < len(self._members):
            raise CacheCorrupt(
                f"{cache.path}: a dataset index names dataset {member} of {len(self._members)}; "
                "see `distcache verify`"
            )
        row, source = self._members[member]
        idx = self._indices[member] = self._opened.idx_of(source)
        views = cache.arrays("sections", row)
        try:
            return Section(
                cache.read(views["document_index"]),
                cache.read(views["sample_index"]),
                cache.read(views["shuffle_index"]),
                idx.lengths,
                idx.offsets,
                idx.type_code,
                self._extra,
            )
        except ValueError as error:
            raise CorpusError(
                f"{idx.path}: tokens have type code {idx.type_code}, expected an integer type"
            ) from error

    def read(self, members: Sequence[int], samples: NDArray[np.int64], arrays: Arrays) -> None:
        """Fill a batch: a sample of a member into each row.

        Raises
        ------
        OSError
            If a `.bin` cannot be read, after retries of transient errors.
        CorpusError, CacheCorrupt
            If a file is damaged, or not the one that the cache was built from.
        """
        with self._lock:
            for begin in range(0, len(members), AT_ONCE):
                part = slice(begin, begin + AT_ONCE)
                self._read_part(members[part], samples[part], begin, arrays)

    def _read_part(
        self, members: Sequence[int], samples: NDArray[np.int64], first: int, arrays: Arrays
    ) -> None:
        """Fill successive rows whose files can be open at the same time."""
        sections = [self._section(member) for member in members]
        sources = [self._members[member][1] for member in members]
        files = [(self._bins[source], self._bin_sizes[source]) for source in sources]
        done = attempt = 0
        while done < len(members):
            descriptors = np.array(self._files.descriptors(files[done:]), np.int32)
            try:
                count, error, byte = read_samples(
                    sections[done:],
                    samples[done:],
                    descriptors,
                    first + done,
                    self._rules,
                    **arrays,
                )
            except IndexError as wrong:
                self._require_intact()
                raise CacheCorrupt(
                    f"{self._opened.cache.path}: {wrong}; see `distcache verify`"
                ) from wrong
            done += count
            if error:
                attempt = 1 if count else attempt + 1
                self._recover(files[done][0], error, byte, attempt)
        if Mapping.faults() != self._faults:
            self._require_intact()

    def _require_intact(self) -> None:
        """Refuse what was read from a damaged mapping; all files are reopened next time.

        Raises
        ------
        CacheCorrupt, CorpusError
            If the cache or an index was cut short, or its filesystem has failed.
        """
        faults = Mapping.faults()
        indices, self._indices = self._indices, {}
        self._sections = {}
        self._opened.cache.require_intact()
        for idx in indices.values():
            idx.require_intact()
        self._faults = faults

    def _recover(self, path: str, error: int, byte: int, attempt: int) -> None:
        """Wait and reopen a file after a transient error; raise others."""
        if error < 0:
            raise CorpusError(f"{path}: ends before byte {byte}; it was cut short while open")
        if error not in TRANSIENT or attempt >= ATTEMPTS:
            raise OSError(error, f"{os.strerror(error)} at byte {byte}", path)
        self._files.drop(path)
        time.sleep(pause_before(attempt))
