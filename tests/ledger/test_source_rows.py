"""Documents are traced to the rows of files that they were made of, and back."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from distcache.corpus import open_idx
from distcache.corpus.receipt import find_receipt, receipt_path, write_receipt
from distcache.corpus.source_rows import CorpusSources
from distcache.errors import CorpusError
from distcache.ledger.rest import write_view
from distcache.ledger.rest_pieces import Pieces
from tests.edit.test_audit import faults_of
from tests.ingest.test_text import run
from tests.support import here
from tests.support.mds_corpora import write_tokens

ROWS = 900


def texts_with_holes(count: int = ROWS) -> list[str | None]:
    """Return texts that say their number; some are empty, and some rows are to be skipped."""
    chosen = random.Random(5)
    return [
        "" if chosen.random() < 0.05 else None if chosen.random() < 0.03 else f"<{n}>" + "ab " * 40
        for n in range(count)
    ]


def write_lines(path: Path, texts: list[str | None]) -> list[int]:
    """Write JSON lines with blank ones between, and return the line of each text, from 1."""
    chosen = random.Random(6)
    lines, places = [], []
    for text in texts:
        lines += [""] * (chosen.random() < 0.03)
        places.append(len(lines) + 1)
        lines.append(json.dumps({"text": text}) if text is not None else '{"text": 5}')
    content = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return places


def require_sources(
    prefix: str, expected: Callable[[str, int, int], int], decode: Callable[[list[int]], str]
) -> int:
    """Compare the source of each document with the number in its text; return their number."""
    idx = open_idx(prefix)
    sources = CorpusSources(prefix, idx)
    count = len(idx.bounds) - 1
    found = sources.find_documents(np.arange(count))
    tokens = [np.concatenate(parts).tolist() for parts in read_view(prefix)]
    for number in range(count):
        path = found.paths[found.files[number]]
        place = expected(path, int(found.rows[number]), int(found.lines[number]))
        assert decode(tokens[number]).partition(">")[0] == f"<{place}"
    for path in found.paths:
        here = np.flatnonzero(found.files == found.paths.index(path))
        numbers = np.where(found.lines[here] >= 0, found.lines[here], found.rows[here])
        back = sources.documents_from(path, numbers)
        assert back is not None
        assert back.documents.tolist() == here.tolist()
        every = sources.documents_from(Path(path).name, None)
        assert every is not None
        assert set(here.tolist()) <= set(every.documents.tolist())
    assert sources.documents_from("nothing.jsonl", None) is None
    assert not sources.notes
    return count


def read_view(prefix: str) -> list[list[Any]]:
    """Read the documents of a corpus that may be a view."""
    idx = open_idx(prefix)
    tokens = np.fromfile(f"{prefix}.bin", "<u2")
    bounds = idx.bounds.tolist()
    parts = [
        tokens[offset // 2 : offset // 2 + length]
        for offset, length in zip(idx.offsets.tolist(), idx.lengths.tolist(), strict=True)
    ]
    return [parts[a:b] for a, b in itertools.pairwise(bounds)]


@pytest.fixture
def decode(tokenizers: Path) -> Callable[[list[int]], str]:
    """Return the text of tokens."""
    tokenizer = Tokenizer.from_file(str(tokenizers / "tokenizer.json"))
    return lambda ids: str(tokenizer.decode(ids))


@pytest.mark.parametrize("smallest", [1 << 20, 2000])
def test_rows_after_a_damaged_row_group(
    smallest: int,
    decode: Callable[[list[int]], str],
    tokenizers: Path,
    tmp_path: Path,
    limit: Callable[..., None],
) -> None:
    """Rows that cannot be read are counted, in the piece of the row group and after it."""
    limit("distcache.ingest.pieces", MIN_PIECE_BYTES=smallest)
    texts = [f"<{n}>" + "ab " * 40 for n in range(400)]
    path = tmp_path / "a.parquet"
    table = pa.table({"text": pa.array(texts, pa.string())})
    pq.write_table(table, path, row_group_size=50, use_dictionary=False, compression="none")
    content = bytearray(path.read_bytes())
    offset = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    content[offset : offset + 40] = bytes(40)
    path.write_bytes(content)
    run([path], tokenizers, tmp_path / "out", on_error="skip", token_type="u16")
    assert require_sources(str(tmp_path / "out"), lambda _path, row, _line: row, decode) == 350


def test_several_corpora_of_one_ingest(
    decode: Callable[[list[int]], str], tokenizers: Path, tmp_path: Path
) -> None:
    """Each knows its lines, though it begins within a file, or within a piece of one."""
    texts = texts_with_holes()
    lines = write_lines(tmp_path / "a.jsonl", texts)
    out = tmp_path / "out"
    made = run(
        [tmp_path / "a.jsonl"],
        tokenizers,
        out,
        on_error="skip",
        shard_size=9000,
        token_type="u16",
    )
    assert len(made.corpora) > 4
    counts = [
        require_sources(one.prefix, lambda _path, _row, line: lines.index(line), decode)
        for one in made.corpora
    ]
    assert sum(counts) == sum(bool(text) for text in texts)


def chain(directory: Path, first: str, second: str) -> dict[str, str]:
    """Make corpora from corpora, each from the one before, and return their prefixes."""
    made = {name: str(directory / name) for name in ("merged", "tenth", "copied", "again", "half")}
    here.merge([first, second], made["merged"])
    here.select(made["merged"], made["tenth"], sample=0.4, seed=3)
    here.materialize(made["tenth"], made["copied"])
    here.convert(made["copied"], made["again"])
    here.select(made["again"], made["half"], sample=0.5, seed=4)
    return made


def test_rows_are_known_through_all_steps(
    decode: Callable[[list[int]], str], tokenizers: Path, tmp_path: Path
) -> None:
    """Also when the corpora in between are deleted."""
    texts = texts_with_holes()
    lines = write_lines(tmp_path / "a.jsonl", texts)
    table = pa.table({"text": pa.array([text or "x" for text in texts], pa.string())})
    pq.write_table(table, tmp_path / "b.parquet", row_group_size=90)
    run([tmp_path / "a.jsonl"], tokenizers, tmp_path / "a", on_error="skip", token_type="u16")
    run([tmp_path / "b.parquet"], tokenizers, tmp_path / "b", token_type="u16")
    full = {number for number, text in enumerate(texts) if not text}

    def expected(path: str, row: int, line: int) -> int:
        return lines.index(line) if path.endswith("jsonl") else row

    def decoded(ids: list[int]) -> str:
        return decode(ids)

    made = chain(tmp_path, str(tmp_path / "a"), str(tmp_path / "b"))
    # Rows of "x" do not say their number: they are left out of the comparison.
    for prefix in made.values():
        idx = open_idx(prefix)
        found = CorpusSources(prefix, idx).find_documents(np.arange(len(idx.bounds) - 1))
        for number, parts in enumerate(read_view(prefix)):
            path = found.paths[found.files[number]]
            place = expected(path, int(found.rows[number]), int(found.lines[number]))
            text = decoded(np.concatenate(parts).tolist())
            assert text.partition(">")[0] == f"<{place}" or (text == "x" and place in full)
    idx = open_idx(made["again"])
    before = CorpusSources(made["again"], idx).find_documents(np.arange(len(idx.bounds) - 1))
    gone = ("a", "b", "merged", "tenth", "copied")
    for name in gone:
        for suffix in ("idx", "receipt.json"):
            (tmp_path / f"{name}.{suffix}").unlink()
    idx = open_idx(made["again"])
    sources = CorpusSources(made["again"], idx)
    again = sources.find_documents(np.arange(len(idx.bounds) - 1))
    paths = [[one.paths[file] for file in one.files.tolist()] for one in (before, again)]
    assert paths[0] == paths[1]
    assert again.rows.tolist() == before.rows.tolist()
    assert again.lines.tolist() == before.lines.tolist()
    assert not sources.notes
    back = sources.documents_from("b.parquet", again.rows[again.lines < 0])
    assert back is not None
    assert back.documents.tolist() == np.flatnonzero(again.lines < 0).tolist()


def test_samples_of_shards(tmp_path: Path) -> None:
    """A document of MDS is a sample of a shard, also when it is copied, and selected."""
    data = write_tokens(tmp_path / "mds", codec="zstd")
    here.index(data, tmp_path / "c")
    truth = list(range(len(open_idx(str(tmp_path / "c")).lengths)))
    counts: dict[str, int] = {}
    idx = open_idx(str(tmp_path / "c"))
    found = CorpusSources(str(tmp_path / "c"), idx).find(np.array(truth))
    for number in truth:
        path = found.paths[found.files[number]]
        assert found.rows[number] == counts.get(path, 0)
        counts[path] = counts.get(path, 0) + 1
    assert len(counts) > 3
    own = str(tmp_path / "own")
    here.materialize(tmp_path / "c", own)
    here.select(own, tmp_path / "view")
    view = CorpusSources(str(tmp_path / "view"), open_idx(str(tmp_path / "view")))
    same = view.find(np.array(truth))
    assert same.rows.tolist() == found.rows.tolist()
    one = Path(found.paths[1]).name
    found_rows = view.documents_from(one, np.array([0, 1]))
    assert found_rows is not None
    assert found_rows.documents.tolist() == np.flatnonzero(found.files == 1)[:2].tolist()


def test_what_is_left_has_its_sources(
    decode: Callable[[list[int]], str], tokenizers: Path, tmp_path: Path
) -> None:
    """Parts of documents are parts of the rows of these; they can be read back."""
    texts = texts_with_holes()
    lines = write_lines(tmp_path / "a.jsonl", texts)
    run([tmp_path / "a.jsonl"], tokenizers, tmp_path / "a", on_error="skip", token_type="u16")
    facts = here.sound(tmp_path / "a")
    numbers = np.array([7, 8, 8, 30, 2])

    def left(_: object) -> Any:
        ends = np.array([20, 10, 30, 9, 12])
        yield Pieces(numbers, np.array([5, 0, 12, 0, 3]), ends, np.ones(5, int))

    idx = open_idx(str(tmp_path / "a"))
    write_view(facts, str(tmp_path / "rest"), left, {"after": []})
    whole = CorpusSources(str(tmp_path / "a"), idx).find(numbers)
    view = open_idx(str(tmp_path / "rest"))
    found = CorpusSources(str(tmp_path / "rest"), view).find_documents(np.arange(5))
    assert found.lines.tolist() == whole.lines.tolist()
    assert set(found.lines.tolist()) <= set(lines)
    assert faults_of(tmp_path / "rest", readback=5) == []
    # Also of a view of a view whose receipt is gone: both point into the corpus.
    here.select(tmp_path / "a", tmp_path / "all")
    facts = here.sound(tmp_path / "all")
    write_view(facts, str(tmp_path / "again"), left, {"after": []})
    Path(receipt_path(str(tmp_path / "all"))).unlink()
    assert faults_of(tmp_path / "again", readback=5) == []


def test_without_receipts_nothing_is_made_up(tokenizers: Path, tmp_path: Path) -> None:
    """A corpus without a receipt, or a view whose root is gone, has no sources, and says so."""
    write_lines(tmp_path / "a.jsonl", texts_with_holes(50))
    run([tmp_path / "a.jsonl"], tokenizers, tmp_path / "a", on_error="skip")
    here.select(tmp_path / "a", tmp_path / "view")
    Path(receipt_path(str(tmp_path / "a"))).unlink()
    for name in ("a", "view"):
        sources = CorpusSources(str(tmp_path / name), open_idx(str(tmp_path / name)))
        assert (sources.find(np.arange(5)).files == -1).all()
        assert "has no receipt" in " ".join(sources.notes)
        assert sources.documents_from("a.jsonl", None) is None
    shutil.move(tmp_path / "a.idx", tmp_path / "gone.idx")
    sources = CorpusSources(str(tmp_path / "view"), open_idx(str(tmp_path / "view")))
    assert "is a view of it" in " ".join(sources.notes)


@pytest.mark.parametrize("kind", ["select", "rest"])
def test_views_whose_tokens_are_a_copy(kind: str, tokenizers: Path, tmp_path: Path) -> None:
    """Their receipt names the corpus, as that of a view that was copied from a bucket."""
    lines = write_lines(tmp_path / "a.jsonl", texts_with_holes(200))
    run([tmp_path / "a.jsonl"], tokenizers, tmp_path / "a", on_error="skip", token_type="u16")
    prefix, view = str(tmp_path / "a"), str(tmp_path / "view")
    idx = open_idx(prefix)
    if kind == "select":
        here.select(prefix, view)
    else:
        facts = here.sound(prefix)
        numbers = np.arange(3, 30)

        def left(_: object) -> Any:
            yield Pieces(numbers, 0 * numbers, idx.lengths[numbers].astype(int), numbers)

        write_view(facts, view, left, {})
    chosen = open_idx(view)
    before = CorpusSources(view, chosen).find_documents(np.arange(27))
    assert set(before.lines.tolist()) <= set(lines)
    Path(f"{view}.bin").unlink()
    shutil.copy(f"{prefix}.bin", f"{view}.bin")
    sources = CorpusSources(view, chosen)
    assert sources.root == prefix
    assert sources.find_documents(np.arange(27)).lines.tolist() == before.lines.tolist()
    Path(f"{prefix}.idx").unlink()
    sources = CorpusSources(view, chosen)
    assert (sources.find_documents(np.arange(27)).files == -1).all()
    assert "is a view of it" in " ".join(sources.notes)


def test_receipts_of_other_corpora_are_not_used(tokenizers: Path, tmp_path: Path) -> None:
    """One whose numbers are not those of the index says nothing about it."""
    for name, count in (("a", 50), ("b", 60)):
        write_lines(tmp_path / f"{name}.jsonl", texts_with_holes(count))
        run([tmp_path / f"{name}.jsonl"], tokenizers, tmp_path / name, on_error="skip")
    shutil.copy(receipt_path(str(tmp_path / "b")), receipt_path(str(tmp_path / "a")))
    sources = CorpusSources(str(tmp_path / "a"), open_idx(str(tmp_path / "a")))
    assert (sources.find(np.arange(5)).files == -1).all()
    assert sources.notes == {f"{tmp_path}/a: its receipt is that of another corpus": None}


def test_receipts_that_contradict_themselves(tokenizers: Path, tmp_path: Path) -> None:
    """Ancestors of themselves, of one another many times over, and numbers that do not fit."""
    write_lines(tmp_path / "a.jsonl", texts_with_holes(50))
    run([tmp_path / "a.jsonl"], tokenizers, tmp_path / "a", on_error="skip")
    prefix = str(tmp_path / "out")
    here.merge([tmp_path / "a"], prefix)
    receipt, idx = find_receipt(prefix), open_idx(prefix)
    assert receipt is not None
    (node,) = receipt.origins
    documents = receipt.documents

    def of(name: str, *names: str) -> Any:
        """Return an ancestor that was merged from others, each with all documents."""
        entry = msgspec.structs.replace(receipt.inputs[0], digest="x")
        inputs = tuple(msgspec.structs.replace(entry, path=one) for one in names)
        return msgspec.structs.replace(
            node, corpus=name, idx_digest="x", kind="merge", inputs=inputs
        )

    def write(first: str, *origins: Any) -> CorpusSources:
        entry = msgspec.structs.replace(receipt.inputs[0], path=first, digest="x")
        write_receipt(
            prefix, msgspec.structs.replace(receipt, inputs=(entry,), origins=tuple(origins))
        )
        return CorpusSources(prefix, idx)

    sources = write("c", of("c", "c"))
    with pytest.raises(CorpusError, match="contradicts itself"):
        sources.find(np.arange(documents))
    assert sources.documents_from("a.jsonl", None) is None
    many = [of(f"c{n}", f"c{n + 1}", f"c{n + 1}") for n in range(60)]
    last = msgspec.structs.replace(node, corpus="c60", idx_digest="x")
    found = write("c0", *many, last).documents_from("a.jsonl", None)
    assert found is not None
    assert found.documents.tolist() == list(range(documents))
    none = msgspec.structs.replace(of("c"), kind="select")
    with pytest.raises(CorpusError, match="contradicts itself"):
        write("c", none).find(np.arange(documents))
    of_text = find_receipt(str(tmp_path / "a"))
    assert of_text is not None
    (entry,) = of_text.inputs
    (piece,) = entry.pieces
    assert piece.kept  # some rows became none
    unlisted = msgspec.structs.replace(piece, kept=b"")
    for pieces, said in [
        ((unlisted,), "documents, and not which: it is damaged"),
        ((unlisted, piece), "documents, and not which: it is damaged"),
        ((msgspec.structs.replace(piece, before=1),), "documents, and not which: it is damaged"),
        ((msgspec.structs.replace(piece, rows=1),), "documents, and not which: it is damaged"),
        ((msgspec.structs.replace(piece, first=1),), "a part of it is in another corpus"),
    ]:
        odd = msgspec.structs.replace(entry, pieces=pieces)
        write_receipt(str(tmp_path / "a"), msgspec.structs.replace(of_text, inputs=(odd,)))
        of_a = CorpusSources(str(tmp_path / "a"), open_idx(str(tmp_path / "a")))
        with pytest.raises(CorpusError, match=said):
            of_a.find(np.arange(of_text.documents))
    text = Path(receipt_path(prefix)).read_text()
    Path(receipt_path(prefix)).write_text(text.replace('"documents": ', '"documents": -'))
    with pytest.raises(CorpusError, match="is not a receipt"):
        CorpusSources(prefix, idx)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("shard_size", [None, 256, 1000])
@pytest.mark.parametrize("end", [[], [[]], [[], []]], ids=["clean", "one empty", "two empty"])
@pytest.mark.parametrize("empty", ["drop", "keep"])
def test_every_healthy_receipt_names_the_rows(
    kind: str,
    shard_size: int | None,
    end: list[list[int]],
    empty: str,
    limit: Callable[..., None],
    tmp_path: Path,
) -> None:
    """Also if the last rows became none, or a corpus ends where a piece does, or within one."""
    limit("distcache.ingest.pieces", MIN_PIECE_BYTES=300)
    rows = [[number, *[7] * 15] for number in range(1, 81)] + end
    path = tmp_path / f"a.{kind}"
    if kind == "jsonl":
        path.write_text("".join(f"{json.dumps({'input_ids': row})}\n" for row in rows))
    else:
        column = pa.array(rows, pa.list_(pa.int32()))
        pq.write_table(pa.table({"input_ids": column}), path, row_group_size=16)
    made = here.ingest_tokens(
        [path], tmp_path / "out", token_type="i32", shard_size=shard_size, empty=empty
    )
    expected = [number for number, row in enumerate(rows) if row or empty == "keep"]
    assert (len(made.corpora) > 1) == (shard_size is not None)
    found: list[int] = []
    for corpus in made.corpora:
        idx = open_idx(corpus.prefix)
        sources = CorpusSources(corpus.prefix, idx)
        rows_of = sources.find_documents(np.arange(len(idx.bounds) - 1))
        found += (rows_of.lines - 1 if kind == "jsonl" else rows_of.rows).tolist()
        back = sources.documents_from(path.name, np.arange(1 if kind == "jsonl" else 0, 100))
        assert back is not None
        assert back.documents.tolist() == list(range(len(idx.bounds) - 1))
    assert found == expected


def test_clean_data_takes_no_room(tokenizers: Path, documents: list[str], tmp_path: Path) -> None:
    """A receipt has nothing for each document where every row became one."""
    plain = [text or "x" for text in documents] * 20
    table = pa.table({"text": pa.array([text.strip() or "x" for text in plain], pa.string())})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1000)
    run([tmp_path / "a.parquet"], tokenizers, tmp_path / "out")
    receipt = find_receipt(str(tmp_path / "out"))
    assert receipt is not None
    assert all(piece.kept == b"" for entry in receipt.inputs for piece in entry.pieces)
