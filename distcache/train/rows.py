"""Rows of a split: records of shards, read whole."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distcache.corpus.mds.index_json import Columns, columns_from
from distcache.corpus.mds.row import Row
from distcache.errors import CacheCorrupt, ConfigError, CorpusError
from distcache.node.ahead.protocol import Source
from distcache.storage.files import read_range
from distcache.train.fetching import FetchedRanges, Fetching, fetched_ranges
from distcache.train.open_files import CacheHandle, OpenFiles
from distcache.train.split import OpenSplit, SplitDataset, position_of
from distcache.train.token_files import FILES_PER_READER, TokenFiles
from distcache.train.token_places import Located, cut_by_files, locate


class RowDataset(SplitDataset["RowReader"]):
    """The rows of a split, in the order of the cache; made by ``cache.rows``.

    ``rows[i]`` is a `distcache.corpus.mds.row.Row`: a mapping from columns to values, which are
    decoded when they are asked for; or what `map` makes of it. A map-style dataset for a
    ``DataLoader``, whose workers do the work. It may be pickled, and used before and after a fork.

    Parameters
    ----------
    handle : CacheHandle
        The cache.
    split : str
        "train", "valid" or "test".
    number : int
        Number of the validation set, where there are several.
    map : callable or None
        Called with each row, where it is read.
    opened : OpenFiles or None
        The cache, if this process has it open.
    """

    def __init__(
        self,
        handle: CacheHandle,
        split: str,
        number: int = 0,
        map: Callable[[Row], Any] | None = None,  # noqa: A002  as elsewhere
        opened: OpenFiles | None = None,
    ) -> None:
        self.map = map
        super().__init__(handle, split, number, opened)

    def _make_reader(self, split: OpenSplit) -> RowReader:
        return RowReader(split)

    def __repr__(self) -> str:
        return f"<{self._name()}: {len(self)} rows>"

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of the first corpus."""
        return self._here().columns

    def __getitem__(self, index: int | None) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int | None]) -> list[Any]:
        """Return several rows that are read together; called by `DataLoader`.

        None, with which a sampler fills its last batch up, stays None.
        """
        here = self._here()
        wanted = [index for index in indices if index is not None]
        positions = [position_of(index, here.split.size, "row") for index in wanted]
        readings = [reading for index in wanted if (reading := getattr(index, "reading", None))]
        rows: list[Any] = list(here.read(np.array(positions, np.int64), readings))
        found = iter(rows if self.map is None else map(self.map, rows))
        return [None if index is None else next(found) for index in indices]

    def dataset_of(self, index: int) -> int:
        """Return which corpus of the blend a row is of."""
        here = self._here()
        position = np.array([position_of(index, here.split.size, "row")])
        return int(here.split.look_up(position)[0][0])


class RowReader:
    """Reads the samples of a split of rows; recreated after a fork.

    Parameters
    ----------
    split : OpenSplit
        The open split.
    """

    def __init__(self, split: OpenSplit) -> None:
        self.split = split
        self._tables: dict[int, tuple[NDArray[np.int32], Columns]] = {}
        self._tokens = TokenFiles()
        self._fetching = Fetching(split.files.fetch_client)
        self._lock = threading.Lock()

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of the first corpus."""
        with self._lock:
            return self._table(0)[1].column_names

    def read(
        self, positions: NDArray[np.int64], readings: Sequence[tuple[int, int]] = ()
    ) -> list[Row]:
        """Return rows; their files get the list of all of them first.

        Parameters
        ----------
        positions : ndarray of int64, shape (rows,)
            Positions in the split.
        readings : sequence of (int, int)
            Stream, and number in it, of announced readings that are over after this.
        """
        with self._lock:
            where, columns = self._locate(*self.split.look_up(positions))
            found: list[Row] = []
            for rows, part in cut_by_files(where, FILES_PER_READER):
                with self._fetching.open(fetched_ranges(part)) as fetched:
                    found += map(Row, columns[rows], *self._read(part, fetched))
            self._fetching.end(readings)
            return found

    def fetched_ranges(
        self, members: NDArray[np.int16], samples: NDArray[np.int64]
    ) -> FetchedRanges:
        """Return what the node's fetcher has to read of rows."""
        with self._lock:
            return fetched_ranges(self._locate(members, samples)[0])

    def _read(self, where: Located, fetched: Mapping[Source, int]) -> tuple[list[bytes], list[str]]:
        """Return the bytes of rows, and for messages where they are."""
        places = [
            (where.files[number], where.sources[number], begin, size)
            for number, begin, size in zip(
                where.numbers.tolist(), where.begins.tolist(), where.sizes.tolist(), strict=True
            )
        ]
        for file, source, begin, size in places:
            if source is None:
                self._tokens.announce(file, begin, size)
        contents = [
            self._tokens.read(file, begin, size)
            if source is None
            else read_range(fetched[source], begin, begin + size)
            for file, source, begin, size in places
        ]
        return contents, [f"{file[0]}: byte {begin}" for file, _, begin, _ in places]

    def _locate(
        self, members: NDArray[np.int16], samples: NDArray[np.int64]
    ) -> tuple[Located, list[Columns]]:
        """Return where rows are, and their columns."""
        path = self.split.files.cache.path
        places, begins, sizes, all_columns = [], [], [], []
        for number, sample in zip(members.tolist(), samples.tolist(), strict=True):
            order, columns = self._table(number)
            _, _, idx, known = self.split.member(number)
            if not 0 <= sample < len(order):
                raise CacheCorrupt(f"{path}: has no sample {sample}")
            row = int(order[sample])
            if not 0 <= row < len(idx.lengths):
                raise CacheCorrupt(f"{path}: has a row {row}, beyond its corpus")
            begin, size = int(idx.offsets[row]), int(idx.lengths[row])
            if begin < 0 or size <= 0 or (known.begins is not None and begin < known.begins[0]):
                raise CorpusError(f"{idx.path}: row {row} is outside of its shards")
            places.append(known)
            begins.append(begin)
            sizes.append(size)
            all_columns.append(columns)
        bounds = np.arange(len(places) + 1)
        where = locate(places, np.array(begins, np.int64), np.array(sizes, np.int64), bounds)
        return where, all_columns

    def _table(self, number: int) -> tuple[NDArray[np.int32], Columns]:
        """Return the order of the rows of a corpus, and its columns."""
        if number not in self._tables:
            cache = self.split.files.cache
            section, source = self.split.pair(number)
            text = cache.columns_of(source)
            if not text:
                raise ConfigError(
                    f"{cache.prefixes[source]}: consists of tokens; open it with cache.dataset(...)"
                )
            try:
                columns = columns_from(text)
            except ValueError as error:
                raise CacheCorrupt(f"{cache.path}: corpus {source}: {error}") from error
            order = cache.read(cache.arrays("sections", section)["document_index"])
            self._tables[number] = order, columns
        return self._tables[number]
