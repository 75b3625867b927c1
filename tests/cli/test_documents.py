"""`distcache show` prints what a document is; `check` and `verify` say what they compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support import here, texts
from tests.support.corpora import write_corpus, write_lengths
from tests.support.processes import LIMIT, clean_environment, start

pytestmark = pytest.mark.slow


def test_a_document_and_its_source(tmp_path: Path) -> None:
    """With the text by the receipt's tokenizer, and the row that the receipt names."""
    documents = texts.documents(60)
    texts.train_bpe(tmp_path / "tokenizer.json", documents)
    kept = [text for text in documents if text]
    path = texts.write_jsonl(tmp_path / "a.jsonl", kept)
    words = ["--tokenizer", tmp_path / "tokenizer.json", "--append-eod", "-o", tmp_path / "a"]
    assert start(["ingest", "text", path, *words]).returncode == 0
    shown = json.loads(start(["show", tmp_path / "a", "3", f"{len(kept) - 1}:", "--json"]).stdout)
    third, last = shown["documents"]
    assert third["text"] == kept[3] + texts.END
    assert (third["source"], third["line"], third["row"]) == (str(path), 4, None)
    assert (last["document"], last["text"]) == (len(kept) - 1, kept[-1] + texts.END)
    assert len(third["tokens"]) == sum(third["sequences"])
    table = start(["show", tmp_path / "a.idx", "3"]).stdout
    assert f"from {path}, line 4\n" in table
    again = [start(["show", tmp_path / "a", "--random", "4", "--seed", "2"]) for _ in range(2)]
    assert again[0].stdout == again[1].stdout
    assert again[0].stdout.count("tokens in") == 4


def test_rows_that_became_no_document_count(tmp_path: Path) -> None:
    """The line is that of the file; of a view, too, it is that of the file."""
    texts.train_bpe(tmp_path / "tokenizer.json", texts.documents(60))
    path = texts.write_jsonl(tmp_path / "x.jsonl", ["", "alpha", "", "beta beta"])
    words = ["--tokenizer", tmp_path / "tokenizer.json", "-o", tmp_path / "x"]
    assert start(["ingest", "text", path, *words]).returncode == 0
    numbers = tmp_path / "numbers"
    numbers.write_text("1\n")
    picked = start(["select", tmp_path / "x", "-o", tmp_path / "v", "--row-numbers", numbers])
    assert picked.returncode == 0, picked.stderr
    for corpus, lines in (("x", [2, 4]), ("v", [4])):
        shown = json.loads(start(["show", tmp_path / corpus, ":", "--json"]).stdout)["documents"]
        assert [(one["source"], one["line"]) for one in shown] == [(str(path), n) for n in lines]


def test_a_corpus_without_a_receipt(tmp_path: Path) -> None:
    """It has tokens alone; a document that is not there is an error with what there is."""
    write_corpus(str(tmp_path / "a"), [[11, 12, 13], [14, 15]], "u2")
    done = start(["show", tmp_path / "a", "0:2"])
    assert "tokens 11 12 13\n" in done.stdout
    assert "tokens 14 15\n" in done.stdout
    for word, problem in (("2", "has documents 0 to 1"), ("x", "the number of a document")):
        done = start(["show", tmp_path / "a", word])
        assert (done.returncode, problem in done.stderr) == (2, True)


def test_check_says_what_it_did_not_read(tmp_path: Path) -> None:
    """Check says what it did not read, and with --tokens it reads every token, and finds a flip."""
    path = texts.write_shard(tmp_path / "a.parquet", [[1, 2, 3], [4, 5]])
    words = ["--vocab-size", "10", "--eod", "0", "-o", tmp_path / "a"]
    assert start(["ingest", "tokens", path, *words]).returncode == 0
    assert "tokens were not read" in start(["check", tmp_path / "a"]).stderr
    whole = start(["check", tmp_path / "a", "--tokens"])
    assert whole.returncode == 0, whole.stderr
    assert "not read" not in whole.stderr
    content = bytearray((tmp_path / "a.bin").read_bytes())
    content[0] ^= 4
    (tmp_path / "a.bin").write_bytes(content)
    assert start(["check", tmp_path / "a"]).returncode == 0
    flipped = start(["check", tmp_path / "a", "--tokens"])
    assert flipped.returncode == 3
    assert "its tokens have digest" in " ".join(flipped.stdout.split())


def test_a_receipt_that_lies_beside_is_compared(tmp_path: Path) -> None:
    """Without being named: the receipt of another corpus is a fault."""
    path = texts.write_shard(tmp_path / "a.parquet", [[1, 2, 3], [4, 5]])
    assert start(["ingest", "tokens", path, "-o", tmp_path / "a"]).returncode == 0
    write_lengths(tmp_path / "a", np.array([4, 4]))
    done = start(["check", tmp_path / "a"])
    assert done.returncode == 3
    assert "the receipt says" in " ".join(done.stdout.split())


@pytest.mark.more
def test_verify_says_what_it_compared(tmp_path: Path) -> None:
    """Digests of indices, lengths of tokens; and with --tokens their digests."""
    path = texts.write_shard(tmp_path / "a.parquet", [[1, 2, 3]] * 50)
    made = ["--vocab-size", "10", "-o", tmp_path / "a"]
    assert start(["ingest", "tokens", path, *made]).returncode == 0
    config = {"sequence_length": 4, "split": "1", "blend": [str(tmp_path / "a")]}
    cache = here.build({**config, "samples": {"train": 5}}, tmp_path / "caches").path
    done = start(["verify", cache, "--corpora"])
    assert "1 corpus: .idx digests equal, .bin lengths equal, tokens not read" in done.stdout
    done = start(["verify", cache, "--tokens"])
    assert "digests of tokens equal" in done.stdout
    content = bytearray((tmp_path / "a.bin").read_bytes())
    content[-1] ^= 1
    (tmp_path / "a.bin").write_bytes(content)
    done = start(["verify", cache, "--tokens"])
    assert (done.returncode, "its tokens have digest" in done.stderr) == (3, True)
    (tmp_path / "a.receipt.json").unlink()
    done = start(["verify", cache, "--tokens"])
    assert (done.returncode, "has no receipt" in done.stderr) == (3, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, who may not read a file")
def test_a_file_that_cannot_be_read_is_found(tmp_path: Path) -> None:
    """A file that cannot be read is found by `check`, before training."""
    prefix = write_lengths(tmp_path / "a", np.array([4, 4]))
    Path(f"{prefix}.bin").chmod(0o600)
    for directory in (tmp_path, *tmp_path.parents[:3]):
        directory.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.as_user", "1234", "check", prefix],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env=clean_environment(),
    )
    assert done.returncode == 3
    assert "Permission denied" in " ".join(done.stdout.split())
