"""What holds for every form of inputs: each is a row of `tests.ingest.readers.layouts.LAYOUTS`."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from distcache.corpus import open_idx
from distcache.corpus.receipt import read_receipt
from distcache.corpus.source_rows import CorpusSources
from distcache.errors import CorpusError
from distcache.ingest.inputs import TextOptions, TokenOptions
from distcache.ingest.objects import ObjectWork
from distcache.ingest.pipeline import IngestOutcome, ingest
from distcache.ingest.tokenizers.tokenizer import TokenizerOptions
from distcache.ranks.communicator import Communicator
from distcache.ranks.progress import NullProgress
from tests.edit.test_audit import faults_of
from tests.ingest.readers.layouts import END, LAYOUTS, TEXTS, VOCABULARY, Layout, Row
from tests.support import here
from tests.support.scripted_s3 import ScriptedS3
from tests.support.texts import read_corpus
from tests.support.threads import run_ranks

HOLES: dict[str, Any] = {"on_error": "skip"}


@pytest.fixture(params=LAYOUTS)
def case(request: pytest.FixtureRequest) -> str:
    """The name of a form."""
    return str(request.param)


@pytest.fixture
def layout(case: str) -> Layout:
    """A form of inputs."""
    return LAYOUTS[case]


def rows_for(case: str, count: int = 700) -> list[Row]:
    """Return rows that say their number, of which some are empty, also the first, or invalid."""
    chosen = random.Random(5)
    is_text, layout = case in TEXTS, LAYOUTS[case]
    rows: list[Row] = []
    for number in range(count):
        kind = chosen.random()
        if kind < 0.03:
            rows.append(None)
        elif layout.has_empty and (kind < 0.09 or number == 0):
            rows.append("" if is_text else [])
        else:
            text = f"<{number}>" + "ab " * (1 + number % 40)
            rows.append(text if is_text else [number + 1] * (1 + number % 7) + [END])
    return rows


Ingest = Callable[..., IngestOutcome]


@pytest.fixture
def ingest_by(case: str, layout: Layout, tokenizers: Path) -> Ingest:
    """Ingest a file of a form; `world` are the ranks."""

    def run(
        path: Path | str, out: Path, *, world: Communicator = here.ALONE, **more: Any
    ) -> IngestOutcome:
        fields = {"token_type": "u16", **layout.options, **more}
        if case in TEXTS:
            chosen = TokenizerOptions(str(tokenizers / "tokenizer.json"))
            return ingest(world, [str(path)], str(out), TextOptions(**fields), chosen)
        options = TokenOptions(**{"eod": END, "vocabulary": VOCABULARY, **fields})
        return ingest(world, [str(path)], str(out), options)

    return run


@pytest.fixture
def tokens_of(case: str, tokenizers: Path) -> Callable[[Row], list[int]]:
    """Return the tokens of a row, texts as Megatron encodes them: nothing added, nothing cut."""
    tokenizer = Tokenizer.from_file(str(tokenizers / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def of(row: Row) -> list[int]:
        if case in TEXTS:
            return list(tokenizer.encode(str(row), add_special_tokens=False).ids)
        assert isinstance(row, list)
        return row

    return of


def bytes_of(outcome: IngestOutcome) -> list[bytes]:
    """Return the bytes of all files of all corpora."""
    return [
        Path(one.prefix + suffix).read_bytes()
        for one in outcome.corpora
        for suffix in (".idx", ".bin", ".receipt.json")
    ]


def test_documents_are_the_rows_and_know_their_place(
    case: str,
    layout: Layout,
    ingest_by: Ingest,
    tokens_of: Callable[[Row], list[int]],
    tmp_path: Path,
) -> None:
    """Token for token, forth and back; empty and invalid rows are left out and counted."""
    rows, path, out = rows_for(case), tmp_path / layout.name, tmp_path / "out"
    places = layout.write(path, rows)
    outcome = ingest_by(path, out, **HOLES)
    kept = [number for number, row in enumerate(rows) if row]
    assert [one.tolist() for (one,) in read_corpus(out)] == [tokens_of(rows[n]) for n in kept]
    assert (outcome.rows, outcome.skipped) == (len(rows), rows.count(None))
    assert outcome.empty == len(rows) - len(kept) - rows.count(None)
    sources = CorpusSources(str(out), open_idx(str(out)))
    found = sources.find_documents(np.arange(len(kept)))
    numbers = found.lines if layout.has_lines else found.rows
    assert numbers.tolist() == [places[number] for number in kept]
    for file, source in enumerate(found.paths):
        own = np.flatnonzero(found.files == file)
        back = sources.documents_from(source, numbers[own])
        assert back is not None
        assert back.documents.tolist() == own.tolist()
    assert not sources.notes
    assert not faults_of(out, readback=50)


@pytest.mark.few(10)
def test_an_invalid_row_ends_it(
    case: str, layout: Layout, ingest_by: Ingest, tmp_path: Path
) -> None:
    """The error names the file and the place; nothing stays. All are listed if they are skipped."""
    rows, path = rows_for(case), tmp_path / layout.name
    places = layout.write(path, rows)
    invalid = [place for place, row in zip(places, rows, strict=True) if row is None]
    with pytest.raises(CorpusError) as caught:
        ingest_by(path, tmp_path / "out")
    assert str(caught.value).startswith(str(path))
    assert not list(tmp_path.glob("out*"))
    ingest_by(path, tmp_path / "out", **HOLES)
    skipped = read_receipt(tmp_path / "out.receipt.json").skipped
    assert len(skipped) == len(invalid)
    assert str(skipped[0]) == str(caught.value)
    if layout.has_lines:
        assert [one.line for one in skipped] == invalid


@pytest.mark.few(14)
@pytest.mark.parametrize("more", [{}, {"shard_size": 3000, "empty": "keep"}])
def test_any_ranks_make_the_same_bytes(
    more: dict[str, Any],
    case: str,
    layout: Layout,
    ingest_by: Ingest,
    tmp_path: Path,
    limit: Callable[..., None],
) -> None:
    """Out of pieces of the file, with empty rows kept, and in several corpora."""
    limit("distcache.ingest.pieces", MIN_PIECE_BYTES=2000)
    path = tmp_path / layout.name
    layout.write(path, rows_for(case))
    alone = ingest_by(path, tmp_path / "1/out", **HOLES, **more)
    outcomes, aborted = run_ranks(
        3, lambda world: bytes_of(ingest_by(path, tmp_path / "3/out", world=world, **HOLES, **more))
    )
    assert aborted == []
    assert outcomes == [bytes_of(alone)] * 3
    assert (len(alone.corpora) > 2) == bool(more)


@pytest.mark.few(8)
@pytest.mark.parametrize("case", [name for name, form in LAYOUTS.items() if form.knows_its_end])
def test_a_file_that_was_cut_short(
    case: str, layout: Layout, ingest_by: Ingest, tmp_path: Path
) -> None:
    """One clear error that names it, wherever it ends."""
    path = tmp_path / layout.name
    layout.write(path, [row for row in rows_for(case, 300) if row])
    content = path.read_bytes()
    for size in (len(content) - 3, len(content) // 2 + 1, 20):
        path.write_bytes(content[:size])
        with pytest.raises(CorpusError) as caught:
            ingest_by(path, tmp_path / "out")
        assert str(caught.value).startswith(str(path))
    assert not list(tmp_path.glob("out*"))


@pytest.mark.few(12)
@pytest.mark.parametrize("count", [0, 3])
def test_inputs_without_a_token(
    count: int, case: str, layout: Layout, ingest_by: Ingest, tmp_path: Path
) -> None:
    """They make no corpus."""
    empty: Row = "" if case in TEXTS else []
    path = tmp_path / layout.name
    layout.write(path, [empty] * count)
    if path.is_dir() and not count:
        (path / "a.txt").write_bytes(b"")
    with pytest.raises(CorpusError, match="no input has a document with a token"):
        ingest_by(path, tmp_path / "out")


@pytest.mark.few(8)
def test_a_bucket_has_the_same(
    case: str, layout: Layout, ingest_by: Ingest, tmp_path: Path, server: ScriptedS3
) -> None:
    """The bytes of the corpus are those of the files."""
    path = tmp_path / layout.name
    layout.write(path, rows_for(case, 100))
    local = ingest_by(path, tmp_path / "local", **HOLES)
    for file in tmp_path.glob("**/*"):
        if file.is_file() and not file.name.startswith("local"):
            server.put(f"lake/{file.relative_to(tmp_path)}", file.read_bytes())
    url = f"s3://lake/{layout.name}" + "/" * path.is_dir()
    work = ObjectWork(here.ALONE, str(tmp_path / "work"), [url], NullProgress())
    inputs = work.inputs([url])
    source = inputs[0] if not path.is_dir() else str(Path(inputs[0]).parent)
    remote = ingest_by(source, tmp_path / "remote", **HOLES)
    assert bytes_of(remote)[:2] == bytes_of(local)[:2]
