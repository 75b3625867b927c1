"""Laws of how inputs are cut, dealt and placed."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from distcache.ingest import pieces as cutting
from distcache.ingest.inputs import Group, Input, TextOptions, TokenOptions
from distcache.ingest.pieces import (
    Counts,
    PieceRecord,
    Segment,
    cut_at_documents,
    make_pieces,
    make_rounds,
    owners_of,
    place,
    reader_of,
    segments_of,
)
from distcache.ingest.readers.lines import lines_of_range, lines_of_stream
from distcache.ingest.readers.token_masks import LabelShift, Rows, masked

sizes = st.integers(0, 500)
plain = st.builds(Input, st.just("a"), sizes, st.just(0), st.sampled_from(["jsonl", "txt"]))
packed = st.builds(Input, st.just("b"), sizes, st.just(0), st.just("jsonl"), st.just("gzip"))
groups = st.lists(st.builds(Group, st.integers(0, 9), st.integers(0, 90))).map(tuple)
parquet = st.builds(Input, st.just("c"), sizes, st.just(0), st.just("parquet"), st.none(), groups)


@given(inputs=st.lists(plain | packed | parquet), step=st.integers(1, 100), lines=st.booleans())
def test_pieces_cover_every_input_once(inputs: list[Input], step: int, lines: bool) -> None:
    """In order, both by what is read and by the bytes that are digested."""
    pieces = make_pieces(inputs, step, lines=lines)
    for source, entry in enumerate(inputs):
        own = [piece for piece in pieces if piece.source == source]
        end = len(entry.groups) if entry.format == "parquet" else entry.size
        assert (own[0].begin, own[-1].end) == (0, end)
        assert (own[0].first_byte, own[-1].last_byte) == (0, entry.size)
        for before, after in itertools.pairwise(own):
            assert (before.end, before.last_byte) == (after.begin, after.first_byte)
    assert [piece.source for piece in pieces] == sorted(piece.source for piece in pieces)


@given(
    lines=st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=20),
    ended=st.booleans(),
    step=st.integers(1, 15),
    limit=st.integers(0, 12),
)
def test_every_line_is_in_one_range(lines: list[bytes], ended: bool, step: int, limit: int) -> None:
    """However a file is cut, and as its whole has it; what is too long has no content."""
    content = b"\n".join(lines) + (b"\n" if ended else b"")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "a.txt"
        path.write_bytes(content)
        found = [
            line
            for begin in range(0, len(content), step)
            for line in lines_of_range(str(path), begin, min(begin + step, len(content)), limit)
        ]
    expected = content.split(b"\n")
    expected = expected if expected[-1] else expected[:-1]
    position = 0
    for line, wanted in zip(found, expected, strict=True):
        assert (line.position, line.size) == (position, len(wanted))
        assert line.content == (wanted if len(wanted) <= limit else None)
        position += len(wanted) + 1


@given(
    documents=st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=3), max_size=20),
    used=st.integers(0, 100),
    limit=st.integers(1, 120),
    item_size=st.sampled_from([1, 2, 4]),
)
def test_no_corpus_exceeds_the_limit(
    documents: list[list[int]], used: int, limit: int, item_size: int
) -> None:
    """Unless one document does; and no document is put off that would still have fitted."""
    lengths = np.array([size for document in documents for size in document], np.int32)
    counts = np.array([len(document) for document in documents], np.int32)
    at = Segment(3, Counts(), Counts(1, 1, used))
    segments = segments_of(at, lengths, counts, item_size, limit)
    assert sum((segment.size for segment in segments), Counts()) == Counts(
        len(documents), len(lengths), int(lengths.sum())
    )
    ends = {3: used}
    begin = 0
    for segment in segments:
        own = [sum(document) for document in documents[begin : begin + segment.size.documents]]
        assert segment.size.tokens == sum(own)
        before = ends.get(segment.shard, 0)
        assert segment.first.tokens == before
        assert (before + sum(own)) * item_size <= limit or (before == 0 and len(own) == 1)
        if segment.shard > 3:
            assert (ends[segment.shard - 1] + own[0]) * item_size > limit
        ends[segment.shard] = before + sum(own)
        begin += segment.size.documents
    whole = place(at, Counts(len(documents), len(lengths), int(lengths.sum())), item_size, limit)
    fits = (used + int(lengths.sum())) * item_size <= limit
    assert (whole is not None) == (fits or not documents)


@given(st.lists(st.integers(1, 100), max_size=30), st.integers(0, 30), st.integers(1, 7))
def test_every_piece_has_an_owner(costs: list[int], begun: int, ranks: int) -> None:
    """No rank has more to do than the others and one piece; another rank reads back."""
    begun = min(begun, len(costs))
    owners = owners_of(costs, begun, ranks)
    loads = [
        sum(costs[t] for t in range(begun, len(costs)) if owners[t] == r) for r in range(ranks)
    ]
    assert max(loads) - min(loads) <= max(costs[begun:], default=0)
    for owner in owners:
        assert 0 <= owner < ranks
        assert (reader_of(owner, ranks) == owner) == (ranks == 1)


@given(
    nbytes=st.lists(st.integers(0, 90_000), max_size=40),
    first=st.integers(0, 30),
    ranks=st.integers(1, 7),
)
def test_rounds_have_work_for_all_ranks(nbytes: list[int], first: int, ranks: int) -> None:
    """Each piece is in one round, in order; only the last round may have less."""
    rounds = make_rounds(nbytes, first, ranks)
    assert [piece for some in rounds for piece in some] == list(range(first, first + len(nbytes)))
    least = ranks * cutting.ROUND_BYTES
    for some in rounds[:-1]:
        assert len(some) >= ranks
        size = sum(nbytes[piece - first] for piece in some)
        assert size >= least
        assert len(some) == ranks or size - nbytes[some[-1] - first] < least


def test_an_oversized_document_gets_a_corpus_to_itself() -> None:
    """It is not lost, and not cut."""
    assert cut_at_documents(np.array([5, 50, 5, 5]), 10, 10) == [1, 1, 2]
    assert cut_at_documents(np.array([50]), 3, 10) == [0, 1]
    assert cut_at_documents(np.array([], np.int64), 3, 10) == []


def test_streams_have_the_lines_of_their_content(tmp_path: Path) -> None:
    """Streams have the lines of their content of several members too."""
    import gzip  # noqa: PLC0415

    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"one\ntw") + gzip.compress(b"o\nthree"))
    assert [line.content for line in lines_of_stream(str(path), "gzip", 9)] == [
        b"one",
        b"two",
        b"three",
    ]


NOTED = b'"kept":"AQE=","following":3,"run":1'


def test_options_and_journals_keep_their_form() -> None:
    """A corpus is found again, and an ingest resumed, by another version of the program."""
    assert msgspec.json.encode(TextOptions()) == (
        b'{"token_type":"auto","on_error":"fail","shard_size":null,"empty":"drop","format":null,'
        b'"text_key":"text","messages":null,"loss":"marked","append_eod":false,"eod_once":false,'
        b'"sentences":"no",'
        b'"documents":"file","longest":67108864}'
    )
    assert msgspec.json.encode(TokenOptions()) == (
        b'{"token_type":"auto","on_error":"fail","shard_size":null,"empty":"drop","format":null,'
        b'"column":"input_ids","dtype":null,"vocabulary":null,"eod":null,"masks":"keep"}'
    )
    line = (
        b'{"piece":0,"facts":{"digest":"ab","rows":4,"empty":1,"skipped":1,"documents":2,'
        b'"sequences":3,"tokens":9,"lines":5,"by_library":0,"compared":0,"ended":0,'
        b'"masked":false,"problems":[]'
        b'%b},"digest":"cd","segments":[[0,[0,0,0],[2,3,9]]]}'
    )
    for kept, written in ((b"", b'"kept":"","following":0,"run":0'), (NOTED, NOTED)):
        record = msgspec.json.decode(line % (b"," + kept if kept else b""), type=PieceRecord)
        assert record.facts.size == record.segments[0].size == Counts(2, 3, 9)
        assert msgspec.json.encode(record) == line % (b"," + written)


@given(
    rows=st.lists(st.lists(st.integers(1, 9), max_size=6), min_size=1, max_size=8),
    shift=st.integers(0, 1),
    data=st.data(),
)
def test_losses_are_those_of_the_predicted_tokens(
    rows: list[list[int]], shift: int, data: st.DataObject
) -> None:
    """Of labels and masks together, whether labels are the tokens or the next ones."""
    counts = np.array([len(row) for row in rows], np.int64)
    ids = np.array([token for row in rows for token in row], np.int64)
    learned = [data.draw(st.lists(st.booleans(), min_size=n, max_size=n)) for n in counts.tolist()]
    mask = [data.draw(st.lists(st.booleans(), min_size=n, max_size=n)) for n in counts.tolist()]
    labels: list[float] = []
    wanted: list[int] = []
    for row, own, other in zip(rows, learned, mask, strict=True):
        tokens = [token if has else -100 for token, has in zip(row, own, strict=True)]
        labels += [*tokens[1:], -100] if shift and row else tokens
        known = [has and both for has, both in zip(own, other, strict=True)]
        if shift and row:
            known[0] = False
        if len(row) > 1 and not known[0] and all(known[1:]):
            known[0] = True
        wanted += map(int, known)
    values = np.array([has for own in mask for has in own], float)
    given_masks = {"labels": np.array(labels, float), "loss_mask": values}
    found = masked(Rows(ids, counts), given_masks, LabelShift(), ignored=False)
    if not found.wrong and (shift == 0 or _is_shifted(rows, learned)):
        losses = np.ones(len(ids), np.uint8) if found.losses is None else found.losses
        assert losses.tolist() == wanted


def _is_shifted(rows: list[list[int]], learned: list[list[bool]]) -> bool:
    """Return whether labels that are the next tokens are not the tokens, too."""
    return any(
        has and token != before
        for row, own in zip(rows, learned, strict=True)
        for before, token, has in zip(row, row[1:], own[1:], strict=False)
    )
