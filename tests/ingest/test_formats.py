"""Files in every form that people have: unnamed, compressed in other ways, tables, arrays."""

from __future__ import annotations

import gzip
import json
import lzma
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distcache.corpus.loss import loss_path
from distcache.corpus.receipt import read_receipt
from distcache.edit.source_readback import read_back
from distcache.errors import ConfigError, CorpusError, NotReady
from distcache.ingest.inputs import TextOptions, find_inputs, require_unchanged
from distcache.ingest.pipeline import IngestOutcome
from distcache.ingest.readers import tables
from distcache.ingest.readers.text import TextReader
from distcache.ingest.tokenizers.find import find_tokenizer, make_tokenizer
from distcache.ingest.tokenizers.tokenizer import TokenizerOptions
from tests.support import here
from tests.support.processes import DISTCACHE, LIMIT, clean_environment, start
from tests.support.texts import read_corpus

pytestmark = pytest.mark.slow

DOCUMENTS = [[1, 2, 0], [3, 0], [4, 5, 6, 0]]
LINES = b"".join(json.dumps({"text": f"hello {i}"}).encode() + b"\n" for i in range(5))


def text(words: list[Path], tokenizers: Path, out: Path, **fields: Any) -> IngestOutcome:
    """Ingest text with this process alone."""
    chosen = TokenizerOptions(str(tokenizers / "tokenizer.json"))
    return here.ingest_text(words, chosen, out, **fields)


def tokens(words: list[Path], out: Path, **fields: Any) -> list[list[int]]:
    """Ingest tokens with this process alone, read them back, and return the documents."""
    here.ingest_tokens(words, out, threads=1, **{"vocabulary": 10, "eod": 0, **fields})
    receipt = read_receipt(f"{out}.receipt.json")
    assert not read_back(here.ALONE, str(out), receipt, 100)
    return [sequence.tolist() for (sequence,) in read_corpus(out)]


def test_names_that_say_nothing(tokenizers: Path, tmp_path: Path) -> None:
    """They are read as what is given, with all files of a directory, and compressed ones."""
    for folder in ("AA", "AB"):
        (tmp_path / "wiki" / folder).mkdir(parents=True)
        (tmp_path / "wiki" / folder / "wiki_00").write_bytes(LINES)
    (tmp_path / "wiki" / "wiki_01.xz").write_bytes(lzma.compress(LINES))
    with pytest.raises(Exception, match="name the format of other files with --format"):
        text([tmp_path / "wiki"], tokenizers, tmp_path / "none")
    done = text([tmp_path / "wiki"], tokenizers, tmp_path / "out", format="jsonl")
    assert done.documents == 15
    with pytest.raises(ConfigError, match=r"wiki_01.xz: expected a regular file, uncompressed"):
        text([tmp_path / "wiki" / "wiki_01.xz"], tokenizers, tmp_path / "no", format="parquet")


def test_padding_between_streams_of_xz(tokenizers: Path, tmp_path: Path) -> None:
    """Padding between streams of xz is part of the format."""
    path = tmp_path / "a.jsonl.xz"
    path.write_bytes(lzma.compress(LINES) + bytes(8) + lzma.compress(LINES) + bytes(4))
    assert text([path], tokenizers, tmp_path / "out").documents == 10
    path.write_bytes(bytes(64))  # what a crash may leave
    with pytest.raises(CorpusError, match="cannot be read from here on"):
        text([path], tokenizers, tmp_path / "zeros")


def test_standard_input_and_pipes(tokenizers: Path, tmp_path: Path) -> None:
    """Standard input and pipes are read once; the same again is found."""
    words = ["ingest", "text", "-", "--tokenizer", str(tokenizers / "tokenizer.json"), "-o", "out"]
    for _ in range(2):
        done = subprocess.run(
            [DISTCACHE, *words, "--format", "jsonl", "--json"],
            input=LINES,
            cwd=tmp_path,
            capture_output=True,
            timeout=LIMIT,
            env=clean_environment(),
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["documents"] == 5
    assert json.loads(done.stdout)["reused"]
    refused = start(words)
    assert refused.returncode == 2
    assert "give --format" in refused.stderr


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"input_ids": [1, "2"]}', "Expected `int`"),
        ('{"tokens": [1]}', "a list of ids in field 'input_ids'"),
        ('{"input_ids": [1, 99]}', "token 1 is 99, expected 0 to 9"),
        ('{"input_ids": [99999999999999999999]}', "64 bits"),
    ],
)
def test_wrong_lines_of_ids(line: str, reason: str, tmp_path: Path) -> None:
    """The error names the line, and says why."""
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"input_ids": [1]}}\n{line}\n')
    with pytest.raises(CorpusError, match=r"line 2|row 1") as caught:
        tokens([path], tmp_path / "bad")
    assert reason in str(caught.value)


