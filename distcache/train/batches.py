"""A batch iterator whose saved state counts delivered batches, not prefetched ones."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch.utils.data import DataLoader, default_collate

from distcache.errors import ConfigError
from distcache.storage.units import plain_number
from distcache.train.dataset import CachedDataset
from distcache.train.read_ahead import ReadAhead
from distcache.train.rows import RowDataset
from distcache.train.sampler import ResumableSampler
from distcache.train.split import SplitDataset


class Batches(Iterator[Any]):
    """The batches of one rank, read ahead of training.

    Megatron's external loaders are such iterators, with `save_state` and `restore_state`. The
    batches end with the last whole step of a sequential order; a cyclic order continues with the
    next epoch.

    Parameters
    ----------
    dataset : CachedDataset or RowDataset
        The samples.
    micro_batch_size : int
        Samples of a batch.
    data_parallel_rank, data_parallel_size : int
        The rank, and the number of ranks that get different batches.
    collate : callable or None
        Makes a batch of a list of samples; by default torch's for tokens, and the list for rows.
    workers : int
        Processes that read and collate; without any, a thread does.
    ahead : int
        Batches that are read ahead; with workers, by each of them.
    read_ahead : int, str or None
        The budget of `ReadAhead`, where the node's fetcher reads the data.
    **order
        Arguments of `ResumableSampler`: ``consumed_samples``, ``order``, ``data_sharding``,
        ``drop_last``.

    Raises
    ------
    ConfigError
        If a number is invalid, or the dataset has another type.
    """

    def __init__(
        self,
        dataset: CachedDataset | RowDataset,
        micro_batch_size: int,
        data_parallel_rank: int = 0,
        data_parallel_size: int = 1,
        *,
        collate: Callable[[list[Any]], Any] | None = None,
        workers: int = 0,
        ahead: int = 2,
        read_ahead: int | str | None = None,
        **order: Any,
    ) -> None:
        workers, ahead = plain_number(workers), plain_number(ahead)
        counts = {"workers": workers, "ahead": ahead}
        wrong = [name for name, value in counts.items() if type(value) is not int or value < 0]
        if wrong:
            raise ConfigError(*(f"{name} is {counts[name]!r}, expected a number" for name in wrong))
        if not hasattr(dataset, "__getitems__"):
            raise ConfigError(f"the dataset is {dataset!r}, expected what a cache has opened")
        self._dataset = dataset
        self._sampler = ResumableSampler(
            dataset, micro_batch_size, data_parallel_rank, data_parallel_size, **order
        )
        self._ordered: Iterable[Sequence[int | None]] = self._sampler
        if isinstance(dataset, SplitDataset):
            self._ordered = ReadAhead(self._sampler, dataset, read_ahead)
        default = list if isinstance(dataset, RowDataset) else default_collate
        self._collate: Callable[[list[Any]], Any] = default if collate is None else collate
        self._workers = workers
        self._ahead = max(ahead, 1)
        self._consumed = self._sampler.consumed_samples
        self._drawn: deque[int] = deque()
        self._source: Iterator[Any] | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<batches of {self._dataset!r}: {self._sampler!r}>"

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        """Return the next batch.

        Raises
        ------
        StopIteration
            At the end of a sequential order.
        OSError, CorpusError, CacheCorrupt
            If samples cannot be read.
        """
        with self._lock:
            if self._source is None:
                self._source = self._by_workers() if self._workers else self._by_a_thread()
            try:
                batch = next(self._source)
            except StopIteration:
                raise
            except BaseException:
                self._stop()  # asked again, it reads the same batch again
                raise
            self._consumed = self._drawn.popleft()
            return batch

    def __len__(self) -> int:
        """Return the number of batches that are left of the epoch, but for those read ahead."""
        return len(self._sampler)

    def save_state(self) -> dict[str, Any]:
        """Return the state after the last batch that was served; small, the same on all ranks."""
        with self._lock:
            return {**self._sampler.state_dict(), "consumed_samples": self._consumed}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Continue where another iterator was when it saved its state, on any number of ranks.

        Raises
        ------
        ConfigError
            If the state belongs to other samples.
        """
        with self._lock:
            self._stop()
            self._sampler.load_state_dict(state)
            self._consumed = self._sampler.consumed_samples

    state_dict = save_state
    load_state_dict = restore_state

    def close(self) -> None:
        """End reading ahead; the next batch starts it again, after the last that was served."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._source is not None:
            self._source.close()  # type: ignore[attr-defined]
        self._source = None
        self._drawn.clear()
        self._sampler.consumed_samples = self._consumed

    def _indices(self) -> Iterator[Sequence[int | None]]:
        """Yield the samples of each batch, and remember what is consumed with it."""
        while True:
            count = 0
            for indices in self._ordered:
                count += 1
                self._drawn.append(self._sampler.consumed_samples)
                yield indices
            if not (count and self._sampler.repeats):
                return

    def _by_workers(self) -> Iterator[Any]:
        loader = DataLoader(
            self._dataset,  # type: ignore[arg-type]
            batch_sampler=_Once(self._indices()),  # type: ignore[arg-type]
            num_workers=self._workers,
            collate_fn=self._collate,
            prefetch_factor=self._ahead,
        )
        yield from loader

    def _by_a_thread(self) -> Iterator[Any]:
        indices = self._indices()
        pending: deque[Future[Any]] = deque()
        with ThreadPoolExecutor(1, thread_name_prefix="batches") as pool:
            try:
                while True:
                    while (
                        len(pending) <= self._ahead and (chosen := next(indices, None)) is not None
                    ):
                        pending.append(pool.submit(self._read, chosen))
                    if not pending:
                        return
                    yield pending.popleft().result()
            finally:
                for future in pending:
                    future.cancel()

    def _read(self, indices: Sequence[int | None]) -> Any:
        return self._collate(list(self._dataset.__getitems__(indices)))


class _Once:
    """A batch sampler that is gone through once."""

    def __init__(self, indices: Iterator[Sequence[int | None]]) -> None:
        self._indices = indices

    def __iter__(self) -> Iterator[Sequence[int | None]]:
        return self._indices
