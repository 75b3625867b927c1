"""Let the node's fetcher read data ahead of training, in the order of a sampler."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from torch.utils.data import Sampler

from distcache.errors import ConfigError, DistcacheError, NoSpace
from distcache.node.ahead.client import FETCHER_ATTEMPTS, FetchClient
from distcache.node.ahead.protocol import MAX_WHOLE_BYTES, Source, default_budget
from distcache.storage.units import parse_size
from distcache.train.dataset import CachedDataset
from distcache.train.rows import RowDataset
from distcache.train.sampler import ResumableSampler


class AnnouncedIndex(int):
    """The index of a sample, as any other integer, that was announced to the node's fetcher.

    Parameters
    ----------
    index : int
        Number of the sample.
    reading : (int, int)
        Number of a stream, and of the reading in it.
    """

    reading: tuple[int, int]

    def __new__(cls, index: int, reading: tuple[int, int]) -> AnnouncedIndex:
        """Make an index."""
        made = super().__new__(cls, index)
        made.reading = reading
        return made

    def __reduce__(self) -> Any:
        return AnnouncedIndex, (int(self), self.reading)


Batch = Sequence[int | None]
MESSAGE_SAMPLES: Final = 512  # samples of a message
MAX_SAMPLES: Final = 65_536  # of a rank, that are announced ahead at most
MAX_RANGES: Final = 200_000  # of a rank, that are announced ahead at most: each takes some memory


class ReadAhead(Sampler[Any]):
    """A batch sampler whose samples are fetched before they are read.

    Give it to a ``DataLoader`` as ``batch_sampler`` instead of the sampler that it wraps: it
    yields the same batches. If the node's fetcher does not read the tokens, nothing else happens.

    Parameters
    ----------
    sampler : iterable of batches
        Samples of a `ResumableSampler` are announced from a copy. From any other sampler,
        batches are drawn ahead of their use.
    dataset : CachedDataset or RowDataset
        Dataset of the samples.
    budget : int, str or None
        Bytes that all ranks of the node may have on its disk, also as ``"20G"``; by default
        the 20th part of what is free, at most 4 GiB.
    samples : int or None
        Samples of this rank that are announced ahead at most; by default as many as the budget
        holds, of up to 200,000 ranges of documents.

    Raises
    ------
    ConfigError
        If the budget is not a size.
    """

    def __init__(
        self,
        sampler: Iterable[Batch],
        dataset: CachedDataset | RowDataset,
        budget: int | str | None = None,
        samples: int | None = None,
    ) -> None:
        if samples is not None and (type(samples) is not int or samples < 1):
            raise ConfigError(f"samples is {samples!r}, expected a number")
        self._sampler = sampler
        self._dataset = dataset
        self._samples = samples
        self._budget = None if budget is None else parse_size(str(budget), least=1)

    def __repr__(self) -> str:
        return f"<reads ahead of {self._sampler!r}>"

    def __iter__(self) -> Iterator[Any]:
        client = self._dataset.fetch_client
        if client is None:
            yield from self._sampler
            return
        budget = self._budget or default_budget(client.directory)
        announced = _Announced(self._dataset, client, budget, self._samples)
        try:
            yield from self._batches(announced)
        finally:
            announced.close()

    def _batches(self, announced: _Announced) -> Iterator[Any]:
        if isinstance(self._sampler, ResumableSampler):
            scout = iter(copy.deepcopy(self._sampler))
            for batch in self._sampler:
                announced.fill(scout)
                ahead = announced.next_batch()
                yield batch if ahead is None else ahead
        else:
            batches = iter(self._sampler)
            announced.fill(batches)
            while (ahead := announced.next_batch()) is not None:
                yield ahead
                announced.fill(batches)

    def __len__(self) -> int:
        return len(self._sampler)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_sampler":
            raise AttributeError(name)
        return getattr(self._sampler, name)  # state_dict, consumed_samples, ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where another sampler stopped; see `ResumableSampler.load_state_dict`."""
        self._sampler.load_state_dict(state)  # type: ignore[attr-defined]


class _AnnouncedBatch(NamedTuple):
    """A batch that is still to come."""

    indices: Batch
    first: int  # number of its first reading in the stream
    ranges: int
    nbytes: int


