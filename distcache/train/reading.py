"""Read samples of one split into the arrays of a batch."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distcache.corpus import Idx
from distcache.corpus.mds.shard_table import shards_at
from distcache.errors import CacheCorrupt
from distcache.kernels import Mapping as MappedFile
from distcache.kernels import SampleRules, Section, find_shards, read_samples
from distcache.node.ahead.protocol import Source
from distcache.storage.files import write_range
from distcache.train.open_files import OpenFiles
from distcache.train.shard_finder import ShardFinder
from distcache.train.token_files import (
    AT_ONCE,
    NO_FILE,
    File,
    TokenFiles,
    TokenPlaces,
    cut_by_files,
)

Arrays = dict[str, NDArray[Any]]


class SplitReader:
    """What a process has open to read the samples of a split; recreated after a fork.

    Parameters
    ----------
    opened : OpenFiles
        The cache.
    members : sequence of (int, int)
        Section and source of each dataset of the blend, or of the only one.
    rules : SampleRules
        Rules by which samples are made.
    """

    def __init__(
        self, opened: OpenFiles, members: Sequence[tuple[int, int]], rules: SampleRules
    ) -> None:
        self._opened = opened
        self._members = members
        self._rules = rules
        self._files = TokenFiles()
        self._finder = ShardFinder(opened, members)
        self._lock = threading.Lock()
        self._tokens: dict[int, TokenPlaces] = {}
        self._sections: dict[int, Section] = {}
        self._indices: dict[int, Idx] = {}
        self._fetched: dict[str, tuple[Source, int]] = {}  # by path, with the bytes of a token
        self._faults = -1  # differs from the count: the cache may be damaged already

    def _section(self, member: int) -> Section:
        if member not in self._sections:
            self._sections[member] = self._open_section(member, self._places(member).begins)
        return self._sections[member]

    def _open_section(self, member: int, shards: NDArray[np.int64] | None) -> Section:
        """Open a section and the index of its corpus."""
        row, source = self._members[member]
        idx = self._indices[member] = self._opened.idx_of(source)
        places = self._places(member)
        if places.fetched is not None:
            self._fetched[places.fetched.path] = (places.fetched, idx.item_size)
        return self._opened.section(row, idx, shards)

    def _places(self, member: int) -> TokenPlaces:
        if not 0 <= member < len(self._members):
            raise CacheCorrupt(
                f"{self._opened.cache.path}: a dataset index names dataset {member} of "
                f"{len(self._members)}; see `distcache verify`"
            )
        source = self._members[member][1]
        if source not in self._tokens:
            self._tokens[source] = self._opened.tokens_of(source)
        return self._tokens[source]

    def read(self, members: Sequence[int], samples: NDArray[np.int64], arrays: Arrays) -> None:
        """Fill a batch: a sample of a member into each row.

        Raises
        ------
        OSError
            If a file of tokens cannot be read, after retries of transient errors.
        CorpusError, CacheCorrupt
            If a file is damaged, or not the one that the cache was built from.
        NotReady
            If tokens are in compressed shards.
        """
        gate = self._opened.gate
        if gate is None:
            self._read(members, samples, arrays)
            return
        try:
            needed = self._finder.find(members, samples)
        except IndexError as wrong:
            raise self._corrupt(wrong) from wrong
        needed = [place for place in needed if place[0] in self._opened.windows_of]
        gate.read(needed, lambda: self._read(members, samples, arrays))

    def _read(self, members: Sequence[int], samples: NDArray[np.int64], arrays: Arrays) -> None:
        with self._lock:
            sections = [self._section(member) for member in members]
            files = self._files_of(members, sections, samples)
            for part in self._parts(files):
                rows = slice(part.start, part.stop)
                if len(part) == 1 and len(set(files[part.start])) > AT_ONCE:
                    self._read_scattered(members[part.start], samples[rows], part.start, arrays)
                else:
                    self._read_part(sections[rows], samples[rows], part.start, files[rows], arrays)
            if MappedFile.faults() != self._faults:
                self._require_intact()

    def fetched_ranges(
        self, members: Sequence[int], samples: NDArray[np.int64]
    ) -> list[tuple[Source, int, int]]:
        """Return what the node's fetcher has to read of samples, in order: source, byte, bytes.

        Raises
        ------
        CacheCorrupt
            If the arrays lead outside of one another.
        """
        with self._lock:
            sections = [self._section(member) for member in members]
            files = [self._places(member).files for member in members]
            found: list[tuple[Source, int, int]] = []
            for section, sample, own in zip(sections, samples.tolist(), files, strict=True):
                if len(own) == 1 and own[0][0] in self._fetched:
                    source, _ = self._fetched[own[0][0]]
                    found += [
                        (source, begin, size)
                        for begin, size in self._ranges(section, sample, own[0][0])
                        if size
                    ]
            return list(dict.fromkeys(found))  # of a batch each range is read once

    def _ranges(self, section: Section, sample: int, path: str) -> list[tuple[int, int]]:
        """Return the first byte and the bytes of each part of a sample."""
        item_size = self._fetched[path][1]
        try:
            return [(begin, count * item_size) for begin, count in section.parts(sample)]
        except IndexError as wrong:
            raise self._corrupt(wrong) from wrong

    @contextlib.contextmanager
    def _fetch(
        self,
        sections: Sequence[Section],
        samples: NDArray[np.int64],
        files: Sequence[Sequence[File]],
    ) -> Iterator[dict[str, int]]:
        """Yield descriptors of what the fetcher has read of samples, all at once, by path."""
        wanted: dict[Source, dict[tuple[int, int], None]] = {}
        for section, sample, own in zip(sections, samples.tolist(), files, strict=True):
            if len(own) == 1 and own[0][0] in self._fetched:
                path = own[0][0]
                ranges = wanted.setdefault(self._fetched[path][0], {})
                ranges.update(dict.fromkeys(self._ranges(section, sample, path)))
        client = self._opened.fetch_client
        if not wanted or client is None:
            yield {}
            return
        found = client.read({source: list(ranges) for source, ranges in wanted.items()})
        try:
            yield {source.path: descriptor for source, descriptor in found.items()}
        finally:
            for descriptor in found.values():
                os.close(descriptor)

    def _files_of(
        self, members: Sequence[int], sections: Sequence[Section], samples: NDArray[np.int64]
    ) -> list[list[File]]:
        """Return the file of each part of each sample; of a corpus of one file, only that."""
        places = [self._places(member) for member in members]
        if all(known.begins is None for known in places):
            return [list(known.files) for known in places]
        try:
            shards, begins = find_shards(list(sections), samples)
        except IndexError as wrong:
            raise self._corrupt(wrong) from wrong
        found = []
        bounds = itertools.pairwise(begins.tolist())
        for known, (begin, end) in zip(places, bounds, strict=True):
            if known.begins is None:
                found.append(list(known.files))
            else:
                own = shards[begin:end].tolist()
                found.append([known.files[shard] if shard >= 0 else NO_FILE for shard in own])
        return found

    def _parts(self, files: Sequence[Sequence[File]]) -> Sequence[range]:
        """Cut a batch into parts whose files can be open at the same time."""
        if all(len(own) == 1 for own in files):
            starts = range(0, len(files), AT_ONCE)
            return [range(begin, min(begin + AT_ONCE, len(files))) for begin in starts]
        return cut_by_files(files, AT_ONCE)

    def _read_part(
        self,
        sections: Sequence[Section],
        samples: NDArray[np.int64],
        first: int,
        files: Sequence[Sequence[File]],
        arrays: Arrays,
    ) -> None:
        """Fill successive rows whose files can be open at the same time."""
        with self._fetch(sections, samples, files) as fetched:
            self._read_open(sections, samples, first, files, fetched, arrays)

    def _read_open(
        self,
        sections: Sequence[Section],
        samples: NDArray[np.int64],
        first: int,
        files: Sequence[Sequence[File]],
        fetched: Mapping[str, int],
        arrays: Arrays,
    ) -> None:
        done = attempt = 0
        while done < len(sections):
            flat = [file for own in files[done:] for file in own]
            own_files = [file for file in flat if file != NO_FILE and file[0] not in fetched]
            wanted = iter(self._files.descriptors(own_files))
            descriptors = [
                fetched[file[0]] if file[0] in fetched else -1 if file == NO_FILE else next(wanted)
                for file in flat
            ]
            counts = [len(own) for own in files[done:]]
            begins = None if set(counts) == {1} else np.cumsum([0, *counts])
            try:
                count, error, byte, part = read_samples(
                    list(sections[done:]),
                    samples[done:],
                    np.array(descriptors, np.int32),
                    first + done,
                    self._rules,
                    begins=begins,
                    **arrays,
                )
            except IndexError as wrong:
                raise self._corrupt(wrong) from wrong
            done += count
            if error:
                attempt = 1 if count else attempt + 1
                own = files[done]  # of a corpus of one file, only that
                self._files.recover(own[part if len(own) > 1 else 0][0], error, byte, attempt)

    def _read_scattered(
        self, member: int, samples: NDArray[np.int64], row: int, arrays: Arrays
    ) -> None:
        """Fill one row whose parts are in more shards than may be open at the same time.

        They are copied, one after the other, to their places in a sparse `.bin` in memory.
        """
        section, places = self._section(member), self._places(member)
        assert places.begins is not None, "only shards are many files"
        tokens = os.memfd_create("distcache")
        try:
            for begin, count in section.parts(int(samples[0])):
                if count:
                    shard = int(shards_at(places.begins, begin))
                    size = count * self._indices[member].item_size
                    at = begin - int(places.begins[shard])
                    data = self._files.read(places.files[shard], at, size)
                    write_range(tokens, begin, data)
            whole = self._open_section(member, None)
            descriptors = np.array([tokens], np.int32)
            _, error, byte, _ = read_samples(
                [whole], samples, descriptors, row, self._rules, **arrays
            )
            if error:
                raise self._corrupt(IndexError(f"a sample leads to byte {byte} of no shard"))
        finally:
            os.close(tokens)

    def _corrupt(self, wrong: IndexError) -> CacheCorrupt:
        """Return the error for arrays that lead outside of one another."""
        self._require_intact()
        return CacheCorrupt(f"{self._opened.cache.path}: {wrong}; see `distcache verify`")

    def _require_intact(self) -> None:
        """Refuse what was read from a damaged mapping; all files are reopened next time.

        Raises
        ------
        CacheCorrupt, CorpusError
            If the cache or an index was cut short, or its filesystem has failed.
        """
        faults = MappedFile.faults()
        indices, self._indices = self._indices, {}
        self._sections = {}
        self._opened.cache.require_intact()
        for idx in indices.values():
            idx.require_intact()
        self._faults = faults
