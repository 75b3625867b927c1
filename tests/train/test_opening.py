"""Which file a loader reads, while copies are repaired, damaged and removed, and corpora moved."""

from __future__ import annotations

import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import distcache
from distcache.cache.corpus_places import moves_between, moves_from, prefix_renamer
from distcache.errors import ConfigError, NotReady
from distcache.node.store import Store
from distcache.node.upkeep import verify_store
from distcache.ranks.progress import NullProgress
from tests.node.agents import flip, only, run
from tests.support import here
from tests.support.corpora import write_lengths
from tests.support.processes import start


def test_a_copy_in_use_is_repaired_in_place(cache: Path, tmp_path: Path) -> None:
    """A process that has it open reads on, and reads right bytes then."""
    report = only(run(cache, tmp_path / "local"))
    opened = distcache.open(cache, local=tmp_path / "local")
    data = opened.dataset("train")
    before = [data[number]["tokens"].tolist() for number in range(5)]
    flip(Path(report.cache), os.stat(report.cache).st_size // 2)
    run(cache, tmp_path / "local")
    assert [data[number]["tokens"].tolist() for number in range(5)] == before
    assert verify_store(Store(tmp_path / "local")) == []


def test_falling_back_is_a_warning_of_its_own(cache: Path, tmp_path: Path) -> None:
    """Falling back is a warning of its own, which scripts may filter, or turn into an error."""
    report = only(run(cache, tmp_path / "local"))
    opened = distcache.open(cache, local=tmp_path / "local")
    assert opened.is_local
    os.truncate(report.cache, 5000)
    with warnings.catch_warnings():
        warnings.simplefilter("error", distcache.SharedFileWarning)
        with pytest.raises(distcache.SharedFileWarning):
            distcache.open(cache, local=tmp_path / "local")
    with pytest.warns(distcache.SharedFileWarning):
        assert not distcache.open(cache, local=tmp_path / "local").is_local


@pytest.mark.parametrize(("path", "local"), [(3, None), (None, None), ("c.h5", 3)])
def test_what_is_no_path(path: Any, local: Any) -> None:
    """What is no path is named, with what it should be."""
    with pytest.raises(ConfigError, match="expected a path"):
        distcache.open(path, local=local)


@pytest.mark.parametrize(
    ("split", "number", "message"),
    [
        ("train", "0", "expected the name of a split, then a number"),
        (0, None, "expected the name of a split, then a number"),
        ("none", None, "has splits train, valid, test, not 'none'"),
        ("train", 1, "number is 1, but split 'train' has 1"),
    ],
)
def test_datasets_that_are_not_there(cache: Path, split: Any, number: Any, message: str) -> None:
    """They are refused at once, and the message names those that there are."""
    with pytest.raises(ConfigError, match=message):
        distcache.open(cache).dataset(split, number)


def test_a_store_without_a_copy_of_a_file_that_is_gone(cache: Path, tmp_path: Path) -> None:
    """It says so of both."""
    run(cache, tmp_path / "local")
    with pytest.raises(NotReady, match="other"):
        distcache.open(cache.with_name("other.h5"), local=tmp_path / "local")


CONFIG = {"sequence_length": 16, "split": "1", "samples": {"train": 50}}


@pytest.fixture
def moved(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A cache, and the directories where its corpora were and are."""
    old, new = tmp_path / "old", tmp_path / "new"
    for place, name in enumerate(("a", "b")):
        (old / "sub").mkdir(parents=True, exist_ok=True)
        write_lengths(old / "sub" / name, np.full(40, 30 + place))
    blend = [f"{old}/sub/a", f"{old}/sub/b"]
    cache = here.build({**CONFIG, "blend": blend}, tmp_path / "caches", "c")
    old.rename(new)
    return Path(cache.path), old, new


def first_tokens(opened: Any) -> list[int]:
    """Return the tokens of a sample, and that a worker's copy of the dataset has the same."""
    dataset = opened.dataset("train")
    again = pickle.loads(pickle.dumps(dataset))
    assert (again[3]["tokens"] == dataset[3]["tokens"]).all()
    return list(map(int, dataset[3]["tokens"]))


def test_the_error_names_the_way(moved: tuple[Path, Path, Path]) -> None:
    """The error says how to give the new path of a corpus."""
    cache, _, _ = moved
    with pytest.raises(NotReady, match=r"no such file; .*prefixes=.*DISTCACHE_PREFIX=FROM=TO"):
        distcache.open(cache).dataset("train")[0]


def test_readers_say_where_corpora_are(
    moved: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an argument, by the environment; `verify --corpora` by its option."""
    cache, old, new = moved
    by_argument = first_tokens(distcache.open(cache, prefixes={str(old): str(new)}))
    monkeypatch.setenv("DISTCACHE_PREFIX", f"/none=/such,{old}={new}")
    assert first_tokens(distcache.open(cache)) == by_argument
    monkeypatch.delenv("DISTCACHE_PREFIX")
    assert start(["verify", cache, "--corpora"]).returncode == 5
    done = start(["verify", cache, "--corpora", "--prefix", f"{old}={new}"])
    assert done.returncode == 0, done.stderr


def test_localize_takes_corpora_from_where_they_are(
    moved: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    """And training from the copy reads their tokens there."""
    cache, old, new = moved
    words = ["localize", cache, "--store", tmp_path / "local"]
    assert start(words).returncode == 5
    done = start([*words, "--prefix", f"{old}={new}"])
    assert done.returncode == 0, done.stderr
    opened = distcache.open(cache, tmp_path / "local")
    assert opened.is_local
    assert first_tokens(opened)


def test_a_build_that_finds_the_cache_says_how_it_is_read(
    moved: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build whose corpora have other paths names the variable by which readers find them."""
    cache, old, new = moved
    blend = [f"{new}/sub/a", f"{new}/sub/b"]

    notes: list[str] = []

    class Noting(NullProgress):
        def note(self, text: str) -> None:
            notes.append(text)

    found = here.build({**CONFIG, "blend": blend}, cache.parent, "c", progress=Noting())
    assert found.reused
    assert any(f"DISTCACHE_PREFIX={old}={new}" in note for note in notes)
    monkeypatch.setenv("DISTCACHE_PREFIX", f"{old}={new}")
    assert first_tokens(distcache.open(cache))


def test_what_is_no_pair_is_refused() -> None:
    """A prefix that is not FROM=TO is refused, and the message shows the form."""
    assert moves_from([], {"DISTCACHE_PREFIX": "/a=/b,/c=/d"}) == (("/a", "/b"), ("/c", "/d"))
    for words in (["/a"], ["=/b"], ["/a="]):
        with pytest.raises(ConfigError, match="expected FROM=TO"):
            moves_from(words, {})


@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.text("ab/", max_size=6)), min_size=1, max_size=5)
)
def test_moves_lead_from_old_to_new(parts: list[tuple[str, str]]) -> None:
    """Moves lead from old to new, whatever the paths, where equal directories become equal ones."""
    tails = ["/".join(part for part in tail.split("/") if part) or "c" for _, tail in parts]
    before = [f"/old/{head}/{tail}" for (head, _), tail in zip(parts, tails, strict=True)]
    now = [f"/new/{head}{head}/{tail}" for (head, _), tail in zip(parts, tails, strict=True)]
    rename = prefix_renamer(moves_between(before, now))
    assert list(map(rename, before)) == now


