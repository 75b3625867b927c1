"""Bad input: the file, the line or row, the byte, and the reason; and nothing is lost."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiktoken_ext.openai_public import r50k_pat_str

from distcache.corpus.receipt import read_receipt
from distcache.errors import ConfigError, CorpusError, DistcacheError, NotReady
from distcache.ingest.tokenizers.tokenizer import TokenizerOptions
from distcache.ranks.progress import NullProgress
from tests.ingest.test_text import run, single
from tests.support import here
from tests.support.texts import read_corpus, write_jsonl

pytestmark = pytest.mark.slow

GOOD = b'{"text": "good"}\n'


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "\xff"}', "invalid UTF-8 at byte 10 of the line"),
        (b'{"text": "open', "Input data was truncated"),
        (b'{"text": 5}', "field 'text' is a number, expected a text or a list of texts"),
        (b'{"text": null}', "field 'text' is null, expected a text or a list of texts"),
        (b'{"text": ["a", 1]}', "field 'text' is a list with a number"),
        (b'{"other": "a"}', "its fields are 'other': name one with --text-key"),
        (b"[1]", "expected an object with a field 'text'; expected JSON lines"),
        (b"nonsense", "JSON is malformed"),
        (b'{"text": "a"} {"text": "b"}', "JSON is malformed"),
        (b'{"x":' * 100_000, "recursion"),
        (b'{"text": "\\ud800"}', "half of a surrogate pair, \\ud800, at character 0"),
        (b'{"text": "a\xed\xa0\xbdb"}', "invalid UTF-8 at byte 11 of the line"),
        (b'{"id": "\xff", "text": "a"}', "invalid UTF-8 at byte 8 of the line"),
        ('{"text": "good"}'.encode("utf-16"), "invalid UTF-8 at byte 0 of the line"),
        ('{"text": "good"}'.encode("utf-16-le"), "JSON is malformed"),
    ],
)
def test_a_wrong_line(line: bytes, reason: str, tokenizers: Path, tmp_path: Path) -> None:
    """Ends the ingest, or is left out; its place counts blank lines, and lines of other pieces."""
    before = GOOD * 3000 + b"\n" + GOOD
    path = tmp_path / "a.jsonl"
    path.write_bytes(before + line + b"\n" + GOOD)
    with pytest.raises(CorpusError) as caught:
        run([path], tokenizers, tmp_path / "out")
    assert str(caught.value).startswith(f"{path}: line 3003, byte {len(before)}: ")
    assert reason in str(caught.value)
    assert not list(tmp_path.glob("out*"))
    outcome = run([path], tokenizers, tmp_path / "out", on_error="skip")
    assert (outcome.rows, outcome.documents, outcome.skipped) == (3003, 3002, 1)
    (skipped,) = read_receipt(tmp_path / "out.receipt.json").skipped
    assert (skipped.line, skipped.byte) == (3003, len(before))


def test_what_python_reads_is_read(tokenizers: Path, tmp_path: Path) -> None:
    """Numbers that are none, a byte order mark, the last line without an end."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"text": "good"}\n{"score": NaN, "text": "good"}\r\n' + GOOD[:-1]
    )
    run([path], tokenizers, tmp_path / "out")
    assert len(set(map(tuple, single(tmp_path / "out")))) == 1
    assert len(single(tmp_path / "out")) == 3


def test_a_document_that_is_too_long(tokenizers: Path, tmp_path: Path) -> None:
    """A document may be too long by its bytes, whatever file it is in."""
    (tmp_path / "in").mkdir()
    long = "é" * 600
    write_jsonl(tmp_path / "in/a.jsonl", ["x", long])
    (tmp_path / "in/b.txt").write_text(long)
    pq.write_table(pa.table({"text": [long]}), tmp_path / "in/c.parquet")
    outcome = run([tmp_path / "in"], tokenizers, tmp_path / "out", longest=1000, on_error="skip")
    assert (outcome.documents, outcome.skipped) == (1, 3)
    for entry in read_receipt(tmp_path / "out.receipt.json").skipped:
        assert "more than the 1000 that a document may have; raise --max-document-size" in str(
            entry
        )


