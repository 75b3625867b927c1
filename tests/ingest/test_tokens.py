"""Token shards become corpora without a change, and what is wrong with a row is said."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distcache.corpus.loss import loss_path
from distcache.corpus.receipt import read_receipt
from distcache.errors import ConfigError, CorpusError
from distcache.ingest.inputs import TokenOptions
from distcache.ingest.pipeline import IngestOutcome, ingest
from tests.support import here
from tests.support.texts import read_corpus, write_shard
from tests.support.threads import run_ranks

_random = np.random.default_rng(5)
ROWS = [_random.integers(0, 120, size).tolist() for size in _random.integers(1, 50, 200)]
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def run(words: list[Path], out: Path, **fields: Any) -> IngestOutcome:
    """Ingest token shards with this process alone."""
    return here.ingest_tokens(words, out, **fields)


def rows_of(prefix: Path) -> list[list[int]]:
    """Return the tokens of each document, which has one sequence."""
    return [sequence.tolist() for (sequence,) in read_corpus(prefix)]


@pytest.mark.parametrize("width", INTEGERS)
@pytest.mark.parametrize("outer", [pa.list_, pa.large_list])
def test_every_width(width: str, outer: Any, tmp_path: Path) -> None:
    """Signed or not, in lists or large lists."""
    path = write_shard(tmp_path / "a.parquet", ROWS, outer(getattr(pa, width)()))
    outcome = run([path], tmp_path / "out", vocabulary=120)
    assert rows_of(tmp_path / "out") == ROWS
    assert (outcome.documents, outcome.tokens) == (200, sum(map(len, ROWS)))
    assert (tmp_path / "out.bin").stat().st_size == outcome.tokens


def test_lists_of_fixed_size_and_dictionaries(tmp_path: Path) -> None:
    """Other layouts of Arrow."""
    rows = [[1, 2, 3], [4, 5, 6]]
    path = write_shard(tmp_path / "a.parquet", rows, pa.list_(pa.int16(), 3))
    run([path], tmp_path / "fixed")
    assert rows_of(tmp_path / "fixed") == rows
    values = pa.array([7, 8, 7], pa.int32()).dictionary_encode()
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), values)
    pq.write_table(pa.table({"input_ids": lists}), tmp_path / "b.parquet")
    run([tmp_path / "b.parquet"], tmp_path / "dictionary")
    assert rows_of(tmp_path / "dictionary") == [[7, 8], [7]]


def test_several_shards_in_order(tmp_path: Path) -> None:
    """Of a directory, by name; a shard without rows adds none."""
    for name, rows in (("a", ROWS[:50]), ("b", []), ("c", ROWS[50:])):
        write_shard(tmp_path / f"{name}.parquet", rows)
    run([tmp_path], tmp_path / "out")
    assert rows_of(tmp_path / "out") == ROWS
    inputs = read_receipt(tmp_path / "out.receipt.json").inputs
    assert [entry.rows for entry in inputs] == [50, 0, 150]


@pytest.mark.parametrize("shard_size", [None, 6])
def test_empty_rows_may_be_kept(shard_size: int | None, tmp_path: Path) -> None:
    """As documents without sequences, wherever one corpus ends and the next begins."""
    rows = [[], [1, 2], [], [], [3, 9], [9], [4], []]
    path = write_shard(tmp_path / "a.parquet", rows)
    outcome = run([path], tmp_path / "out", eod=9, empty="keep", shard_size=shard_size)
    assert (outcome.rows, outcome.empty, outcome.documents) == (8, 4, 8)
    found = [
        [token for sequence in document for token in sequence.tolist()]
        for corpus in outcome.corpora
        for document in read_corpus(Path(corpus.prefix))
    ]
    assert found == [[], [1, 2, 9], [], [], [3, 9], [9], [4, 9], []]


def test_the_end_of_documents(tmp_path: Path) -> None:
    """It is appended where it is missing; empty rows stay empty, and are dropped."""
    path = write_shard(tmp_path / "a.parquet", [[1, 2], [], [3, 9], [9], [4]])
    outcome = run([path], tmp_path / "out", eod=9)
    assert rows_of(tmp_path / "out") == [[1, 2, 9], [3, 9], [9], [4, 9]]
    assert (outcome.rows, outcome.empty) == (5, 1)
    with pytest.raises(ConfigError, match="--eod 9"):
        run([path], tmp_path / "never", eod=9, vocabulary=9)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1], [2], [3, 700], [4]], "row group 2, row 0: token 1 is 700, expected 0 to 599"),
        ([[1], [2, -1], [3], [4]], "row group 1, row 0: token 1 is -1, expected 0 to 599"),
        ([[1], None, [3], [4]], "row group 1, row 0: is null"),
        ([[1], [2], [3, None], [4]], "row group 2, row 0: token 1 is null"),
    ],
)
def test_a_wrong_row(rows: list[Any], message: str, tmp_path: Path) -> None:
    """It ends the ingest, or is left out, counted and listed."""
    path = write_shard(tmp_path / "a.parquet", rows, groups=4)
    with pytest.raises(CorpusError) as caught:
        run([path], tmp_path / "out", vocabulary=600)
    assert str(caught.value) == f"{path}: {message}"
    assert not list(tmp_path.glob("out*"))
    outcome = run([path], tmp_path / "out", vocabulary=600, on_error="skip")
    assert (outcome.rows, outcome.documents, outcome.skipped) == (4, 3, 1)
    good = [row for row in rows if row and all(token is not None for token in row)]
    assert rows_of(tmp_path / "out") == [row for row in good if 0 <= min(row) <= max(row) < 600]
    (skipped,) = read_receipt(tmp_path / "out.receipt.json").skipped
    assert str(skipped) == f"{path}: {message}"


def test_tokens_beyond_the_type(tmp_path: Path) -> None:
    """They are an error also where no vocabulary is given."""
    path = write_shard(tmp_path / "a.parquet", [[1], [1 << 31]], pa.list_(pa.int64()), groups=1)
    with pytest.raises(CorpusError, match="row group 0, row 1: token 0 is 2147483648"):
        run([path], tmp_path / "out")
    run([path], tmp_path / "wide", token_type="i64")
    assert rows_of(tmp_path / "wide") == [[1], [1 << 31]]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array(["a", "b"]), "is of type string, expected lists of integers"),
        (pa.array([[1.5], [2.0]]), "is of type list<element: double>, expected lists of integers"),
        (pa.array([[[1]], [[2]]]), "expected lists of integers"),
    ],
)
def test_a_column_of_another_type(column: Any, message: str, tmp_path: Path) -> None:
    """It is said for every file, before anything is read."""
    for name in ("a", "b"):
        pq.write_table(pa.table({"input_ids": column}), tmp_path / f"{name}.parquet")
    with pytest.raises(CorpusError) as caught:
        run([tmp_path], tmp_path / "out")
    assert len(caught.value.problems) == 2
    assert message in str(caught.value)
    with pytest.raises(CorpusError, match="has no column 'tokens'; it has input_ids"):
        run([tmp_path], tmp_path / "out", column="tokens")


def test_an_end_of_documents_beyond_the_type(tmp_path: Path) -> None:
    """It is refused before anything is read."""
    path = write_shard(tmp_path / "a.parquet", [[1], [2]])
    with pytest.raises(ConfigError, match="--eod 300: is not in the vocabulary, or beyond"):
        run([path], tmp_path / "out", eod=300, token_type="u8")


def test_a_damaged_row_group_is_skipped(tmp_path: Path) -> None:
    """All rows of it that cannot be read are counted; the other groups are kept."""
    path = write_shard(tmp_path / "a.parquet", ROWS, groups=4)
    offset = pq.ParquetFile(path).metadata.row_group(1).column(0).dictionary_page_offset
    content = bytearray(path.read_bytes())
    content[offset + 30 : offset + 60] = bytes(30)
    path.write_bytes(content)
    outcome = run([path], tmp_path / "out", on_error="skip")
    assert rows_of(tmp_path / "out") == ROWS[:50] + ROWS[100:]
    assert (outcome.rows, outcome.skipped) == (200, 50)
    (skipped,) = read_receipt(tmp_path / "out.receipt.json").skipped
    assert skipped.row_group == 1
    assert "50 rows are left out" in skipped.reason


@pytest.mark.slow
def test_more_shards_than_files_may_be_open(tmp_path: Path) -> None:
    """A process may often have no more than 1,024."""
    path = write_shard(tmp_path / "a.parquet", [[1], [2], [3]] * 20)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 40, hard))
    try:
        outcome = run([path], tmp_path / "out", shard_size=1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(outcome.corpora) == 60


@pytest.mark.parametrize("damage", ["flipped", "footer"])
def test_a_damaged_shard(damage: str, tmp_path: Path) -> None:
    """It is one clear error, wherever it is damaged."""
    path = write_shard(tmp_path / "a.parquet", ROWS)
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[40:80] = bytes(40)
    else:
        content[-20:-8] = b"\xff" * 12
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=r"a\.parquet: "):
        run([path], tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


def test_each_line_of_ids_has_its_own_byte(tmp_path: Path) -> None:
    """Also after good rows and blank lines of the same batch."""
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"input_ids": ids}) for ids in ([1, 2], [3, 4], [5, 99], [6], [98])]
    lines.insert(2, "")
    path.write_text("\n".join(lines) + "\n")
    run([path], tmp_path / "out", vocabulary=10, on_error="skip", column="input_ids")
    receipt = read_receipt(str(tmp_path / "out.receipt.json"))
    places = [(entry.line, entry.byte) for entry in receipt.skipped]
    starts = [sum(len(line) + 1 for line in lines[:number]) for number in (3, 5)]
    assert places == [(4, starts[0]), (6, starts[1])]
    assert rows_of(tmp_path / "out") == [[1, 2], [3, 4], [6]]


def masked(form: str, path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows of ids and masks as JSON lines, Parquet, or Arrow."""
    whole = path.with_suffix(f".{form}")
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    if form == "jsonl":
        whole.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif form == "parquet":
        pq.write_table(pa.table(columns), whole, row_group_size=2)
    else:
        table = pa.table(columns)
        with pa.ipc.new_file(whole, table.schema) as writer:
            writer.write(table)
    return whole


