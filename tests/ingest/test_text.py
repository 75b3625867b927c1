"""Text becomes the tokens that its tokenizer makes of it, whatever it comes in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import sentencepiece
import tiktoken
from tiktoken_ext.openai_public import r50k_pat_str
from tokenizers import Tokenizer

from distcache.builder.configuration import config_from_mapping
from distcache.corpus.receipt import read_receipt, receipt_path
from distcache.errors import ConfigError, KeyMismatch, NotReady
from distcache.ingest.pipeline import IngestOutcome
from distcache.ingest.tokenizers.find import find_tokenizer, make_tokenizer
from distcache.ingest.tokenizers.tiktoken_ranks import MEGATRON_PATTERNS
from distcache.ingest.tokenizers.tokenizer import Tokenizer as AnyTokenizer
from distcache.ingest.tokenizers.tokenizer import TokenizerOptions
from distcache.plan.problems import plan_warnings
from distcache.ranks.progress import NullProgress
from tests.plan.test_make import plan_of
from tests.support import here
from tests.support.processes import start
from tests.support.texts import END, read_corpus, write_jsonl

pytestmark = pytest.mark.slow


def run(
    words: list[Path | str], tokenizer: Path | str, out: Path, eod: str | None = None, **fields: Any
) -> IngestOutcome:
    """Ingest text with this process alone."""
    special, release = fields.pop("special_tokens", None), fields.pop("megatron", None)
    pattern = fields.pop("pattern", None)
    chosen = TokenizerOptions(str(tokenizer), eod, special, pattern, megatron=release)
    return here.ingest_text(words, chosen, out, **fields)


def load_tokenizer(options: TokenizerOptions) -> AnyTokenizer:
    """Return a tokenizer, as rank 0 finds it and every rank makes it."""
    return make_tokenizer(find_tokenizer(options), options)


def plain(tokenizers: Path, texts: list[str]) -> list[list[int]]:
    """Encode texts one by one as Megatron does: nothing added, nothing cut."""
    tokenizer = Tokenizer.from_file(str(tokenizers / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def single(prefix: Path) -> list[list[int]]:
    """Return the tokens of each document, which has one sequence."""
    return [sequence.tolist() for (sequence,) in read_corpus(prefix)]


def test_json_lines(tokenizers: Path, documents: list[str], tmp_path: Path) -> None:
    """One document per line, token for token; empty ones are dropped and counted."""
    path = write_jsonl(tmp_path / "a.jsonl", documents)
    outcome = run([path], tokenizers, tmp_path / "out")
    expected = [ids for ids in plain(tokenizers, documents) if ids]
    assert single(tmp_path / "out") == expected
    assert (outcome.rows, outcome.empty) == (300, 300 - len(expected))
    assert (outcome.documents, outcome.tokens) == (len(expected), sum(map(len, expected)))


def test_empty_documents_may_be_kept(tmp_path: Path, tokenizers: Path) -> None:
    """As documents without sequences, at both ends and between others."""
    path = write_jsonl(tmp_path / "a.jsonl", ["", "abc", "", "", "de", ""])
    outcome = run([path], tokenizers, tmp_path / "out", empty="keep", append_eod=True)
    assert (outcome.rows, outcome.empty, outcome.documents) == (6, 4, 6)
    assert [len(document) for document in read_corpus(tmp_path / "out")] == [0, 1, 0, 0, 1, 0]
    done = start(["check", tmp_path / "out"])
    assert done.returncode == 0, done.stdout


def test_the_end_of_documents(tokenizers: Path, documents: list[str], tmp_path: Path) -> None:
    """It is appended if asked for, but not to what is empty."""
    path = write_jsonl(tmp_path / "a.jsonl", documents)
    run([path], tokenizers, tmp_path / "out", append_eod=True)
    assert single(tmp_path / "out") == [[*ids, 0] for ids in plain(tokenizers, documents) if ids]


class Noting(NullProgress):
    """Keeps notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        """Keep one."""
        self.notes.append(message)


