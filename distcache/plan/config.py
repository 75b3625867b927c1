"""The configuration: what to build, with Megatron's defaults; and the key of what is built.

A key is the SHA-256 over the canonical JSON of all that changes arrays, and nothing else.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from distcache.corpus import CorpusFacts
from distcache.storage.threads import decodable

SPLITS = ("train", "valid", "test")
Count = Annotated[int, Meta(ge=0, le=2**62)]
Positive = Annotated[int, Meta(ge=1, le=2**62)]
Weight = Annotated[float, Meta(ge=0, le=1e300)]
Path = Annotated[str, Meta(min_length=1)]
DEFAULT_WINDOW: Final = 16  # shards
OrderName = Literal["megatron", "passes", "windows", "packed"]
BlendArithmetic = Literal["separate", "fused"]


class BlendEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A corpus of a blend."""

    path: Path  # path prefix of the corpus
    weight: Weight | None = None  # weight in a weighted blend
    # samples of a validation set of its own; by default as many as of the others
    samples: Count | None = None


Blend = Annotated[tuple[BlendEntry | Path, ...], Meta(min_length=1)]


class BlendPerSplit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A separate blend for each split; a split without one is not built."""

    train: Blend | None = None
    valid: Blend | None = None
    test: Blend | None = None


class Samples(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Samples to draw per split; null is one pass. A split that is not named draws none."""

    train: Count | None = 0
    valid: Count | msgspec.UnsetType | None = msgspec.UNSET
    test: Count | None = 0


class Phase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of training with its own weights, and how long it is: one of three ways."""

    weights: Annotated[tuple[Weight, ...], Meta(min_length=1)]  # of the corpora, in order
    samples: Positive | None = None
    tokens: Positive | None = None  # rounded up to whole samples
    steps: Positive | None = None  # of `batch_size` samples each
    batch_size: Positive | None = None

    def samples_of(self, sequence_length: int) -> int | None:
        """Return the samples of the phase; None if it is not said in exactly one way."""
        by_steps = self.steps is not None and self.batch_size is not None
        ways = (self.samples is not None, self.tokens is not None, self.steps is not None)
        if sum(ways) != 1 or (self.batch_size is not None) != by_steps:
            return None
        if self.tokens is not None:
            return -(-self.tokens // sequence_length)
        if self.steps is not None:
            return self.steps * self.batch_size if self.batch_size is not None else None
        return self.samples


class Continue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cache of which training has consumed samples, and which this one continues."""

    cache: Path
    samples: Positive


class GoneCorpus(msgspec.Struct, frozen=True):
    """A corpus that lacks a file, as the cache that is continued describes it."""

    facts: CorpusFacts
    tokens: dict[str, int]  # tokens of sequences [begin, end), by ``begin:end``
    sections: tuple[str, ...]  # keys of its sections, which are copied


class Continued(msgspec.Struct, frozen=True):
    """What a cache has from the one that it continues."""

    # path and key of the other one
    path: str
    key: str
    samples: int  # samples of training that were consumed there
    # of each corpus of training: samples that were requested of its section, and a key of the
    # corpus; None for corpora that the other cache does not have
    requested: tuple[int | None, ...]
    corpora: tuple[str | None, ...]
    # places of corpora that no phase draws which follows: no sample of another split is of them
    ended: tuple[int, ...] = ()
    gone: dict[str, GoneCorpus] = {}  # those of them that lack a file, by prefix


