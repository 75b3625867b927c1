"""What is left of corpora: every token equally often in the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import distcache
from distcache.corpus import open_idx
from distcache.corpus.receipt import find_receipt
from distcache.errors import CacheCorrupt, ConfigError, KeyMismatch
from distcache.ledger.consumed import Consumed
from distcache.ledger.rest import RestOptions, Trained, write_rest
from distcache.ledger.rest_pieces import Pieces, runs_left
from distcache.ledger.steps import Sampling
from distcache.ledger.trace import trace
from tests.orders.orders import ORDERS, Tokens, build_numbered, write_numbered
from tests.support import here
from tests.support.corpora import write_corpus


def trained_on(path: Path, samples: int) -> Trained:
    """Return a cache after some samples."""
    return Trained(trace(path), Consumed.of_number(samples))


def counted(path: Path, positions: Any) -> list[NDArray[np.int64]]:
    """Count how often each token of each corpus is an input at positions, one by one."""
    truth = Tokens(path)
    counts = [np.zeros(int(starts[-1]), np.int64) for starts in truth.starts]
    for position in positions:
        corpus, tokens = truth.of(position)
        inputs = tokens[: len(tokens) - truth.has_extra(tokens)]
        np.add.at(counts[corpus], inputs, 1)
    return counts


def in_view(view: str | None, size: int) -> NDArray[np.int64]:
    """Count how often each token of a corpus is in a view of it: the tokens count up."""
    counts = np.zeros(size, np.int64)
    if view is not None:
        idx = open_idx(view)
        for offset, length in zip(idx.offsets.tolist(), idx.lengths.tolist(), strict=True):
            counts[offset // 4 : offset // 4 + length] += 1
    return counts


def train_range(path: Path, corpus: int) -> slice:
    """Return the tokens of the train split of a corpus."""
    truth = Tokens(path)
    (row,) = [row for row, source in truth.members.pairs if source == corpus]
    entry = truth.cache.table("sections")[row]
    starts = truth.starts[corpus]
    return slice(int(starts[int(entry["begin"])]), int(starts[int(entry["end"])]))


def test_nothing_is_left_once_more_of_nothing() -> None:
    """All tokens were inputs as often as they shall be."""
    none = np.empty(0, np.int64)
    found = runs_left(Pieces(np.array([3]), np.array([0]), np.array([9]), np.array([0])), 1)
    assert [part.tolist() for part in found] == [[]] * 4
    assert [part.tolist() for part in runs_left(Pieces(*[none] * 4), 1)] == [[]] * 4


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(samples=st.integers(0, 200), times=st.sampled_from([None, 6]))
@pytest.mark.parametrize("case", ORDERS)
def test_each_token_is_an_input_equally_often(
    case: str, tmp_path_factory: pytest.TempPathFactory, samples: int, times: int | None
) -> None:
    """How often a token was trained, and is in the view, are `times` in sum."""
    directory = tmp_path_factory.mktemp("rest")
    path = build_numbered(directory, case)
    options = RestOptions(times=times)
    rest = write_rest([trained_on(path, samples)], str(directory / "out"), options)
    for corpus, (before, made) in enumerate(
        zip(counted(path, range(samples)), rest.corpora, strict=True)
    ):
        tokens = train_range(path, corpus)
        together = before + in_view(made.view, len(before))
        assert (together[tokens] == made.times).all()
        assert made.times == (times or max(1, before.max()))
        assert not in_view(made.view, len(before))[tokens.stop :].any()
        assert made.trained_tokens == before.sum()
        assert made.left_tokens == made.times * (tokens.stop - tokens.start) - before.sum()


def test_fragments_can_be_dropped(tmp_path: Path) -> None:
    """Without fragments a view has whole sequences alone, and what is left out is counted."""
    path = build_numbered(tmp_path)
    kept = write_rest([trained_on(path, 60)], str(tmp_path / "kept"), RestOptions())
    options = RestOptions(partial="drop")
    dropped = write_rest([trained_on(path, 60)], str(tmp_path / "dropped"), options)
    assert any(one.fragments for one in kept.corpora)
    for all_of, whole in zip(kept.corpora, dropped.corpora, strict=True):
        assert whole.left_tokens + whole.dropped_tokens == all_of.left_tokens
        assert whole.fragments == 0
        assert whole.view is not None
        lengths = set(open_idx(whole.corpus).lengths.tolist())
        assert set(open_idx(whole.view).lengths.tolist()) <= lengths


def test_several_caches_count_together(tmp_path: Path) -> None:
    """What two runs of the same corpora have seen is left out together."""
    one = build_numbered(tmp_path)
    other = build_numbered(tmp_path / "other", "packed")
    for name in ("short", "mixed", "long"):  # the same corpora, at the same place
        assert (tmp_path / f"corpora/{name}.idx").read_bytes() == (
            tmp_path / f"other/corpora/{name}.idx"
        ).read_bytes()
    moved = {str(tmp_path / "other/corpora"): str(tmp_path / "corpora")}
    second = Trained(trace(other, prefixes=moved), Consumed.of_number(70))
    rest = write_rest([trained_on(one, 50), second], str(tmp_path / "out"), RestOptions())
    pairs = zip(counted(one, range(50)), counted(other, range(70)), rest.corpora, strict=True)
    for corpus, (first, then, made) in enumerate(pairs):
        together = first + then + in_view(made.view, len(first))
        assert (together[train_range(one, corpus)] == made.times).all()


@pytest.mark.parametrize("kind", ["cyclic", "sharded"])
def test_shuffled_epochs_are_counted(kind: Any, tmp_path: Path) -> None:
    """In a cyclic order samples are seen in its order, also more than once."""
    path = build_numbered(tmp_path)
    sampling = Sampling(kind, 2, 3)
    split = trace(path)
    positions = sampling.order(split.size).ids(0, 300)
    rest = write_rest(
        [trained_on(path, 300)], str(tmp_path / "out"), RestOptions(sampling=sampling)
    )
    for corpus, (before, made) in enumerate(
        zip(counted(path, positions.tolist()), rest.corpora, strict=True)
    ):
        together = before + in_view(made.view, len(before))
        assert (together[train_range(path, corpus)] == made.times).all()


def test_the_rest_can_be_trained_on_and_has_a_rest(tmp_path: Path) -> None:
    """A blend of what is left builds, with another sequence length, and what is left of it, too."""
    path = build_numbered(tmp_path)
    first = write_rest([trained_on(path, 80)], str(tmp_path / "first"), RestOptions())
    fields = {
        "sequence_length": 24,
        "seed": 1,
        "samples": {"train": 60, "valid": 5, "test": 0},
        "mid_level_dataset_surplus": 0.5,
        "blend_per_split": first.blend_per_split,
    }
    again = Path(here.build(fields, tmp_path / "caches", "again").path)
    second = write_rest([trained_on(again, 40)], str(tmp_path / "second"), RestOptions(times=3))
    truth = Tokens(again)
    for number, (one, made) in enumerate(zip(first.corpora, second.corpora, strict=True)):
        size = int(np.sum(open_idx(one.corpus).lengths, dtype=np.int64))
        whole = in_view(one.view, size)
        seen = np.zeros(size, np.int64)
        idx = truth.idx[number]
        places = np.concatenate(
            [np.arange(o // 4, o // 4 + n) for o, n in zip(idx.offsets, idx.lengths, strict=True)]
        )
        for position in range(40):
            corpus, tokens = truth.of(position)
            if corpus == number:
                np.add.at(seen, places[tokens[:-1]], 1)
        assert ((seen + in_view(made.view, size))[whole > 0] >= 1).all()
        assert seen.sum() + in_view(made.view, size).sum() == 3 * whole.sum()


def test_views_are_sound_and_name_what_they_are(tmp_path: Path) -> None:
    """Views are sound corpora with receipts; validation has the same sequences as before."""
    path = build_numbered(tmp_path)
    rest = write_rest([trained_on(path, 100)], str(tmp_path / "out"), RestOptions())
    views = [entry["path"] for blend in rest.blend_per_split.values() for entry in blend]
    assert len(here.facts(views)) == len(views) == 6
    receipt = find_receipt(views[0])
    assert receipt is not None
    assert receipt.kind == "rest"
    assert receipt.options["after"] == [{"key": Tokens(path).cache.key, "samples": 100}]
    entry = rest.blend_per_split["valid"][1]
    truth = Tokens(path, "valid")
    section = truth.cache.table("sections")[truth.members.pairs[1][0]]
    own = slice(int(section["begin"]), int(section["end"]))
    assert open_idx(entry["path"]).lengths.tolist() == truth.idx[1].lengths[own].tolist()
    written = json.loads((tmp_path / "out/rest.json").read_bytes())
    assert msgspec.convert(written, type(rest)) == rest
    assert json.loads(Path(rest.megatron).read_bytes())["train"][1::2] == [
        entry["path"] for entry in rest.blend_per_split["train"]
    ]


def test_it_is_found_again_and_not_overwritten(tmp_path: Path) -> None:
    """The same rest is found; another one, or another corpus, of that name is refused."""
    path = build_numbered(tmp_path)
    out = str(tmp_path / "out")
    first = write_rest([trained_on(path, 100)], out, RestOptions())
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").glob("*.idx")}
    assert write_rest([trained_on(path, 100)], out, RestOptions()) == first
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "out").glob("*.idx")} == before
    with pytest.raises(KeyMismatch):
        write_rest([trained_on(path, 101)], out, RestOptions())


@pytest.mark.parametrize(
    ("table", "row", "name", "value"),
    [
        ("blends", 0, "dataset_index", -1),
        ("blends", 0, "dataset_index", 3),
        ("blends", 0, "dataset_sample_index", -1),
        ("blends", 0, "dataset_sample_index", 1 << 40),
        ("sections", 1, "shuffle_index", 0x7FFFFFFF),
    ],
)
def test_damaged_caches_have_no_rest(
    table: str, row: int, name: str, value: int, tmp_path: Path
) -> None:
    """Numbers that lead outside of an array, from either end."""
    path = build_numbered(tmp_path)
    view = Tokens(path).cache.arrays(table, row)[name]
    path.chmod(0o600)
    with path.open("r+b") as stream:
        stream.seek(view.offset)
        stream.write(np.array(value, view.dtype).tobytes())
    with pytest.raises(CacheCorrupt, match="distcache verify"):
        write_rest([trained_on(path, 100)], str(tmp_path / "out"), RestOptions())


def test_names_of_views_are_different(tmp_path: Path) -> None:
    """Also where a corpus is called as the view of another's validation split would be."""
    for number, name in enumerate(("a", "a-valid", "more/a")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_corpus(str(tmp_path / name), [np.arange(40) + number] * 30, "i4")
    fields = {
        "sequence_length": 16,
        "seed": 1,
        "split": "50,50,0",
        "samples": {"train": 20, "valid": 4, "test": 0},
        "blend": [str(tmp_path / name) for name in ("a", "a-valid", "more/a")],
    }
    path = here.build(fields, tmp_path / "caches", "c").path
    rest = write_rest([trained_on(Path(path), 10)], str(tmp_path / "out"), RestOptions())
    views = [one["path"] for blend in rest.blend_per_split.values() for one in blend]
    assert len(set(views)) == 6
    for one in rest.blend_per_split["valid"]:
        assert open_idx(one["path"]).offsets.tolist() == list(range(15 * 160, 30 * 160, 160))


@pytest.mark.parametrize("of", ["view", "rest", "view of a view"])
def test_views_count_with_their_corpus(of: str, tmp_path: Path) -> None:
    """Each token is an input, or is left, equally often, whichever of the two it was drawn from."""
    first = build_numbered(tmp_path, split="100,0,0")
    corpora, view = tmp_path / "corpora", tmp_path / "view"
    if of == "rest":
        write_rest([trained_on(first, 60)], str(tmp_path / "left"), RestOptions())
        view = tmp_path / "left" / "long"
    else:
        here.select(corpora / "long", view, sample=0.6, seed=1)
    if of == "view of a view":
        here.select(view, tmp_path / "half", sample=0.5, seed=2)
        view = tmp_path / "half"
    blend = [
        {"path": str(path), "weight": 1.0} for path in (corpora / "mixed", corpora / "long", view)
    ]
    path = build_numbered(tmp_path / "again", blend=blend, split="100,0,0")
    rest = write_rest([trained_on(path, 150)], str(tmp_path / "out"), RestOptions())
    assert [Path(one.corpus).name for one in rest.corpora] == ["mixed", "long"]
    long = rest.corpora[1]
    assert long.weight == pytest.approx(2 / 3)
    tokens = open_idx(str(corpora / "long")).lengths.sum()
    dataset = distcache.open(path).numpy_dataset("train")
    seen = np.zeros(tokens, np.int64)
    for position in range(150):
        if dataset.corpus_of(position) != str(corpora / "mixed"):
            inputs = dataset[position]["tokens"]
            np.add.at(seen, inputs, 1)
    together = seen + in_view(long.view, len(seen))
    assert (together == long.times).all()


def test_copies_of_one_corpus_are_refused(tmp_path: Path) -> None:
    """What is left of both would be left twice."""
    corpora = tmp_path / "corpora"
    write_numbered(corpora)
    here.merge([corpora / "long"], tmp_path / "merged")
    blend = [{"path": str(one), "weight": 1.0} for one in (corpora / "long", tmp_path / "merged")]
    path = build_numbered(tmp_path, blend=blend)
    with pytest.raises(ConfigError, match=r"are the same as in .*long, and .* would be left twice"):
        write_rest([trained_on(path, 10)], str(tmp_path / "out"), RestOptions())


def test_parts_alone_are_not_all_that_is_left(tmp_path: Path) -> None:
    """Where only parts of sequences are left, dropping them leaves nothing, and it is said."""
    write_corpus(str(tmp_path / "a"), [np.arange(1000)], "i4")
    fields = {
        "sequence_length": 16,
        "seed": 1,
        "split": "100,0,0",
        "samples": {"train": 20, "valid": 0, "test": 0},
        "blend": [str(tmp_path / "a")],
    }
    path = here.build(fields, tmp_path / "caches", "c").path
    with pytest.raises(ConfigError, match="parts of sequences"):
        write_rest([trained_on(Path(path), 5)], str(tmp_path / "o"), RestOptions(partial="drop"))


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    """Too many samples, too few times, and caches of other corpora or splits."""
    path = build_numbered(tmp_path)
    out = str(tmp_path / "out")
    size = trace(path).size
    with pytest.raises(ConfigError, match=f"has {size} in its train split"):
        write_rest([trained_on(path, size + 1)], out, RestOptions())
    with pytest.raises(ConfigError, match="/proc/out: cannot be made; choose another --out"):
        write_rest([trained_on(path, 1)], "/proc/out", RestOptions())
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file: is not a directory; choose another --out"):
        write_rest([trained_on(path, 1)], str(tmp_path / "file" / "out"), RestOptions())
    with pytest.raises(ConfigError, match=r"inputs \d times already"):
        write_rest([trained_on(path, size)], out, RestOptions(times=1))
    other = build_numbered(tmp_path / "other")
    with pytest.raises(ConfigError, match="has corpus"):
        write_rest([trained_on(path, 1), trained_on(other, 1)], out, RestOptions())
    split = build_numbered(tmp_path / "third", split="70,30,0")
    moved = {str(tmp_path / "third/corpora"): str(tmp_path / "corpora")}
    third = Trained(trace(split, prefixes=moved), Consumed.of_number(1))
    with pytest.raises(ConfigError, match="is split otherwise"):
        write_rest([trained_on(path, 1), third], out, RestOptions())
