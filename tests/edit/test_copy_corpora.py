"""Corpora put together, and those of old made new."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from distcache.cli.corpora import fold
from distcache.corpus import open_idx, write_idx
from distcache.corpus.receipt import read_receipt
from distcache.edit.copy_corpora import copy_corpora
from distcache.edit.show_documents import show_documents
from distcache.errors import ConfigError, CorpusError, KeyMismatch
from distcache.ledger.sample_text import read_part
from distcache.ranks.communicator import Communicator
from tests.edit.test_select import documents_of
from tests.support import here
from tests.support.corpora import LENGTHS, write_corpus, write_lengths
from tests.support.mds_corpora import DOCUMENTS, write_tokens
from tests.support.texts import read_corpus
from tests.support.threads import run_ranks


def write_multimodal(prefix: Path, lengths: NDArray[np.int64], seed: int = 0) -> str:
    """Write a corpus with documents of several sequences, and a mode for each."""
    bounds = np.unique(np.append(np.arange(0, len(lengths), 3), len(lengths)))
    modes = np.random.default_rng(seed).integers(0, 3, len(lengths)).astype(np.int8)
    tokens = np.arange(int(lengths.sum())) % 30_000
    tokens.astype("u2").tofile(f"{prefix}.bin")
    write_idx(str(prefix), lengths.astype(np.int32), "u2", bounds, modes)
    return str(prefix)


def test_a_merge_has_the_documents_of_all(tmp_path: Path) -> None:
    """A merge has the documents of all in order, of corpora with empty sequences and with none."""
    names = ("plain", "holes", "tiny", "hollow")
    prefixes = [write_lengths(tmp_path / name, LENGTHS[name]) for name in names]
    write_corpus(str(tmp_path / "none"), [], "u2")
    prefixes.insert(2, str(tmp_path / "none"))
    receipt = here.merge(prefixes, tmp_path / "all")
    expected = [document for prefix in prefixes for document in read_corpus(prefix)]
    found = read_corpus(tmp_path / "all")
    assert len(found) == len(expected) == receipt.documents
    for document, wanted in zip(found, expected, strict=True):
        assert list(map(list, document)) == list(map(list, wanted))
    assert read_receipt(tmp_path / "all.receipt.json") == receipt
    assert sorted(entry.name for entry in tmp_path.iterdir() if "all" in entry.name) == [
        "all.bin",
        "all.idx",
        "all.receipt.json",
    ]


def test_other_corpora_of_equal_lengths(tmp_path: Path) -> None:
    """They are not treated as those that were merged before; the same ones are."""
    for name, first in (("a", 0), ("b", 100)):
        write_corpus(str(tmp_path / name), [np.arange(5) + first], "u2")
    made = here.merge([tmp_path / "a"], tmp_path / "out")
    assert here.merge([tmp_path / "a"], tmp_path / "out") == made
    with pytest.raises(KeyMismatch, match="already exist"):
        here.merge([tmp_path / "b"], tmp_path / "out")


def test_words_that_name_corpora() -> None:
    """The files of a corpus name it once; the same word names it again."""
    assert fold(["a.bin", "a.idx", "a.receipt.json", "b"]) == ["a", "b"]
    assert fold(["a", "b", "a"]) == ["a", "b", "a"]
    assert fold(["a.bin", "a.bin", "a.idx"]) == ["a", "a"]


def test_modes_and_documents_are_kept(tmp_path: Path) -> None:
    """Of multimodal corpora; conversion leaves the modes out if asked to."""
    prefixes = [
        write_multimodal(tmp_path / "a", LENGTHS["plain"], 1),
        write_multimodal(tmp_path / "b", LENGTHS["holes"], 2),
    ]
    here.merge(prefixes, tmp_path / "all")
    found, (first, second) = open_idx(str(tmp_path / "all")), map(open_idx, prefixes)
    assert found.modes is not None
    assert found.modes.tolist() == [*first.modes.tolist(), *second.modes.tolist()]
    shifted = (second.bounds[1:] + len(first.lengths)).tolist()
    assert found.bounds.tolist() == [*first.bounds.tolist(), *shifted]
    here.convert(prefixes[0], tmp_path / "same")
    assert (tmp_path / "same.idx").read_bytes() == (tmp_path / "a.idx").read_bytes()
    here.convert(prefixes[0], tmp_path / "bare", drop_modes=True)
    assert open_idx(str(tmp_path / "bare")).modes is None


def test_what_does_not_belong_together(tmp_path: Path, corpora: dict[str, str]) -> None:
    """Other token types, modes for some, and corpora that are unsound; nothing is left behind."""
    with pytest.raises(ConfigError, match=r"plain has type code 8; .*long has type code 4"):
        here.merge([corpora["plain"], corpora["long"]], tmp_path / "all")
    pictures = write_multimodal(tmp_path / "a", LENGTHS["plain"])
    with pytest.raises(ConfigError, match="and all or none modes"):
        here.merge([corpora["plain"], pictures], tmp_path / "all")
    (tmp_path / "a.bin").write_bytes(b"")
    with pytest.raises(CorpusError, match=r"a\.bin: has 0 bytes"):
        here.merge([corpora["plain"], pictures], tmp_path / "all")
    assert not list(tmp_path.glob("*all*"))


def test_an_output_that_exists(tmp_path: Path, corpora: dict[str, str]) -> None:
    """An output that exists is never replaced."""
    (tmp_path / "all.bin").write_bytes(b"precious")
    with pytest.raises(KeyMismatch, match=r"all\.bin: already exists"):
        here.merge([corpora["plain"], corpora["second"]], tmp_path / "all")
    assert (tmp_path / "all.bin").read_bytes() == b"precious"
    assert len(list(tmp_path.iterdir())) == 1


@given(
    documents=st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=8),
    dtype=st.sampled_from(["u1", "u2", "i4", "i8"]),
)
def test_an_idx_reads_back(
    documents: list[list[int]], dtype: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """An `.idx` reads back as it was written: lengths, offsets, boundaries."""
    prefix = str(tmp_path_factory.mktemp("idx") / "a")
    lengths = np.array([size for document in documents for size in document], np.int32)
    bounds = np.array([0, *itertools.accumulate(map(len, documents))])
    write_idx(prefix, lengths, dtype, bounds)
    idx = open_idx(prefix)
    assert idx.lengths.tolist() == lengths.tolist()
    assert idx.bounds.tolist() == bounds.tolist()
    item = np.dtype(dtype).itemsize
    assert idx.offsets.tolist() == [0, *(np.cumsum(lengths) * item).tolist()][: len(lengths)]


@pytest.mark.parametrize("codec", ["zstd", "gz", None])
@pytest.mark.parametrize("ranks", [1, 3])
def test_the_tokens_of_mds_shards(
    ranks: int, codec: str | None, tmp_path: Path, limit: Callable[..., None]
) -> None:
    """Compressed or not, they become a corpus of their own, whatever the number of ranks."""
    limit("distcache.edit.copy_corpora", STRIPE_BYTES=64)
    here.index(write_tokens(tmp_path / "data", codec=codec), tmp_path / "c")

    def make(communicator: Communicator) -> None:
        prefixes, out = [str(tmp_path / "c")], str(tmp_path / "own")
        copy_corpora(communicator, prefixes, out, kind="materialize")

    assert run_ranks(ranks, make) == ([None] * ranks, [])
    assert documents_of(tmp_path / "own") == [[document.tolist()] for document in DOCUMENTS]
    here.merge([tmp_path / "c", tmp_path / "own"], tmp_path / "both")
    assert documents_of(tmp_path / "both") == 2 * documents_of(tmp_path / "own")
    with pytest.raises(CorpusError, match=r"distcache materialize. writes their tokens"):
        here.select(tmp_path / "c", tmp_path / "v")


def test_a_shard_that_was_exchanged(tmp_path: Path) -> None:
    """It is refused by its digest, and nothing is published."""
    data = write_tokens(tmp_path / "data", codec="zstd")
    here.index(data, tmp_path / "c")
    shard = data / "shard.00001.mds.zstd"
    content = bytearray(shard.read_bytes())
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CorpusError, match=r"shard\.00001\.mds\.zstd: "):
        here.materialize(tmp_path / "c", tmp_path / "own")
    assert not list(tmp_path.glob("own*"))


def test_rows_are_not_copied_as_tokens(tmp_path: Path) -> None:
    """Neither selected nor copied."""
    here.index(write_tokens(tmp_path / "data"), tmp_path / "c", column="")
    prefix, out = str(tmp_path / "c"), str(tmp_path / "v")
    with pytest.raises(ConfigError, match="consists of rows"):
        here.select(prefix, out)
    with pytest.raises(ConfigError, match="consists of rows"):
        here.merge([prefix], out)


def test_documents_of_mds_shards_are_shown(tmp_path: Path) -> None:
    """As those of other corpora; a damaged shard is an error, and not an empty document."""
    data = write_tokens(tmp_path / "data", codec="zstd")
    here.index(data, tmp_path / "c")
    facts = here.sound(tmp_path / "c")
    idx = open_idx(str(tmp_path / "c"))
    (shown,) = show_documents(facts, [3], None)
    assert list(shown.tokens) == DOCUMENTS[3].tolist()
    part = read_part(str(tmp_path / "c"), idx, 3, 1, len(DOCUMENTS[3]))
    assert part.tolist() == DOCUMENTS[3].tolist()[1:]
    assert not len(read_part(str(tmp_path / "c"), idx, 3, 1, 1))
    here.index(write_tokens(tmp_path / "raw"), tmp_path / "r")
    raw = read_part(str(tmp_path / "r"), open_idx(str(tmp_path / "r")), 3, 1, len(DOCUMENTS[3]))
    assert raw.tolist() == part.tolist()
    shard = data / "shard.00000.mds.zstd"
    content = bytearray(shard.read_bytes())
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CorpusError, match="document 0 cannot be read"):
        show_documents(facts, [0], None)
    with pytest.raises(CorpusError, match=r"shard\.00000"):
        read_part(str(tmp_path / "c"), idx, 0, 0, 1)
