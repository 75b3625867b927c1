"""What several ranks share in an ingest, and what none waits for."""

from __future__ import annotations

import gzip
import threading
from pathlib import Path

import pytest

from distcache.ingest.document_buffer import DocumentBuffer
from distcache.ingest.inputs import TextOptions
from distcache.ingest.pipeline import IngestOutcome, ingest
from distcache.ingest.rounds import Workers
from distcache.ingest.tokenizers.tokenizer import TokenizerOptions
from tests.support import here
from tests.support.texts import write_jsonl
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
