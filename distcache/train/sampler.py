"""A batch sampler that continues where it stopped, on any number of data-parallel ranks."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Sampler

from distcache.cache.deal import Deal
from distcache.errors import ConfigError, LoaderWarning, StateWarning
from distcache.kernels import Permutation
from distcache.megatron.sampling import Cyclic, Drawn, Order, Sequential, Sharded
from distcache.storage.threads import decodable
from distcache.storage.units import plain_number
from distcache.train.dataset import CachedDataset
from distcache.train.rows import RowDataset


def draw_permutation(seed: int, size: int) -> Drawn:
    """Return torch's permutation with a seed: by the kernel, if this version draws as it does."""
    return Permutation(seed, size) if _is_torchs_own() else WholePermutation(seed, size)


class WholePermutation:
    """The same as `Permutation`, drawn by torch, with memory for all of it."""

    def __init__(self, seed: int, size: int) -> None:
        self._values: NDArray[np.int64] = _draw(seed, size)
        self.position = 0

    def next(self, out: NDArray[np.int64]) -> None:
        """Fill an array with the next values."""
        out[:] = self._values[self.position : self.position + len(out)]
        self.position += len(out)

    def skip(self, count: int) -> None:
        """Pass over values."""
        self.position += count


def _draw(seed: int, size: int) -> NDArray[np.int64]:
    drawn: NDArray[np.int64] = torch.randperm(
        size, generator=torch.Generator().manual_seed(seed)
    ).numpy()
    return drawn


@functools.cache
def _is_torchs_own() -> bool:
    """Return whether this version of torch draws as `Permutation` does."""
    out = np.empty(1000, np.int64)
    Permutation(77, len(out)).next(out)
    return bool(np.array_equal(out, _draw(77, len(out))))


# Of accelerate, which the Trainer of transformers uses too.
DEALERS: Final = ("BatchSamplerShard", "DataLoaderDispatcher")
ORDERS: Final = ("sequential", "cyclic")
VERSION: Final = 1
MAX_SAMPLES: Final = 1 << 62
MAX_EPOCHS: Final = 1 << 31  # a seed of 32 bits counts them, some twice
Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]


@decodable
class _State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of a sampler: which samples, and how many are consumed."""

    version: int = VERSION  # version of this document
    # identity of the samples; None if the sampler only got their number
    cache_key: str | None = None
    split: str | None = None
    dataset: int | None = None
    # key of all caches of which the larger begins with the samples of the smaller; None if none is
    growth: str | None = None
    deal: str | None = None  # how steps are dealt, if they are
    order: Literal["sequential", "cyclic", "sharded"]  # ``sequential``, ``cyclic`` or ``sharded``
    # samples of the dataset, of an epoch, and those that are shuffled for it
    total_samples: Positive
    epoch_samples: Count
    shuffled_samples: Count
    # ranks and batch size of the run that made the state
    ranks: Positive
    micro_batch_size: Positive
    consumed_samples: Count  # samples that all ranks together have consumed, over all epochs


def _beyond_limits(consumed: int, epoch: int) -> list[str]:
    """Return a problem if numbers of samples, or of the epoch, exceed what is counted with."""
    if max(consumed, epoch) < MAX_SAMPLES and consumed // epoch < MAX_EPOCHS:
        return []
    return [f"{consumed} samples of epochs of {epoch} are more than can be counted"]


def _lacks_identity(found: _State, own: _State) -> bool:
    fields = ("cache_key", "split", "dataset")
    return any(getattr(found, name) is None and getattr(own, name) is not None for name in fields)


def _require_aligned(deal: Deal, consumed: int, step: int) -> None:
    """Refuse a sampler whose micro batches would straddle those of a deal.

    Raises
    ------
    ConfigError
        If it would.
    """
    ahead = consumed - deal.begin if consumed > deal.begin else deal.begin - consumed
    if ahead % step:
        raise ConfigError(
            f"deal is {deal}, and {consumed} samples are consumed: {step} samples of all ranks "
            "would be of two of its micro batches; begin the deal where a step begins: "
            f"{msgspec.structs.replace(deal, begin=consumed)}"
        )


def _require_whole_steps(found: _State, own: _State) -> None:
    """Refuse a state within a step whose samples are dealt in another way here.

    Raises
    ------
    ConfigError
        Error that says where training can go on.
    """
    if (found.deal, found.cache_key) == (own.deal, own.cache_key):
        return
    for text in (found.deal, own.deal):
        if text is not None and Deal.parse(text).is_within_step(found.consumed_samples):
            raise ConfigError(
                f"the sampler's state is within a step of the deal {text}: after "
                f"{found.consumed_samples} samples some of the step are consumed, and others "
                f"would follow with deal={own.deal!r}; go on with deal={found.deal!r} and the same "
                "cache up to the end of a step"
            )


def _dealt_by() -> str:
    """Return which class of accelerate's that deals batches to ranks iterates over a sampler."""
    frame = sys._getframe(1)
    while (outer := frame.f_back) is not None:
        frame = outer
        owner = frame.f_code.co_qualname.partition(".")[0]
        if owner in DEALERS and frame.f_globals.get("__name__", "").startswith("accelerate."):
            return f"accelerate's {owner}"
    return ""


