"""Which corpora have the same documents, whatever their names and however they were made."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from distcache.corpus import write_idx
from distcache.corpus.same_documents import Part, SameDocuments, same_documents
from tests.support import here
from tests.support.corpora import write_corpus, write_lengths
from tests.support.mds_corpora import DOCUMENTS as DOCUMENTS_OF_SHARDS
from tests.support.mds_corpora import write_tokens

DOCUMENTS = 60


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    """A corpus of documents, two of which are empty."""
    lengths = np.random.default_rng(1).integers(1, 50, DOCUMENTS)
    lengths[[0, 30]] = 0
    return write_lengths(tmp_path / "web", lengths)


def shared(
    *prefixes: str | Path, begins: tuple[int, ...] = (), ends: tuple[int, ...] = ()
) -> list[SameDocuments]:
    """Compare corpora, or the parts of them from begins to ends."""
    facts = [here.sound(prefix) for prefix in prefixes]
    parts = [
        Part(one, begins[n] if begins else 0, ends[n] if ends else one.sequences)
        for n, one in enumerate(facts)
    ]
    return list(same_documents(parts))


def link(prefix: str, to: Path) -> Path:
    """Link the files of a corpus."""
    to.parent.mkdir(exist_ok=True)
    for suffix in (".bin", ".idx"):
        os.symlink(prefix + suffix, f"{to}{suffix}")
    return to


def copy(prefix: str, to: Path) -> Path:
    """Copy the files of a corpus."""
    for suffix in (".bin", ".idx"):
        shutil.copy(prefix + suffix, f"{to}{suffix}")
    return to


def test_the_same_corpus_by_other_names(corpus: str, tmp_path: Path) -> None:
    """By itself, a link, a hard link and a copy; documents without a token are nobody's."""
    os.link(f"{corpus}.bin", tmp_path / "hard.bin")
    shutil.copy(f"{corpus}.idx", tmp_path / "hard.idx")
    others = [
        corpus,
        link(corpus, tmp_path / "l" / "b"),
        tmp_path / "hard",
        copy(corpus, tmp_path / "c"),
    ]
    for other in others:
        assert shared(corpus, other) == [SameDocuments(0, 1, DOCUMENTS - 2, DOCUMENTS)], other


def test_views_and_what_is_made_of_them(corpus: str, tmp_path: Path) -> None:
    """A view, a view of it, their copies, merges with others: each has what its root has."""
    other = write_lengths(tmp_path / "other", np.full(25, 7))
    here.select(corpus, tmp_path / "half", sample=0.5, seed=1)
    here.select(tmp_path / "half", tmp_path / "quarter", sample=0.5, seed=2)
    here.materialize(tmp_path / "half", tmp_path / "own")
    here.merge([other, corpus], tmp_path / "both")
    here.merge([other, tmp_path / "half"], tmp_path / "mixed")
    here.merge([tmp_path / "both", other], tmp_path / "again")
    half = here.sound(tmp_path / "half")
    filled = half.documents - half.empty_sequences
    for name, documents in {
        "half": filled,
        "own": filled,
        "both": DOCUMENTS - 2,
        "mixed": filled,
    }.items():
        (found,) = shared(corpus, tmp_path / name)
        assert found.documents == documents, name
    (found,) = shared(tmp_path / "half", tmp_path / "quarter")
    quarter = here.sound(tmp_path / "quarter")
    assert found.documents == quarter.documents - quarter.empty_sequences
    (found,) = shared(tmp_path / "half", tmp_path / "own")
    assert found.documents == filled
    assert shared(tmp_path / "both", tmp_path / "again")


def test_what_is_apart_is_not_the_same(corpus: str, tmp_path: Path) -> None:
    """Disjoint views, other tokens under an equal index, and other parts of one corpus."""
    here.select(corpus, tmp_path / "low", documents=(0, 20))
    here.select(corpus, tmp_path / "high", documents=(20, 60))
    assert shared(tmp_path / "low", tmp_path / "high") == []
    for token, name in ((3, "even"), (4, "odd")):
        write_corpus(str(tmp_path / name), [np.full(8, token)] * 50, "u2")
    assert shared(tmp_path / "even", tmp_path / "odd") == []
    assert shared(corpus, corpus, begins=(0, 40), ends=(40, 60)) == []
    (found,) = shared(corpus, corpus, begins=(0, 35), ends=(40, 60))
    assert (found.documents, found.of_documents) == (5, 25)


