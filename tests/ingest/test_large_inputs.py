"""Inputs of an ingest that are cut off, or larger than memory should be."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from distcache.corpus.receipt import read_receipt
from distcache.errors import CorpusError
from tests.ingest.test_errors import GOOD
from tests.ingest.test_text import run
from tests.support import texts

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a tokenizer."""
    directory = tmp_path_factory.mktemp("tokenizers")
    texts.train_bpe(directory / "tokenizer.json", texts.documents(100))
    return directory


@pytest.mark.few(1)
@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_truncated_stream(suffix: str, tokenizers: Path, tmp_path: Path) -> None:
    """It is an error at its end; asked to skip, what came before is kept."""
    lines = b"".join(json.dumps({"text": f"{n} {n * n}"}).encode() + b"\n" for n in range(90_000))
    path = tmp_path / f"a.jsonl.{suffix}"
    if suffix == "gz":
        path.write_bytes(gzip.compress(lines))
    else:
        with pa.output_stream(str(path), compression="zstd") as stream:
            stream.write(lines)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(CorpusError, match="cannot be read from here on: Truncated"):
        run([path], tokenizers, tmp_path / "out")
    outcome = run([path], tokenizers, tmp_path / "out", on_error="skip")
    assert outcome.skipped == 1
    assert 1000 < outcome.documents < 90_000
    assert outcome.rows == outcome.documents + 1
    (skipped,) = read_receipt(tmp_path / "out.receipt.json").skipped
    assert skipped.line == outcome.rows


def test_a_line_of_a_gigabyte(tokenizers: Path, tmp_path: Path, limit: Callable[..., None]) -> None:
    """It is refused without being held in memory, and skipped in one look."""
    limit("distcache.ingest.pieces", MIN_PIECE_BYTES=64 << 20)
    path = tmp_path / "a.jsonl"
    with open(path, "wb") as stream:
        stream.write(GOOD + b'{"text": "')
        stream.truncate(1 << 30)
        stream.seek(0, 2)
        stream.write(b'"}\n' + GOOD)
    with pytest.raises(CorpusError, match=r"line 2, byte 17: has 1073741809 bytes, more than the"):
        run([path], tokenizers, tmp_path / "out")
    outcome = run([path], tokenizers, tmp_path / "out", on_error="skip")
    assert (outcome.documents, outcome.skipped) == (2, 1)