def test_text_that_is_not_utf8(tokenizers: Path, tmp_path: Path) -> None:
    """Text that is not UTF-8 is named, in a file that is one document and in a line."""
    (tmp_path / "a.txt").write_bytes(b"abc\xffdef")
    with pytest.raises(CorpusError, match=r"a\.txt: invalid UTF-8 at byte 3"):
        run([tmp_path / "a.txt"], tokenizers, tmp_path / "out")
    with pytest.raises(CorpusError, match=r"a\.txt: line 1, byte 0: invalid UTF-8 at byte 3"):
        run([tmp_path / "a.txt"], tokenizers, tmp_path / "out", documents="line")


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array(["a", None]), "row group 0, row 1: is null, or has a null in it"),
        (pa.array([["a"], ["b", None]]), "row group 0, row 1: is null, or has a null in it"),
        (pa.array([1, 2]), "column 'text' is of type int64, expected texts or lists of texts"),
        (pa.array([b"a", b"b"]), "column 'text' is of type binary, expected texts"),
        (pa.array([b"a", b"\xff"]).cast(pa.string(), safe=False), "row 1: invalid UTF-8 at byte 0"),
    ],
)
def test_wrong_columns_of_text(
    column: pa.Array, message: str, tokenizers: Path, tmp_path: Path
) -> None:
    """Nulls, and other types."""
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    with pytest.raises(CorpusError) as caught:
        run([tmp_path / "a.parquet"], tokenizers, tmp_path / "out")
    assert message in str(caught.value)