@pytest.mark.parametrize("form", ["jsonl", "parquet", "arrow"])
def test_padding_is_left_out(form: str, tmp_path: Path) -> None:
    """By `attention_mask`, at either end; labels of padding are no mask."""
    rows = [
        {"input_ids": [1, 2, 0, 0], "attention_mask": [1, 1, 0, 0], "labels": [1, 2, -100, -100]},
        {"input_ids": [0, 3, 4, 5], "attention_mask": [0, 1, 1, 1], "labels": [-100, 3, 4, 5]},
        {"input_ids": [0, 0], "attention_mask": [0, 0], "labels": [-100, -100]},
        {"input_ids": [6], "attention_mask": [1], "labels": [6]},
    ]
    done = run([masked(form, tmp_path / "a", rows)], tmp_path / "out", vocabulary=9)
    assert rows_of(tmp_path / "out") == [[1, 2], [3, 4, 5], [6]]
    assert done.empty == 1


def losses_of(prefix: Path) -> list[list[int]]:
    """Return the loss mask of each document of a corpus."""
    values = Path(loss_path(str(prefix))).read_bytes()
    lengths = [len(row) for row in rows_of(prefix)]
    return [
        list(values[end - length : end])
        for length, end in zip(lengths, np.cumsum(lengths), strict=True)
    ]


