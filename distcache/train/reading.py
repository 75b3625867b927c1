"""Read samples of one split into the arrays of a batch."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distcache.cache.mapped_section import map_section
from distcache.corpus.mds.shard_table import shards_at
from distcache.errors import CacheCorrupt
from distcache.kernels import Mapping as MappedFile
from distcache.kernels import SampleRules, Section, find_ranges, find_shards, read_samples
from distcache.node.ahead.protocol import Source
from distcache.storage.files import write_range
from distcache.train.fetching import FetchedRanges, Fetching, no_ranges, ranges_at
from distcache.train.split import OpenMember, OpenSplit
from distcache.train.token_files import (
    FILES_PER_READER,
    NO_FILE,
    File,
    TokenFiles,
    TokenPlaces,
    cut_by_files,
)

Arrays = dict[str, NDArray[Any]]


class SampleReader:
    """Reads the samples of a split of tokens; recreated after a fork.

    Parameters
    ----------
    split : OpenSplit
        The open split.
    rules : SampleRules
        Rules by which samples are made.
    """

    def __init__(self, split: OpenSplit, rules: SampleRules) -> None:
        self.split = split
        self._rules = rules
        self._files = TokenFiles()
        self._lock = threading.Lock()
        self._sections: dict[int, tuple[OpenMember, Section]] = {}
        self._fetching = Fetching(split.files.fetch_client)
        self._faults = -1  # differs from the count: the cache may be damaged already

    def _section(self, number: int) -> Section:
        if number not in self._sections:
            member = self.split.member(number)
            opened = map_section(self.split.cache, member.section, member.idx, member.places.begins)
            self._sections[number] = (member, opened)
        return self._sections[number][1]

    def read(
        self,
        members: Sequence[int],
        samples: NDArray[np.int64],
        arrays: Arrays,
        readings: Sequence[tuple[int, int] | None] = (),
    ) -> None:
        """Fill a batch: a sample of a member into each row.

        Parameters
        ----------
        members : sequence of int
            Member of each row.
        samples : ndarray of int64, shape (rows,)
            Sample of each row, in its member.
        arrays : dict of str to ndarray
            Arrays of the batch, by their names in `read_samples`.
        readings : sequence of (int, int) or None
            Stream, and number in it, of each row that was announced to the fetcher; by default of
            none.

        Raises
        ------
        OSError
            If a file of tokens cannot be read, after retries of transient errors.
        CorpusError, CacheCorrupt
            If a file is damaged, or not the one that the cache was built from.
        NotReady
            If tokens are in compressed shards.
        """
        with self._lock:
            sections = [self._section(member) for member in members]
            places = [self.split.member(member).places for member in members]
            files = self._files_of(places, sections, samples)
            for part in self._parts(files):
                rows = slice(part.start, part.stop)
                if len(part) == 1 and len(set(files[part.start])) > FILES_PER_READER:
                    self._read_scattered(
                        members[part.start], places[part.start], samples[rows], part.start, arrays
                    )
                else:
                    found = self._fetched_ranges(places[rows], sections[rows], samples[rows])
                    with self._fetching.open(found) as fetched:
                        self._read_open(
                            sections[rows], samples[rows], part.start, files[rows], arrays, fetched
                        )
                self._fetching.end(readings[rows])
            if MappedFile.faults() != self._faults:
                self._require_intact()

    def fetched_ranges(
        self, members: NDArray[np.int16], samples: NDArray[np.int64]
    ) -> FetchedRanges:
        """Return what the node's fetcher has to read of samples.

        Raises
        ------
        CacheCorrupt
            If the arrays lead outside of one another.
        """
        numbers: list[int] = members.tolist()
        with self._lock:
            sections = [self._section(number) for number in numbers]
            places = [self.split.member(number).places for number in numbers]
            return self._fetched_ranges(places, sections, np.asarray(samples, np.int64))

    def _fetched_ranges(
        self, places: Sequence[TokenPlaces], sections: Sequence[Section], samples: NDArray[np.int64]
    ) -> FetchedRanges:
        if not any(known.are_fetched for known in places):
            return no_ranges(len(places))
        try:
            begins, sizes, ends = find_ranges(list(sections), samples)
        except IndexError as wrong:
            raise self._corrupt(wrong) from wrong
        return ranges_at(places, begins, sizes, ends)

    def _files_of(
        self, places: Sequence[TokenPlaces], sections: Sequence[Section], samples: NDArray[np.int64]
    ) -> list[list[File]]:
        """Return the file of each part of each sample; of a corpus of one file, only that."""
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
            starts = range(0, len(files), FILES_PER_READER)
            return [range(begin, min(begin + FILES_PER_READER, len(files))) for begin in starts]
        return cut_by_files(files, FILES_PER_READER)

    def _read_open(
        self,
        sections: Sequence[Section],
        samples: NDArray[np.int64],
        first: int,
        files: Sequence[Sequence[File]],
        arrays: Arrays,
        fetched: Mapping[Source, int],
    ) -> None:
        """Fill rows whose files can all be open."""
        by_path = {source.path: file for source, file in fetched.items()}
        done = attempt = 0
        while done < len(sections):
            flat = [file for own in files[done:] for file in own]
            own_files = [file for file in flat if file != NO_FILE and file[0] not in by_path]
            wanted = iter(self._files.descriptors(own_files))
            descriptors = [
                by_path[file[0]] if file[0] in by_path else -1 if file == NO_FILE else next(wanted)
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
                path = own[part if len(own) > 1 else 0][0]
                self._files.recover(path, error, byte, attempt)

    def _read_scattered(
        self,
        member: int,
        places: TokenPlaces,
        samples: NDArray[np.int64],
        row: int,
        arrays: Arrays,
    ) -> None:
        """Fill one row whose parts are in more shards than may be open at the same time.

        They are copied, one after the other, to their places in a sparse `.bin` in memory.
        """
        section, opened = self._section(member), self.split.member(member)
        assert places.begins is not None, "only shards are many files"
        tokens = os.memfd_create("distcache")
        try:
            for begin, count in section.parts(int(samples[0])):
                if count:
                    shard = int(shards_at(places.begins, begin))
                    size = count * opened.idx.item_size
                    at = begin - int(places.begins[shard])
                    source = places.fetched(shard)
                    if source is None:
                        data = self._files.read(places.files[shard], at, size)
                    else:
                        data = self._fetching.read(source, at, size)
                    write_range(tokens, begin, data)
            whole = map_section(self.split.cache, opened.section, opened.idx)
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
        return CacheCorrupt(f"{self.split.files.cache.path}: {wrong}; see `distcache verify`")

    def _require_intact(self) -> None:
        """Refuse what was read from a damaged mapping; all files are reopened next time."""
        faults = MappedFile.faults()
        used, self._sections = self._sections, {}
        self.split.require_intact()
        for member, _ in used.values():  # another thread may have made the split forget them
            member.idx.require_intact()
        self._faults = faults
