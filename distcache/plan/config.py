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
Epochs = Annotated[float, Meta(gt=0, le=1e6)]
EpochText = Annotated[str, Meta(pattern=r"^[0-9]{1,6}(\.[0-9]*)? epochs$")]
DEFAULT_WINDOW: Final = 16  # shards
Shuffle = Literal["megatron", "passes", "windows", "none"]
OrderName = Literal[Shuffle, "packed"]
BlendArithmetic = Literal["separate", "fused"]


class BlendEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A corpus of a blend."""

    path: Path  # path prefix of the corpus
    weight: Weight | None = None  # weight in a weighted blend
    epochs: Epochs | None = None  # instead of a weight: how often training sees the corpus
    max_epochs: Epochs | None = None  # how often it may; by default as the configuration says
    # samples of a separate validation set; by default as many as of the others
    samples: Count | None = None


Blend = Annotated[tuple[BlendEntry | Path, ...], Meta(min_length=1)]


class BlendPerSplit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A separate blend for each split; a split without one is not built."""

    train: Blend | None = None
    valid: Blend | None = None
    test: Blend | None = None


class Samples(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Samples to draw per split; null is one pass. A split that is not named draws none."""

    train: Count | EpochText | None = 0
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


MAX_MULTIPLE: Final = 1 << 20  # tokens to whose multiples documents are padded


class Pack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How samples are packed with whole documents."""

    documents: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None  # of a sample, at most
    longer: Literal["cut", "drop"] = "cut"  # documents that are longer than a sample
    # tokens to whose multiples each document is padded in its sample
    pad_to_multiple_of: Annotated[int, Meta(ge=1, le=MAX_MULTIPLE)] = 1


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
    """A whole configuration. Descriptions are those of the schema and of the documentation."""

    sequence_length: Annotated[
        int,
        Meta(
            ge=1, le=2**31 - 2, description="tokens per sample, at least 2; 1 for corpora of rows"
        ),
    ]
    seed: Annotated[
        int, Meta(ge=0, le=2**32 - 1, description="seed of every section's generator")
    ] = 1234
    split: Annotated[
        str | None,
        Meta(description='shares of train, valid and test, as in `"99,1,0"`; `blend` needs it'),
    ] = None
    samples: Annotated[
        Samples | None,
        Meta(
            description="samples of each split: `{train: N, valid: N, test: N}`, training also as "
            "`3 epochs`. null is one pass; a split that is left out has no samples"
        ),
    ] = None
    blend: Annotated[
        Blend | None,
        Meta(
            description="corpora: prefixes, or `{path: PREFIX, weight: W}`, with weights for all "
            "or for none, or with `epochs: E` for all. A separate validation set may have "
            "`samples: N`"
        ),
    ] = None
    blend_per_split: Annotated[
        BlendPerSplit | None,
        Meta(
            description="instead of `blend` and `split`: `{train: [...], valid: [...], test: "
            "[...]}`. Each split uses its corpora whole"
        ),
    ] = None
    max_epochs: Annotated[
        Epochs | None,
        Meta(
            description="how often training may see a corpus: `plan` and `build` refuse more. A "
            "corpus of `blend` may have its own. Changes no array"
        ),
    ] = None
    mid_level_dataset_surplus: Annotated[
        float,
        Meta(
            ge=0,
            le=1e6,
            description="share of samples by which sections of a weighted blend exceed their "
            "target",
        ),
    ] = 0.005
    add_extra_token: Annotated[
        bool, Meta(description="neighbouring samples overlap by one token, for labels")
    ] = True
    drop_last_partial_validation_sequence: Annotated[
        bool, Meta(description="the validation split ends with its last whole sample")
    ] = True
    # how Megatron's helper was compiled where it runs, by which errors of a blend are rounded
    # twice, as on x86-64, or once, as on AArch64
    blend_arithmetic: Annotated[
        BlendArithmetic,
        Meta(description="`separate`, or `fused` if Megatron itself runs on AArch64"),
    ] = "separate"
    shuffle: Annotated[
        Shuffle | None,
        Meta(
            description="`megatron` (all passes together), `passes` (each pass apart), `windows` "
            "(shards, then within windows of shards) or `none`; `passes` with `pack`, else "
            "`megatron` by default"
        ),
    ] = None
    window: Annotated[
        Annotated[int, Meta(ge=1, le=2**31 - 1)] | None,
        Meta(description=f"shards of `shuffle: windows`; {DEFAULT_WINDOW} by default"),
    ] = None
    pack: Annotated[
        Pack | bool | None,
        Meta(
            description="`true`, or `{documents: N, longer: cut, pad_to_multiple_of: M}`: fill "
            "samples with whole documents, at most N of them; `longer: drop` leaves documents out "
            "that are longer than `sequence_length`; each document is padded to a multiple of M "
            "tokens, as context parallelism needs it"
        ),
    ] = False
    continue_: Annotated[
        Continue | None,
        Meta(description="`{cache: PATH, samples: N}`: the cache to continue after N samples"),
    ] = msgspec.field(default=None, name="continue")
    phases: Annotated[
        Annotated[tuple[Phase, ...], Meta(min_length=1)] | None,
        Meta(
            description="list of `{samples: N, weights: [...]}`, instead of weights and "
            "`samples.train`; also with `tokens: N`, or `steps: N, batch_size: N`, and with "
            "weights by name, `{web: 1}`"
        ),
    ] = None
    multiple_validation_sets: Annotated[
        bool, Meta(description="each corpus of `blend_per_split.valid` is a validation set")
    ] = False
    full_validation: Annotated[bool, Meta(description="validation runs over one whole pass")] = (
        False
    )
    tokenizer: Annotated[
        dict[str, Any] | None,
        Meta(
            description="`{megatron: RELEASE, tokenizer_type: ..., tokenizer_model: ...}` with "
            "Megatron's options; or `{description: FILE}`, which Megatron wrote; or the "
            "tokenizer's `unique_identifiers`. Changes only the names of Megatron's files"
        ),
    ] = None
    slurm: Annotated[
        Slurm | None,
        Meta(
            description="`{sbatch: [...], srun: [...]}`: options that every `submit` adds. They "
            "change no array"
        ),
    ] = None
    fim_data: Annotated[
        bool,
        Meta(description="training uses `--fim-data`. Changes only the names of Megatron's files"),
    ] = False
    mixed_tokenizers: Annotated[
        bool, Meta(description="allow corpora whose receipts name different tokenizers")
    ] = False
    continued: Continued | None = None  # what was read of the cache that is continued
    # Whether these are the options of a training command, which asks for samples of every split.
    # Changes no array.
    of_command: bool = False

    @property
    def packing(self) -> Pack | None:
        """How samples are packed; None if they are cut."""
        return Pack() if self.pack is True else self.pack or None

    @property
    def order(self) -> OrderName:
        """The order of samples: the key of `distcache.plan.orders.ORDERS`."""
        return "packed" if self.packing is not None else self.shuffle or "megatron"

    @property
    def shards_of_window(self) -> int:
        """Shards of a window, of an order that has them."""
        return self.window or DEFAULT_WINDOW

    def samples_of(self, split: str) -> int | None:
        """Return the samples to draw from a split; None is one pass."""
        if self.samples is None:
            return None
        wanted = getattr(self.samples, split)
        assert not isinstance(wanted, str), "`distcache.plan.epochs` has turned it into a number"
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


def with_training(config: Config, blend: tuple[BlendEntry, ...]) -> Config:
    """Return a configuration with another blend of training."""
    if config.blend is not None:
        return msgspec.structs.replace(config, blend=blend)
    assert config.blend_per_split is not None, "it has the blend of training"
    per_split = msgspec.structs.replace(config.blend_per_split, train=blend)
    return msgspec.structs.replace(config, blend_per_split=per_split)


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
