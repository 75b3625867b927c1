"""What a plan needs to know of a corpus, and a corpus that is open for reading lengths."""

from __future__ import annotations

import functools

import msgspec

from distcache.corpus.idx import Idx, open_idx
from distcache.errors import CorpusError

__all__ = ["Corpus", "CorpusFacts"]


class CorpusFacts(msgspec.Struct, frozen=True):
    """The facts of a sound corpus. All but the prefix identify its content.

    Attributes
    ----------
    prefix : str
        The path without suffix, as the configuration gives it.
    idx_digest : str
        XXH3-128 of the `.idx` file, in hexadecimal.
    idx_size, bin_size : int
        File sizes in bytes.
    type_code : int
        The token type's code in the header.
    sequences, documents : int
        How many the corpus has.
    tokens : int
        Over all sequences.
    empty_sequences : int
        Sequences without a token.
    """

    prefix: str
    idx_digest: str
    idx_size: int
    bin_size: int
    type_code: int
    sequences: int
    documents: int
    tokens: int
    empty_sequences: int

    @property
    def identity(self) -> dict[str, str | int]:
        """What enters the key of everything that is built from this corpus."""
        return {
            "idx_digest": self.idx_digest,
            "idx_size": self.idx_size,
            "bin_size": self.bin_size,
        }


class Corpus:
    """A sound corpus whose `.idx` is mapped on first use.

    Parameters
    ----------
    facts : CorpusFacts
        From an examination of the corpus.
    """

    def __init__(self, facts: CorpusFacts) -> None:
        self.facts = facts

    @functools.cached_property
    def idx(self) -> Idx:
        """The mapped `.idx`; `CorpusError` if it is not the file any more that was examined."""
        idx = open_idx(self.facts.prefix)
        if (idx.size, len(idx.lengths)) != (self.facts.idx_size, self.facts.sequences):
            raise CorpusError(
                f"{idx.path}: has {idx.size} bytes, and had {self.facts.idx_size} when it was "
                "examined; do not write to a corpus while it is built from"
            )
        return idx

    def tokens_in(self, begin: int, end: int) -> int:
        """Return the tokens of sequences [begin, end), from their offsets."""
        return self._tokens_before(end) - self._tokens_before(begin)

    def length_of(self, sequence: int) -> int:
        """Return the tokens of one sequence."""
        return int(self.idx.lengths[sequence])

    def _tokens_before(self, sequence: int) -> int:
        if sequence == self.facts.sequences:
            return self.facts.tokens
        return int(self.idx.offsets[sequence]) // self.idx.item_size
