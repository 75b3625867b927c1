"""Samples of a cache, equal to Megatron-Core's: their options, and their NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypedDict

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.cache.deal import Deal
from distcache.cache.mapped_section import map_section, multiple_of
from distcache.corpus.ancestry import documents_of
from distcache.errors import CacheCorrupt, ConfigError
from distcache.extras import needing
from distcache.kernels import SampleRules, trace_parts
from distcache.storage.threads import decodable
from distcache.train.open_files import CacheHandle, OpenFiles
from distcache.train.reading import Arrays, SampleReader
from distcache.train.split import OpenSplit, SplitDataset, position_of


class SamplePart(msgspec.Struct, frozen=True):
    """Tokens of one document in a sample.

    Attributes
    ----------
    corpus : str
        The corpus without suffix, as the cache was built from it.
    document : int
        Number of the document in the corpus, from 0.
    begin : int
        The first of its tokens that are in the sample.
    tokens : int
        Number of tokens, with the one that a sample has beyond its length for labels.
    """

    corpus: str
    document: int
    begin: int
    tokens: int


def parts_of(opened: OpenFiles, section: int, source: int, sample: int) -> list[SamplePart]:
    """Return the parts of documents of a sample, in their order.

    Parameters
    ----------
    opened : OpenFiles
        The cache.
    section, source : int
        Rows of their tables.
    sample : int
        Number of the sample in the section.

    Raises
    ------
    CacheCorrupt
        If the arrays lead outside of one another.
    """
    cache, idx = opened.cache, opened.idx_of(source)
    try:
        _, sequences, begins, ends = trace_parts(
            [map_section(cache, section, idx)], np.zeros(1, np.int16), np.array([sample], np.int64)
        )
    except IndexError as error:
        raise CacheCorrupt(
            f"{cache.path}: arrays of section {section} lead outside; see `distcache verify`"
        ) from error
    documents = documents_of(idx, sequences.astype(np.int64))
    found = []
    for document, sequence, begin, end in zip(
        documents.tolist(), sequences.tolist(), begins.tolist(), ends.tolist(), strict=True
    ):
        before = int(idx.lengths[idx.bounds[document] : sequence].sum(dtype=np.int64))
        found.append(SamplePart(cache.prefixes[source], document, before + begin, end - begin))
    return found


def text_of(opened: OpenFiles, source: int, tokens: list[int], tokenizer: str | None) -> str:
    """Return the text of tokens, by a tokenizer that is named or that the corpus's receipt names.

    Raises
    ------
    ConfigError
        If neither is.
    """
    from distcache.ingest.tokenizers.find import tokenizer_of  # noqa: PLC0415  of an extra

    prefix = opened.shared_prefix(source)
    found = tokenizer_of(prefix, tokenizer, needed=True)
    if found is None:
        raise ConfigError(f"{prefix}: no receipt beside it names a tokenizer; give tokenizer=FILE")
    return found.decode(tokens)


NO_TOKEN: Final = np.iinfo(np.int64).min
Token = Annotated[int, msgspec.Meta(ge=1 - 2**63, le=2**63 - 1)]


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
    eod_mask_loss : bool or "documents"
        Whether there is no loss where the token is `eod`; with "documents", where a document ends,
        whatever tokens are in it: this needs `inter_document_masking`.
    create_attention_mask : bool
        Whether samples have an attention mask, of sequence length squared bytes. Unlike
        Megatron's, the default is False: attention kernels make their own.
    inter_document_masking : bool
        Whether samples have the bounds of their documents as ``cu_seqlens``, and positions that
        restart with each; the attention mask is left out. In Megatron-Core since 0.19.
    allow_ambiguous_pad_tokens : bool
        Whether `pad` is padding even if it is also `eod`.
    unpadded_bounds : bool
        Whether samples also have the bounds of documents without their padding, as
        ``cu_seqlens_unpadded``: with ``pack: {pad_to_multiple_of: ...}`` documents are padded. This
        needs `inter_document_masking`.
    position : bool
        Whether samples have their position in the split.
    deal : str or None
        ``BATCHxRANKSxMICRO``, as "1024x64x1", for steps of equal work: samples of a step,
        data-parallel ranks, and samples of a micro batch. Samples change their places within their
        steps, and keep their positions; see "Equal steps".
    """

    eod: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    pad: Token = -1
    reset_position_ids: bool = False
    reset_attention_mask: bool = False
    eod_mask_loss: bool | Literal["documents"] = False
    create_attention_mask: bool = False
    inter_document_masking: bool = False
    allow_ambiguous_pad_tokens: bool = False
    unpadded_bounds: bool = False
    position: bool = False
    deal: str | None = None

    def __post_init__(self) -> None:
        given = [
            name
            for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")
            if getattr(self, name) is True
        ]
        if self.eod is None and given:
            raise ConfigError(f"{', '.join(given)}: give the end-of-document token as eod=")
        for name, value in {"eod_mask_loss": "documents", "unpadded_bounds": True}.items():
            if getattr(self, name) == value and not self.inter_document_masking:
                raise ConfigError(f"{name}={value!r}: give inter_document_masking=True, too")

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
    eod_mask_loss: bool | Literal["documents"]
    create_attention_mask: bool
    inter_document_masking: bool
    allow_ambiguous_pad_tokens: bool
    unpadded_bounds: bool
    position: bool
    deal: str | None


_KERNEL_NAMES = {
    "tokens": "tokens",
    "labels": "labels",
    "loss_mask": "loss_mask",
    "position_ids": "positions",
    "cu_seqlens": "bounds",
    "max_seqlen": "longest",
    "cu_seqlens_unpadded": "true_bounds",
}


