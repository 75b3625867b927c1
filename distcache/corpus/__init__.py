"""Corpora: pairs of a `.bin` file of tokens and an `.idx` file of sequence lengths and offsets."""

from distcache.corpus.corpus import Corpus, CorpusFacts
from distcache.corpus.idx import Idx, bin_path, idx_path, open_idx
from distcache.corpus.idx_writer import write_idx
from distcache.corpus.soundness import Fault

__all__ = [
    "Corpus",
    "CorpusFacts",
    "Fault",
    "Idx",
    "bin_path",
    "idx_path",
    "open_idx",
    "write_idx",
]
