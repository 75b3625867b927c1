"""Unfinished corpora: documents that wait, and the directory that is published and removed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from distcache.corpus.receipt import Origin
from distcache.errors import ConfigError, KeyMismatch
from distcache.ingest.document_buffer import DocumentBuffer, Memory, PieceFacts, Spool, digest_of
from distcache.ingest.output import Output
from distcache.ranks.progress import NullProgress, Stopwatch
from tests.support import here
from tests.support.corpora import LENGTHS, write_lengths
from tests.support.odd import odd
from tests.support.processes import start


def claim(output: Output, made_from: str = "0") -> None:
    """Claim an output that cannot be made, by one process."""
    origin = Origin(kind="merge", made_from=made_from, tokenizer=None, options={}, versions={})
    watch = Stopwatch(NullProgress())
    output.produce(here.ALONE, origin, watch, lambda: pytest.fail("it is made"))


@pytest.mark.parametrize("name", ["a\nb", "\udcff"])
def test_names_that_are_no_text(tmp_path: Path, name: str) -> None:
    """Names that are no text are refused before anything is made."""
    with pytest.raises(ConfigError, match="expected printable text"):
        claim(Output(str(tmp_path / name)))
    assert list(tmp_path.iterdir()) == []


def test_a_receipt_that_is_none(tmp_path: Path) -> None:
    """Its name is taken, as that of any other file."""
    (tmp_path / "c.receipt.json").mkdir()
    with pytest.raises(KeyMismatch, match="already exists"):
        claim(Output(str(tmp_path / "c")))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.receipt.json"]


def cut(path: Path) -> None:
    """Take the last byte away."""
    os.truncate(path, path.stat().st_size - 1)


def flip(path: Path) -> None:
    """Change a byte in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("0.bin", cut),
        ("0.idx", cut),
        ("0.idx", flip),
        ("0.receipt.json", cut),
        ("0.receipt.json", Path.unlink),
    ],
)
def test_a_killed_publication_that_was_damaged(
    name: str, damage: Callable[[Path], None], library: Path, tmp_path: Path
) -> None:
    """It is not completed; the corpus is made again."""
    prefix = merge_partly(tmp_path, library, 1)
    damage(tmp_path / ".all.ingest" / name)
    here.merge([prefix], tmp_path / "all")
    for suffix in (".bin", ".idx"):
        made, source = tmp_path / f"all{suffix}", tmp_path / f"plain{suffix}"
        assert made.read_bytes() == source.read_bytes()
    assert not (tmp_path / ".all.ingest").exists()


def merge_partly(directory: Path, library: Path, number: int) -> str:
    """Merge one corpus, and die before so many of its files have their names; return its prefix."""
    prefix = write_lengths(directory / "plain", LENGTHS["plain"])
    strike = odd(library, f"strike=kill:rename:{number}:{directory}/all")
    died = start(["merge", prefix, "-o", directory / "all"], environment=strike)
    assert died.returncode == -9
    return prefix


def test_a_partial_publication_that_was_damaged(library: Path, tmp_path: Path) -> None:
    """It is withdrawn, and the corpus is made again."""
    prefix = merge_partly(tmp_path, library, 3)
    flip(tmp_path / ".all.ingest" / "0.idx")
    here.merge([prefix], tmp_path / "all")
    assert (tmp_path / "all.idx").read_bytes() == (tmp_path / "plain.idx").read_bytes()
    assert not (tmp_path / ".all.ingest").exists()


def test_another_command_over_a_partial_publication_that_was_damaged(
    library: Path, tmp_path: Path
) -> None:
    """It is refused before it works, and touches nothing."""
    prefix = merge_partly(tmp_path, library, 3)
    flip(tmp_path / ".all.ingest" / "0.idx")
    with pytest.raises(KeyMismatch, match=r"all\.bin, .*all\.receipt\.json: already exist"):
        here.merge([prefix, prefix], tmp_path / "all")
    assert (tmp_path / ".all.ingest" / "0.idx").exists()


@pytest.mark.parametrize("out", ["/", "//", "."])
def test_a_directory_is_no_name(out: str) -> None:
    """Not even that of all."""
    with pytest.raises(ConfigError, match="is a directory"):
        claim(Output(out))


def test_pieces_that_wait_share_one_file(tmp_path: Path, limit: Callable[..., None]) -> None:
    """However many they are; each has its own documents, and the file is empty in the end."""
    limit("distcache.ingest.document_buffer", BLOCK_BYTES=8192)
    limit("distcache.ingest.document_buffer", SPOOL_BYTES=20_000)
    rng = np.random.default_rng(1)
    memory, spool = Memory(), Spool(tmp_path)
    expected, buffers = [], []
    for number in range(100):
        buffer = DocumentBuffer(np.dtype("<u2"), PieceFacts(""), memory, spool, 100 * number)
        parts = []
        for _ in range(number % 5):
            lengths = rng.integers(1, 4000, 4, dtype=np.int32)
            parts.append(rng.integers(0, 999, int(lengths.sum())).astype("<u2"))
            buffer.append(parts[-1], lengths, np.ones(len(lengths), np.int32))
        if number % 3:
            buffer.spill()
            assert buffer.held == 0
        expected.append(np.concatenate([np.empty(0, "<u2"), *parts]))
        buffers.append(buffer)
    links = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert sum(link.startswith(str(tmp_path)) for link in links) == 1
    for buffer, tokens in zip(buffers, expected, strict=True):
        found = np.concatenate([np.empty(0, np.uint8), *buffer.blocks()])
        assert found.tobytes() == tokens.tobytes()
        assert (
            digest_of(iter([found]), buffer.lengths, buffer.counts, buffer.losses) == buffer.digest
        )
        buffer.close()
    assert spool.size == 0
    spool.close()
    assert os.listdir(tmp_path) == []
