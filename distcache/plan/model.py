"""The plan: pure data that describes every array of a cache before the build."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from distcache.corpus import CorpusFacts
from distcache.plan.packing import Packed
from distcache.plan.phases import BlendPhase
from distcache.plan.sizes import Cut, SectionSize

NARROW = np.iinfo(np.int32).max
STRIPE = 1 << 20  # bytes of an array; slices of ranks are multiples of it
WIDE_SHUFFLE = np.iinfo(np.uint32).max - 1


def nbytes_of(dtype: str, shape: Iterable[int]) -> int:
    """Return the bytes of an array."""
    return np.dtype(dtype).itemsize * math.prod(shape)


class SectionPlan(msgspec.Struct, frozen=True, dict=True):
    """The three arrays of one corpus and split."""

    key: str  # the section's identity, by which another cache or a journal can supply it
    source: int  # index into `Plan.sources`
    # the split's range of sequences
    begin: int
    end: int
    tokens: int  # tokens of one pass
    seed: int  # seed of the generator
    cut: Cut  # rules by which samples are cut
    size: SectionSize  # passes and samples
    order: str = "megatron"  # shuffle of the section: a name in `distcache.plan.orders`
    window: int | None = None  # shards of a window
    # whether its samples are sequences as they are, in the order of the document index, which is
    # its only array
    rows: bool = False
    packed: Packed | None = None  # how its samples are packed, if they are

    @property
    def documents(self) -> int:
        """Entries of the document index."""
        if self.packed is not None:  # the last one is in no row: it ends the last row
            return self.size.passes * self.packed.documents + 1
        return self.size.passes * (self.end - self.begin)

    @property
    def first_documents(self) -> int:
        """Entries of the document index that are shuffled first: all, or all but one pass."""
        apart = self.size.separate_samples is not None
        return self.documents - (self.end - self.begin if apart else 0)

    @property
    def first_samples(self) -> int:
        """Entries of the shuffle index that are shuffled first."""
        separate = self.size.separate_samples
        return self.size.samples if separate is None else separate

    @property
    def shuffled_samples(self) -> int:
        """Entries of the shuffle index."""
        return max(self.first_samples, self.size.samples)

    @property
    def sample_type(self) -> str:
        """The sample index's dtype: narrow while positions and offsets fit in 32 bits."""
        return "<i4" if self.documents <= NARROW else "<i8"

    @property
    def shuffle_type(self) -> str:
        """The shuffle index's dtype."""
        return "<u4" if self.size.samples < WIDE_SHUFFLE else "<i8"

    @functools.cached_property
    def arrays(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The dtype and shape of each array, in the order of the file."""
        if self.rows:
            return {"document_index": ("<i4", (self.documents,))}
        return {
            "document_index": ("<i4", (self.documents,)),
            "sample_index": (self.sample_type, (self.size.samples + 1, 2)),
            "shuffle_index": (self.shuffle_type, (self.shuffled_samples,)),
        }


class Member(msgspec.Struct, frozen=True):
    """A section's place in a split: which corpus asks for how much of which section."""

    split: str  # "train", "valid" or "test"
    source: int  # index into `Plan.sources`
    section: int  # index into `Plan.sections`; members may share one
    requested: int | None  # samples asked for, which are part of Megatron's names
    blend: int | None = None  # index into `Plan.blends`; None for a section without a blend
    weight: float | None = None  # normalized weight in the blend; None in an exhaustive one


class BlendPlan(msgspec.Struct, frozen=True):
    """The two arrays of one split over several sections."""

    key: str  # the blend's identity
    split: str  # "train", "valid" or "test"
    weights: tuple[float, ...]  # normalized; empty in an exhaustive blend
    # samples of each section, taken whole by an exhaustive blend; empty otherwise
    sizes: tuple[int, ...]
    size: int  # samples of the blend
    fused: bool = False  # whether ``weight * step - taken`` is rounded once
    phases: tuple[BlendPhase, ...] = ()  # where the weights change; empty if they never do

    @property
    def exhaustive(self) -> bool:
        """Whether each section is taken whole."""
        return bool(self.sizes)

    @property
    def arrays(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The dtype and shape of each array, in the order of the file."""
        return {
            "dataset_index": ("<i2", (self.size,)),
            "dataset_sample_index": ("<i8", (self.size,)),
        }


class CorpusEpochs(msgspec.Struct, frozen=True):
    """How often training sees a corpus."""

    corpus: str  # path prefix
    share: float  # share of the samples
    samples: float  # samples that training draws of it, in the mean
    epochs: float


class Plan(msgspec.Struct, frozen=True, dict=True):
    """Everything that a configuration asks for."""

    key: str  # the cache's identity
    identity: dict[str, Any]  # the document that the key is the digest of
    # parts of Megatron's names and options that the plan does not decide: split string, split
    # matrix, tokenizer, the blends by source and weight, and the tokenizer of each source, as far
    # as its receipt says it
    naming: dict[str, Any]
    sources: tuple[CorpusFacts, ...]  # the corpora
    # the arrays to build, and which corpus of which split uses them
    sections: tuple[SectionPlan, ...]
    blends: tuple[BlendPlan, ...]
    members: tuple[Member, ...]
    # of training, if the configuration names epochs or limits them
    epochs: tuple[CorpusEpochs, ...] = ()

    @functools.cached_property
    def items(self) -> tuple[SectionPlan | BlendPlan, ...]:
        """Everything that has arrays: the sections, then the blends."""
        return self.sections + self.blends