@pytest.mark.parametrize("once", [False, True])
def test_an_end_that_the_text_has(once: bool, tokenizers: Path, tmp_path: Path) -> None:
    """It is said how many documents have two, and none is appended if that is asked for."""
    path = write_jsonl(tmp_path / "a.jsonl", [f"one{END}", "two", "", f"three{END}"])
    progress = Noting()
    run([path], tokenizers, tmp_path / "out", append_eod=True, eod_once=once, progress=progress)
    found = single(tmp_path / "out")
    assert [ids[-1] for ids in found] == [0, 0, 0]
    assert [ids[-2] == 0 for ids in found] == [not once, False, not once]
    assert any("2 documents end with two" in note for note in progress.notes) is not once


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.parquet"])
def test_only_some_inputs_need_arrow(
    name: str, tokenizers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What needs it says so before anything is read."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ConfigError, match=r"pyarrow is not installed: pip install"):
        run([tmp_path / name], tokenizers, tmp_path / "out")


def test_lines_of_json_need_no_arrow(tokenizers: Path, tmp_path: Path) -> None:
    """A process in which it cannot be imported reads them; gigatoken imports it by itself."""
    lines = write_jsonl(tmp_path / "b.jsonl", ["abc"])
    words = ["ingest", "text", lines, "--tokenizer", tokenizers, "-o", tmp_path / "out"]
    program = (
        "import sys; sys.modules['pyarrow'] = None; from distcache.cli.main import main; "
        f"sys.argv = {['distcache', *map(str, words), '--engine', 'tokenizers']!r}; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert single(tmp_path / "out") == plain(tokenizers, ["abc"])


def test_sentences(tokenizers: Path, tmp_path: Path) -> None:
    """A list of texts is a document of several sequences, as is a text that is split at lines."""
    texts = [["one", "", "two words"], "three\nfour", []]
    path = write_jsonl(tmp_path / "a.jsonl", texts)
    run([path], tokenizers, tmp_path / "list", append_eod=True)
    run([path], tokenizers, tmp_path / "lines", sentences="lines")
    one, two, three, four, both = plain(
        tokenizers, ["one", "two words", "three", "four", "three\nfour"]
    )
    found = [[ids.tolist() for ids in document] for document in read_corpus(tmp_path / "list")]
    assert found == [[one, [*two, 0]], [[*both, 0]]]
    found = [[ids.tolist() for ids in document] for document in read_corpus(tmp_path / "lines")]
    assert found == [[one, two], [three, four]]


def test_sentencepiece(tokenizers: Path, documents: list[str], tmp_path: Path) -> None:
    """Its own end of documents; and its first token, if that is asked for."""
    path = write_jsonl(tmp_path / "a.jsonl", documents)
    model = sentencepiece.SentencePieceProcessor(model_file=str(tokenizers / "pieces.model"))
    run([path], tokenizers / "pieces.model", tmp_path / "out", append_eod=True)
    encoded = [model.encode_as_ids(text) for text in documents]
    assert single(tmp_path / "out") == [[*ids, model.eos_id()] for ids in encoded if ids]
    run([path], tokenizers / "pieces.model", tmp_path / "bos", special_tokens=True)
    assert single(tmp_path / "bos")[0][0] == model.bos_id()


def encoding_of(file: Path) -> tiktoken.Encoding:
    """Return an encoding of tiktoken with the ranks of a file."""
    ranks = tiktoken.load.load_tiktoken_bpe(str(file))
    return tiktoken.Encoding(
        "x",
        pat_str=r50k_pat_str,
        mergeable_ranks=ranks,
        special_tokens={"<|endoftext|>": len(ranks)},
    )


def test_tiktoken(tokenizers: Path, documents: list[str], tmp_path: Path) -> None:
    """Ranks with a pattern, and the next number for the end of a document."""
    path = write_jsonl(tmp_path / "a.jsonl", documents)
    file = tokenizers / "ranks.tiktoken"
    run([path], file, tmp_path / "out", pattern=r50k_pat_str, append_eod=True)
    peer = encoding_of(file)
    encoded = [peer.encode(text, allowed_special="all") for text in documents]
    assert single(tmp_path / "out") == [[*ids, peer.eot_token] for ids in encoded if ids]


def test_an_encoding_by_its_name(
    tokenizers: Path, documents: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is that of the file with its ranks, down to the digest in the receipt."""
    path = write_jsonl(tmp_path / "a.jsonl", documents)
    file = tokenizers / "ranks.tiktoken"
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: encoding_of(file))
    run([path], "r50k_base", tmp_path / "r50k_base", append_eod=True)
    run([path], file, tmp_path / file.name, pattern=r50k_pat_str, append_eod=True)
    assert single(tmp_path / "r50k_base") == single(tmp_path / file.name)
    receipts = [
        read_receipt(f"{tmp_path / name}.receipt.json").tokenizer
        for name in ("r50k_base", file.name)
    ]
    assert None not in receipts
    assert len({receipt.digest for receipt in receipts if receipt}) == 1


def test_megatrons_vocabulary_for_tiktoken(tokenizers: Path, tmp_path: Path) -> None:
    """A JSON list, whose ranks follow a thousand special tokens."""
    lines = (tokenizers / "ranks.tiktoken").read_text().splitlines()
    entries = [
        {"rank": int(rank), "token_bytes": token, "token_str": ""}
        for token, rank in map(str.split, lines)
    ]
    file = tmp_path / "vocab.json"
    file.write_text(json.dumps(entries))
    run([write_jsonl(tmp_path / "a.jsonl", ["the self"])], file, tmp_path / "out", append_eod=True)
    assert single(tmp_path / "out") == [[1000 + 258, 1000 + 262, 2]]


def test_the_token_type(tokenizers: Path, tmp_path: Path) -> None:
    """It is the smallest that holds the vocabulary, unless another one is wanted."""
    path = write_jsonl(tmp_path / "a.jsonl", ["abc"])
    for name, expected in (("auto", "<u2"), ("megatron", "<u2"), ("i32", "<i4"), ("i64", "<i8")):
        run([path], tokenizers, tmp_path / name, token_type=name)
        assert read_corpus(tmp_path / name)[0][0].dtype == np.dtype(expected)
    with pytest.raises(ConfigError, match="does not hold a vocabulary of 600 tokens"):
        run([path], tokenizers, tmp_path / "u8", token_type="u8")


def test_which_token_ends_documents(tokenizers: Path, documents: list[str], tmp_path: Path) -> None:
    """What is asked for, else what the files beside the tokenizer say, else what is well known."""
    path = write_jsonl(tmp_path / "a.jsonl", ["abc"])
    copy = tmp_path / "tokenizer.json"
    copy.write_bytes((tokenizers / "tokenizer.json").read_bytes())
    for out, eod, expected in (("text", "<s>", 1), ("number", "17", 17), ("known", None, 0)):
        run([path], copy, tmp_path / out, eod, append_eod=True)
        assert single(tmp_path / out)[0][-1] == expected
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<s>"}}')
    run([path], copy, tmp_path / "stated", append_eod=True)
    assert single(tmp_path / "stated")[0][-1] == 1
    for eod in ("<nothing>", "600"):
        with pytest.raises(ConfigError, match="--eod"):
            run([path], copy, tmp_path / "never", eod, append_eod=True)


@pytest.mark.parametrize(
    ("name", "token", "expected"),
    [
        ("tokenizer.json", "<s>", 1),
        ("pieces.model", "</s>", 2),
        ("ranks.tiktoken", "<|endoftext|>", 263),
    ],
)
def test_the_end_by_name_and_by_number(
    name: str, token: str, expected: int, tokenizers: Path
) -> None:
    """The end by name and by number for every kind of tokenizer."""
    pattern = "v1" if name.endswith(".tiktoken") else None
    found = TokenizerOptions(str(tokenizers / name), token, pattern=pattern)
    assert load_tokenizer(found).facts.eod == expected
    assert load_tokenizer(msgspec.structs.replace(found, eod="217")).facts.eod == 217
    with pytest.raises(ConfigError, match="--eod"):
        load_tokenizer(msgspec.structs.replace(found, eod="no such token"))


def test_special_tokens_and_patterns(tokenizers: Path, tmp_path: Path) -> None:
    """What a tokenizer cannot add is an error, and so are ranks without a pattern."""
    pieces = str(tokenizers / "pieces.model")
    bare = load_tokenizer(TokenizerOptions(pieces)).encode(["a"]).ids.tolist()
    first = load_tokenizer(TokenizerOptions(pieces, None, True)).encode(["a"])
    assert first.ids.tolist() == [1, *bare]
    ranks = tokenizers / "ranks.tiktoken"
    with pytest.raises(ConfigError, match="add none"):
        load_tokenizer(TokenizerOptions(str(ranks), None, True, "v1"))
    unknown = tmp_path / "mine.tiktoken"
    unknown.write_bytes(ranks.read_bytes())
    with pytest.raises(ConfigError, match=r"ranks only; give --tiktoken-pattern"):
        load_tokenizer(TokenizerOptions(str(unknown)))
    found = load_tokenizer(TokenizerOptions(str(unknown), None, False, "v2"))
    ranked = tiktoken.load.load_tiktoken_bpe(str(ranks))
    v2 = MEGATRON_PATTERNS["v2"]
    theirs = tiktoken.Encoding("x", pat_str=v2, mergeable_ranks=ranked, special_tokens={})
    assert found.encode(["some words"]).ids.tolist() == theirs.encode_ordinary("some words")
    with pytest.raises(ConfigError, match=r"mine\.tiktoken"):
        load_tokenizer(TokenizerOptions(str(unknown), None, False, "("))


def test_naming_the_token_appends_it(tokenizers: Path, tmp_path: Path) -> None:
    """As `ingest tokens --eod` does; neither option is a warning."""
    path = write_jsonl(tmp_path / "a.jsonl", ["abc"])
    words = ["ingest", "text", path, "--tokenizer", tokenizers / "tokenizer.json", "-o"]
    named = start([*words, tmp_path / "named", "--eod", "17"])
    assert named.returncode == 0, named.stderr
    assert single(tmp_path / "named")[0][-1] == 17
    assert "warning" not in named.stderr
    bare = start([*words, tmp_path / "bare"])
    assert bare.returncode == 0, bare.stderr
    assert "give --append-eod or --eod TOKEN" in bare.stderr


def test_what_is_there_is_found(tokenizers: Path, tmp_path: Path) -> None:
    """Asked for the same again, it is done; asked for something else, it refuses."""
    path = write_jsonl(tmp_path / "a.jsonl", ["one", "two"])
    first = run([path], tokenizers, tmp_path / "out")
    again = run([path], tokenizers, tmp_path / "out")
    assert (first.reused, again.reused) == (False, True)
    assert again.corpora == first.corpora
    with pytest.raises(KeyMismatch, match=r"out\.idx.*: already exist.*differs in append_eod"):
        run([path], tokenizers, tmp_path / "out", append_eod=True)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "a.jsonl",
        "out.bin",
        "out.idx",
        "out.receipt.json",
    ]


def test_what_is_there_in_part_is_not_found(
    tokenizers: Path, documents: list[str], tmp_path: Path
) -> None:
    """A receipt alone is no corpus, and some of several shards are not all of them."""
    path = write_jsonl(tmp_path / "a.jsonl", documents)
    made = run([path], tokenizers, tmp_path / "out", shard_size=60_000)
    assert len(made.corpora) > 2
    for name in (made.corpora[1].prefix + ".idx", made.corpora[-1].receipt):
        kept = Path(name).read_bytes()
        Path(name).unlink()
        with pytest.raises(KeyMismatch, match="already exist"):
            run([path], tokenizers, tmp_path / "out", shard_size=60_000)
        Path(name).write_bytes(kept)
    assert run([path], tokenizers, tmp_path / "out", shard_size=60_000).reused


def test_numbered_names_that_are_taken(tokenizers: Path, tmp_path: Path) -> None:
    """They are refused at once, also if nobody knows yet how many there will be."""
    path = write_jsonl(tmp_path / "a.jsonl", ["one"])
    (tmp_path / "out-00007.bin").write_text("precious")
    with pytest.raises(KeyMismatch, match=r"out-00007\.bin: already exists"):
        run([path], tokenizers, tmp_path / "out", shard_size=100)
    run([path], tokenizers, tmp_path / "out")


def test_shards(tokenizers: Path, documents: list[str], tmp_path: Path) -> None:
    """A corpus ends at a document, before its tokens take more than is allowed."""
    path = write_jsonl(tmp_path / "a.jsonl", documents)
    whole = run([path], tokenizers, tmp_path / "whole")
    cut = run([path], tokenizers, tmp_path / "cut", shard_size=30_000)
    assert len(cut.corpora) > 5
    assert cut.tokens == whole.tokens
    found, room = [], 0
    for corpus in cut.corpora:
        shard = single(Path(corpus.prefix))
        size = 2 * sum(map(len, shard))
        assert size <= 30_000
        assert room + 2 * len(shard[0]) > 30_000 or not found
        found, room = found + shard, size
    assert found == single(tmp_path / "whole")
    receipts = [read_receipt(corpus.receipt) for corpus in cut.corpora]
    assert sum(receipt.inputs[0].rows for receipt in receipts) == whole.rows
    assert [receipt.inputs[0].tokens for receipt in receipts] == [
        corpus.tokens for corpus in cut.corpora
    ]


def test_the_receipt(tokenizers: Path, documents: list[str], tmp_path: Path) -> None:
    """What each input came to, and where it is; nothing of when and where it was made."""
    paths = [write_jsonl(tmp_path / "a.jsonl", documents), write_jsonl(tmp_path / "b.jsonl", ["x"])]
    run([*paths], tokenizers, tmp_path / "out")
    receipt = read_receipt(tmp_path / "out.receipt.json")
    first, second = receipt.inputs
    assert (first.path, first.rows) == (str(paths[0]), 300)
    assert len(first.pieces) > 3
    assert (first.first_offset, second.first_offset) == (0, 2 * first.tokens)
    assert receipt.bin_size == 2 * (first.tokens + second.tokens)
    assert receipt.tokenizer is not None
    assert (receipt.tokenizer.vocabulary, receipt.tokenizer.eod) == (600, 0)
    before = (tmp_path / "out.receipt.json").read_bytes()
    for name in ("out.bin", "out.idx", "out.receipt.json"):
        (tmp_path / name).unlink()
    run([*paths], tokenizers, tmp_path / "out")
    assert (tmp_path / "out.receipt.json").read_bytes() == before


@pytest.mark.parametrize("name", ["missing.json", "/nowhere", "no/such/thing"])
def test_a_tokenizer_that_is_not_there(name: str, tmp_path: Path) -> None:
    """It is said before anything is made."""
    path = write_jsonl(tmp_path / "a.jsonl", ["x"])
    with pytest.raises(NotReady, match="no such file"):
        run([path], name, tmp_path / "out")


def test_a_hub_that_cannot_be_reached(tmp_path: Path) -> None:
    """A name that cannot be resolved is not tried for 20 seconds; the cache of the machine is."""
    path = write_jsonl(tmp_path / "a.jsonl", ["x"])
    words = ["ingest", "text", path, "--tokenizer", "no/such", "-o", tmp_path / "out"]
    where = {"HF_ENDPOINT": "https://hub.invalid", "HF_HOME": str(tmp_path / "hub")}
    done = start(words, environment=where)
    assert done.returncode == 5
    assert "cannot reach https://hub.invalid, has no copy of it" in done.stderr
    assert "Retrying" not in done.stderr


@pytest.mark.parametrize("name", ["a.json", "a.model", "a.tiktoken", "b.json"])
def test_what_is_no_tokenizer(name: str, tmp_path: Path) -> None:
    """It is said, whatever it is treated as."""
    path = write_jsonl(tmp_path / "a.jsonl", ["x"])
    (tmp_path / name).write_text('[{"rank": 0}]' if name == "b.json" else "nonsense")
    with pytest.raises(ConfigError, match="--tokenizer"):
        run([path], tmp_path / name, tmp_path / "out")


def test_packed_rows_need_the_end_of_documents(tmp_path: Path, tokenizers: Path) -> None:
    """A corpus that is known to have none is refused; of one without a receipt it is not known."""
    path = write_jsonl(tmp_path / "in.jsonl", [f"document {n}" for n in range(30)])
    for name, append_eod in (("with", True), ("without", False)):
        run([path], tokenizers, tmp_path / name, append_eod=append_eod)

    def fields(name: str) -> dict[str, Any]:
        return {
            "sequence_length": 64,
            "pack": True,
            "split": "1",
            "samples": {"train": 10},
            "blend": [str(tmp_path / name)],
        }

    with pytest.raises(ConfigError, match="ingest it with --append-eod"):
        plan_of(fields("without"))
    config = config_from_mapping(fields("with"))
    assert not any("receipt" in text for text in plan_warnings(config, plan_of(config)))
    os.unlink(receipt_path(str(tmp_path / "with")))
    assert any("has no receipt" in text for text in plan_warnings(config, plan_of(config)))