def test_other_fields_of_lines_of_ids(tmp_path: Path) -> None:
    """May hold what Python's parser takes, as beside texts."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"input_ids":[1,2],"score":NaN}\n{"x":"\\ud800","input_ids":[3]}\n')
    assert tokens([path], tmp_path / "out", column="input_ids") == [[1, 2, 0], [3, 0]]
    path.write_text('{"input_ids":[1,NaN]}\n')
    with pytest.raises(CorpusError, match="expected JSON lines"):
        tokens([path], tmp_path / "wrong", column="input_ids")


def test_wrong_arrays_of_ids(tmp_path: Path) -> None:
    """Whose type or boundaries are not known, and whose index is another's."""
    flat = np.array([1, 2, 0, 3, 0, 4, 5, 6, 0], np.uint16)
    flat.tofile(tmp_path / "part-0-00000.npy")
    flat.tofile(tmp_path / "000.ds")
    for name, fields, reason in (
        ("part-0-00000.npy", {}, "give its type with --dtype"),
        ("part-0-00000.npy", {"dtype": "uint16", "eod": None}, "has no boundaries: give --eod"),
        ("part-0-00000.npy", {"dtype": "int32"}, "has 2 bytes after its last whole token"),
        ("part-0-00000.npy", {"dtype": "uint16", "vocabulary": 5}, "expected 0 to 4"),
    ):
        with pytest.raises(CorpusError, match=reason):
            tokens([tmp_path / name], tmp_path / "no", **fields)
    np.array([3, 2, 9], np.uint64).tofile(tmp_path / "000.ds.index")
    with pytest.raises(CorpusError, match="does not list ascending ends of documents, up to 9"):
        tokens([tmp_path / "000.ds"], tmp_path / "no", dtype="uint16")


@pytest.mark.parametrize(
    ("head", "width"),
    [
        ([20240520, 1, 6, 0], 2),
        ([20240801, 7, 6, 0], 4),
        ([278895051, 1, 6, 2], 2),
        ([278895051, 1, 6, 4], 4),
    ],
)
def test_headers_of_nanogpt_are_no_tokens(head: list[int], width: int, tmp_path: Path) -> None:
    """They say how many tokens follow, of which type; a shard that was cut short is refused."""
    path = tmp_path / "shard.bin"
    content = np.array(head + [0] * 252, "<i4").tobytes()
    content += np.array([1, 2, 0, 3, 4, 0], f"<u{width}").tobytes()
    path.write_bytes(content)
    assert tokens([path], tmp_path / "out", format="raw") == [[1, 2, 0], [3, 4, 0]]
    other = "uint16" if width == 4 else "uint32"
    with pytest.raises(CorpusError, match=f"has tokens of {width} bytes by its header"):
        tokens([path], tmp_path / "no", format="raw", dtype=other)
    path.write_bytes(content[:-4])
    with pytest.raises(CorpusError, match=f"by which {6 * width} bytes of tokens follow, and"):
        tokens([path], tmp_path / "no", format="raw")


@pytest.mark.parametrize(
    ("numbers", "cut", "said"),
    [
        ([20240522, 1, 6, 0], None, "is a file of llm.c, by its header, that has no shard"),
        ([20240326, 3, 6, 0], None, "is a file of llm.c, by its header, that has no shard"),
        ([20240520, 100, 6, 0], None, "of the unknown version 100"),
        ([20240520, 1, 6, 0, 7], None, "with numbers where it has zeros"),
        ([278895051, 1, 6, 8], None, "by which a token has 8 bytes"),
        ([20240520, 1, 6, 0], 600, "which is cut at 600 bytes"),
        ([20240520], 4, "which is cut at 4 bytes"),
    ],
)
def test_headers_of_nanogpt_that_have_no_tokens(
    numbers: list[int], cut: int | None, said: str, tmp_path: Path
) -> None:
    """They are never taken for tokens."""
    content = np.array([*numbers, *[0] * (256 - len(numbers)), 1, 2, 0], "<i4").tobytes()
    (tmp_path / "a.bin").write_bytes(content[:cut])
    with pytest.raises(CorpusError, match=said):
        tokens([tmp_path / "a.bin"], tmp_path / "out", format="raw", dtype="uint16")


