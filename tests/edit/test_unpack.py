"""Shards unpacked once for all, beside the index of their corpus."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import distcache
from distcache.corpus.examine import require_sound
from distcache.edit import unpack as module
from distcache.edit.merge import materialize, merge
from distcache.edit.select import SelectOptions, select
from distcache.edit.selection import Selection
from distcache.edit.unpack import unpack_shards
from distcache.errors import ConfigError, CorpusError, KeyMismatch, NoSpace
from distcache.ranks.communicator import Communicator, SerialCommunicator
from tests.edit.test_select import documents_of
from tests.support.caches import build_here
from tests.support.corpora import LENGTHS, write_lengths
from tests.support.mds_corpora import DOCUMENTS, fields_of, index, virtual_bin, write_tokens
from tests.support.samples import tokens_of
from tests.support.threads import run_ranks

ALONE = SerialCommunicator()


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_bin_is_what_the_shards_make_up(ranks: int, tmp_path: Path) -> None:
    """To the byte; the key stays, training reads it, and a second run finds it."""
    index(write_tokens(tmp_path / "data", codec="zstd"), tmp_path / "c")
    prefix = str(tmp_path / "c")
    before = require_sound(ALONE, [prefix], 1)[prefix]
    built = build_here(fields_of(prefix), tmp_path / "caches")

    def make(communicator: Communicator) -> bool:
        return unpack_shards(communicator, prefix, 2).reused

    assert run_ranks(ranks, make) == ([False] * ranks, [])
    assert Path(f"{prefix}.bin").read_bytes() == virtual_bin(prefix).tobytes()
    assert run_ranks(ranks, make) == ([True] * ranks, [])
    assert require_sound(ALONE, [prefix], 1)[prefix].identity == before.identity
    assert len(tokens_of(distcache.open(built.path))) >= 300
    assert build_here(fields_of(prefix), tmp_path / "caches").reused
    assert not list(tmp_path.glob(".c*"))


def test_an_unpacked_corpus_is_a_view_like_others(tmp_path: Path) -> None:
    """Selected and materialized; without its `.bin` that is refused."""
    index(write_tokens(tmp_path / "data", codec="gz"), tmp_path / "c")
    with pytest.raises(CorpusError, match="consists of MDS shards and has no"):
        materialize(ALONE, str(tmp_path / "c"), str(tmp_path / "own"))
    with pytest.raises(CorpusError, match="consists of MDS shards and has no"):
        select(ALONE, str(tmp_path / "c"), str(tmp_path / "v"), SelectOptions())
    unpack_shards(ALONE, str(tmp_path / "c"))
    options = SelectOptions(Selection(documents=(10, 20)))
    select(ALONE, str(tmp_path / "c"), str(tmp_path / "v"), options)
    materialize(ALONE, str(tmp_path / "v"), str(tmp_path / "own"))
    expected = [[document.tolist()] for document in DOCUMENTS[10:20]]
    assert documents_of(tmp_path / "own") == expected


def test_a_killed_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed run continues with the shards that are not there, or not right."""
    index(write_tokens(tmp_path / "data", codec="zstd"), tmp_path / "c")
    read: list[str] = []
    true = module.indexed_pieces

    def pieces(stored: Any, digest: bytes) -> Any:
        if len(read) == 3:
            raise KeyboardInterrupt
        read.append(stored.path)
        return true(stored, digest)

    monkeypatch.setattr(module, "indexed_pieces", pieces)
    with pytest.raises(KeyboardInterrupt):
        unpack_shards(ALONE, str(tmp_path / "c"))
    assert not (tmp_path / "c.bin").exists()
    first, read[:] = set(read), []
    monkeypatch.setattr(
        module,
        "indexed_pieces",
        lambda stored, digest: (read.append(stored.path), true(stored, digest))[1],
    )
    unpack_shards(ALONE, str(tmp_path / "c"))
    assert len(read) == 3
    assert first.isdisjoint(read)
    assert (tmp_path / "c.bin").read_bytes() == virtual_bin(tmp_path / "c").tobytes()


def test_a_shard_that_was_exchanged(tmp_path: Path) -> None:
    """It is refused by its digest, and a corpus without shards by its kind."""
    data = write_tokens(tmp_path / "data", codec="zstd")
    index(data, tmp_path / "c")
    other = write_tokens(tmp_path / "other", "ndarray:int32", codec="zstd")
    content = bytearray((other / "shard.00001.mds.zstd").read_bytes())
    (data / "shard.00001.mds.zstd").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CorpusError, match=r"shard\.00001\.mds\.zstd: "):
        unpack_shards(ALONE, str(tmp_path / "c"))
    plain = write_lengths(tmp_path / "plain", LENGTHS["tiny"])
    with pytest.raises(ConfigError, match="nothing to unpack"):
        unpack_shards(ALONE, plain)


def test_a_bin_with_other_bytes_is_not_taken_for_the_shards(tmp_path: Path) -> None:
    """With any number of ranks, although it has the right length."""
    index(write_tokens(tmp_path / "data", codec="zstd"), tmp_path / "c")
    unpack_shards(ALONE, str(tmp_path / "c"))
    content = bytearray((tmp_path / "c.bin").read_bytes())
    content[-5] ^= 1
    (tmp_path / "c.bin").write_bytes(content)

    def make(communicator: Communicator) -> Any:
        return unpack_shards(communicator, str(tmp_path / "c"))

    for ranks in (1, 3):
        outcomes, _ = run_ranks(ranks, make)
        assert [type(outcome) for outcome in outcomes] == [KeyMismatch] * ranks
        assert "differs from shard" in str(outcomes[0])


def test_a_disk_that_cannot_hold_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said before anything is written."""
    index(write_tokens(tmp_path / "data", codec="zstd"), tmp_path / "c")
    small = os.statvfs_result((4096, 4096, 9, 2, 2, 9, 9, 9, 0, 255))
    monkeypatch.setattr(module.os, "statvfs", lambda _: small)
    with pytest.raises(NoSpace, match=r"bytes are needed, 8192 are free"):
        unpack_shards(ALONE, str(tmp_path / "c"))
    assert not list(tmp_path.glob(".c*/data"))


def test_rows_are_not_copied_as_tokens(tmp_path: Path) -> None:
    """Neither selected nor materialized nor merged."""
    index(write_tokens(tmp_path / "data"), tmp_path / "c", column="")
    unpack_shards(ALONE, str(tmp_path / "c"))
    prefix, out = str(tmp_path / "c"), str(tmp_path / "v")
    with pytest.raises(ConfigError, match="consists of rows"):
        select(ALONE, prefix, out, SelectOptions())
    with pytest.raises(ConfigError, match="consists of rows"):
        materialize(ALONE, prefix, out)
    with pytest.raises(ConfigError, match="consists of rows"):
        merge(ALONE, [prefix], out)
