"""What a plan needs to know of a corpus, and a corpus that is open for reading lengths."""

from __future__ import annotations

import functools

import msgspec

from distcache.corpus.idx import Idx, open_idx
from distcache.errors import CorpusError
from distcache.files import Stamp

__all__ = ["Corpus", "CorpusFacts"]


class CorpusFacts(msgspec.Struct, frozen=True):
    """The facts of a sound corpus. All but the prefix and the stamps identify its content.

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
    stamps : tuple of Stamp
        Of the `.idx` and the `.bin`, from before they were read.
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
    stamps: tuple[Stamp, ...] = ()

    @property
    def identity(self) -> dict[str, str | int]:
        """What enters the key of everything that is built from this corpus."""
        return {
            "idx_digest": self.idx_digest,
            "idx_size": self.idx_size,
            "bin_size": self.bin_size,
        }


class Corpus:
    """A sound corpus whose `.idx` is mapped when it is needed.

    Parameters
    ----------
    facts : CorpusFacts
        From an examination of the corpus.
    """

    def __init__(self, facts: CorpusFacts) -> None:
        self.facts = facts

    @functools.cached_property
    def idx(self) -> Idx:
        """The mapped `.idx`, which stays open as long as this corpus."""
        return open_examined(self.facts)

    def tokens_in(self, begin: int, end: int) -> int:
        """Return the tokens of sequences [begin, end), from their offsets."""
        idx = open_examined(self.facts)

        def before(sequence: int) -> int:
            if sequence == self.facts.sequences:
                return self.facts.tokens
            return int(idx.offsets[sequence]) // idx.item_size

        tokens = before(end) - before(begin)
        idx.require_intact()
        return tokens

    def length_of(self, sequence: int) -> int:
        """Return the tokens of one sequence."""
        idx = open_examined(self.facts)
        length = int(idx.lengths[sequence])
        idx.require_intact()
        return length


def open_examined(facts: CorpusFacts) -> Idx:
    """Map the `.idx` of a corpus that has been examined.

    A mapping keeps the file open, and a process may often have no more than 1,024 of these.

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