def test_files_of_other_formats_are_no_arrays(tmp_path: Path) -> None:
    """They are refused by name, whatever type is given; also the tokens of a corpus."""
    (tmp_path / "a.bin").write_bytes(gzip.compress(bytes(50)))
    with pytest.raises(CorpusError, match="is compressed by gzip, and no array of token ids"):
        tokens([tmp_path / "a.bin"], tmp_path / "out", format="raw", dtype="uint16")
    (tmp_path / "b.npy").write_text('{"vocab_size": 50257}')
    with pytest.raises(CorpusError, match="is JSON, and no array of token ids"):
        tokens([tmp_path / "b.npy"], tmp_path / "out", dtype="uint16")
    (tmp_path / "c.bin").write_bytes(b"\1\2\1\2\1\2\1\2\0once upon\0")
    done = here.ingest_tokens(
        [tmp_path / "c.bin"], tmp_path / "bytes", threads=1, format="raw", dtype="uint8", eod=0
    )
    assert done.documents == 2
    with pytest.raises(CorpusError, match=r"is the tokens of a corpus, whose .idx is beside it"):
        tokens([tmp_path / "bytes.bin"], tmp_path / "out", format="raw", dtype="uint8")


def test_a_directory_of_arrays(tmp_path: Path) -> None:
    """Of a repository with tokens, the files that may be arrays; others by a pattern."""
    data = tmp_path / "shakespeare"
    data.mkdir()
    for name in ("prepare.py", "readme.md", "meta.pkl"):
        (data / name).write_text("import tiktoken")
    with pytest.raises(NotReady, match=r"no file with .bin, .ds or .npy; name other files by a p"):
        tokens([data], tmp_path / "none", format="raw", dtype="uint16")
    for name in ("train.bin", "b.u16"):
        np.array([1, 2, 0], np.uint16).tofile(data / name)
    assert tokens([data], tmp_path / "one", format="raw", dtype="uint16") == [[1, 2, 0]]
    words = [data, data / "*.u16"]
    assert len(tokens(words, tmp_path / "two", format="raw", dtype="uint16")) == 2


@pytest.mark.parametrize("block", [2, 6, 4 << 20])
@pytest.mark.parametrize(
    ("name", "mask"), [("a.ds", "a.ds.loss"), ("token_ids_0.npy", "labels_mask_0.npy")]
)
def test_a_mask_beside_an_array(
    name: str, mask: str, block: int, tmp_path: Path, limit: Callable[..., None]
) -> None:
    """As datatrove and OLMo-core write it, a byte for each token."""
    limit("distcache.ingest.readers.token_arrays", BATCH_BYTES=block)
    np.array([1, 2, 0, 3, 0], np.uint16).tofile(tmp_path / name)
    (tmp_path / mask).write_bytes(b"\1\1\1\1\1")
    fields = {"dtype": "uint16"}
    assert tokens([tmp_path], tmp_path / "all", **fields) == [[1, 2, 0], [3, 0]]
    assert not Path(loss_path(str(tmp_path / "all"))).exists()
    (tmp_path / mask).write_bytes(b"\0\0\1\1\0")
    assert tokens([tmp_path / name], tmp_path / "out", **fields) == [[1, 2, 0], [3, 0]]
    assert Path(loss_path(str(tmp_path / "out"))).read_bytes() == b"\0\0\1\1\0"
    tokens([tmp_path / name], tmp_path / "any", masks="ignore", **fields)
    assert not Path(loss_path(str(tmp_path / "any"))).exists()
    (tmp_path / mask).write_bytes(b"\1\1")
    with pytest.raises(CorpusError, match=f"{mask} has 2 bytes for 5 tokens"):
        tokens([tmp_path / name], tmp_path / "none", **fields)