class ResumableSampler(Sampler[list[int | None]]):
    """Megatron-LM's sequential and cyclic sampling: a micro batch for each rank and step.

    Give it to a `DataLoader`, or to torchdata's `StatefulDataLoader`, as ``batch_sampler``. The
    samples of a step, over all ranks, depend on `consumed_samples` alone: a run can be resumed with
    another number of ranks in the same global order.

    Parameters
    ----------
    dataset : CachedDataset, RowDataset or int
        Dataset to sample, or its number of samples. With a dataset, a state names the
        dataset, and samplers of other datasets refuse the state.
    micro_batch_size : int
        Samples of each batch.
    data_parallel_rank, data_parallel_size : int
        The rank and the number of ranks.
    consumed_samples : int
        Samples consumed by all ranks together, over all epochs.
    order : str
        "sequential", Megatron's ``--dataloader-type single``, or "cyclic", which shuffles every
        epoch.
    data_sharding : bool
        Whether each rank has a separate range of samples in a cyclic order, as is
        Megatron's default. The order then depends on the number of ranks, which must not
        change.
    drop_last : bool
        Whether to drop the last samples in a sequential order if they do not fill a step.
        Otherwise batches are padded with None, for which `CachedDataset` returns samples
        without loss, so that all ranks have equally many.

    Attributes
    ----------
    consumed_samples : int
        Consumed samples up to the last batch that was yielded. A plain `DataLoader` with
        workers reads ahead of training; `StatefulDataLoader` does not count these batches.

    Raises
    ------
    ConfigError
        If a number is invalid.
    """

    def __init__(
        self,
        dataset: CachedDataset | RowDataset | int,
        micro_batch_size: int,
        data_parallel_rank: int = 0,
        data_parallel_size: int = 1,
        *,
        consumed_samples: int = 0,
        order: str = "sequential",
        data_sharding: bool = False,
        drop_last: bool = True,
    ) -> None:
        if isinstance(dataset, CachedDataset | RowDataset):
            self._belongs_to, self.total_samples = dataset.identity, len(dataset)
            self._continued, deal = dataset.continued, dataset.deal
        else:
            self._belongs_to, self.total_samples = {}, plain_number(dataset)
            self._continued = deal = None
        self.micro_batch_size = micro_batch_size = plain_number(micro_batch_size)
        self.data_parallel_rank = plain_number(data_parallel_rank)
        self.data_parallel_size = plain_number(data_parallel_size)
        self.consumed_samples = plain_number(consumed_samples)
        self.drop_last = drop_last
        self._require_possible(order)
        if deal is not None:
            self._require_steps_of(deal, order)
        self.step = self._samples_per_step()
        self._kind = "sharded" if order == "cyclic" and data_sharding else order
        # A last, partial step is no part of an epoch, as in Megatron.
        self._epoch_samples = self.total_samples - self.total_samples % self.step
        self._shuffled_samples = self.total_samples - self.total_samples % micro_batch_size
        self._order = self._make_order()
        self._served = False  # whether a batch has been yielded

    def _require_possible(self, order: str) -> None:
        counts = {
            "dataset": self.total_samples,
            "micro_batch_size": self.micro_batch_size,
            "data_parallel_rank": self.data_parallel_rank,
            "data_parallel_size": self.data_parallel_size,
            "consumed_samples": self.consumed_samples,
        }
        problems = [
            f"{name} is {value!r}, expected a number"
            for name, value in counts.items()
            if type(value) is not int
        ]
        if problems:
            raise ConfigError(*problems)
        if order not in ORDERS:
            problems.append(f"order is {order!r}, expected one of {', '.join(ORDERS)}")
        if self.micro_batch_size < 1 or self.data_parallel_size < 1:
            problems.append("micro_batch_size and data_parallel_size must be positive")
        elif not 0 <= self.data_parallel_rank < self.data_parallel_size:
            problems.append(
                f"data_parallel_rank is {self.data_parallel_rank}, of {self.data_parallel_size}"
            )
        elif order == "cyclic" and self.total_samples < self._samples_per_step():
            step = self._samples_per_step()
            problems.append(f"{self.total_samples} samples do not fill one step of {step}")
        if self.total_samples < 1 or self.consumed_samples < 0:
            problems.append(
                "the dataset must have samples, and consumed_samples must not be negative"
            )
        elif order == "sequential" and self.consumed_samples > self.total_samples:
            problems.append(f"{self.consumed_samples} of {self.total_samples} samples are consumed")
        problems = problems or _beyond_limits(self.consumed_samples, self.total_samples)
        if problems:
            raise ConfigError(*problems)

    def _require_steps_of(self, deal: Deal, order: str) -> None:
        """Refuse a sampler that does not take the steps that are dealt."""
        if order != "sequential":
            raise ConfigError(f"deal is {deal}, which is for a sequential order")
        if not deal.is_for(self.micro_batch_size, self.data_parallel_size):
            raise ConfigError(
                f"deal is {deal}: it is for micro batches of {deal.micro_batch} on {deal.ranks} "
                f"ranks, or on a number that divides it, and not for micro batches of "
                f"{self.micro_batch_size} on {self.data_parallel_size}"
            )
        _require_aligned(deal, self.consumed_samples, self._samples_per_step())

    def _samples_per_step(self) -> int:
        return self.micro_batch_size * self.data_parallel_size

    def _make_order(self) -> Order:
        if self._kind == "sequential":
            return Sequential(self.total_samples)
        if self._kind == "sharded":
            return Sharded(
                self.total_samples,
                self.micro_batch_size,
                self.data_parallel_size,
                draw_permutation,
            )
        return Cyclic(self._epoch_samples, self._shuffled_samples, draw_permutation)

    def __iter__(self) -> Iterator[list[int | None]]:
        """Yield this rank's batches, from `consumed_samples` to the end of the epoch.

        Issues a `LoaderWarning` if there is no batch, or if a library deals the batches to ranks
        again.
        """
        if not len(self):
            why = (
                "is left; make another sampler, or give consumed_samples"
                if self._served
                else f"can be made: {self._left()} samples are left, and a step takes {self.step}"
            )
            warnings.warn(f"distcache's {self!r}: no batch {why}", LoaderWarning, stacklevel=2)
        if self.data_parallel_size > 1 and (wrapper := _dealt_by()):
            warnings.warn(
                f"distcache's {self!r}: {wrapper} distributes the batches over ranks a second "
                "time, so most samples would be skipped; do not give the loader to prepare(), or "
                "make the sampler with data_parallel_rank=0 and data_parallel_size=1",
                LoaderWarning,
                stacklevel=2,
            )
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
            self.consumed_samples, self._served = end, True
            batch: list[int | None] = mine.tolist()
            yield batch + [None] * (self.micro_batch_size - len(batch))

    @property
    def repeats(self) -> bool:
        """Whether another epoch follows the last batch."""
        return self._order.repeats

    def __len__(self) -> int:
        """Return the number of batches left in this epoch."""
        whole = self.drop_last and not self._order.repeats
        return self._left() // self.step if whole else -(-self._left() // self.step)

    def _left(self) -> int:
        """Return the number of positions left in this epoch."""
        epoch = self._order.epoch
        return epoch - (
            self.consumed_samples % epoch if self._order.repeats else self.consumed_samples
        )

    def __repr__(self) -> str:
        split = self._belongs_to.get("split")
        of = f" of split {split!r}" if split else ""
        return (
            f"<{self._kind} sampler: {self.consumed_samples} of {self.total_samples} samples{of}, "
            f"rank {self.data_parallel_rank} of {self.data_parallel_size}>"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs; the same on all ranks, and small."""
        state = _State(
            **self._belongs_to,
            order=self._kind,  # type: ignore[arg-type]
            total_samples=self.total_samples,
            epoch_samples=self._epoch_samples,
            shuffled_samples=self._shuffled_samples,
            ranks=self.data_parallel_size,
            micro_batch_size=self.micro_batch_size,
            consumed_samples=self.consumed_samples,
        )
        return msgspec.structs.asdict(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where another sampler stopped; epochs keep the length that they had there.

        A sequential sampler also continues the state of a smaller cache, if this cache begins with
        the same samples (orders ``passes``, ``windows`` and ``packed``); and the state of the cache
        that this cache continues, at the sample where it continues.

        Issues a `StateWarning` for a state that does not identify its samples.

        Raises
        ------
        ConfigError
            If the state is not a sampler's, or belongs to another dataset or order, with each field
            that differs.
        """
        found = self._read_state(state)
        own = _State(**self.state_dict())
        if _lacks_identity(found, own):
            warnings.warn(
                "the sampler's state does not say which cache and split it belongs to: it is of a "
                "sampler that was given a number",
                StateWarning,
                stacklevel=2,
            )
        grows = self._kind == "sequential" and (
            (found.growth == own.growth is not None and found.total_samples <= own.total_samples)
            or self._continued == (found.cache_key, found.consumed_samples)
        )
        fields = ["split", "dataset", "order"]
        fields += [] if grows else ["cache_key", "total_samples"]
        # The order depends on both if each rank has a separate range.
        fields += ["ranks", "micro_batch_size"] if self._kind == "sharded" else []
        differing = [
            f"the sampler's state is of another run: {name} is {getattr(found, name)!r}, expected "
            f"{getattr(own, name)!r}"
            for name in fields
            if None not in (getattr(found, name), getattr(own, name))
            and getattr(found, name) != getattr(own, name)
        ]
        if differing:
            raise ConfigError(*differing)
        _require_whole_steps(found, own)
        if own.deal is not None:
            _require_aligned(Deal.parse(own.deal), found.consumed_samples, self.step)
        self.consumed_samples = found.consumed_samples
        if not grows:
            self._epoch_samples = found.epoch_samples
            self._shuffled_samples = found.shuffled_samples
        self._order = self._make_order()

    def _read_state(self, state: Any) -> _State:
        if not isinstance(state, dict):
            kind = type(state).__name__
            raise ConfigError(f"a sampler's state is a dict, found {kind}")
        try:
            found = msgspec.convert(state, _State)
        except msgspec.ValidationError as error:
            raise ConfigError(f"not the state of a sampler: {error}") from error
        problems = []
        if found.version != VERSION:
            problems.append(f"version is {found.version}, expected {VERSION}")
        if not 0 < found.epoch_samples <= found.total_samples and found.order != "sequential":
            problems.append(f"epoch_samples is {found.epoch_samples} of {found.total_samples}")
        if not found.epoch_samples <= found.shuffled_samples <= found.total_samples:
            problems.append(f"shuffled_samples is {found.shuffled_samples}")
        if found.order == "sequential" and found.consumed_samples > found.total_samples:
            problems.append(
                f"consumed_samples is {found.consumed_samples} of {found.total_samples}"
            )
        problems = problems or _beyond_limits(found.consumed_samples, found.epoch_samples or 1)
        if problems:
            raise ConfigError(*(f"not the state of a sampler: {problem}" for problem in problems))
        return found
