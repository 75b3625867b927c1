"""The plan: pure data that describes every array of a cache before the build."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import numpy as np

from distcache.corpus import CorpusFacts
from distcache.plan.sizes import Cut, SectionSize

NARROW = np.iinfo(np.int32).max
WIDE_SHUFFLE = np.iinfo(np.uint32).max - 1


class SectionPlan(msgspec.Struct, frozen=True):
    """The three arrays of one corpus and split.

    Attributes
    ----------
    key : str
        The section's identity, by which another cache or a journal can supply it.
    source : int
        Index into `Plan.sources`.
    begin, end : int
        The split's range of sequences.
    tokens : int
        Tokens of one epoch.
    seed : int
        Seed of the generator.
    cut : Cut
        Rules by which samples are cut.
    size : SectionSize
        Epochs and samples.
    order : str
        Shuffle of the section: ``megatron``, ``passes`` or ``windows``.
    window : int or None
        Shards of a window.
    rows : bool
        Whether its samples are sequences as they are, in the order of the document index, which is
        its only array.
    """

    key: str
    source: int
    begin: int
    end: int
    tokens: int
    seed: int
    cut: Cut
    size: SectionSize
    order: str = "megatron"
    window: int | None = None
    rows: bool = False

    @property
    def documents(self) -> int:
        """Entries of the document index."""
        return self.size.epochs * (self.end - self.begin)

    @property
    def first_documents(self) -> int:
        """Entries of the document index that are shuffled first: all, or all but one epoch."""
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

    @property
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
    """A section's place in a split: which corpus asks for how much of which section.

    Attributes
    ----------
    split : str
        "train", "valid" or "test".
    source : int
        Index into `Plan.sources`.
    section : int
        Index into `Plan.sections`; members may share one.
    requested : int or None
        Samples asked for, which enter Megatron's names.
    blend : int or None
        Index into `Plan.blends`; None for a section that stands alone.
    weight : float or None
        Normalized weight in the blend; None in an exhaustive one.
    """

    split: str
    source: int
    section: int
    requested: int | None
    blend: int | None = None
    weight: float | None = None


class BlendPlan(msgspec.Struct, frozen=True):
    """The two arrays of one split over several sections.

    Attributes
    ----------
    key : str
        The blend's identity.
    split : str
        "train", "valid" or "test".
    weights : tuple of float
        Normalized; empty in an exhaustive blend.
    sizes : tuple of int
        Samples of each section, taken whole by an exhaustive blend; empty otherwise.
    size : int
        Samples of the blend.
    fused : bool
        Whether ``weight * step - taken`` is rounded once.
    """

    key: str
    split: str
    weights: tuple[float, ...]
    sizes: tuple[int, ...]
    size: int
    fused: bool = False

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


class Plan(msgspec.Struct, frozen=True, dict=True):
    """Everything that a configuration asks for.

    Attributes
    ----------
    key : str
        The cache's identity.
    identity : dict
        The document that the key is the digest of.
    naming : dict
        Parts of Megatron's names and options that the plan does not decide: split string,
        split matrix, tokenizer, the blends by source and weight, and the tokenizer of each
        source, as far as its receipt says it.
    sources : tuple of CorpusFacts
        The corpora.
    sections, blends, members : tuple
        The arrays to build, and which corpus of which split uses them.
    """

    key: str
    identity: dict[str, Any]
    naming: dict[str, Any]
    sources: tuple[CorpusFacts, ...]
    sections: tuple[SectionPlan, ...]
    blends: tuple[BlendPlan, ...]
    members: tuple[Member, ...]

    @functools.cached_property
    def items(self) -> tuple[SectionPlan | BlendPlan, ...]:
        """Everything that has arrays: the sections, then the blends."""
        return self.sections + self.blends