@pytest.mark.parametrize("ends", [[0, 0, 0], [0, 3, 3, 9], [9, 9], [9]])
@pytest.mark.parametrize("block", [2, 6, 4 << 20])
def test_documents_end_where_the_index_says(
    ends: list[int], block: int, tmp_path: Path, limit: Callable[..., None]
) -> None:
    """Also those without a token, wherever they are, and whatever blocks the array is read in."""
    limit("distcache.ingest.readers.token_arrays", BATCH_BYTES=block)
    tokens = np.arange(1, ends[-1] + 1, dtype=np.uint16)
    tokens.tofile(tmp_path / "a.ds")
    np.array(ends, np.uint64).tofile(tmp_path / "a.ds.index")
    (tmp_path / "b.jsonl").write_text('{"input_ids": [7]}\n')
    here.ingest_tokens(
        [tmp_path / "a.ds", tmp_path / "b.jsonl"], tmp_path / "out", dtype="uint16", empty="keep"
    )
    documents = read_corpus(tmp_path / "out")
    found = [[token for part in one for token in part.tolist()] for one in documents]
    assert found == [*(part.tolist() for part in np.split(tokens, ends)[:-1]), [7]]


def test_the_index_of_an_array_is_no_array(tmp_path: Path) -> None:
    """Whatever words name it; one without an end is refused, as is one that changes."""
    np.arange(9, dtype=np.uint16).tofile(tmp_path / "a.bin")
    np.array([4, 9], np.uint64).tofile(tmp_path / "a.bin.index")
    fields = {"format": "raw", "dtype": "uint16", "eod": None}
    for number, words in enumerate([[tmp_path], [tmp_path / "a.bin*"]]):
        done = here.ingest_tokens(words, tmp_path.with_name(f"{tmp_path.name}-{number}"), **fields)
        assert (done.documents, done.tokens) == (2, 9)
    entry = find_inputs([str(tmp_path)], ("raw",), "raw")
    (tmp_path / "a.bin.index").write_bytes(b"")
    with pytest.raises(CorpusError, match="has changed while it was read"):
        require_unchanged(entry)
    with pytest.raises(CorpusError, match="does not list ascending ends of documents, up to 9"):
        here.ingest_tokens([tmp_path / "a.bin"], tmp_path / "no", **fields)


def test_documents_beyond_a_block_of_an_array(tmp_path: Path, limit: Callable[..., None]) -> None:
    """They are put together; the last one may lack its end."""
    limit("distcache.ingest.readers.token_arrays", BATCH_BYTES=4)
    flat = np.array([1, 2, 3, 4, 5, 0, 6, 0, 7], np.uint16)
    flat.tofile(tmp_path / "a.npy")
    found = tokens([tmp_path / "a.npy"], tmp_path / "out", dtype="uint16")
    assert found == [[1, 2, 3, 4, 5, 0], [6, 0], [7, 0]]


def test_a_footer_is_decoded_once(
    tokenizers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many pieces a file has: decoding takes time for each of its groups."""
    path = tmp_path / "a.parquet"
    rows = pa.table({"text": ["hello world " * 50] * 400})
    pq.write_table(rows, path, row_group_size=10, use_dictionary=False)
    decoded: list[bool] = []
    original = pq.ParquetFile

    def noting(*args: Any, **options: Any) -> Any:
        decoded.append(options.get("metadata") is None)
        return original(*args, **options)

    monkeypatch.setattr(tables.pq, "ParquetFile", noting)
    assert text([path], tokenizers, tmp_path / "out").documents == 400
    assert sum(decoded) == 1
    assert len(decoded) > 5


def test_large_texts_are_encoded_one_at_a_time(
    tokenizers: Path, monkeypatch: pytest.MonkeyPatch, limit: Callable[..., None]
) -> None:
    """By all threads of a rank together: each takes a hundred times its size."""
    options = TokenizerOptions(str(tokenizers / "tokenizer.json"))
    reader = TextReader(make_tokenizer(find_tokenizer(options), options), TextOptions())
    limit("distcache.ingest.readers.text", LARGE_TEXT=4)
    held: list[bool] = []

    class Lock:
        def __enter__(self) -> None:
            held.append(True)

        def __exit__(self, *_: object) -> None:
            held.append(False)

    monkeypatch.setattr("distcache.ingest.readers.text._large_texts", Lock())
    reader._encode(["abc"])
    assert held == []
    reader._encode(["abcdef"])
    assert held == [True, False]


def test_tokens_without_an_end_are_warned_of(tmp_path: Path) -> None:
    """Tokens without an end are warned of as texts are: documents run into each other."""
    pq.write_table(pa.table({"input_ids": DOCUMENTS}), tmp_path / "a.parquet")
    done = start(["ingest", "tokens", tmp_path / "a.parquet", "-o", tmp_path / "out"])
    assert "warning: neither --eod nor --vocab-size is given" in done.stderr
