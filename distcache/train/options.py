"""What is made of a sample's tokens: the options of Megatron-Core's `GPTDatasetConfig`."""

from __future__ import annotations

import msgspec

from distcache.errors import ConfigError

__all__ = ["SampleOptions"]


class SampleOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How samples are made, with Megatron-Core's names.

    Attributes
    ----------
    eod : int or None
        The token that ends a document; needed for what depends on it.
    pad : int
        The tokenizer's padding; -1, which no tokenizer has, if it is also `eod`, as in Megatron.
    reset_position_ids, reset_attention_mask : bool
        Whether positions, and what a token may attend to, start anew behind `eod`.
    eod_mask_loss : bool
        Whether there is no loss where the token is `eod`.
    create_attention_mask : bool
        Whether samples have an attention mask, of sequence length squared bytes. Unlike
        Megatron's, the default is False: attention kernels make their own.
    inter_document_masking : bool
        Whether samples have the bounds of their documents as ``cu_seqlens``, and positions that
        start anew with each; the attention mask is left out. In Megatron's development branch.
    """

    eod: int | None = None
    pad: int = -1
    reset_position_ids: bool = False
    reset_attention_mask: bool = False
    eod_mask_loss: bool = False
    create_attention_mask: bool = False
    inter_document_masking: bool = False

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
        """The token that is taken for padding."""
        return -1 if self.pad == self.eod else self.pad

    @property
    def has_attention_mask(self) -> bool:
        """Whether samples have an attention mask."""
        return self.create_attention_mask and not self.inter_document_masking
