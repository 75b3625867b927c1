"""The configuration: what to build, with Megatron's defaults."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

__all__ = ["SPLITS", "Blend", "BlendPerSplit", "Config", "Samples", "Slurm", "Source"]

SPLITS = ("train", "valid", "test")

Count = Annotated[int, Meta(ge=0, le=2**62)]
Weight = Annotated[float, Meta(ge=0, le=1e300)]
Path = Annotated[str, Meta(min_length=1)]


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A corpus of a blend: its path prefix and, in a weighted blend, its weight."""

    path: Path
    weight: Weight | None = None


Blend = Annotated[tuple[Source | Path, ...], Meta(min_length=1)]


class BlendPerSplit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A blend of its own for each split; a split without one is not built."""

    train: Blend | None = None
    valid: Blend | None = None
    test: Blend | None = None


class Samples(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Samples to draw per split; null is one epoch. A split that is not named draws none."""

    train: Count | None = 0
    valid: Count | msgspec.UnsetType | None = msgspec.UNSET
    test: Count | None = 0


class Slurm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of the pre-job that `submit` submits: words of sbatch, and of the srun in it."""

    sbatch: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    srun: tuple[Annotated[str, Meta(min_length=1)], ...] = ()


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole configuration.

    Attributes
    ----------
    sequence_length : int
        Tokens per sample, without the extra one.
    seed : int
        Of every section's generator.
    samples : Samples or None
        None is one epoch of every split.
    blend, split : Blend, str
        One blend that is cut into splits, as in "99,1,0".
    blend_per_split : BlendPerSplit
        Instead of the two: a blend for each split, which uses its corpora whole.
    mid_level_dataset_surplus : float
        Share of samples that a weighted blend's sections are built beyond their target.
    add_extra_token : bool
        Whether samples overlap by one token, so that labels need no padding.
    drop_last_partial_validation_sequence : bool
        Whether the validation split ends at its last whole sample.
    multiple_validation_sets : bool
        Whether each corpus of ``blend_per_split.valid`` is a validation set of its own.
    full_validation : bool
        Whether validation runs over one whole epoch.
    tokenizer : dict or None
        Megatron's ``unique_identifiers`` of the tokenizer, or ``{"description": FILE}`` to take
        them from a description that Megatron wrote. Enters Megatron's names only.
    mixed_tokenizers : bool
        Whether receipts of corpora may name different tokenizers. Changes no array.
    slurm : Slurm or None
        For `submit` alone. Changes no array.
    """

    sequence_length: Annotated[int, Meta(ge=2, le=2**31 - 2)]
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 1234
    samples: Samples | None = None
    split: str | None = None
    blend: Blend | None = None
    blend_per_split: BlendPerSplit | None = None
    mid_level_dataset_surplus: Annotated[float, Meta(ge=0, le=1e6)] = 0.005
    add_extra_token: bool = True
    drop_last_partial_validation_sequence: bool = True
    multiple_validation_sets: bool = False
    full_validation: bool = False
    tokenizer: dict[str, Any] | None = None
    mixed_tokenizers: bool = False
    slurm: Slurm | None = None

    def samples_of(self, split: str) -> int | None:
        """Return the samples to draw from a split; None is one epoch."""
        if self.samples is None:
            return None
        wanted = getattr(self.samples, split)
        if wanted is msgspec.UNSET:
            return None if self.full_validation else 0
        return int(wanted) if wanted is not None else None

    def blends(self) -> dict[str, tuple[Source, ...]]:
        """Return the blend of each split that has one, every entry as a `Source`."""
        if self.blend is not None:
            return dict.fromkeys(SPLITS, as_sources(self.blend))
        named = {split: getattr(self.blend_per_split, split, None) for split in SPLITS}
        return {split: as_sources(blend) for split, blend in named.items() if blend is not None}

    def prefixes(self) -> list[str]:
        """Return the path prefix of every corpus once, in the order of first mention."""
        sources = (source for blend in self.blends().values() for source in blend)
        return list(dict.fromkeys(source.path for source in sources))


def as_sources(blend: tuple[Source | str, ...]) -> tuple[Source, ...]:
    """Return a blend with bare paths made into sources without weight."""
    return tuple(Source(entry) if isinstance(entry, str) else entry for entry in blend)
