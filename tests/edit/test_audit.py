"""Finished corpora are proven against their receipts, their vocabulary and their sources."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from distcache.corpus import open_idx, write_idx
from distcache.corpus.receipt import read_receipt, write_receipt
from distcache.edit.audit import receipts_beside
from distcache.edit.source_readback import choose
from distcache.errors import CorpusError
from tests.ingest.test_text import run
from tests.ingest.test_tokens import ROWS
from tests.ingest.test_tokens import run as run_tokens
from tests.support import here
from tests.support.corpora import write_lengths
from tests.support.mds_corpora import write_tokens
from tests.support.processes import start
from tests.support.texts import read_corpus, write_jsonl, write_shard

pytestmark = pytest.mark.slow


def faults_of(prefix: Path, readback: int = 0, vocabulary: int | None = None) -> list[str]:
    """Check a corpus against the receipt beside it."""
    facts = here.facts([prefix])
    receipts, missing = receipts_beside(facts)
    found = here.audit(facts, receipts, vocabulary=vocabulary, readback=readback)
    return [str(fault) for fault in missing + found]


@pytest.fixture
def corpus(tokenizers: Path, documents: list[str], tmp_path: Path) -> Path:
    """A corpus of text, in two inputs."""
    paths: list[Path | str] = [
        write_jsonl(tmp_path / "a.jsonl", documents[:200]),
        write_jsonl(tmp_path / "b.jsonl", documents[200:]),
    ]
    run(paths, tokenizers, tmp_path / "out", append_eod=True)
    return tmp_path / "out"


def test_what_was_ingested_is_what_its_source_says(corpus: Path) -> None:
    """Every document, read back through the pair and through the source."""
    assert faults_of(corpus, readback=1000, vocabulary=600) == []


def test_shards_are_read_back(tokenizers: Path, documents: list[str], tmp_path: Path) -> None:
    """Also the documents of a piece whose beginning is in the corpus before."""
    path = write_jsonl(tmp_path / "a.jsonl", documents)
    outcome = run([path], tokenizers, tmp_path / "out", shard_size=9_000)
    for made in outcome.corpora[:6]:
        assert faults_of(Path(made.prefix), readback=4) == []


@pytest.mark.parametrize("shard_size", [None, 9_000])
def test_empty_documents_are_read_back(
    shard_size: int | None, tokenizers: Path, documents: list[str], tmp_path: Path
) -> None:
    """Empty documents are read back where they are kept, also at both ends of a corpus."""
    texts = [text for document in documents for text in ("", document, "")]
    path = write_jsonl(tmp_path / "a.jsonl", texts)
    outcome = run([path], tokenizers, tmp_path / "out", empty="keep", shard_size=shard_size)
    assert outcome.documents == len(texts)
    for made in outcome.corpora[:6]:
        assert faults_of(Path(made.prefix), readback=200) == []


def test_copies_of_mds_shards_are_read_back(tmp_path: Path) -> None:
    """From the shards that the corpus was indexed from; these are compared with their digests."""
    data = write_tokens(tmp_path / "mds", codec="zstd")
    here.index(data, tmp_path / "c")
    here.materialize(tmp_path / "c", tmp_path / "own")
    assert faults_of(tmp_path / "c", readback=50) == []
    assert faults_of(tmp_path / "own", readback=50) == []
    shard = data / "shard.00001.mds.zstd"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\xff")
    (fault,) = faults_of(tmp_path / "c", readback=50)
    assert fault.startswith(str(shard))
    assert faults_of(tmp_path / "own", readback=50)


def test_token_shards_and_merges_are_read_back(tmp_path: Path) -> None:
    """A merge from the corpora that it was made of."""
    path = write_shard(tmp_path / "a.parquet", ROWS)
    run_tokens([path], tmp_path / "one", vocabulary=120)
    assert faults_of(tmp_path / "one", readback=200) == []
    here.merge([str(tmp_path / "one")] * 2, tmp_path / "two")
    assert faults_of(tmp_path / "two", readback=50) == []


def test_offsets_that_rise_but_are_wrong(corpus: Path) -> None:
    """An index that is sound in itself, over the same tokens, is not the one of the receipt."""
    idx = open_idx(str(corpus))
    lengths = np.array(idx.lengths)
    lengths[[100, 101]] += np.array([-1, 1], np.int32)
    write_idx(str(corpus), lengths, "u2")
    (fault,) = faults_of(corpus)
    assert ".idx digest: has" in fault
    wrong = faults_of(corpus, readback=1000)
    assert len(wrong) == 3
    assert "document 100 is not what document" in wrong[1]
    assert "document 101 is not what document" in wrong[2]


def test_documents_between_inputs_that_have_moved(corpus: Path) -> None:
    """The input is named whose first sequence is not in its place."""
    lengths = np.array(open_idx(str(corpus)).lengths)
    lengths[[0, -1]] += np.array([1, -1], np.int32)
    write_idx(str(corpus), lengths, "u2")
    found = faults_of(corpus)
    assert any("b.jsonl, begins at byte" in fault for fault in found)


def test_a_token_that_has_flipped(corpus: Path) -> None:
    """It is found by reading back, or by its range if it is out of that."""
    sizes = [len(document[0]) for document in read_corpus(corpus)]
    place = sum(sizes[:50]) + 1
    tokens = np.fromfile(f"{corpus}.bin", "<u2")
    tokens[place] ^= 1
    tokens.tofile(f"{corpus}.bin")
    assert faults_of(corpus) == []
    (fault,) = faults_of(corpus, readback=1000)
    assert "document 50 is not what document" in fault
    tokens[place] = 601
    tokens.tofile(f"{corpus}.bin")
    (fault,) = faults_of(corpus)
    assert fault.endswith(f"token {place}, in sequence 50, is 601, expected 0 to 599")


def test_a_source_that_has_changed(corpus: Path, tmp_path: Path) -> None:
    """It is said so, as far as it can be told."""
    text = (tmp_path / "a.jsonl").read_text()
    (tmp_path / "a.jsonl").write_text(text[:-1])
    found = faults_of(corpus, readback=3)
    assert any("cannot be read from its source: has" in f for f in found)


def test_another_tokenizer(corpus: Path, tokenizers: Path, tmp_path: Path) -> None:
    """It is a fault of the corpus that is read back, and keeps no other from being looked at."""
    copy = tmp_path / "tokenizer.json"
    copy.write_text((tokenizers / "tokenizer.json").read_text().replace("<s>", "<S>"))
    other = write_lengths(tmp_path / "other", np.full(3, 5))
    facts = here.facts([corpus, other])
    receipts, _ = receipts_beside([str(corpus)])
    found = here.audit(facts, receipts, vocabulary=2, readback=3, tokenizer=str(copy))
    assert [fault.prefix for fault in found] == [str(corpus)] * (len(found) - 1) + [str(other)]
    assert any("name the right one with --tokenizer" in fault.message for fault in found)


def test_the_command(corpus: Path, tmp_path: Path) -> None:
    """It finds receipts beside corpora, and ends with 3 if anything differs."""
    done = start(["check", f"{corpus}.idx", "--tokens", "--readback", 2, "--json"])
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["corpora"]
    assert found["prefix"] == str(corpus)
    done = start(["check", corpus, "--vocab-size", 10, "--json"])
    assert done.returncode == 3
    (fault,) = json.loads(done.stdout)["faults"]
    assert "expected 0 to 9" in fault["message"]
    assert json.loads(done.stdout)["corpora"] == []
    corpus.with_suffix(".receipt.json").write_text("{}")
    done = start(["check", corpus, "--readback", 1])
    assert (done.returncode, "is not a receipt" in done.stderr) == (3, True)
    corpus.with_suffix(".receipt.json").unlink()
    done = start(["check", corpus, "--tokens"])
    assert (done.returncode, "there is no receipt beside it" in done.stdout) == (3, True)


def test_a_piece_is_read_once(corpus: Path) -> None:
    """However many documents of it are wanted, and no further than the last of them."""
    receipt = read_receipt(f"{corpus}.receipt.json")
    samples = choose(receipt, 1000)
    assert len(samples) == sum(len(entry.pieces) for entry in receipt.inputs)
    chosen = [number for sample in samples for number in sample.documents.values()]
    assert chosen == list(range(receipt.documents))
    assert len(choose(receipt, 1)) == 1


def test_a_receipt_that_does_not_add_up(corpus: Path) -> None:
    """It is a fault, and not a corpus of which nothing is read back."""
    receipt = read_receipt(f"{corpus}.receipt.json")
    write_receipt(str(corpus), msgspec.structs.replace(receipt, inputs=()))
    assert any("the receipt's inputs add up to 0" in fault for fault in faults_of(corpus, 3))


def test_the_vocabulary_of_token_shards(tmp_path: Path) -> None:
    """The vocabulary of token shards is in the receipt's options."""
    path = write_shard(tmp_path / "a.parquet", [[1, 2], [3]])
    run_tokens([path], tmp_path / "out", vocabulary=60, token_type="u16")
    np.array([1, 2, 60], "<u2").tofile(tmp_path / "out.bin")
    (fault,) = faults_of(tmp_path / "out")
    assert "token 2, in sequence 1, is 60, expected 0 to 59" in fault


@pytest.mark.parametrize("content", ["[" * 200_000, '{"format": 1, "options": ' + "[" * 200_000])
def test_a_hostile_receipt(content: str, corpus: Path) -> None:
    """A hostile receipt is no receipt."""
    corpus.with_suffix(".receipt.json").write_text(content)
    with pytest.raises(CorpusError, match="is not a receipt"):
        faults_of(corpus)
