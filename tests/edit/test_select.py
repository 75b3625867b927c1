"""Selections of a corpus as views, and views as corpora of their own."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from distcache.corpus import open_idx, write_idx
from distcache.corpus.corpus import open_copy_source
from distcache.corpus.idx import HEADER_SIZE
from distcache.corpus.receipt import Receipt, read_receipt
from distcache.corpus.view_bytes import token_pieces
from distcache.edit.select import SelectOptions, select
from distcache.edit.selection import Selection, hash_numbers
from distcache.errors import ConfigError, CorpusError, KeyMismatch
from tests.plan.test_make import plan_of
from tests.support import here
from tests.support.corpora import LENGTHS, write_corpus, write_lengths
from tests.support.texts import read_corpus
from tests.support.threads import run_ranks

pytestmark = pytest.mark.wild

Documents = list[list[list[int]]]


def documents_of(prefix: str | Path) -> Documents:
    """Read every document as lists of the tokens of its sequences, at the offsets of the `.idx`."""
    idx = open_idx(str(prefix))
    content = Path(f"{prefix}.bin").read_bytes()
    item = idx.item_size
    sequences = [
        np.frombuffer(content[at : at + n * item], f"i{item}" if item > 2 else "u2").tolist()
        for at, n in zip(idx.offsets.tolist(), idx.lengths.tolist(), strict=True)
    ]
    bounds = idx.bounds.tolist()
    return [sequences[a:b] for a, b in itertools.pairwise(bounds)]


def pick(prefix: str, out: Path, **fields: Any) -> Receipt:
    """Select from a corpus with one rank."""
    outer = {name: fields.pop(name) for name in ("rows", "drop", "absolute") if name in fields}
    return here.select(prefix, out, **fields, **outer)


def faults_of(prefix: str | Path, receipt: Receipt, readback: int = 50) -> list[str]:
    """Return what an examination and a readback say against a corpus."""
    facts = here.facts([prefix])
    found = here.audit(facts, {str(prefix): receipt}, vocabulary=30_000, readback=readback)
    return [fault.message for fault in found]


def test_a_selection_is_a_view_of_the_same_bytes(tmp_path: Path) -> None:
    """It links the tokens by a relative path, and its receipt names the corpus."""
    parent = (
        write_lengths(tmp_path / "data" / "all", LENGTHS["second"])
        if ((tmp_path / "data").mkdir() is None)
        else ""
    )
    (tmp_path / "views").mkdir()
    receipt = pick(parent, tmp_path / "views" / "long", min_length=20)
    documents = documents_of(parent)
    kept = [document for document in documents if len(document[0]) >= 20]
    assert 0 < len(kept) < len(documents)
    assert documents_of(tmp_path / "views" / "long") == kept
    link = tmp_path / "views" / "long.bin"
    assert str(link.readlink()) == "../data/all.bin"
    facts = here.facts([tmp_path / "views" / "long"])
    assert facts[str(tmp_path / "views" / "long")].view
    assert receipt == read_receipt(tmp_path / "views" / "long.receipt.json")
    assert (receipt.kind, receipt.view, receipt.inputs[0].path) == ("select", True, parent)
    assert faults_of(tmp_path / "views" / "long", receipt) == []


def test_the_first_documents_are_a_view_too(tmp_path: Path) -> None:
    """Their offsets are the running sum; that the `.bin` goes on is right, since it is a link."""
    parent = write_lengths(tmp_path / "all", LENGTHS["plain"])
    receipt = pick(parent, tmp_path / "some", documents=(0, 10), absolute=True)
    assert documents_of(tmp_path / "some") == documents_of(parent)[:10]
    assert (tmp_path / "some.bin").readlink() == (tmp_path / "all.bin").resolve()
    assert receipt.view
    # A regular file that goes on is a corpus that somebody is writing to, or half a copy.
    (tmp_path / "some.bin").unlink()
    (tmp_path / "some.bin").write_bytes((tmp_path / "all.bin").read_bytes())
    faults = here.faults([tmp_path / "some"])
    assert "expected" in faults[0].message


def test_conditions_hold_together(tmp_path: Path) -> None:
    """Numbers to keep and to drop, a range, lengths and a sample."""
    parent = write_lengths(tmp_path / "all", LENGTHS["third"])
    rows = np.arange(0, 2000, 3)
    np.save(tmp_path / "rows.npy", np.random.default_rng(1).permutation(rows).astype("u4"))
    (tmp_path / "drop.txt").write_text("\n".join(map(str, range(0, 2000, 5))) + "\n\n")
    pick(
        parent,
        tmp_path / "some",
        rows=str(tmp_path / "rows.npy"),
        drop=str(tmp_path / "drop.txt"),
        documents=(100, 1900),
        min_length=5,
        max_length=40,
        sample=0.5,
        seed=7,
    )
    chance = hash_numbers(np.arange(2000, dtype=np.uint64), 7) < np.uint64(2**63)
    documents = documents_of(parent)
    expected = [
        number
        for number in rows.tolist()
        if number % 5
        and 100 <= number < 1900
        and 5 <= len(documents[number][0]) <= 40
        and chance[number]
    ]
    assert documents_of(tmp_path / "some") == [documents[number] for number in expected]
    assert 100 < len(expected) < 300


def test_a_larger_sample_holds_a_smaller_one(tmp_path: Path) -> None:
    """Of the same seed; other seeds give others, of about the same size."""
    numbers = np.arange(100_000, dtype=np.uint64)
    tenth, fifth = (hash_numbers(numbers, 3) < np.uint64(int(p * 2**64)) for p in (0.1, 0.2))
    assert not np.any(tenth & ~fifth)
    assert abs(tenth.sum() - 10_000) < 400
    other = hash_numbers(numbers, 4) < np.uint64(int(0.1 * 2**64))
    assert abs(np.sum(other & tenth) - 1000) < 150


def test_documents_that_have_about_so_many_tokens(tmp_path: Path) -> None:
    """Of a sample: more tokens hold fewer, for any number of ranks; all there are is exact."""
    lengths = np.random.default_rng(1).integers(0, 90, 20_000)
    prefix = write_lengths(tmp_path / "all", lengths)
    there = int(lengths[lengths >= 2].sum())
    wanted = there // 4
    found = pick(prefix, tmp_path / "v", tokens=wanted, seed=7, min_length=2)
    assert abs(found.tokens - wanted) < wanted // 20
    kept = set(open_idx(str(tmp_path / "v")).offsets.tolist())
    pick(prefix, tmp_path / "w", tokens=wanted // 2, seed=7, min_length=2)
    assert set(open_idx(str(tmp_path / "w")).offsets.tolist()) < kept
    pick(prefix, tmp_path / "o", tokens=wanted, seed=8, min_length=2)
    assert set(open_idx(str(tmp_path / "o")).offsets.tolist()) != kept
    options = SelectOptions(Selection(tokens=wanted, seed=7, min_length=2))
    run_ranks(3, lambda ranks: select(ranks, prefix, str(tmp_path / "r"), options))
    assert (tmp_path / "r.idx").read_bytes() == (tmp_path / "v.idx").read_bytes()
    half = pick(prefix, tmp_path / "h", tokens=wanted, sample=0.5, seed=7, min_length=2)
    assert abs(half.tokens - wanted) < wanted // 20
    assert pick(prefix, tmp_path / "e", tokens=there, min_length=2).tokens == there


def test_more_tokens_than_there_are(tmp_path: Path) -> None:
    """More tokens than there are is an error that says how many there are."""
    prefix = write_lengths(tmp_path / "a", np.array([5, 6]))
    with pytest.raises(ConfigError, match="has 11 that can be selected"):
        pick(prefix, tmp_path / "v", tokens=12)


def test_a_view_of_a_view_materialized(tmp_path: Path) -> None:
    """It has the same documents as the one in its place; so has a merge of views with others."""
    parent = write_lengths(tmp_path / "all", LENGTHS["holes"])
    pick(parent, tmp_path / "some", sample=0.6, seed=1)
    receipt = pick(str(tmp_path / "some"), tmp_path / "fewer", min_length=10)
    assert faults_of(tmp_path / "fewer", receipt) == []
    made = here.materialize(tmp_path / "fewer", tmp_path / "own")
    assert documents_of(tmp_path / "own") == documents_of(tmp_path / "fewer")
    assert made.kind == "materialize"
    assert not made.view
    assert made.bin_size == made.tokens * 2 == (tmp_path / "own.bin").stat().st_size
    assert not (tmp_path / "own.bin").is_symlink()
    assert faults_of(tmp_path / "own", made) == []
    prefixes = [str(tmp_path / name) for name in ("fewer", "all", "some", "fewer")]
    merged = here.merge(prefixes, tmp_path / "merged")
    expected = [document for prefix in prefixes for document in documents_of(prefix)]
    assert documents_of(tmp_path / "merged") == expected
    assert read_corpus(tmp_path / "merged")
    assert faults_of(tmp_path / "merged", merged) == []


def test_a_readback_goes_through_to_the_sources(tmp_path: Path) -> None:
    """A view of a merge whose corpora have changed differs, though its bytes are its parent's."""
    for name in ("a", "b"):
        write_lengths(tmp_path / name, LENGTHS["plain"])
    here.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    receipt = pick(str(tmp_path / "all"), tmp_path / "some", sample=0.5)
    assert faults_of(tmp_path / "some", receipt) == []
    with open(tmp_path / "a.bin", "r+b") as stream:
        stream.write(bytes(4000))
    found = faults_of(tmp_path / "some", receipt, readback=200)
    assert found
    assert all("one of the two has changed" in message for message in found)