def test_paths_as_people_write_them(
    moved: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths, `~`, doubled slashes and `..`."""
    cache, old, new = moved
    found = first_tokens(distcache.open(cache, prefixes={old: new}))  # type: ignore[dict-item]
    monkeypatch.setenv("HOME", str(new.parent))
    for before, now in ((f"{old}/", "~/new"), (f"{old.parent}//x/../old", f"{new}/.")):
        monkeypatch.setenv("DISTCACHE_PREFIX", f"{before}={now}")
        assert first_tokens(distcache.open(cache)) == found


def test_directories_with_an_equals_sign(moved: tuple[Path, Path, Path]) -> None:
    """As in date=2026-01-01."""
    cache, old, new = moved
    away = new.with_name("date=2026")
    new.rename(away)
    assert first_tokens(distcache.open(cache, prefixes={str(old): str(away)}))
    assert prefix_renamer(moves_from([], {"DISTCACHE_PREFIX": "/x=/y=z"}))("/x/a") == "/y=z/a"
    assert prefix_renamer([("data", "/new")])("./data/a") == "/new/a"


def test_localize_names_the_way(moved: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """The error of localize says how to give the new paths of corpora."""
    done = start(["localize", moved[0], "--store", tmp_path / "store"])
    assert done.returncode == 5
    assert "if the corpora have moved, say so by --prefix FROM=TO" in done.stderr
