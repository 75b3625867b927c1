"""Exports whose steps are dealt: which arrays are permuted, and what training has to do.

An unmodified Megatron takes the samples of a step in order, from the arrays of its blend, or from
the shuffle index of a single corpus. So these are permuted within steps; the cache does not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from distcache.cache.contents import ArrayView, Cache
from distcache.cache.corpus_places import corpus_places
from distcache.cache.deal import CHUNK_SAMPLES, Deal, DealtSplit
from distcache.cache.mapped_section import map_section, open_own_idx
from distcache.cache.split_members import SplitMembers
from distcache.errors import ConfigError
from distcache.kernels import Section
from distcache.megatron.names import NamedArrays, Naming
from distcache.megatron.run_options import RunOptions
from distcache.storage.watchdog import tick

OF_BLENDS: Final = ("dataset_index", "dataset_sample_index")
OF_ONE_CORPUS: Final = ("shuffle_index",)


class DealtOrder:
    """The order of a split whose steps are dealt: for each place, which sample of its step.

    Parameters
    ----------
    dealt : DealtSplit
        The split.
    names : tuple of str
        Names of the arrays that have this order.
    """

    def __init__(self, dealt: DealtSplit, names: tuple[str, ...]) -> None:
        deal = dealt.deal
        self.names = names
        self.begin, self.batch = deal.begin, deal.batch
        self._within = np.empty((dealt.steps, deal.batch), np.min_scalar_type(deal.batch - 1))
        for first, last in dealt.chunks():
            self._within[first:last], _ = dealt.deal_steps(first, last)
            tick()

    def is_of(self, entry: NamedArrays, view: ArrayView) -> bool:
        """Return whether an array of an export has this order: of training alone."""
        return entry.split == "train" and view.name in self.names

    def pieces(self, values: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """Yield an array in this order; values that are in no whole step keep their places."""
        yield values[: self.begin]
        each = max(CHUNK_SAMPLES // self.batch, 1)
        for first in range(0, len(self._within), each):
            within = self._within[first : first + each]
            begin = self.begin + first * self.batch
            steps = values[begin : begin + within.size].reshape(-1, self.batch)
            yield np.take_along_axis(steps, within.astype(np.intp), axis=1).reshape(-1)
        yield values[self.begin + self._within.size :]


def dealt_order(cache: Cache, naming: Naming, deal: Deal) -> DealtOrder:
    """Return the order of the samples of training.

    Raises
    ------
    ConfigError
        If the steps cannot be dealt, or training would not take them in order.
    """
    if naming.automodel:
        raise ConfigError(f"--deal {deal}: NeMo Automodel shuffles samples itself")
    split = SplitMembers(cache, "train")
    for _, source in split.pairs:
        if cache.columns_of(source):
            raise ConfigError(
                f"--deal {deal}: {cache.prefixes[source]} consists of rows, not of tokens"
            )
    places = corpus_places(cache)

    def section(member: int) -> Section:
        row, source = split.pairs[member]
        return map_section(cache, row, open_own_idx(cache, source, places[source]))

    return DealtOrder(
        DealtSplit(split, deal, section), OF_BLENDS if split.is_blend else OF_ONE_CORPUS
    )


def needs_of(deal: Deal) -> list[str]:
    """Return the options that training needs."""
    found = [
        f"the steps are dealt as {deal}: train with --global-batch-size {deal.batch} and "
        f"--micro-batch-size {deal.micro_batch} on {deal.ranks} data-parallel ranks, or on a "
        "number of ranks that divides it, without a ramp of the batch size"
    ]
    if deal.micro_batch > 1:
        found.append(
            "micro batches have other samples than without the deal: give "
            "--calculate-per-token-loss, or the loss weighs tokens in another way"
        )
    return found


def deal_problems(deal: Deal, options: RunOptions) -> list[str]:
    """Return the options of a run by which its steps are not those of a deal.

    The number of ranks counts if the options say it.
    """
    training = options.training
    asked: dict[str, tuple[Any, Any]] = {
        "--global-batch-size": (training.global_batch_size, deal.batch),
        "--micro-batch-size": (training.micro_batch_size, deal.micro_batch),
        "--dataloader-type": (options.dataloader_type, "single"),
        "--rampup-batch-size": (training.rampup_batch_size, None),
        "--step-batch-size-schedule": (training.step_batch_size_schedule, None),
    }
    found = [
        f"dealt as {deal}: train {f'with {option} {needed}' if needed else f'without {option}'}, "
        f"not {'without it' if given is None else f'with {given}'}"
        for option, (given, needed) in asked.items()
        if given != needed
    ]
    ranks = training.data_parallel_size
    if ranks is not None and deal.ranks % ranks:
        found.append(f"dealt as {deal}: train on {deal.ranks} data-parallel ranks, not on {ranks}")
    return found