class _Announced:
    """The batches that were announced to the fetcher, and that are still to come."""

    def __init__(
        self,
        dataset: CachedDataset | RowDataset,
        client: FetchClient,
        budget: int,
        samples: int | None,
    ) -> None:
        self._batches: deque[_AnnouncedBatch] = deque()
        self._dataset = dataset
        self._stream = client.open_stream()
        self._budget = budget
        self._most = samples
        self._whole = small_sources(dataset.fetched_sources, budget)
        self._readings = 0  # of the stream
        # of the batches
        self._samples = 0
        self._ranges = 0
        self._nbytes = 0

    def next_batch(self) -> Batch | None:
        """Return the next batch, whose indices name their readings; None at the end."""
        if not self._batches:
            return None
        batch = self._batches.popleft()
        self._count(batch, -1)
        number = batch.first
        found: list[int | None] = []
        for index in batch.indices:
            if index is None:
                found.append(None)
            else:
                found.append(AnnouncedIndex(index, (self._stream.number, number)))
                number += 1
        return found

    def fill(self, source: Iterator[Batch]) -> None:
        """Announce further batches, as long as there is room for as many as a message has."""
        step = (
            MESSAGE_SAMPLES if self._most is None else max(min(MESSAGE_SAMPLES, self._most // 8), 1)
        )
        while not (self._batches and self._is_full(step)):
            more: list[Batch] = []
            count = 0
            while count < step and (batch := next(source, None)) is not None:
                more.append(batch)
                count += len(batch)
            if not more:
                return
            if not self._announce(more):
                self._announce_again()

    def close(self) -> None:
        """Discard what is ahead."""
        self._stream.close()

    def _is_full(self, step: int) -> bool:
        return (
            (self._most is not None and self._samples + step > self._most)
            or self._samples >= MAX_SAMPLES
            or self._ranges >= MAX_RANGES
            or self._nbytes >= self._budget
        )

    def _announce_again(self) -> None:
        """Announce all that is still to come to another fetcher, since the last has died.

        Raises
        ------
        DistcacheError
            If they die again and again.
        """
        for _ in range(FETCHER_ATTEMPTS):
            batches = [batch.indices for batch in self._batches]
            self._batches.clear()
            self._readings = self._samples = self._ranges = self._nbytes = 0
            if self._announce(batches):
                return
        raise DistcacheError(
            f"the fetcher died {FETCHER_ATTEMPTS} times; see `distcache local fetcher`"
        )

    def _announce(self, batches: Sequence[Batch]) -> bool:
        """Announce batches; they count as announced even if the fetcher has died."""
        indices = [index for batch in batches for index in batch if index is not None]
        sources, ranges, ends = self._dataset.fetched_ranges(indices)
        bytes_before = np.concatenate(([0], np.cumsum(ranges[:, 2])))
        ends_before = np.concatenate(([0], ends))
        begin = 0
        for batch in batches:
            end = begin + sum(index is not None for index in batch)
            first, last = int(ends_before[begin]), int(ends_before[end])
            nbytes = int(bytes_before[last] - bytes_before[first])
            found = _AnnouncedBatch(batch, self._readings + begin, last - first, nbytes)
            self._batches.append(found)
            self._count(found, 1)
            begin = end
        self._readings += len(indices)
        for number, source in enumerate(sources):
            if source.codec or source in self._whole:
                self._require_budget(source)
                own = ranges[:, 0] == number
                ranges[own, 1], ranges[own, 2] = 0, source.size
        return self._stream.announce(sources, ranges, ends, self._budget)

    def _require_budget(self, source: Source) -> None:
        if source.size > self._budget:
            raise NoSpace(
                f"{source.path}: is {source.size} bytes when it is unpacked, more than the budget "
                f"{self._budget} of what is read ahead; give more"
            )

    def _count(self, batch: _AnnouncedBatch, sign: int) -> None:
        self._samples += sign * len(batch.indices)
        self._ranges += sign * batch.ranges
        self._nbytes += sign * batch.nbytes


def small_sources(sources: Iterable[Source], budget: int) -> frozenset[Source]:
    """Return the objects that are fetched as a whole, since the budget holds them all.

    The smallest come first, up to a quarter of the budget.
    """
    found, left = set(), budget // 4
    for source in sorted(sources, key=lambda source: source.version.size):
        left -= source.version.size
        if left < 0 or source.version.size > MAX_WHOLE_BYTES:
            break
        found.add(source)
    return frozenset(found)
