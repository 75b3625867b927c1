"""Let the node's fetcher read tokens ahead of training, in the order of a sampler."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from torch.utils.data import Sampler

from distcache.errors import ConfigError, DistcacheError
from distcache.node.ahead.client import ATTEMPTS, FetchClient
from distcache.node.ahead.protocol import Source
from distcache.storage.space import space_at
from distcache.storage.units import parse_size
from distcache.train.dataset import CachedDataset
from distcache.train.sampler import ResumableSampler

Batch = Sequence[int | None]
SAMPLES: Final = 4096  # of a rank, that are announced ahead
STEPS: Final = 8  # messages for so many
MOST: Final = 4 << 30  # bytes, unless a budget is given
SHARE: Final = 20  # at most the 20th part of what is free


class ReadAhead(Sampler[Any]):
    """A batch sampler whose samples are fetched before they are read.

    Give it to a ``DataLoader`` as ``batch_sampler`` in the place of the sampler that it wraps: it
    yields the same batches. Where tokens are not read by the fetcher, it does nothing else.

    Parameters
    ----------
    sampler : iterable of batches
        A `ResumableSampler` stays where it is: what comes next is announced from a copy. From any
        other one, batches are drawn ahead of their use.
    dataset : CachedDataset
        Dataset of the samples.
    budget : int, str or None
        Bytes that all ranks of the node may have on its disk, also as ``"20G"``; by default
        the 20th part of what is free, at most 4 GiB.
    samples : int
        Samples of this rank that are announced ahead.

    Raises
    ------
    ConfigError
        If the budget is no size.
    """

    def __init__(
        self,
        sampler: Iterable[Batch],
        dataset: CachedDataset,
        budget: int | str | None = None,
        samples: int = SAMPLES,
    ) -> None:
        if type(samples) is not int or samples < 1:
            raise ConfigError(f"samples is {samples!r}, expected a number")
        self._sampler = sampler
        self._dataset = dataset
        self._samples = samples
        self._budget = None if budget is None else parse_size(str(budget), least=1)

    def __repr__(self) -> str:
        return f"<reads ahead of {self._sampler!r}: {self._samples} samples>"

    def __iter__(self) -> Iterator[Any]:
        client = self._dataset.fetch_client
        if client is None:
            yield from self._sampler
            return
        budget = self._budget or min(space_at(client.directory).free // SHARE, MOST)
        told = _Told(self._dataset, client, budget, self._samples)
        try:
            yield from self._batches(told)
        finally:
            told.close()

    def _batches(self, told: _Told) -> Iterator[Any]:
        if isinstance(self._sampler, ResumableSampler):
            scout = iter(copy.deepcopy(self._sampler))
            for batch in self._sampler:
                told.fill(scout)
                told.batches.popleft()
                yield batch
        else:
            batches = iter(self._sampler)
            told.fill(batches)
            while told.batches:
                yield told.batches.popleft()
                told.fill(batches)

    def __len__(self) -> int:
        return len(self._sampler)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_sampler":
            raise AttributeError(name)
        return getattr(self._sampler, name)  # state_dict, consumed_samples, ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where another sampler stopped; see `ResumableSampler.load_state_dict`."""
        self._sampler.load_state_dict(state)  # type: ignore[attr-defined]


class _Told:
    """The batches that the fetcher knows, and that are still to come."""

    def __init__(
        self, dataset: CachedDataset, client: FetchClient, budget: int, samples: int
    ) -> None:
        self.batches: deque[Batch] = deque()
        self._dataset = dataset
        self._stream = client.open_stream()
        self._budget = budget
        self._samples = samples

    def fill(self, source: Iterator[Batch]) -> None:
        """Announce further batches, if many that were announced have been used."""
        known = sum(map(len, self.batches))
        if known > self._samples - max(self._samples // STEPS, 1) and self.batches:
            return
        more: list[Batch] = []
        while known < self._samples and (batch := next(source, None)) is not None:
            more.append(batch)
            known += len(batch)
        if more:
            self.batches.extend(more)
            if not self._tell(more):
                self._tell_again()

    def close(self) -> None:
        """Give up what is ahead."""
        self._stream.close()

    def _tell_again(self) -> None:
        """Announce all that is still to come to another fetcher, since the last has died.

        Raises
        ------
        DistcacheError
            If they die again and again.
        """
        for _ in range(ATTEMPTS):
            if self._tell(self.batches):
                return
        raise DistcacheError(f"the fetcher died {ATTEMPTS} times; see `distcache local fetcher`")

    def _tell(self, batches: Iterable[Batch]) -> bool:
        found = [part for batch in batches for part in self._dataset.fetched_ranges(batch)]
        numbers: dict[Source, int] = {}
        ranges = [
            (numbers.setdefault(source, len(numbers)), begin, size) for source, begin, size in found
        ]
        return self._stream.announce(list(numbers), ranges, self._budget)