def test_a_view_outside_of_its_bytes_is_unsound(tmp_path: Path) -> None:
    """As when its parent has become shorter; and a plan with it is refused."""
    parent = write_lengths(tmp_path / "all", LENGTHS["plain"])
    pick(parent, tmp_path / "some", min_length=30)
    with open(f"{parent}.bin", "r+b") as stream:
        stream.truncate(2000)
    faults = here.faults([tmp_path / "some"])
    assert "nor within the .bin" in faults[0].message
    with pytest.raises(CorpusError, match="nor within"):
        plan_of({"sequence_length": 8, "split": "1", "blend": [str(tmp_path / "some")]})


def test_a_range_that_goes_on_outside_is_unsound(
    tmp_path: Path, limit: Callable[..., None]
) -> None:
    """Although its own offsets are a running sum: that the corpus is a view, another range says."""
    limit("distcache.corpus.examine", TASK_SEQUENCES=8)
    parent = write_lengths(tmp_path / "all", np.full(40, 10, np.int32))
    idx = open_idx(parent)
    content = bytearray(Path(f"{parent}.idx").read_bytes())
    offsets = idx.offsets.copy()
    offsets[4:] += 20 * idx.item_size  # from the first range on; the last two lie outside
    begin = HEADER_SIZE + 4 * len(offsets)
    content[begin : begin + 8 * len(offsets)] = offsets.tobytes()
    os.link(f"{parent}.bin", tmp_path / "v.bin")
    (tmp_path / "v.idx").write_bytes(content)
    faults = here.faults([tmp_path / "v"])
    assert "2 sequences are neither" in str(faults[0])