def test_inputs_that_are_not_there(tokenizers: Path, tmp_path: Path) -> None:
    """Every word that names nothing is listed, before anything is made."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/.hidden.txt").write_text("x")
    (tmp_path / "in/x.csv").write_text("x")
    words = [tmp_path / "in", tmp_path / "*.jsonl", tmp_path / "no.txt"]
    with pytest.raises(NotReady) as caught:
        run([*words], tokenizers, tmp_path / "out")
    directory, pattern, file = caught.value.problems
    assert directory.startswith(f"{words[0]}: has no file with .arrow, .json[.gz|.zst|.bz2|.xz], ")
    assert pattern.endswith("*.jsonl: matches no file")
    assert file.endswith("no.txt: no such file")
    with pytest.raises(ConfigError, match=r"x\.csv: expected a regular file with"):
        run([tmp_path / "in/x.csv"], tokenizers, tmp_path / "out")


def test_nothing_to_write(tokenizers: Path, tmp_path: Path) -> None:
    """An empty corpus is of no use to anybody."""
    path = write_jsonl(tmp_path / "a.jsonl", ["", ""])
    with pytest.raises(CorpusError, match="no input has a document with a token"):
        run([path], tokenizers, tmp_path / "out")
    (tmp_path / "b.jsonl").write_bytes(b"")
    with pytest.raises(CorpusError, match="no input has a document with a token"):
        run([tmp_path / "b.jsonl"], tokenizers, tmp_path / "out")


def test_files_are_taken_once(tokenizers: Path, tmp_path: Path) -> None:
    """However many words name them; patterns and directories in the order of paths."""
    (tmp_path / "in/deep").mkdir(parents=True)
    for name in ("in/b.jsonl", "in/a.jsonl", "in/deep/c.jsonl"):
        write_jsonl(tmp_path / name, [name])
    words = [tmp_path / "in/b.jsonl", tmp_path / "in", tmp_path / "in/*.jsonl"]
    run([*words], tokenizers, tmp_path / "out")
    receipt = read_receipt(tmp_path / "out.receipt.json")
    names = ["in/b.jsonl", "in/a.jsonl", "in/deep/c.jsonl"]
    assert [entry.path for entry in receipt.inputs] == [str(tmp_path / name) for name in names]
    assert len(read_corpus(tmp_path / "out")) == 3


def test_an_input_that_changes_meanwhile(tokenizers: Path, tmp_path: Path) -> None:
    """An input that changes while it is read is noticed before anything is published."""
    path = write_jsonl(tmp_path / "a.jsonl", ["one", "two"])

    class Growing(NullProgress):
        def phase(self, name: str, total: float = 0) -> None:
            if name == "reading inputs":
                with open(path, "ab") as stream:
                    stream.write(GOOD)

    chosen = TokenizerOptions(str(tokenizers))
    with pytest.raises(CorpusError, match=r"a\.jsonl: has changed while it was read"):
        here.ingest_text([path], chosen, tmp_path / "out", progress=Growing())
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("out", [".", "..", "deep/", ""])
def test_an_output_that_is_a_directory(out: str, tokenizers: Path, tmp_path: Path) -> None:
    """An output that is a directory is no prefix of a corpus."""
    (tmp_path / "deep").mkdir()
    path = write_jsonl(tmp_path / "a.jsonl", ["one"])
    with pytest.raises(ConfigError, match="is a directory"):
        run([path], tokenizers, tmp_path / out)


def test_names_that_are_not_utf8(tokenizers: Path, tmp_path: Path) -> None:
    """Could not stand in a receipt."""
    name = os.fsdecode(bytes(tmp_path / "in") + b"\xff.txt")
    with open(name, "w", encoding="utf-8") as stream:
        stream.write("x")
    with pytest.raises(ConfigError, match="its name is not UTF-8; rename it"):
        run([tmp_path], tokenizers, tmp_path / "out")


def test_a_text_on_which_a_library_panics(tokenizers: Path, tmp_path: Path) -> None:
    """It is a wrong row like others: it is named, and can be left out."""
    path = write_jsonl(tmp_path / "a.jsonl", ["one", " " * 1_000_000 + "x", "two"])
    encoding = tokenizers / "ranks.tiktoken"
    with pytest.raises(CorpusError, match=r"a\.jsonl: line 2, byte \d+: the tokenizer refuses it"):
        run([path], encoding, tmp_path / "out", pattern=r50k_pat_str)
    outcome = run([path], encoding, tmp_path / "out", pattern=r50k_pat_str, on_error="skip")
    assert (outcome.documents, outcome.skipped) == (2, 1)


def test_links(tokenizers: Path, tmp_path: Path) -> None:
    """To files and directories are followed, and nothing is read twice for it."""
    (tmp_path / "in").mkdir()
    (tmp_path / "elsewhere").mkdir()
    write_jsonl(tmp_path / "elsewhere/b.jsonl", ["b"])
    write_jsonl(tmp_path / "in/a.jsonl", ["a"])
    (tmp_path / "in/c.jsonl").symlink_to("a.jsonl")
    (tmp_path / "in/deep").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/back").symlink_to(tmp_path / "in")
    outcome = run([tmp_path / "in", tmp_path / "./in/a.jsonl"], tokenizers, tmp_path / "out")
    assert outcome.documents == 2


def test_rows_without_text(tokenizers: Path, tmp_path: Path) -> None:
    """Take no memory, however many they are, and are counted."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"\n" * 300_000 + b"hello\n")
    outcome = run([path], tokenizers, tmp_path / "out", documents="line")
    assert (outcome.rows, outcome.empty, outcome.documents) == (300_001, 300_000, 1)


def test_many_wrong_rows(tokenizers: Path, tmp_path: Path, limit: Callable[..., None]) -> None:
    """They are all counted; the receipt lists the first of them."""
    limit("distcache.ingest.pieces", MIN_PIECE_BYTES=1 << 20)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x\n" * 5000 + GOOD)
    outcome = run([path], tokenizers, tmp_path / "out", on_error="skip")
    assert (outcome.skipped, outcome.documents) == (5000, 1)
    assert len(read_receipt(tmp_path / "out.receipt.json").skipped) == 1000