def write_random(prefix: Path, lengths: list[int], random: np.random.Generator) -> str:
    """Write documents of random tokens."""
    write_corpus(str(prefix), [random.integers(1, 60_000, n) for n in lengths], "u2")
    return str(prefix)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_was_made_of_what(seed: int, tmp_path: Path) -> None:
    """Views, copies and merges of one another: the documents in common are those of both sets."""
    random = np.random.default_rng(seed)
    roots = [
        write_random(tmp_path / f"root{n}", random.integers(3, 40, 24).tolist(), random)
        for n in range(2)
    ]
    known = {root: {(n, document) for document in range(24)} for n, root in enumerate(roots)}
    content = {root: [(n, d) for d in range(24)] for n, root in enumerate(roots)}
    for step in range(14):
        out = str(tmp_path / f"made{step}")
        source = str(random.choice(list(content)))
        match random.integers(3):
            case 0:
                first, last = np.sort(random.choice(len(content[source]) + 1, 2, replace=False))
                here.select(source, out, documents=(int(first), int(last)))
                content[out] = content[source][first:last]
            case 1:
                here.materialize(source, out) if has_view(source) else here.merge([source], out)
                content[out] = content[source]
            case _:
                other = str(random.choice(list(content)))
                here.merge([source, other], out)
                content[out] = content[source] + content[other]
        known[out] = set(content[out])
    names = list(content)
    found = {(pair.one, pair.other): pair.documents for pair in shared(*names)}
    for one, other in itertools.combinations(range(len(names)), 2):
        expected = sum(document in known[names[one]] for document in content[names[other]])
        assert found.get((one, other), 0) == expected, (names[one], names[other])


def has_view(prefix: str) -> bool:
    """Return whether a corpus is a view, which can be materialized."""
    return here.sound(prefix).view


def test_copies_that_no_path_tells(corpus: str, tmp_path: Path) -> None:
    """An original that moved, another in its place, and corpora of one shape with other tokens."""
    here.convert(corpus, tmp_path / "copy")
    moved = copy(corpus, tmp_path / "moved")
    lengths = np.random.default_rng(1).integers(1, 50, DOCUMENTS)
    lengths[[0, 30]] = 0
    write_lengths(Path(corpus), lengths, first=17)
    (found,) = shared(moved, tmp_path / "copy")
    assert found.documents == DOCUMENTS - 2
    assert shared(corpus, tmp_path / "copy") == []
    random = np.random.default_rng(3)
    shape = [write_random(tmp_path / f"p{n}", [17] * 30, random) for n in range(3)]
    here.merge(shape[:2], tmp_path / "both")
    found_pairs = {pair[:2] for pair in shared(*shape, tmp_path / "both")}
    assert found_pairs == {(0, 3), (1, 3)}


def test_receipts_that_name_one_another(corpus: str, tmp_path: Path) -> None:
    """A copy that took the place of what it was made from."""
    other = copy(corpus, tmp_path / "other")
    here.merge([corpus], tmp_path / "merged")
    for suffix in ("idx", "bin", "receipt.json"):
        os.replace(f"{tmp_path}/merged.{suffix}", f"{corpus}.{suffix}")
    (found,) = shared(corpus, other)
    assert found.documents == DOCUMENTS - 2


def test_a_view_whose_root_is_gone(corpus: str, tmp_path: Path) -> None:
    """Nothing is known of where its documents were, and the others are still compared."""
    here.select(corpus, tmp_path / "view", sample=0.5, seed=1)
    (tmp_path / "view.bin").unlink()
    shutil.copy(f"{corpus}.bin", tmp_path / "view.bin")
    here.convert(corpus, tmp_path / "copy")
    here.convert(tmp_path / "copy", tmp_path / "again")
    os.replace(f"{corpus}.idx", tmp_path / "away.idx")
    pairs = {pair[:2] for pair in shared(tmp_path / "view", tmp_path / "copy", tmp_path / "again")}
    assert (1, 2) in pairs