def test_a_plan_says_that_a_corpus_is_a_view(tmp_path: Path) -> None:
    """Tokens of its splits are added up; that it is a view enters the key, and only then."""
    parent = write_lengths(tmp_path / "all", LENGTHS["plain"])
    pick(parent, tmp_path / "some", min_length=30)
    fields = {"sequence_length": 8, "split": "60,30,10", "blend": [str(tmp_path / "some")]}
    plan = plan_of(fields)
    lengths = open_idx(str(tmp_path / "some")).lengths
    for section in plan.sections:
        assert section.tokens == lengths[section.begin : section.end].sum()
    assert plan.sources[0].identity["view"] is True
    assert "view" not in plan_of(fields | {"blend": [parent]}).sources[0].identity


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"min_length": 10**6}, "no document with a sequence"),
        ({"documents": (5, 5)}, "A below B"),
        ({"sample": 1.5}, "at most 1"),
        ({"min_length": 9, "max_length": 3}, "is below"),
        ({"seed": -1}, "--seed -1: expected"),
        ({"rows": "missing.txt"}, "cannot be read as numbers"),
        ({"rows": "words.txt"}, "cannot be read as numbers"),
        ({"rows": "twice.txt"}, "names document 4 twice"),
        ({"drop": "below.txt"}, "start at 0"),
        ({"drop": "beyond.txt"}, "names document 7, but"),
        ({"drop": "floats.npy"}, "one dimension of integers"),
        ({"rows": "huge.txt"}, "cannot be read as numbers"),
        ({"rows": "empty.npy"}, "cannot be read as numbers"),
        ({"rows": "header.npy"}, "cannot be read as numbers"),
        ({"rows": "zip.npy"}, "cannot be read as numbers"),
        ({"rows": "long.txt"}, "a line has 64 characters and more"),
        ({"drop": "fifo"}, "Not a regular file"),
        ({"drop": "fifo.npy"}, "Not a regular file"),
    ],
)
def test_bad_selections_are_refused(
    fields: dict[str, Any], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bad selections are refused with one sentence; nothing is left behind."""
    monkeypatch.chdir(tmp_path)
    texts = {
        "words": "one",
        "twice": "4\n2\n4",
        "below": "-1",
        "beyond": "1\n7",
        "huge": f"{2**80}",
        "long": "1" * 1000,
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text)
    np.save(tmp_path / "floats.npy", np.zeros(3))
    (tmp_path / "empty.npy").touch()
    (tmp_path / "zip.npy").write_bytes(b"PK\x03\x04garbage")
    for name in ("fifo", "fifo.npy"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "header.npy").write_bytes(
        b"\x93NUMPY\x01\x00\x10\x00" + b"{'descr': (\n" + b" " * 4
    )
    parent = write_lengths(tmp_path / "all", LENGTHS["tiny"])
    with pytest.raises(ConfigError, match=expected):
        pick(parent, tmp_path / "out" / "some", **fields)
    assert not list(tmp_path.glob("out/some*"))


def test_another_selection_does_not_take_the_name(tmp_path: Path) -> None:
    """The same one finds the view that exists."""
    parent = write_lengths(tmp_path / "all", LENGTHS["plain"])
    first = pick(parent, tmp_path / "some", sample=0.5)
    assert pick(parent, tmp_path / "some", sample=0.5) == first
    with pytest.raises(KeyMismatch, match="differs in sample"):
        pick(parent, tmp_path / "some", sample=0.4)


@given(data=st.data())
def test_pieces_of_views_are_their_tokens(data: st.DataObject, tmp_path: Path) -> None:
    """Of any offsets, for any range of bytes, in pieces of any size."""
    content = np.arange(500, dtype=np.uint8)
    lengths = np.array(data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=12)), np.int32)
    offsets = [data.draw(st.integers(0, 500 - n)) for n in lengths.tolist()]
    _write_view(tmp_path / "v", content, lengths, np.array(offsets))
    facts = here.sound(tmp_path / "v")
    assert facts is not None
    tokens = np.concatenate([content[o : o + n] for o, n in zip(offsets, lengths, strict=True)])
    low = data.draw(st.integers(0, len(tokens)))
    high = data.draw(st.integers(low, len(tokens)))
    room = np.empty(data.draw(st.integers(1, 64)), np.uint8)
    pieces = [np.array(p) for p in token_pieces(open_copy_source(facts), low, high, room)]
    assert np.array_equal(np.concatenate([[], *pieces]), tokens[low:high])


def _write_view(
    prefix: Path, content: NDArray[np.uint8], lengths: NDArray[np.int32], offsets: NDArray[np.int64]
) -> None:
    """Write an index over bytes at given places, with a `.bin` that is a link."""
    Path(f"{prefix}.all").write_bytes(content.tobytes())
    Path(f"{prefix}.bin").unlink(missing_ok=True)
    Path(f"{prefix}.bin").symlink_to(f"{prefix}.all")
    write_idx(str(prefix), lengths, "u1")
    with open(f"{prefix}.idx", "r+b") as stream:
        stream.seek(34 + 4 * len(lengths))
        stream.write(offsets.astype("<i8").tobytes())


def test_empty_views_of_written_corpora_are_documents(tmp_path: Path) -> None:
    """Documents without tokens are kept and read back as others."""
    write_corpus(str(tmp_path / "all"), [[], [1, 2], [], [], [3], []], "u2")
    receipt = pick(str(tmp_path / "all"), tmp_path / "some", max_length=1)
    assert documents_of(tmp_path / "some") == [[[]], [[]], [[]], [[3]], [[]]]
    assert faults_of(tmp_path / "some", receipt) == []
