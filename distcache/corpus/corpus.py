"""The facts of a corpus, and its mapped index."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.corpus.idx import ITEM_TYPES, Idx, bin_path, idx_path, open_idx
from distcache.corpus.mds.shard_table import TableFacts, has_table, shards_path
from distcache.errors import ConfigError, CorpusError
from distcache.storage.files import FileVersion

# A process may have some 65,000 mappings (`vm.max_map_count`).
MOST_OPEN: Final = 4096


class CorpusFacts(msgspec.Struct, frozen=True):
    """The facts of a sound corpus. All but the prefix and `file_versions` identify its content."""

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
    """A sound corpus, of whose `.idx` single places are looked at.

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


@functools.lru_cache(MOST_OPEN)
def open_examined(facts: CorpusFacts) -> Idx:
    """Map the `.idx` of a corpus that has been examined; some stay open, to be asked for again.

    Raises
    ------
    CorpusError
        If it is not the file any more that was examined.
    """
    idx = open_idx(facts.prefix)
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

    @property
    def tokens(self) -> int:
        """How many there are."""
        return self.nbytes // ITEM_TYPES[self.type_code].itemsize


def require_tokens(facts: CorpusFacts) -> None:
    """Refuse a corpus of rows, and one that consists of shards only.

    Raises
    ------
    ConfigError, CorpusError
        If it is one.
    """
    prefix = facts.prefix
    if facts.rows:
        raise ConfigError(f"{prefix}: consists of rows of several columns, which are not copied")
    if has_table(prefix) and not os.path.lexists(bin_path(prefix)):
        raise CorpusError(
            f"{prefix}: consists of MDS shards and has no .bin to read; `distcache index unpack` "
            "makes one"
        )


def open_copy_source(facts: CorpusFacts) -> CopySource:
    """Open a corpus that has been examined, and has a `.bin`.

    Raises
    ------
    CorpusError
        If it consists of shards only.
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
    )
