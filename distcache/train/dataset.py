"""Samples of a cache as a torch dataset, equal to Megatron-Core's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

import msgspec
import numpy as np
import torch
from torch.utils.data import Dataset

from distcache.errors import ConfigError
from distcache.extras import needing
from distcache.kernels import SampleRules
from distcache.storage.threads import decodable
from distcache.train.batch import BatchMemory, BatchRow, attention_masks, rows_of
from distcache.train.open_files import CacheHandle, OpenFiles
from distcache.train.provenance import SamplePart, parts_of, text_of
from distcache.train.reading import SampleReader
from distcache.train.split import OpenSplit, SplitDataset, position_of

NO_TOKEN = np.iinfo(np.int64).min
Token = Annotated[int, msgspec.Meta(ge=1 - 2**63, le=2**63 - 1)]


class CachedDataset(SplitDataset[SampleReader], Dataset[dict[str, torch.Tensor]]):
    """The samples of a split, in the order of Megatron's indices.

    ``dataset[i]`` is a sample: a dict of tensors ``tokens``, ``labels`` and ``position_ids``
    (int64), ``loss_mask`` (float32), each of shape (sequence length,), and by the options
    ``attention_mask`` (bool, (1, length, length)), ``cu_seqlens`` (int32, (length + 1,)) and
    ``max_seqlen`` (int32); in a blend also ``dataset_id`` (int16), and where asked ``position``
    (int64), by which `distcache.trace` says what a sample consists of. ``dataset[None]`` is a
    sample without loss, at position -1, with which Megatron pads batches. A `DataLoader` reads
    whole batches at once.

    Each process opens the files when it first uses them; a dataset may be pickled, and used before
    and after a fork.

    Parameters
    ----------
    handle : CacheHandle
        The cache.
    split : str
        "train", "valid" or "test".
    options : SampleOptions
        Rules by which samples are made.
    number : int
        Number of the validation set, where there are several.
    opened : OpenFiles or None
        The cache, if this process has it open.
    """

    def __init__(
        self,
        handle: CacheHandle,
        split: str,
        options: SampleOptions,
        number: int = 0,
        opened: OpenFiles | None = None,
    ) -> None:
        self.options = options
        self._memory = BatchMemory()
        super().__init__(handle, split, number, opened)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._memory = BatchMemory()

    def __repr__(self) -> str:
        split = self._here().split
        length = split.files.cache.sequence_length
        return f"<{self._name()}: {split.size} samples of {length} tokens>"

    def __getitem__(self, index: int | None) -> dict[str, torch.Tensor]:
        return {name: values[0] for name, values in self._read([index], whole=False).items()}

    def __getitems__(self, indices: Sequence[int | None]) -> list[BatchRow]:
        """Return several samples that are read together; called by `DataLoader`."""
        return rows_of(self._read(indices, whole=True)) if len(indices) else []

    def corpus_of(self, index: int) -> str:
        """Return the corpus of a sample, without suffix, as the cache was built from it."""
        return self._here().split.files.cache.prefixes[self._member_of(index)[1]]

    def document_of(self, index: int) -> list[SamplePart]:
        """Return which tokens of which documents a sample consists of, in their order.

        With `add_extra_token`, as by default, these are one token more than the sample is long:
        the last label.
        """
        section, source, sample = self._member_of(index)
        return parts_of(self._here().split.files, section, source, sample)

    def text_of(self, index: int, tokenizer: str | None = None) -> str:
        """Return the text of a sample.

        Parameters
        ----------
        index : int
            Number of the sample.
        tokenizer : str or None
            A tokenizer as `distcache ingest text --tokenizer` takes it; by default the one that the
            receipt beside the corpus names.

        Raises
        ------
        ConfigError
            If no tokenizer is known, or its library is not installed.
        """
        tokens = self[index]["tokens"].tolist()
        with needing("text_of()"):
            return text_of(self._here().split.files, self._member_of(index)[1], tokens, tokenizer)

    def _member_of(self, index: int) -> tuple[int, int, int]:
        """Return section, source and number in the section of a sample."""
        split = self._here().split
        member, sample = split.look_up(
            np.array([position_of(index, split.size, "sample")], np.int64)
        )
        section, source = split.pairs[int(member[0])]
        return section, source, int(sample[0])

    def _read(self, indices: Sequence[int | None], *, whole: bool) -> dict[str, torch.Tensor]:
        """Read samples into new tensors, a row each; `whole` if they stay together as a batch."""
        here = self._here()
        size, length = here.split.size, here.split.files.cache.sequence_length
        # None fills up the last batch, with the first sample as in Megatron.
        positions = np.array(
            [0 if index is None else position_of(index, size, "sample") for index in indices],
            np.int64,
        )
        members, samples = here.split.look_up(positions)
        batch = self._new_batch(len(positions), length, whole=whole)
        arrays = {_KERNEL_NAMES[name]: values.numpy() for name, values in batch.items()}
        ends = self._new_ends(len(positions), length)
        if ends is not None:
            arrays["ends"] = ends.numpy()
        readings = [getattr(index, "reading", None) for index in indices]
        here.read(members.tolist(), samples, arrays, readings)
        for row, index in enumerate(indices):
            if index is None:
                batch["loss_mask"][row] = 0.0
        if self.options.has_attention_mask:
            batch["attention_mask"] = attention_masks(ends, len(positions), length)
        if self.options.position:
            known = [
                -1 if index is None else place
                for index, place in zip(indices, positions, strict=True)
            ]
            batch = {"position": torch.tensor(known, dtype=torch.int64), **batch}
        if here.split.is_blend:
            batch = {"dataset_id": torch.from_numpy(members), **batch}
        return batch

    def _new_batch(self, rows: int, length: int, *, whole: bool) -> dict[str, torch.Tensor]:
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "tokens": ((rows, length), torch.int64),
            "labels": ((rows, length), torch.int64),
            "loss_mask": ((rows, length), torch.float32),
            "position_ids": ((rows, length), torch.int64),
        }
        if self.options.inter_document_masking:
            shapes["cu_seqlens"] = ((rows, length + 1), torch.int32)
            shapes["max_seqlen"] = ((rows,), torch.int32)
        return self._memory.tensors(shapes, batch=whole)

    def _new_ends(self, rows: int, length: int) -> torch.Tensor | None:
        """Return the array in which the kernel marks the ends of documents, if masks need it."""
        if not (self.options.has_attention_mask and self.options.reset_attention_mask):
            return None
        return torch.empty(rows, length, dtype=torch.uint8)

    def _make_reader(self, split: OpenSplit) -> SampleReader:
        cache = split.files.cache
        for _, source in split.pairs:
            if cache.columns_of(source):
                raise ConfigError(
                    f"{cache.prefixes[source]}: consists of rows; open it with cache.rows(...)"
                )
        options = self.options
        end = NO_TOKEN if options.eod is None else options.eod
        rules = SampleRules(options.padding, end, options.eod_mask_loss, options.reset_position_ids)
        return SampleReader(split, rules)


_KERNEL_NAMES = {
    "tokens": "tokens",
    "labels": "labels",
    "loss_mask": "loss_mask",
    "position_ids": "positions",
    "cu_seqlens": "bounds",
    "max_seqlen": "longest",
}


@decodable
class SampleOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How samples are made, with Megatron-Core's names.

    Attributes
    ----------
    eod : int or None
        The token that ends a document; needed for what depends on it.
    pad : int
        The tokenizer's padding; -1, which no tokenizer has, if it is also `eod`, as in Megatron.
    reset_position_ids, reset_attention_mask : bool
        Whether positions, and what a token may attend to, restart after `eod`.
    eod_mask_loss : bool
        Whether there is no loss where the token is `eod`.
    create_attention_mask : bool
        Whether samples have an attention mask, of sequence length squared bytes. Unlike
        Megatron's, the default is False: attention kernels make their own.
    inter_document_masking : bool
        Whether samples have the bounds of their documents as ``cu_seqlens``, and positions that
        restart with each; the attention mask is left out. In Megatron-Core since 0.19.
    allow_ambiguous_pad_tokens : bool
        Whether `pad` is padding even if it is also `eod`.
    position : bool
        Whether samples have their position in the split.
    """

    eod: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    pad: Token = -1
    reset_position_ids: bool = False
    reset_attention_mask: bool = False
    eod_mask_loss: bool = False
    create_attention_mask: bool = False
    inter_document_masking: bool = False
    allow_ambiguous_pad_tokens: bool = False
    position: bool = False

    def __post_init__(self) -> None:
        needing = [
            name
            for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")
            if getattr(self, name)
        ]
        if self.eod is None and needing:
            raise ConfigError(f"{', '.join(needing)}: give the end-of-document token as eod=")

    @property
    def padding(self) -> int:
        """The token that is treated as padding."""
        ambiguous = self.pad == self.eod and not self.allow_ambiguous_pad_tokens
        return -1 if ambiguous else self.pad

    @property
    def has_attention_mask(self) -> bool:
        """Whether samples have an attention mask."""
        return self.create_attention_mask and not self.inter_document_masking


class SampleFields(TypedDict, total=False):
    """The fields of `SampleOptions`, as keywords of `OpenCache.dataset`."""

    eod: int | None
    pad: int
    reset_position_ids: bool
    reset_attention_mask: bool
    eod_mask_loss: bool
    create_attention_mask: bool
    inter_document_masking: bool
    allow_ambiguous_pad_tokens: bool
    position: bool