def test_a_directory_of_somebody_else(tokenizers: Path, tmp_path: Path) -> None:
    """Under the name of ours is left alone."""
    (tmp_path / ".out.ingest").mkdir()
    (tmp_path / ".out.ingest/thesis.txt").write_text("precious")
    path = write_jsonl(tmp_path / "a.jsonl", ["one"])
    with pytest.raises(DistcacheError, match="has files of somebody else"):
        run([path], tokenizers, tmp_path / "out")
    assert (tmp_path / ".out.ingest/thesis.txt").read_text() == "precious"


def test_odd_names(tokenizers: Path, tmp_path: Path) -> None:
    """Too long, not UTF-8, or of a directory that does not exist yet: refused before any work."""
    path = write_jsonl(tmp_path / "a.jsonl", ["one"])
    for out in ("y" * 245, os.fsdecode(b"ou\xff")):
        with pytest.raises(ConfigError):
            run([path], tokenizers, tmp_path / out)
    with pytest.raises(ConfigError, match="not UTF-8"):
        run([path], tokenizers, tmp_path / "out", text_key=os.fsdecode(b"\xff"))
    with pytest.raises(ConfigError, match="--eod"):
        run([path], tokenizers, tmp_path / "out", "9" * 5000, append_eod=True)
    assert not list(tmp_path.glob("*.bin"))


def test_a_corpus_beside_its_inputs(tokenizers: Path, tmp_path: Path) -> None:
    """Its receipt is no input when it is asked for again."""
    write_jsonl(tmp_path / "a.jsonl", ["one"])
    assert not run([tmp_path], tokenizers / "tokenizer.json", tmp_path / "out").reused
    assert run([tmp_path], tokenizers / "tokenizer.json", tmp_path / "out").reused


def test_tokens_beyond_the_tokenizers_vocabulary(tokenizers: Path, tmp_path: Path) -> None:
    """Which a careless file asks for, are wrong rows."""
    path = write_jsonl(tmp_path / "a.jsonl", ["one"])
    for number in (700, 100_000):
        content = json.loads((tokenizers / "tokenizer.json").read_text())
        content["post_processor"]["special_tokens"]["<s>"]["ids"] = [number]
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        with pytest.raises(CorpusError, match="line 1, byte 0: the tokenizer refuses it"):
            run([path], tmp_path / "tokenizer.json", tmp_path / "out", special_tokens=True)


def test_a_document_larger_than_a_shard_before_nothing(tokenizers: Path, tmp_path: Path) -> None:
    """Pieces without documents have no place of their own."""
    paths: list[Path | str] = [
        write_jsonl(tmp_path / "1.jsonl", ["a long text"] * 3),
        write_jsonl(tmp_path / "2.jsonl", [""] * 9000),
        write_jsonl(tmp_path / "3.jsonl", ["another"]),
    ]
    outcome = run(paths, tokenizers, tmp_path / "out", shard_size=1)
    assert (len(outcome.corpora), outcome.empty) == (4, 9000)


def test_hostile_leftovers(tokenizers: Path, tmp_path: Path) -> None:
    """Of a run that was killed are begun anew, whatever they hold."""
    path = write_jsonl(tmp_path / "a.jsonl", ["one", "two"])
    run([path], tokenizers, tmp_path / "good")
    stamp = read_receipt(tmp_path / "good.receipt.json").made_from
    for number, (name, content) in enumerate(
        [
            ("0.receipt.json", "abc"),
            ("0.receipt.json", (tmp_path / "good.receipt.json").read_text()),
            ("0.receipt.json", '{"corpora":99999999}'),
            ("published.json", '{"x": [1, 2]}'),
            ("journal.jsonl", '{"piece":0,"x":' + "[" * 100_000),
            ("journal.jsonl", '{"piece":0,"facts":{"digest":""},"digest":"","segments":[]}'),
        ]
    ):
        directory = tmp_path / f".out{number}.ingest"
        directory.mkdir()
        (directory / "stamp").write_text(stamp)
        (directory / name).write_text(content)
        assert run([path], tokenizers, tmp_path / f"out{number}").documents == 2


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