@pytest.mark.parametrize("form", ["jsonl", "parquet", "arrow"])
@pytest.mark.parametrize(
    ("masks", "losses"),
    [
        ({"labels": [-100, -100, 3]}, [0, 0, 1]),  # the tokens
        ({"labels": [-100, 3, -100]}, [0, 0, 1]),  # the next ones
        ({"labels": [-100, 3, 9]}, [0, 0, 1]),  # with the end, which is no token of the row
        ({"loss_mask": [0, 1, 0]}, [0, 1, 0]),
        ({"loss_mask": [0.0, 0.0, 1.0]}, [0, 0, 1]),
        ({"assistant_masks": [False, True, False]}, [0, 1, 0]),
        ({"completion_mask": [1, 1, 0], "loss_mask": [0, 1, 1]}, [0, 1, 0]),
        ({"loss_mask": [0, 1, 0], "attention_mask": [0, 1, 1]}, [1, 0]),
    ],
)
def test_masks_say_which_tokens_have_a_loss(
    form: str, masks: dict[str, list[Any]], losses: list[int], tmp_path: Path
) -> None:
    """Beside rows without a mask, which have a loss everywhere; an end is learned as its token."""
    rows = [{"input_ids": [4, 5]}, {"input_ids": [1, 2, 3], **masks}, {"input_ids": [6]}]
    path = masked(form, tmp_path / "a", rows)
    run([path], tmp_path / "out", vocabulary=9, eod=0)
    wanted = [1, 2, 3][-len(losses) :]
    assert rows_of(tmp_path / "out") == [[4, 5, 0], [*wanted, 0], [6, 0]]
    assert losses_of(tmp_path / "out") == [[1, 1, 1], [*losses, losses[-1]], [1, 1]]
    run([path], tmp_path / "ignored", vocabulary=9, masks="ignore")
    assert not Path(loss_path(str(tmp_path / "ignored"))).exists()


