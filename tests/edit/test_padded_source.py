"""`materialize --multiple-of` fills each sequence up with the end-of-document token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distcache.corpus import open_idx
from distcache.corpus.receipt import find_receipt
from distcache.edit.copy_corpora import copy_corpora
from distcache.errors import ConfigError
from distcache.ledger.trace import trace
from tests.edit.test_audit import faults_of
from tests.ingest.test_text import run
from tests.support import here
from tests.support.corpora import write_corpus
from tests.support.texts import write_jsonl
from tests.support.threads import run_ranks

EOD = 7


def sequences_of(prefix: Path) -> list[list[int]]:
    """Return the tokens of each sequence of a corpus of i4, wherever they are."""
    idx = open_idx(str(prefix))
    tokens = np.fromfile(f"{prefix}.bin", "i4")
    ranges = zip(np.asarray(idx.offsets) // 4, idx.lengths, strict=True)
    return [tokens[begin : begin + length].tolist() for begin, length in ranges]


def filled(sequence: list[int], multiple: int) -> list[int]:
    """Return a sequence with its padding."""
    return sequence + [EOD] * (-len(sequence) % multiple)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 50), min_size=1, max_size=40).filter(any),
    multiple=st.sampled_from([2, 3, 8, 16, 64]),
    ranks=st.sampled_from([1, 2, 3]),
)
def test_sequences_are_filled_up(
    lengths: list[int],
    multiple: int,
    ranks: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The same bytes for any number of ranks; empty ones stay empty."""
    directory = tmp_path_factory.mktemp("padded")
    tokens = 100 + np.arange(sum(lengths))
    write_corpus(str(directory / "c"), np.split(tokens, np.cumsum(lengths)[:-1]), "i4")

    def make(communicator: object) -> None:
        copy_corpora(
            communicator,  # type: ignore[arg-type]
            [str(directory / "c")],
            str(directory / "own"),
            kind="materialize",
            multiple_of=multiple,
            eod=EOD,
        )

    assert run_ranks(ranks, make) == ([None] * ranks, [])
    wanted = [filled(sequence, multiple) for sequence in sequences_of(directory / "c")]
    assert sequences_of(directory / "own") == wanted
    assert faults_of(directory / "own", readback=50) == []


def test_small_pieces(tmp_path: Path, limit: Callable[..., None]) -> None:
    """Pieces and blocks that end within a sequence, and within its padding; and of a view."""
    limit("distcache.edit.copy_corpora", COPY_BYTES=24, STRIPE_BYTES=20)
    limit("distcache.edit.padded_source", BLOCK_SEQUENCES=3)
    random = np.random.default_rng(4)
    lengths = random.integers(0, 30, 40)
    tokens = np.arange(100, 100 + int(lengths.sum()))
    write_corpus(str(tmp_path / "c"), np.split(tokens, np.cumsum(lengths)[:-1]), "i4")
    here.select(tmp_path / "c", tmp_path / "view", min_length=3)
    for source in ("c", "view"):
        out = tmp_path / f"{source}-8"
        here.materialize(tmp_path / source, out, multiple_of=8, eod=EOD)
        assert sequences_of(out) == [filled(s, 8) for s in sequences_of(tmp_path / source)]
        assert faults_of(out, readback=50) == []


def test_sources_are_those_of_the_corpus(tokenizers: Path, tmp_path: Path) -> None:
    """The token is the receipt's, and a trace names the lines of the text."""
    texts = [f"document {number} " * (number + 1) for number in range(30)]
    path = write_jsonl(tmp_path / "a.jsonl", texts)
    run([path], tokenizers, tmp_path / "c")
    made = here.materialize(tmp_path / "c", tmp_path / "c-16", multiple_of=16)
    receipt = find_receipt(str(tmp_path / "c"))
    assert receipt is not None
    assert receipt.tokenizer is not None
    assert made.options == {"multiple_of": 16, "eod": receipt.tokenizer.eod}
    assert faults_of(tmp_path / "c-16", readback=30) == []
    fields = {"sequence_length": 32, "samples": {"train": 20}, "split": "1,0,0"}
    cache = here.build(fields | {"blend": [str(tmp_path / "c-16")]}, tmp_path).path
    rows = trace(cache).sources(0, np.arange(30))
    assert rows.lines.tolist() == list(range(1, 31))


def test_what_cannot_be_filled_up(tmp_path: Path) -> None:
    """Without a token, or with one that the type cannot hold."""
    write_corpus(str(tmp_path / "c"), [[1, 2, 3]], "u2")
    with pytest.raises(ConfigError, match="give it as --eod TOKEN"):
        here.materialize(tmp_path / "c", tmp_path / "own", multiple_of=8)
    with pytest.raises(ConfigError, match=r"--eod 70000: .* has tokens of type uint16"):
        here.materialize(tmp_path / "c", tmp_path / "own", multiple_of=8, eod=70_000)
    assert not list(tmp_path.glob("own*"))
