"""The facts of a corpus, and its mapped index."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.corpus.idx import ITEM_TYPES, Idx, bin_path, idx_path, open_idx
from distcache.corpus.loss import LossFacts
from distcache.corpus.mds.shard_table import TableFacts, has_table, shards_path
from distcache.errors import ConfigError, CorpusError
from distcache.storage.files import FileVersion

KEPT_INDEX: Final = 1 << 20  # bytes of an index that stays mapped, at most
MAX_OPEN_INDICES: Final = 8192  # indices, of the 65,000 mappings that a process may have
_KEPT: Final[dict[str, Idx]] = {}  # small indices that are mapped, by prefix
_BLOCKS: Final[list[None]] = []  # blocks that keep indices; outside of them none are kept


class CorpusFacts(msgspec.Struct, frozen=True):
    """The facts of a sound corpus. All but the prefix and `file_versions` identify its content.

    A loss mask changes no array, so that it is no part of `identity`.
    """

    prefix: str  # the path without suffix, as the configuration gives it
    idx_digest: str  # XXH3-128 of the `.idx` file, in hexadecimal
    # file sizes in bytes
    idx_size: int
    bin_size: int
    type_code: int  # the token type's code in the header
    # number of sequences and of documents
    sequences: int
    documents: int
    tokens: int  # over all sequences
    empty_sequences: int  # sequences without a token
    # whether the offsets are not the running sum of lengths that spans the whole `.bin`
    view: bool = False
    shards: TableFacts | None = None  # facts of the shards that make up the `.bin`, if they do
    loss: LossFacts | None = None  # facts of the loss mask; None if all tokens have a loss
    file_versions: tuple[FileVersion, ...] = ()  # versions of `files`, from before they were read

    @property
    def identity(self) -> dict[str, str | int]:
        """The part of keys that identifies this corpus."""
        known: dict[str, str | int] = {
            "idx_digest": self.idx_digest,
            "idx_size": self.idx_size,
            "bin_size": self.bin_size,
        }
        if self.view:
            known["view"] = True
        if self.shards is not None:
            known["shards_digest"] = self.shards.digest
        return known

    @property
    def rows(self) -> bool:
        """Whether its sequences are samples of several columns, and not tokens."""
        return self.shards is not None and self.shards.columns > 0

    @property
    def files(self) -> tuple[str, str]:
        """The paths of the `.idx`, and of the `.bin` or the `.shards` in its place."""
        path = bin_path if self.shards is None else shards_path
        return idx_path(self.prefix), path(self.prefix)


class Corpus:
    """A sound corpus, and lookups in its `.idx`.

    Parameters
    ----------
    facts : CorpusFacts
        Facts from an examination of the corpus.
    """

    def __init__(self, facts: CorpusFacts) -> None:
        self.facts = facts

    def tokens_in(self, begin: int, end: int) -> int:
        """Return the tokens of sequences [begin, end): of a view by adding them up."""
        if (begin, end) == (0, self.facts.sequences):
            return self.facts.tokens
        idx = open_examined(self.facts)

        def before(sequence: int) -> int:
            if sequence == self.facts.sequences:
                return self.facts.tokens
            return int(idx.offsets[sequence]) // idx.item_size

        if self.facts.view:
            tokens = int(idx.lengths[begin:end].sum(dtype=np.int64))
            idx.release_lengths(begin, end)
        else:
            tokens = before(end) - before(begin)
        idx.require_intact()
        return tokens

    def length_of(self, sequence: int) -> int:
        """Return the tokens of one sequence."""
        idx = open_examined(self.facts)
        length = int(idx.lengths[sequence])
        idx.require_intact()
        return length


@contextlib.contextmanager
def keeping_indices() -> Iterator[None]:
    """Keep small indices mapped, once opened, until the end of the outermost block."""
    _BLOCKS.append(None)
    try:
        yield
    finally:
        _BLOCKS.pop()
        if not _BLOCKS:
            _KEPT.clear()


def open_to_keep(prefix: str) -> Idx:
    """Map the `.idx` of a corpus, and keep it for `open_cached`; raises as `open_idx`."""
    idx = open_idx(prefix)
    _KEPT.pop(prefix, None)
    if _BLOCKS and idx.size <= KEPT_INDEX and len(_KEPT) < MAX_OPEN_INDICES:
        _KEPT[prefix] = idx
    return idx


def open_cached(prefix: str, versions: tuple[FileVersion, ...]) -> Idx:
    """Return the `.idx` of a corpus that is kept, or map it; raises as `open_idx`.

    Parameters
    ----------
    prefix : str
        The corpus's path without suffix.
    versions : tuple of FileVersion
        Versions of the corpus's files, the `.idx` first. Only a kept index of that version counts.
    """
    idx = _KEPT.get(prefix)
    if idx is not None and idx.file_version in versions[:1] and idx.map.intact:
        return idx
    return open_to_keep(prefix)


def open_examined(facts: CorpusFacts) -> Idx:
    """Map the `.idx` of a corpus that has been examined, or return one that is kept.

    Raises
    ------
    CorpusError
        If it is not the file any more that was examined.
    """
    idx = open_cached(facts.prefix, facts.file_versions)
    if (idx.size, len(idx.lengths)) != (facts.idx_size, facts.sequences):
        raise CorpusError(
            f"{idx.path}: has {idx.size} bytes, and had {facts.idx_size} when it was examined; do "
            "not write to a corpus while it is built from"
        )
    return idx


@dataclass(frozen=True, eq=False)
class CopySource:
    """A sound corpus that is open."""

    prefix: str  # path of the corpus without suffix
    type_code: int  # type code of its tokens
    lengths: NDArray[np.int32]  # tokens per sequence
    # sequence numbers at which documents start, then the number of sequences
    bounds: NDArray[np.int64]
    modes: NDArray[np.int8] | None  # modes of multimodal sequences
    nbytes: int  # bytes of all tokens
    # whether they are anywhere in the `.bin`: where the offsets of the `.idx` say
    view: bool = False
    idx: Idx | None = None  # mapped index that has these arrays
    # version of the `.bin` that was examined, if it was; another object is refused
    bin_version: FileVersion | None = None
    has_loss: bool = False  # whether there is a loss mask

    @property
    def tokens(self) -> int:
        """How many there are."""
        return self.nbytes // ITEM_TYPES[self.type_code].itemsize


def require_tokens(facts: CorpusFacts) -> None:
    """Refuse a corpus of rows.

    Raises
    ------
    ConfigError
        If it is one.
    """
    if facts.rows:
        raise ConfigError(
            f"{facts.prefix}: consists of rows of several columns, which are not copied"
        )


def require_bin(facts: CorpusFacts) -> None:
    """Refuse a corpus of rows, and one that consists of shards, into which nothing can point.

    Raises
    ------
    ConfigError, CorpusError
        If it is one.
    """
    require_tokens(facts)
    if has_table(facts.prefix):
        raise CorpusError(
            f"{facts.prefix}: consists of MDS shards and has no .bin; `distcache materialize` "
            "writes their tokens as a corpus that has one"
        )


def open_copy_source(facts: CorpusFacts) -> CopySource:
    """Open a corpus that has been examined.

    Raises
    ------
    ConfigError
        If it consists of rows.
    CorpusError
        If it is not the file any more that was examined.
    """
    require_tokens(facts)
    idx = open_examined(facts)
    return CopySource(
        prefix=facts.prefix,
        type_code=idx.type_code,
        lengths=idx.lengths,
        bounds=idx.bounds,
        modes=idx.modes,
        nbytes=facts.tokens * idx.item_size,
        view=facts.view,
        idx=idx,
        bin_version=facts.file_versions[1] if len(facts.file_versions) > 1 else None,
        has_loss=facts.loss is not None,
    )