@pytest.mark.parametrize("form", ["jsonl", "parquet", "arrow"])
@pytest.mark.parametrize(
    ("name", "mask", "said"),
    [
        ("attention_mask", [1, 0, 1], "is 0 for 1 tokens between others"),
        ("loss_mask", [1, 1], "loss_mask has 2 values for 3 tokens"),
        ("labels", [7, 8, 7], "labels are neither the tokens nor the next ones"),
        ("labels", [2, 3, -100], "labels are neither"),  # the next ones, and others are the tokens
    ],
)
def test_masks_that_are_none(
    form: str, name: str, mask: list[Any], said: str, tmp_path: Path
) -> None:
    """Each is a fault of its row, unless masks are ignored; a wrong length is one in any case."""
    own = [[4, 5], [6]] if name == "labels" else [[1, 1], [1]]
    rows = [
        {"input_ids": [4, 5], name: own[0]},
        {"input_ids": [1, 2, 3], name: mask},
        {"input_ids": [6], name: own[1]},
    ]
    path = masked(form, tmp_path / "a", rows)
    with pytest.raises(CorpusError, match=said):
        run([path], tmp_path / "out", vocabulary=9)
    done = run([path], tmp_path / "skipped", vocabulary=9, on_error="skip")
    assert (rows_of(tmp_path / "skipped"), done.skipped) == ([[4, 5], [6]], 1)
    if len(mask) == 3:
        run([path], tmp_path / "ignored", vocabulary=9, masks="ignore")
        assert rows_of(tmp_path / "ignored") == [[4, 5], [1, 2, 3], [6]]


@pytest.mark.parametrize("shard_size", [None, 40])
@pytest.mark.parametrize("ranks", [1, 3])
def test_masks_of_many_pieces(
    ranks: int, shard_size: int | None, tmp_path: Path, limit: Callable[..., None]
) -> None:
    """Pieces without a mask have a loss everywhere, for any ranks; and documents are read back."""
    limit("distcache.ingest.pieces", MIN_PIECE_BYTES=200, ROUND_BYTES=300)
    random = np.random.default_rng(2)
    rows, tokens, losses = [], [], []
    for number in range(80):
        ids = random.integers(1, 90, int(random.integers(1, 12))).tolist()
        mask = random.integers(0, 2, len(ids)).tolist() if number > 40 else [1] * len(ids)
        rows.append({"input_ids": ids} | ({"loss_mask": mask} if number % 3 else {}))
        if not number % 3:
            mask = [1] * len(ids)
        if len(mask) > 1 and mask[0] == 0 and all(mask[1:]):
            mask = [1] * len(ids)
        tokens += ids
        losses += mask
    path = masked("jsonl", tmp_path / "a", rows)
    fields = {"vocabulary": 100, "masks": "keep"} | (
        {"shard_size": shard_size} if shard_size else {}
    )

    def ingest_all(communicator: Any) -> None:
        ingest(communicator, [str(path)], str(tmp_path / "out"), TokenOptions(**fields), None, 1)

    assert run_ranks(ranks, ingest_all) == ([None] * ranks, [])
    prefixes = sorted(str(p).removesuffix(".idx") for p in tmp_path.glob("out*.idx"))
    assert (len(prefixes) > 3) == (shard_size is not None)
    read = b"".join(Path(loss_path(prefix)).read_bytes() for prefix in prefixes)
    assert list(read) == losses
    assert [t for prefix in prefixes for row in rows_of(Path(prefix)) for t in row] == tokens


@pytest.mark.parametrize(
    "mask", [[1, None, 1], ["0", "1", "1"], [[0], [1], [1]], "011", 1, {"user": [0, 1]}]
)
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_masks_that_cannot_be_read(form: str, mask: Any, tmp_path: Path) -> None:
    """They are refused, unless they are ignored."""
    path = masked(form, tmp_path / "a", [{"input_ids": [1, 2, 3], "loss_mask": mask}])
    with pytest.raises(CorpusError, match=r"loss_mask.*; --masks ignore ingests all"):
        run([path], tmp_path / "out", vocabulary=9)
    run([path], tmp_path / "ignored", vocabulary=9, masks="ignore")
    assert rows_of(tmp_path / "ignored") == [[1, 2, 3]]
    rows = [{"input_ids": [1, 2, 3], "attention_mask": [1, None, 0]}]
    run([masked(form, tmp_path / "b", rows)], tmp_path / "whole", vocabulary=9, masks="ignore")
    assert rows_of(tmp_path / "whole") == [[1, 2, 3]]


