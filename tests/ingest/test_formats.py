"""Files in every form that people have: unnamed, compressed in other ways, tables, arrays."""

from __future__ import annotations

import bz2
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

from distcache.corpus.receipt import read_receipt
from distcache.edit.source_readback import read_back
from distcache.errors import ConfigError, CorpusError
from distcache.ingest.inputs import TextOptions, TokenOptions
from distcache.ingest.pipeline import IngestOutcome, ingest
from distcache.ingest.readers import tables
from distcache.ingest.readers.text import TextReader
from distcache.ingest.tokenizers.find import find_tokenizer, make_tokenizer
from distcache.ingest.tokenizers.tokenizer import TokenizerOptions
from tests.support import here
from tests.support.processes import DISTCACHE, LIMIT, clean_environment, start
from tests.support.texts import read_corpus
from tests.support.threads import run_ranks

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


@pytest.mark.few(1)
@pytest.mark.parametrize(("suffix", "packed"), [("bz2", bz2.compress), ("xz", lzma.compress)])
def test_compressions_of_python(suffix: str, packed: Any, tokenizers: Path, tmp_path: Path) -> None:
    """Several streams in one file are one; a missing end is an error."""
    path = tmp_path / f"a.jsonl.{suffix}"
    path.write_bytes(packed(LINES) + packed(LINES))
    assert text([path], tokenizers, tmp_path / "out").documents == 10
    path.write_bytes(packed(LINES * 50_000)[:-20])
    with pytest.raises(CorpusError, match="cannot be read from here on"):
        text([path], tokenizers, tmp_path / "cut")
    path.write_bytes(packed(LINES) + b"something else")
    with pytest.raises(CorpusError, match="cannot be read from here on"):
        text([path], tokenizers, tmp_path / "more")
    second = bytearray(packed(LINES))
    second[0] ^= 1
    path.write_bytes(packed(LINES) + second + packed(LINES))
    with pytest.raises(CorpusError, match="cannot be read from here on"):
        text([path], tokenizers, tmp_path / "flipped")


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


def test_a_file_of_texts_in_every_type(tokenizers: Path, tmp_path: Path) -> None:
    """Arrow's views and dictionaries; a column of nulls has rows that can be left out."""
    kinds = [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
    ]
    for number, kind in enumerate(kinds):
        path = tmp_path / f"{number}.parquet"
        column = pa.array(["hello", "world"], pa.string()).cast(kind)
        pq.write_table(pa.table({"text": column}), path)
        assert text([path], tokenizers, tmp_path / f"o{number}").documents == 2
    pq.write_table(pa.table({"text": pa.nulls(3)}), tmp_path / "null.parquet")
    both = [tmp_path / "null.parquet", tmp_path / "0.parquet"]
    with pytest.raises(CorpusError, match="is null"):
        text(both, tokenizers, tmp_path / "no")
    assert text(both, tokenizers, tmp_path / "some", on_error="skip").skipped == 3


@pytest.mark.parametrize("form", ["stream", "file"])
def test_arrow_files(form: str, tokenizers: Path, tmp_path: Path) -> None:
    """As `datasets` saves them, in batches; texts and tokens, on several ranks."""
    table = pa.table({"input_ids": DOCUMENTS, "text": ["a b", "c", "d"]})
    path = tmp_path / "data-00000-of-00001.arrow"
    make = pa.ipc.new_stream if form == "stream" else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as stream, make(stream, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    assert tokens([path], tmp_path / "out") == DOCUMENTS
    assert text([path], tokenizers, tmp_path / "texts").documents == 3
    options = TokenOptions(vocabulary=10, eod=0)
    run_ranks(3, lambda ranks: ingest(ranks, [str(path)], str(tmp_path / "ranks"), options))
    assert (tmp_path / "ranks.bin").read_bytes() == (tmp_path / "out.bin").read_bytes()
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(CorpusError, match="is not an Arrow file that is whole"):
        tokens([path], tmp_path / "cut")


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.uint16()),
        pa.large_list(pa.int32()),
        pa.list_view(pa.int64()),
        pa.large_list_view(pa.uint8()),
    ],
)
def test_lists_of_every_type(kind: pa.DataType, tmp_path: Path) -> None:
    """Views of lists are lists."""
    path = tmp_path / "a.arrow"
    table = pa.table({"input_ids": pa.array(DOCUMENTS, kind)})
    with pa.OSFile(str(path), "wb") as stream, pa.ipc.new_file(stream, table.schema) as writer:
        writer.write_table(table)
    assert tokens([path], tmp_path / "out") == DOCUMENTS


def test_json_lines_of_ids(tmp_path: Path) -> None:
    """An object on each line; what is wrong is named with its line."""
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"id": 1, "input_ids": ids}) for ids in DOCUMENTS]
    path.write_text("\n".join([*lines, "", lines[0]]) + "\n")
    assert tokens([path], tmp_path / "out") == [*DOCUMENTS, DOCUMENTS[0]]
    for number, (wrong, reason) in enumerate(
        [
            ('{"input_ids": [1, "2"]}', "Expected `int`"),
            ('{"tokens": [1]}', "a list of ids in field 'input_ids'"),
            ('{"input_ids": [1, 99]}', "token 1 is 99, expected 0 to 9"),
            ('{"input_ids": [99999999999999999999]}', "64 bits"),
        ]
    ):
        path.write_text("\n".join([lines[0], wrong, lines[1]]))
        with pytest.raises(CorpusError, match=r"line 2|row 1") as caught:
            tokens([path], tmp_path / f"bad{number}")
        assert reason in str(caught.value)
        assert tokens([path], tmp_path / f"skip{number}", on_error="skip") == DOCUMENTS[:2]


def test_other_fields_of_lines_of_ids(tmp_path: Path) -> None:
    """May hold what Python's parser takes, as beside texts."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"input_ids":[1,2],"score":NaN}\n{"x":"\\ud800","input_ids":[3]}\n')
    assert tokens([path], tmp_path / "out", column="input_ids") == [[1, 2, 0], [3, 0]]
    path.write_text('{"input_ids":[1,NaN]}\n')
    with pytest.raises(CorpusError, match="expected JSON lines"):
        tokens([path], tmp_path / "wrong", column="input_ids")


def test_arrays_of_ids(tmp_path: Path) -> None:
    """With and without a header; documents end where an index says, else at the end token."""
    flat = np.array([token for document in DOCUMENTS for token in document], np.uint16)
    flat.tofile(tmp_path / "part-0-00000.npy")
    np.save(tmp_path / "real.npy", flat.astype(np.int32))
    flat.tofile(tmp_path / "000.ds")
    np.array([3, 5, 5, 9], np.uint64).tofile(tmp_path / "000.ds.index")
    assert tokens([tmp_path / "part-0-00000.npy"], tmp_path / "a", dtype="uint16") == DOCUMENTS
    assert tokens([tmp_path / "real.npy"], tmp_path / "b") == DOCUMENTS
    assert tokens([tmp_path / "000.ds"], tmp_path / "c", dtype="uint16", eod=None) == DOCUMENTS
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