class Slurm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of the pre-job of `submit`: arguments of sbatch, and of the srun in it."""

    sbatch: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    srun: tuple[Annotated[str, Meta(min_length=1)], ...] = ()


@decodable
class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole configuration."""

    # tokens per sample, without the extra one; 1 for rows
    sequence_length: Annotated[int, Meta(ge=1, le=2**31 - 2)]
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 1234  # seed of every section's generator
    samples: Samples | None = None  # none is one pass of every split
    split: str | None = None
    # one blend that is cut into splits, as in "99,1,0"
    blend: Blend | None = None
    # instead of the two: a blend for each split, which uses its corpora whole
    blend_per_split: BlendPerSplit | None = None
    # share of samples that a weighted blend's sections are built beyond their target
    mid_level_dataset_surplus: Annotated[float, Meta(ge=0, le=1e6)] = 0.005
    # whether samples overlap by one token, so that labels need no padding
    add_extra_token: bool = True
    # whether the validation split ends at its last whole sample
    drop_last_partial_validation_sequence: bool = True
    # "separate" or "fused": how Megatron's helper was compiled where it runs, by which errors of a
    # blend are rounded twice, as on x86-64, or once, as on AArch64
    blend_arithmetic: BlendArithmetic = "separate"
    # whether each corpus of ``blend_per_split.valid`` is a validation set of its own
    multiple_validation_sets: bool = False
    full_validation: bool = False  # whether validation runs over one whole pass
    # Megatron's ``unique_identifiers`` of the tokenizer; or ``{"description": FILE}`` to take them
    # from a description that Megatron wrote; or ``{"megatron": RELEASE, ...}`` with Megatron's
    # options of the tokenizer. Enters Megatron's names only.
    tokenizer: dict[str, Any] | None = None
    # Whether training is given ``--fim-data``. Enters Megatron's names only.
    fim_data: bool = False
    # Whether receipts of corpora may name different tokenizers. Changes no array.
    mixed_tokenizers: bool = False
    # parts of training with weights of their own, in the place of weights and of samples.train
    phases: Annotated[tuple[Phase, ...], Meta(min_length=1)] | None = None
    # a cache whose blend and sections this one continues with its phases
    continue_: Continue | None = msgspec.field(default=None, name="continue")
    continued: Continued | None = None  # what was read of it
    slurm: Slurm | None = None  # options for `submit`, which change no array
    # shuffle of sections: as Megatron does, in passes that are a permutation each, within windows
    # of shards, or in passes of rows that are packed with whole documents
    order: OrderName = "megatron"
    window: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None  # shards of a window
    # documents of a packed sample, at most; null for any number
    documents_per_sample: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    longer: Literal["cut", "drop"] = "cut"  # packed: documents longer than a row
    # Whether these are the options of a training command, which asks for samples of every split.
    # Changes no array.
    of_command: bool = False

    @property
    def shards_of_window(self) -> int:
        """Shards of a window, of an order that has them."""
        return self.window or DEFAULT_WINDOW

    def samples_of(self, split: str) -> int | None:
        """Return the samples to draw from a split; None is one pass."""
        if self.samples is None:
            return None
        wanted = getattr(self.samples, split)
        if wanted is msgspec.UNSET:
            return None if self.full_validation else 0
        return int(wanted) if wanted is not None else None

    def blends(self) -> dict[str, tuple[BlendEntry, ...]]:
        """Return the blend of each split that has one, every entry as a `BlendEntry`."""
        if self.blend is not None:
            return dict.fromkeys(SPLITS, as_sources(self.blend))
        named = {split: getattr(self.blend_per_split, split, None) for split in SPLITS}
        return {split: as_sources(blend) for split, blend in named.items() if blend is not None}

    def prefixes(self) -> list[str]:
        """Return the path prefix of every corpus once, in the order of first mention."""
        sources = (source for blend in self.blends().values() for source in blend)
        return list(dict.fromkeys(source.path for source in sources))


def as_sources(blend: tuple[BlendEntry | str, ...]) -> tuple[BlendEntry, ...]:
    """Return a blend with bare paths turned into entries without weight."""
    return tuple(BlendEntry(entry) if isinstance(entry, str) else entry for entry in blend)


def canonical_json(document: object) -> str:
    """Return the one JSON text of a document: keys sorted, no white space, ASCII only."""
    return json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def key_of(document: object) -> str:
    """Return the SHA-256 of a document's canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(document).encode("ascii")).hexdigest()