def test_columns_of_one_name(tmp_path: Path) -> None:
    """Of two masks, neither is the mask."""
    lists = pa.array([[1, 2]])
    table = pa.table([lists, lists, lists], names=["input_ids", "loss_mask", "loss_mask"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(CorpusError, match=r"'loss_mask' is of type list.* and list"):
        run([tmp_path / "a.parquet"], tmp_path / "out", vocabulary=9)
    run([tmp_path / "a.parquet"], tmp_path / "out", vocabulary=9, masks="ignore")
    assert rows_of(tmp_path / "out") == [[1, 2]]


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_what_is_no_mask(form: str, tmp_path: Path) -> None:
    """Labels that are shifted by one, of a class, or of ones alone; and a mask that is the ids."""
    for number, labels in enumerate(([2, 3, -100], [-100, 2, 3], [1, 2, 3])):
        rows = [{"input_ids": [1, 2, 3], "labels": labels, "attention_mask": [1, 1, 1]}]
        out = tmp_path / f"out-{number}"
        run([masked(form, tmp_path / "a", rows)], out, vocabulary=9)
        assert rows_of(out) == [[1, 2, 3]]
        assert not Path(loss_path(str(out))).exists()
    rows = [{"input_ids": [1, 2], "labels": [7]}, {"input_ids": [3], "labels": [1, 0, 1]}]
    run([masked(form, tmp_path / "d", rows)], tmp_path / "several", vocabulary=9)
    assert rows_of(tmp_path / "several") == [[1, 2], [3]]
    rows = [
        {"input_ids": [0, 2, 3], "loss_mask": None, "attention_mask": [0, 1, 1]},
        {"input_ids": [4, 5], "loss_mask": [1, 1], "attention_mask": None},
        {"input_ids": [6, 7], "loss_mask": [1, 1], "attention_mask": [1, 0]},
    ]
    run([masked(form, tmp_path / "e", rows)], tmp_path / "nulls", vocabulary=9)
    assert rows_of(tmp_path / "nulls") == [[2, 3], [4, 5], [6]]
    rows = [{"input_ids": [1, 2], "labels": 7}, {"input_ids": [3], "labels": 0}]
    run([masked(form, tmp_path / "b", rows)], tmp_path / "classes", vocabulary=9)
    assert rows_of(tmp_path / "classes") == [[1, 2], [3]]
    rows = [{"labels": [1, 2]}, {"labels": [3]}]
    run([masked(form, tmp_path / "c", rows)], tmp_path / "own", vocabulary=9, column="labels")
    assert rows_of(tmp_path / "own") == [[1, 2], [3]]


def packed_by_bridge(samples: list[list[tuple[list[int], list[int]]]]) -> list[dict[str, Any]]:
    """Return rows as Megatron-Bridge packs sequences and their masks, which it shifts."""
    rows = []
    for sequences in samples:
        starts = np.cumsum([0, *(len(ids) for ids, _ in sequences[:-1])]).tolist()
        ids = [token for ids, _ in sequences for token in ids]
        masks = [loss for _, mask in sequences for loss in [*mask[1:], 0]]
        rows.append({"input_ids": ids, "loss_mask": masks, "seq_start_id": starts})
    return rows


@pytest.mark.parametrize("eod", [None, 9])
def test_packed_rows_of_megatron_bridge(eod: int | None, tmp_path: Path) -> None:
    """A row is a document of its sequences, and each mask is again beside its own token."""
    chosen = np.random.default_rng(3)
    samples = [
        [
            (chosen.integers(0, 9, size).tolist(), [0, *chosen.integers(0, 2, size - 1).tolist()])
            for size in chosen.integers(1, 9, chosen.integers(1, 5)).tolist()
        ]
        for _ in range(200)
    ]
    samples.append([([1, 2, 3], [0, 1, 1])])  # all that is predicted has a loss
    path = masked("parquet", tmp_path / "a", packed_by_bridge(samples))
    run([path], tmp_path / "out", vocabulary=10, eod=eod)
    whole = [
        [(ids, [1, *mask[1:]] if len(mask) > 1 and all(mask[1:]) else mask) for ids, mask in row]
        for row in samples
    ]
    end = [] if eod is None else [eod]
    documents = [[sequence.tolist() for sequence in row] for row in read_corpus(tmp_path / "out")]
    assert documents == [[ids + end for ids, _ in row] for row in whole]
    losses = [loss for row in whole for _, mask in row for loss in mask + mask[-1:] * len(end)]
    assert np.fromfile(loss_path(str(tmp_path / "out")), np.uint8).tolist() == losses
    run([path], tmp_path / "ignored", vocabulary=10, masks="ignore")
    assert rows_of(tmp_path / "ignored")[-1] == [1, 2, 3]


def test_invalid_starts_of_packed_rows_are_named(tmp_path: Path) -> None:
    """As is a file without masks, and JSON lines, which Megatron-Bridge does not write."""
    rows = [
        {"input_ids": [1, 2, 3], "loss_mask": [1, 0, 0], "seq_start_id": starts}
        for starts in ([0, 2], [1, 2], [0, 3], [0, 2, 1], [], [0, -1], None, [0, None], [0, 1, 1])
    ]
    path = masked("parquet", tmp_path / "a", rows)
    with pytest.raises(CorpusError, match="row 1: seq_start_id is not an ascending list"):
        run([path], tmp_path / "out", vocabulary=9)
    outcome = run([path], tmp_path / "out", vocabulary=9, on_error="skip")
    assert (outcome.documents, outcome.skipped) == (2, 7)
    found = [[sequence.tolist() for sequence in row] for row in read_corpus(tmp_path / "out")]
    assert found == [[[1, 2], [3]], [[1], [2, 3]]]
    without = [{"input_ids": [1, 2, 3], "seq_start_id": [0]}]
    with pytest.raises(CorpusError, match="packed rows of Megatron-Bridge"):
        run([masked("parquet", tmp_path / "b", without)], tmp_path / "never", vocabulary=9)
    lines = masked("jsonl", tmp_path / "c", rows[:1])
    with pytest.raises(CorpusError, match="give its Parquet file"):
        run([lines], tmp_path / "never", vocabulary=9)
    run([lines], tmp_path / "lines", vocabulary=9, masks="ignore")
    assert rows_of(tmp_path / "lines") == [[1, 2, 3]]


@pytest.mark.parametrize("width", ["int8", "uint8", "uint32", "uint64", "int64"])
def test_starts_of_packed_rows_of_every_width(width: str, tmp_path: Path) -> None:
    """Unsigned ones, too; a number beyond 63 bits is invalid."""
    starts: list[list[int]] = [[0, 2], [0]] + ([[0, 1 << 63]] if width == "uint64" else [])
    table = pa.table(
        {
            "input_ids": [[1, 2, 3], [], [4, 5]][: len(starts)],
            "loss_mask": [[1, 0, 0], [], [1, 1]][: len(starts)],
            "seq_start_id": pa.array(starts, pa.list_(getattr(pa, width)())),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    outcome = run([tmp_path / "a.parquet"], tmp_path / "out", vocabulary=9, on_error="skip")
    assert [[sequence.tolist() for sequence in row] for row in read_corpus(tmp_path / "out")] == [
        [[1, 2], [3]]
    ]
    assert (outcome.empty, outcome.skipped) == (1, len(starts) - 2)


@pytest.mark.parametrize("packed", [False, True])
def test_a_null_token_hides_no_other_invalid_row(packed: bool, tmp_path: Path) -> None:
    """Whose mask is compared when the row with the null is out of the way."""
    columns: dict[str, Any] = {
        "input_ids": [[1, None], [6, 7, 8], [2, 3, 4, 5]],
        "loss_mask": [[0, 0], [0, 1], [0, 0, 1, 0]],
    }
    if packed:
        columns["seq_start_id"] = [[0], [0], [0, 2]]
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    outcome = run([tmp_path / "a.parquet"], tmp_path / "out", vocabulary=9, on_error="skip")
    assert (outcome.rows, outcome.documents, outcome.skipped) == (3, 1, 2)
    (document,) = read_corpus(tmp_path / "out")
    losses = np.fromfile(loss_path(str(tmp_path / "out")), np.uint8).tolist()
    assert (len(document), losses) == ((2, [0, 0, 1, 1]) if packed else (1, [0, 0, 1, 0]))