def test_a_copied_bin_with_another_index(corpus: str, tmp_path: Path) -> None:
    """The tokens are the same, however they are cut; files without variety are nothing."""
    shutil.copy(f"{corpus}.bin", tmp_path / "cut.bin")
    tokens = here.sound(corpus).tokens
    write_idx(str(tmp_path / "cut"), np.array([tokens - 9, 9]), "u2")
    (found,) = shared(corpus, tmp_path / "cut")
    assert (found.documents, found.of_documents) == (2, 2)
    for name in ("hole", "other"):
        write_corpus(str(tmp_path / name), [np.zeros(40)] * 9, "u2")
    assert shared(tmp_path / "hole", tmp_path / "other") == []


def test_many_views_are_no_reason(corpus: str, tmp_path: Path) -> None:
    """Disjoint ones, of which there are more pairs than are yielded, hide nothing."""
    views = [tmp_path / f"v{n}" for n in range(DOCUMENTS)]
    for number, view in enumerate(views):
        here.select(corpus, view, documents=(number, number + 1))
    full = [view for number, view in enumerate(views) if number not in (0, 30)]
    assert shared(*full) == []
    assert [pair[:2] for pair in shared(*full, full[-1])] == [(len(full) - 1, len(full))]


def test_shards_of_which_two_data_sets_have_some(tmp_path: Path) -> None:
    """By the content of each shard, also in merges and in corpora of their tokens."""
    source = write_tokens(tmp_path / "all")
    index = json.loads((source / "index.json").read_text())
    halves = {"low": index["shards"][:2], "high": index["shards"][2:]}
    for name, shards in halves.items():
        (tmp_path / name).mkdir()
        for shard in shards:
            file = shard["raw_data"]["basename"]
            os.symlink(source / file, tmp_path / name / file)
        (tmp_path / name / "index.json").write_text(json.dumps(index | {"shards": shards}))
    for name in ("all", *halves):
        here.index(tmp_path / name, tmp_path / f"i-{name}")
    here.materialize(tmp_path / "i-low", tmp_path / "own")
    low = here.sound(tmp_path / "i-low").documents
    (found,) = shared(tmp_path / "i-all", tmp_path / "i-low")
    assert found.documents == found.of_documents == low
    assert shared(tmp_path / "i-low", tmp_path / "i-high") == []
    (found,) = shared(tmp_path / "own", tmp_path / "i-all")
    assert (found.documents, found.of_documents) == (low, len(DOCUMENTS_OF_SHARDS))


def test_shards_that_are_indexed_twice(tmp_path: Path) -> None:
    """By two names, and as a corpus of their tokens."""
    here.index(write_tokens(tmp_path / "mds"), tmp_path / "a")
    here.index(tmp_path / "mds", tmp_path / "b")
    here.materialize(tmp_path / "a", tmp_path / "own")
    for other in ("b", "own"):
        (found,) = shared(tmp_path / "a", tmp_path / other)
        assert found.documents == found.of_documents == len(DOCUMENTS_OF_SHARDS)


def test_copies_of_copies(corpus: str, tmp_path: Path) -> None:
    """Through any number of merges, a view on the way, and links of the copied corpus."""
    other = write_lengths(tmp_path / "other", np.full(20, 7))
    here.select(corpus, tmp_path / "view", documents=(10, 40))
    here.merge([other, tmp_path / "view"], tmp_path / "one")
    here.merge([other, tmp_path / "one"], tmp_path / "two")
    here.merge([tmp_path / "two", other], tmp_path / "three")
    linked = link(corpus, tmp_path / "l" / "b")
    for name in ("one", "two", "three"):
        for original in (corpus, linked, tmp_path / "view"):
            (found,) = shared(original, tmp_path / name)
            assert found.documents == 29, (name, original)
        assert len(shared(other, tmp_path / name)) == 1
    (again,) = shared(tmp_path / "one", tmp_path / "three")
    assert again.documents >= 29
