"""Steps of equal work: which sample of a step each rank and micro batch gets.

Where attention stays within documents, the work of a sample grows with the squares of their
lengths, and the ranks of a step wait for the one that has the longest documents. A deal exchanges
samples within steps: each step keeps its samples, and each rank gets an equal part of the work.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterator
from typing import Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.cache.split_members import SplitMembers
from distcache.corpus.source_rows import grouped
from distcache.errors import CacheCorrupt, ConfigError
from distcache.kernels import Section, deal_steps

TEXT: Final = re.compile(r"(\d{1,9})x(\d{1,9})x(\d{1,9})(?:@(\d{1,18}))?", re.ASCII)
CHUNK_SAMPLES: Final = 1 << 20  # samples that are dealt at a time, in whole steps
KEPT_STEPS: Final = 8  # steps whose deal a reader keeps
# Sums of squares of a step: of all samples; of the heaviest rank; and of the heaviest rank of each
# micro batch, added up: with the samples in order, and dealt.
WORK: Final = ("total", "in_order", "dealt", "in_order_by_micro_batch", "dealt_by_micro_batch")


class Deal(msgspec.Struct, frozen=True):
    """The shape of steps: ``BATCHxRANKSxMICRO``, with ``@BEGIN`` if the first begins later."""

    batch: int  # samples of a step
    ranks: int  # data-parallel ranks
    micro_batch: int  # samples of a micro batch
    begin: int = 0  # sample at which the first step begins; samples before it keep their order

    def __post_init__(self) -> None:
        if min(self.batch, self.ranks, self.micro_batch, self.begin + 1) < 1 or self.batch % (
            self.ranks * self.micro_batch
        ):
            raise ConfigError(
                f"deal {self}: a step of {self.batch} samples does not have whole micro batches of "
                f"{self.micro_batch} for {self.ranks} ranks"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a deal.

        Raises
        ------
        ConfigError
            If the text is no deal, or a batch does not have whole micro batches of all ranks.
        """
        found = TEXT.fullmatch(text)
        if found is None:
            raise ConfigError(
                f"deal {text!r}: expected BATCHxRANKSxMICRO, as 1024x64x1: samples of a step, "
                "data-parallel ranks, and samples of a micro batch; and @BEGIN, if the first step "
                "begins at another sample than 0"
            )
        batch, ranks, micro_batch = (int(number) for number in found.groups()[:3])
        return cls(batch, ranks, micro_batch, int(found[4] or 0))

    def __str__(self) -> str:
        later = f"@{self.begin}" if self.begin else ""
        return f"{self.batch}x{self.ranks}x{self.micro_batch}{later}"

    def is_within_step(self, consumed: int) -> bool:
        """Return whether training that has consumed so many samples is within a step."""
        return consumed > self.begin and (consumed - self.begin) % self.batch != 0

    def is_for(self, micro_batch: int, ranks: int) -> bool:
        """Return whether ranks that take such micro batches have equal work.

        Micro batches must be those of the deal; of fewer ranks, each has the samples of several.
        """
        return micro_batch == self.micro_batch and self.ranks % ranks == 0


class DealtSplit:
    """The steps of a split, dealt. A last step that is not whole keeps its order.

    Training takes the samples of a split by *places*: 0, 1, 2 and so on. A deal says at which
    *position* of the split the sample of each place is.

    Parameters
    ----------
    split : SplitMembers
        The split, of tokens.
    deal : Deal
        Shape of the steps.
    section : callable
        Returns the arrays of a member.

    Raises
    ------
    ConfigError
        If the split has no whole step, or the first sample that training reads of a cache that
        continues another is within a step.
    """

    def __init__(self, split: SplitMembers, deal: Deal, section: Callable[[int], Section]) -> None:
        steps = (split.size - deal.begin) // deal.batch
        if steps < 1:
            raise ConfigError(
                f"deal {deal}: a step has {deal.batch} samples, and split {split.split!r} of "
                f"{split.cache.path} has {max(split.size - deal.begin, 0)}"
            )
        continued = split.cache.identity.get("continue") if split.split == "train" else None
        if continued is not None and deal.is_within_step(continued["samples"]):
            first = continued["samples"]
            raise ConfigError(
                f"deal {deal}: {split.cache.path} continues another cache at sample {first}, which "
                f"is within a step; give {msgspec.structs.replace(deal, begin=first)}"
            )
        self.deal = deal
        self.steps = steps
        self._split = split
        self._section = section
        self._sections: list[Section | None] = [None] * len(split.pairs)
        self._dealt: Callable[[int], NDArray[np.int64]]
        self._dealt = functools.lru_cache(KEPT_STEPS)(self._deal_one)
        self._lock = threading.Lock()  # several threads may read a dataset

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Yield the first step of each chunk of all steps, and the one after its last."""
        each = max(CHUNK_SAMPLES // self.deal.batch, 1)
        for first in range(0, self.steps, each):
            yield first, min(first + each, self.steps)

    def deal_steps(self, first: int, last: int) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
        """Deal steps [first, last).

        Returns
        -------
        within : ndarray of uint32, shape (steps, batch)
            Sample of its step that each place gets.
        work : ndarray of float64, shape (steps, 5)
            Sums of squares, in the order of `WORK`.

        Raises
        ------
        CacheCorrupt
            If the arrays lead outside of one another.
        """
        batch, begin = self.deal.batch, self.deal.begin
        members, samples = self._split.between(begin + first * batch, begin + last * batch)
        within = np.empty((last - first) * batch, np.uint32)
        work = np.empty((last - first, len(WORK)))
        with self._lock:
            for member in np.unique(members).tolist():
                self._split.pair(member)  # which exists
                if self._sections[member] is None:
                    self._sections[member] = self._section(member)
            try:
                deal_steps(
                    self._sections,
                    members,
                    samples,
                    self._split.cache.sequence_length,
                    batch,
                    self.deal.ranks,
                    self.deal.micro_batch,
                    within,
                    work,
                )
            except IndexError as error:
                self._split.cache.require_intact()
                raise CacheCorrupt(
                    f"{self._split.cache.path}: {error}; see `distcache verify`"
                ) from error
        return within.reshape(-1, batch), work

    def positions(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of the sample at each place; raises as `deal_steps`."""
        return self._mapped(places, self._dealt)

    def places(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the place of the sample at each position; raises as `deal_steps`."""
        return self._mapped(positions, lambda step: np.argsort(self._dealt(step)))

    def _mapped(
        self, numbers: NDArray[np.int64], of_step: Callable[[int], NDArray[np.int64]]
    ) -> NDArray[np.int64]:
        """Map numbers of samples within their steps."""
        found = numbers.copy()
        steps, within = np.divmod(numbers - self.deal.begin, self.deal.batch)
        dealt = np.flatnonzero((steps >= 0) & (steps < self.steps))
        for step, chosen in grouped(steps[dealt]):
            here = dealt[chosen]
            found[here] += of_step(step)[within[here]] - within[here]
        return found

    def _deal_one(self, step: int) -> NDArray[np.int64]:
        """Return which sample of a step each place gets."""
        within, _ = self.deal_steps(step, step + 1)
        return np.asarray(within[0], np.int64)
