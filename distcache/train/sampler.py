"""A batch sampler that goes on where it stopped, on any number of data-parallel ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import xxhash
from torch.utils.data import Sampler

from distcache.errors import ConfigError, KeyMismatch
from distcache.train.order import Cyclic, Order, Sequential, Sharded

__all__ = ["ResumableSampler"]

PIECE: Final = 1 << 20  # positions whose samples are digested at a time
ORDERS: Final = ("sequential", "cyclic")


class ResumableSampler(Sampler[list[int | None]]):
    """Megatron-LM's sequential and cyclic sampling: for each rank a micro batch per step.

    Give it to a `DataLoader`, or to torchdata's `StatefulDataLoader`, as ``batch_sampler``. The
    samples of a step, over all ranks, are a function of `consumed_samples` alone: a run can go on
    with another number of ranks in the same global order.

    Parameters
    ----------
    total_samples : int
        Of the dataset.
    micro_batch_size : int
        Samples of each batch.
    data_parallel_rank, data_parallel_size : int
        Which rank this is, and of how many.
    consumed_samples : int
        Samples that all ranks together have been served, over all epochs.
    order : str
        "sequential", Megatron's ``--dataloader-type single``, or "cyclic", which shuffles every
        epoch anew.
    data_sharding : bool
        In a cyclic order, whether each rank has samples of its own, as is Megatron's default. The
        order then depends on the number of ranks, and a run goes on with the same number only.
    drop_last : bool
        In a sequential order, whether the last samples are left out if they do not fill a step.
        Otherwise batches are filled up with None, which `CachedDataset` serves without loss, so
        that all ranks have as many.

    Attributes
    ----------
    consumed_samples : int
        As above, so far: up to the batch that was given last. A plain `DataLoader` with workers
        takes batches ahead of training; `StatefulDataLoader` does not count these.

    Raises
    ------
    ConfigError
        If a number is not possible.
    """

    def __init__(
        self,
        total_samples: int,
        micro_batch_size: int,
        data_parallel_rank: int = 0,
        data_parallel_size: int = 1,
        *,
        consumed_samples: int = 0,
        order: str = "sequential",
        data_sharding: bool = False,
        drop_last: bool = True,
    ) -> None:
        self.total_samples = total_samples
        self.micro_batch_size = micro_batch_size
        self.data_parallel_rank = data_parallel_rank
        self.data_parallel_size = data_parallel_size
        self.consumed_samples = consumed_samples
        self.drop_last = drop_last
        self.step = micro_batch_size * data_parallel_size
        self._require_possible(order)
        self._kind = "sharded" if order == "cyclic" and data_sharding else order
        # A step that does not fill the dataset, as Megatron counts it, is no part of an epoch.
        self._epoch_samples = total_samples - total_samples % self.step
        self._shuffled_samples = total_samples - total_samples % micro_batch_size
        self._order = self._make_order()
        self._digest = xxhash.xxh3_128()
        self._digested = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_digest": None, "_digested": 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._digest = xxhash.xxh3_128()

    def _require_possible(self, order: str) -> None:
        problems = []
        if order not in ORDERS:
            problems.append(f"order is {order!r}, expected one of {', '.join(ORDERS)}")
        if self.micro_batch_size < 1 or self.data_parallel_size < 1:
            problems.append("micro_batch_size and data_parallel_size must be positive")
        elif not 0 <= self.data_parallel_rank < self.data_parallel_size:
            problems.append(
                f"data_parallel_rank is {self.data_parallel_rank}, of {self.data_parallel_size}"
            )
        elif order == "cyclic" and self.total_samples < self.step:
            problems.append(f"{self.total_samples} samples do not fill one step of {self.step}")
        if self.total_samples < 1 or self.consumed_samples < 0:
            problems.append("total_samples must be positive, consumed_samples not negative")
        elif order == "sequential" and self.consumed_samples > self.total_samples:
            problems.append(f"{self.consumed_samples} of {self.total_samples} samples are consumed")
        if problems:
            raise ConfigError(*problems)

    def _make_order(self) -> Order:
        if self._kind == "sequential":
            return Sequential(self.total_samples)
        if self._kind == "sharded":
            return Sharded(self.total_samples, self.micro_batch_size, self.data_parallel_size)
        return Cyclic(self._epoch_samples, self._shuffled_samples)

    def __iter__(self) -> Iterator[list[int | None]]:
        """Yield this rank's batches, from `consumed_samples` to the end of the epoch."""
        stop = self.consumed_samples + self._left()
        while self.consumed_samples < stop:
            begin, end = self.consumed_samples, self.consumed_samples + self.step
            if end > stop and not self._order.repeats:
                if self.drop_last:
                    return
                end = stop
            ids = self._order.ids(begin, end)
            if self._order.interleaved:
                mine = ids[self.data_parallel_rank :: self.data_parallel_size]
            else:
                first = self.data_parallel_rank * self.micro_batch_size
                mine = ids[first : first + self.micro_batch_size]
            self.consumed_samples = end
            batch: list[int | None] = mine.tolist()
            yield batch + [None] * (self.micro_batch_size - len(batch))

    def __len__(self) -> int:
        """Return the batches that are left of this epoch."""
        whole = self.drop_last and not self._order.repeats
        return self._left() // self.step if whole else -(-self._left() // self.step)

    def _left(self) -> int:
        """Return the positions that are left of this epoch."""
        epoch = self._order.epoch
        return epoch - (
            self.consumed_samples % epoch if self._order.repeats else self.consumed_samples
        )

    def order_digest(self) -> str:
        """Return the XXH3-128 of the ids of all samples served so far, to log and compare.

        They are taken as little-endian int64 in the global order, so that all ranks have the same
        digest, and any number of ranks has.
        """
        while self._digested < self.consumed_samples:
            end = min(self._digested + PIECE, self.consumed_samples)
            self._digest.update(self._order.ids(self._digested, end).astype("<i8").tobytes())
            self._digested = end
        return self._digest.hexdigest()

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs; the same on all ranks."""
        return {
            "consumed_samples": self.consumed_samples,
            "total_samples": self.total_samples,
            "order": self._kind,
            "epoch_samples": self._epoch_samples,
            "shuffled_samples": self._shuffled_samples,
            "ranks": self.data_parallel_size,
            "order_digest": self.order_digest(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another sampler was; epochs keep the length that they had there.

        Raises
        ------
        ConfigError
            If the order cannot be gone on with.
        KeyMismatch
            If the samples served so far would have been others.
        """
        problems = []
        if state["order"] != self._kind:
            problems.append(f"order is {self._kind}, the state's is {state['order']}")
        elif self._kind != "sequential" and state["total_samples"] != self.total_samples:
            problems.append(
                f"the dataset has {self.total_samples} samples, the state's has "
                f"{state['total_samples']}"
            )
        elif self._kind == "sharded" and state["ranks"] != self.data_parallel_size:
            problems.append(
                f"with data sharding the order depends on the number of ranks, which is "
                f"{self.data_parallel_size} and was {state['ranks']}"
            )
        if state["consumed_samples"] > self.total_samples and self._kind == "sequential":
            problems.append(f"{state['consumed_samples']} samples are consumed already")
        if problems:
            raise ConfigError(*problems)
        before = (self.consumed_samples, self._epoch_samples, self._shuffled_samples, self._order)
        self.consumed_samples = state["consumed_samples"]
        self._epoch_samples = state["epoch_samples"]
        self._shuffled_samples = state["shuffled_samples"]
        self._order = self._make_order()
        self._digest = xxhash.xxh3_128()
        self._digested = 0
        if (found := self.order_digest()) != state["order_digest"]:
            served = self.consumed_samples
            self.consumed_samples, self._epoch_samples, self._shuffled_samples, self._order = before
            self._digest, self._digested = xxhash.xxh3_128(), 0
            raise KeyMismatch(
                f"the order of the {served} samples served so far has digest "
                f"{found}, the state's is {state['order_digest']}"
            )
