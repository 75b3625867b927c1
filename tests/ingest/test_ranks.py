"""What several ranks share in an ingest, and what none waits for."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from distcache.edit.copy_corpora import copy_corpora
from distcache.ingest.document_buffer import DocumentBuffer
from distcache.ingest.inputs import TextOptions, TokenOptions
from distcache.ingest.pipeline import IngestOutcome, ingest
from distcache.ingest.rounds import Workers
from distcache.ingest.tokenizers.tokenizer import TokenizerOptions
from distcache.ranks.communicator import Communicator
from tests.ingest.test_tokens import ROWS
from tests.support import here
from tests.support.texts import write_jsonl, write_shard
from tests.support.threads import ThreadCommunicator, run_ranks

pytestmark = pytest.mark.slow

RANKS = 3
FILES = 4 * RANKS


@pytest.fixture
def inputs(documents: list[str], tmp_path: Path) -> list[str]:
    """Compressed files, each a task."""
    paths = []
    for number in range(FILES):
        lines = write_jsonl(tmp_path / "lines", documents[number::FILES]).read_bytes()
        path = tmp_path / f"{number:02}.jsonl.gz"
        path.write_bytes(gzip.compress(lines))
        paths.append(str(path))
    return paths


def run(inputs: list[str], tokenizer: Path, out: Path) -> list[IngestOutcome | BaseException]:
    """Ingest with several ranks."""

    def work(world: ThreadCommunicator) -> IngestOutcome:
        chosen = TokenizerOptions(str(tokenizer))
        return ingest(world, inputs, str(out), TextOptions(append_eod=True), chosen)

    outcomes, aborted = run_ranks(RANKS, work)
    assert aborted == []
    return outcomes


def test_a_tokenizer_is_read_by_one_rank(
    inputs: list[str], tokenizers: Path, tmp_path: Path, opened: list[str]
) -> None:
    """The others get its bytes: a hub is asked once, and all have the same."""
    run(inputs, tokenizers, tmp_path / "out")
    assert len([path for path in opened if path.endswith("tokenizer.json")]) == 1


def test_a_large_file_keeps_nobody_waiting(
    inputs: list[str], tokenizers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks read all else while the first file takes its time."""
    original = Workers._read
    others: set[int] = set()
    read: set[int] = set()
    all_read = threading.Event()
    waited: list[bool] = []

    def share_out(costs: list[float], begun: int, ranks: int) -> list[int]:
        # The first round is rank 0's alone.
        others.update(range(ranks, len(costs)))
        return [0 if piece < ranks else 1 + piece % (ranks - 1) for piece in range(len(costs))]

    def slowly(workers: Workers, piece: int) -> DocumentBuffer:
        buffer = original(workers, piece)
        read.add(piece)
        if others <= read:
            all_read.set()
        if piece == 0:
            waited.append(all_read.wait(20))
        return buffer

    monkeypatch.setattr(Workers, "_read", slowly)
    monkeypatch.setattr("distcache.ingest.pipeline.owners_of", share_out)
    run(inputs, tokenizers, tmp_path / "out")
    assert len(others) > RANKS
    assert waited == [True]
    monkeypatch.undo()
    alone = TokenizerOptions(str(tokenizers))
    here.ingest_text(inputs, alone, tmp_path / "one", append_eod=True)
    assert (tmp_path / "one.bin").read_bytes() == (tmp_path / "out.bin").read_bytes()


@pytest.mark.few(3)
@pytest.mark.parametrize(("shard_size", "empty"), [(None, "drop"), (20_000, "keep")])
@pytest.mark.parametrize("ranks", [2, 5, 16])
def test_any_number_of_ranks_makes_the_same_bytes(
    ranks: int,
    shard_size: int | None,
    empty: Literal["drop", "keep"],
    documents: list[str],
    tokenizers: Path,
    tmp_path: Path,
    limit: Callable[..., None],
) -> None:
    """Of text and of token shards: corpora and receipts, and what is merged of them."""
    limit("distcache.ingest.pieces", MIN_PIECE_BYTES=5_000)
    text = str(write_jsonl(tmp_path / "a.jsonl", documents))
    shard = str(write_shard(tmp_path / "a.parquet", ROWS, groups=5))
    chosen = TokenizerOptions(str(tokenizers))

    def work(world: Communicator) -> None:
        out = str(tmp_path / str(world.size))
        options = TextOptions(append_eod=True, shard_size=shard_size, empty=empty)
        found = ingest(world, [text], f"{out}/text", options, chosen)
        ingest(world, [shard], f"{out}/tokens", TokenOptions(shard_size=shard_size, empty=empty))
        copy_corpora(world, [corpus.prefix for corpus in found.corpora], f"{out}/all")

    work(here.ALONE)
    outcomes, aborted = run_ranks(ranks, work)
    assert (outcomes, aborted) == ([None] * ranks, [])
    alone, together = (made(tmp_path / str(count)) for count in (1, ranks))
    assert len(alone) == 9 or shard_size is not None
    # A merge is of the corpora that it names, which lie elsewhere.
    for name in alone.keys() - {"all.receipt.json"}:
        assert together[name] == alone[name], name
    assert together.keys() == alone.keys()


def made(directory: Path) -> dict[str, bytes]:
    """Return the content of every file, by name."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}
