"""Read samples of one split into the arrays of a batch."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distcache.cache.mapped_section import map_section
from distcache.corpus.ancestry import documents_of
from distcache.corpus.idx import ITEM_TYPES
from distcache.errors import CacheCorrupt, CorpusError
from distcache.kernels import Mapping as MappedFile
from distcache.kernels import SampleRules, Section, find_ranges, read_samples, trace_parts
from distcache.node.ahead.protocol import Source
from distcache.storage.timeouts import retried
from distcache.train.fetching import FetchedRanges, Fetching, fetched_ranges, no_ranges
from distcache.train.split import OpenMember, OpenSplit
from distcache.train.token_files import FILES_PER_READER, File, TokenFiles
from distcache.train.token_places import Located, TokenPlaces, cut_by_files, locate, whole_files

Arrays = dict[str, NDArray[Any]]


class _LocalSection(NamedTuple):
    """A section with its tokens in one local file, and without a loss mask."""

    section: Section
    file: File
    is_signed: bool  # whether tokens may be negative


class SampleReader:
    """Reads the samples of a split of tokens; recreated after a fork.

    Parameters
    ----------
    split : OpenSplit
        The open split.
    rules : SampleRules
        Rules for making samples.
    """

    def __init__(self, split: OpenSplit, rules: SampleRules) -> None:
        self.split = split
        self._rules = rules
        self._files = TokenFiles()
        self._lock = threading.Lock()
        self._sections: dict[int, tuple[OpenMember, Section]] = {}
        self._local_sections: dict[int, _LocalSection | None] = {}
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
            If a file is damaged, not the one that the cache was built from, or has a negative
            token.
        NotReady
            If tokens are in compressed shards.
        """
        with self._lock:
            if self._faults < 0:  # before anything is mapped, which a damaged cache would forget
                self._require_intact()
            local = [
                self._local_sections[member]
                if member in self._local_sections
                else self._local_section(member)
                for member in members
            ]
            if self._read_local(local, samples, arrays):
                self._fetching.end(readings)
            else:
                self._read_anywhere(members, samples, arrays, readings)
            if MappedFile.faults() != self._faults:
                self._require_intact()
            if any(own is None or own.is_signed for own in local):
                tokens = arrays["tokens"][: len(members)]
                if tokens.size and tokens.min() < 0:
                    raise self._negative(members, samples, tokens)

    def _local_section(self, number: int) -> _LocalSection | None:
        """Return a section if `_read_local` can read it."""
        section, member = self._section(number), self.split.member(number)
        places, found = member.places, None
        if places.begins is None and not places.are_fetched and places.loss is None:
            is_signed = ITEM_TYPES[member.idx.type_code].kind == "i"
            found = _LocalSection(section, places.files[0], is_signed)
        self._local_sections[number] = found
        return found

    def _read_local(
        self, sections: Sequence[_LocalSection | None], samples: NDArray[np.int64], arrays: Arrays
    ) -> bool:
        """Fill a batch by one call of the kernel; return whether all of it was read.

        If not, `_read_anywhere` reads it again, retries transient errors, and reports others.
        """
        known = [own for own in sections if own is not None]
        if len(known) < len(sections) or len({own.file for own in known}) > FILES_PER_READER:
            return False
        try:
            count, error, *_ = read_samples(
                [own.section for own in known],
                samples,
                np.array(self._files.descriptors([own.file for own in known]), np.int32),
                np.arange(len(known) + 1),
                0,
                self._rules,
                **arrays,
            )
        except (OSError, IndexError):
            return False
        return not error and count == len(known)

    def _read_anywhere(
        self,
        members: Sequence[int],
        samples: NDArray[np.int64],
        arrays: Arrays,
        readings: Sequence[tuple[int, int] | None],
    ) -> None:
        """Fill a batch of tokens in any places, with their loss masks."""
        sections = [self._section(member) for member in members]
        places = [self.split.member(member).places for member in members]
        has_masks = any(known.loss for known in places)
        most = FILES_PER_READER // 2 if has_masks else FILES_PER_READER
        for rows, where in cut_by_files(self._locate(places, sections, samples), most):
            with self._fetching.open(fetched_ranges(where)) as fetched:
                losses = [known.loss for known in places[rows]]
                self._read_rows(
                    sections[rows], samples[rows], rows.start, where, arrays, fetched, losses
                )
            self._fetching.end(readings[rows])

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
            if self._faults < 0:  # before anything is mapped, which a damaged cache would forget
                self._require_intact()
            sections = [self._section(number) for number in numbers]
            places = [self.split.member(number).places for number in numbers]
            if not any(known.are_fetched for known in places):
                return no_ranges(len(places))
            return fetched_ranges(self._locate(places, sections, np.asarray(samples, np.int64)))

    def _locate(
        self, places: Sequence[TokenPlaces], sections: Sequence[Section], samples: NDArray[np.int64]
    ) -> Located:
        """Return where the parts of samples are; of corpora of one local file, only that."""
        if all(known.begins is None and not known.are_fetched for known in places):
            return whole_files(places)
        try:
            return locate(places, *find_ranges(list(sections), samples))
        except IndexError as wrong:
            raise self._corrupt(wrong) from wrong

    def _read_rows(
        self,
        sections: Sequence[Section],
        samples: NDArray[np.int64],
        first: int,
        where: Located,
        arrays: Arrays,
        fetched: Mapping[Source, int],
        losses: Sequence[File | None],
    ) -> None:
        """Fill rows whose files are all open at the same time."""
        masks = list(dict.fromkeys(file for file in losses if file is not None))
        own_files = [
            file for file, source in zip(where.files, where.sources, strict=True) if source is None
        ]
        done = attempt = 0
        while done < len(sections):
            try:
                opened = iter(self._files.descriptors([*own_files, *masks]))
            except OSError:
                ask = functools.partial(self._files.descriptors, [*own_files, *masks])
                opened = iter(retried(ask))
            of_files = [next(opened) if s is None else fetched.get(s, -1) for s in where.sources]
            own_masks = dict(zip(masks, opened, strict=True))
            begin = int(where.bounds[done])
            try:
                count, error, byte, part = read_samples(
                    list(sections[done:]),
                    samples[done:],
                    np.array([*of_files, -1], np.int32)[where.numbers[begin:]],
                    where.bounds[done:] - begin,
                    first + done,
                    self._rules,
                    masks=np.array(
                        [-1 if file is None else own_masks[file] for file in losses[done:]],
                        np.int32,
                    )
                    if masks
                    else None,
                    **arrays,
                )
            except IndexError as wrong:
                raise self._corrupt(wrong) from wrong
            done += count
            if error:
                attempt = 1 if count else attempt + 1
                parts = where.numbers[where.bounds[done] : where.bounds[done + 1]]
                own = losses[done] if part < 0 else where.files[parts[min(part, len(parts) - 1)]]
                assert own is not None, "a mask that was read is a file"
                path, _ = own
                self._files.recover(path, error, byte, attempt)

    def _negative(
        self, members: Sequence[int], samples: NDArray[np.int64], tokens: NDArray[np.int64]
    ) -> CorpusError:
        """Return the error for a token that is negative, with its corpus and its document."""
        row, column = np.argwhere(tokens < 0)[0].tolist()
        member, prefixes = self.split.member(members[row]), self.split.cache.prefixes
        section = self._section(members[row])
        _, sequences, begins, ends = trace_parts(
            [section], np.zeros(1, np.int16), samples[row : row + 1]
        )
        part = int(np.searchsorted(np.cumsum(ends - begins), column, "right"))
        sequence = sequences[min(part, len(sequences) - 1)]
        document = int(documents_of(member.idx, np.array([sequence]))[0])
        return CorpusError(
            f"{prefixes[member.source]}: document {document} has token {tokens[row, column]}, and "
            "no token is negative: the data has more than tokens, or another type"
        )

    def _corrupt(self, wrong: IndexError) -> CacheCorrupt:
        """Return the error for arrays that lead outside of one another."""
        self._require_intact()
        return CacheCorrupt(f"{self.split.files.cache.path}: {wrong}; see `distcache verify`")

    def _require_intact(self) -> None:
        """Refuse what was read from a damaged mapping; all files are reopened next time."""
        faults = MappedFile.faults()
        used, self._sections = self._sections, {}
        self._local_sections = {}
        self.split.require_intact()
        for member, _ in used.values():  # another thread may have made the split forget them
            member.idx.require_intact()
        self._faults = faults