class SampleDataset(SplitDataset[SampleReader]):
    """The samples of a split, in the order of Megatron's indices; in which arrays, a subclass says.

    Parameters
    ----------
    handle : CacheHandle
        The cache.
    split : str
        "train", "valid" or "test".
    options : SampleOptions
        Rules for making samples.
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
        deal = None if options.deal is None else Deal.parse(options.deal)
        super().__init__(handle, split, number, opened, deal)

    def __repr__(self) -> str:
        split = self._here().split
        length = split.files.cache.sequence_length
        return f"<{self._name()}: {split.size} samples of {length} tokens>"

    def __getitem__(self, index: int | None) -> Any:
        """Return a sample."""
        raise NotImplementedError

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
        place = np.array([position_of(index, split.size, "sample")], np.int64)
        member, sample = split.look_up(split.positions(place))
        section, source = split.pairs[int(member[0])]
        return section, source, int(sample[0])

    def _shapes(self, rows: int) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return shape and type of each array of a batch that the kernel fills."""
        length = self._here().split.files.cache.sequence_length
        shapes: dict[str, tuple[tuple[int, ...], str]] = {
            "tokens": ((rows, length), "int64"),
            "labels": ((rows, length), "int64"),
            "loss_mask": ((rows, length), "float32"),
            "position_ids": ((rows, length), "int64"),
        }
        if self.options.inter_document_masking:
            shapes["cu_seqlens"] = ((rows, length + 1), "int32")
            shapes["max_seqlen"] = ((rows,), "int32")
        if self.options.unpadded_bounds:
            shapes["cu_seqlens_unpadded"] = ((rows, length + 1), "int32")
        return shapes

    def _fill(self, indices: Sequence[int | None], arrays: Arrays) -> Arrays:
        """Read samples into arrays, which have a row for each.

        Returns
        -------
        dict of str to ndarray
            Facts that the kernel does not read: position and number of the dataset of each row,
            where samples have them.
        """
        here = self._here()
        size = here.split.size
        # None fills up the last batch, with the first sample as in Megatron.
        places = np.array(
            [0 if index is None else position_of(index, size, "sample") for index in indices],
            np.int64,
        )
        positions = here.split.positions(places).copy()
        members, samples = here.split.look_up(positions)
        named = {_KERNEL_NAMES.get(name, name): values for name, values in arrays.items()}
        readings = [getattr(index, "reading", None) for index in indices]
        here.read(members.tolist(), samples, named, readings)
        if self.options.eod_mask_loss == "documents":
            bounds = arrays["cu_seqlens"]
            rows, columns = np.nonzero((bounds > 0) & (bounds < arrays["loss_mask"].shape[1]))
            arrays["loss_mask"][rows, bounds[rows, columns] - 1] = 0.0
        for row, index in enumerate(indices):
            if index is None:
                arrays["loss_mask"][row] = 0.0
                positions[row] = -1
        facts: Arrays = {"dataset_id": members} if here.split.is_blend else {}
        return facts | ({"position": positions} if self.options.position else {})

    def _make_reader(self, split: OpenSplit) -> SampleReader:
        cache = split.files.cache
        for _, source in split.pairs:
            if cache.columns_of(source):
                raise ConfigError(
                    f"{cache.prefixes[source]}: consists of rows; open it with cache.rows(...)"
                )
        options = self.options
        if multiple_of(cache) > 1 and (options.reset_position_ids or options.reset_attention_mask):
            raise ConfigError(
                "reset_position_ids, reset_attention_mask: go by the end-of-document token, which "
                f"is before the padding of the documents of {cache.path}; give "
                "inter_document_masking=True instead"
            )
        end = NO_TOKEN if options.eod is None else options.eod
        by_token = options.eod_mask_loss is True
        rules = SampleRules(options.padding, end, by_token, options.reset_position_ids)
        return SampleReader(split, rules)


class NumpyDataset(SampleDataset):
    """The samples of a split as NumPy arrays: a sequence that needs no torch.

    ``dataset[i]`` is a dict of ``tokens``, ``labels`` and ``position_ids`` (int64), ``loss_mask``
    (float32), each of shape (sequence length,); by the options ``cu_seqlens`` (int32, (length +
    1,)) and ``max_seqlen`` (int32); in a blend also ``dataset_id`` (int16), and where asked
    ``position`` (int64). ``len(dataset)`` is the number of samples. Grain takes it as a source.

    Each process opens the files when it first uses them; a dataset may be pickled, and used before
    and after a fork, and by several threads.
    """

    def __getitem__(self, index: int | None) -> dict[str, NDArray[Any]]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int | None]) -> list[dict[str, NDArray[Any]]]:
        """Return several samples that are read together."""
        if not len(indices):
            return []
        batch = self.batch(indices)
        return [
            {name: values[row] for name, values in batch.items()} for row in range(len(indices))
        ]

    def batch(self, indices: Sequence[int | None]) -> dict[str, NDArray[Any]]:
        """Return several samples as one batch.

        Parameters
        ----------
        indices : sequence of int or None
            Numbers of the samples; None is a sample without loss.

        Returns
        -------
        dict of str to ndarray
            Arrays of the samples, with a first axis of as many rows.

        Raises
        ------
        IndexError
            If there is no such sample.
        """
        shapes = self._shapes(len(indices))
        batch = {name: np.empty(shape, kind) for name, (shape, kind) in shapes.items()}
        return self._fill(indices, batch) | batch
