"""Blends are read in the forms in which people write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distcache.builder.configuration import config_from_mapping
from distcache.errors import ConfigError, NotReady
from distcache.megatron.options import blend_from_words
from distcache.plan.config import BlendEntry, Config
from tests.support.corpora import write_lengths
from tests.support.processes import start

BASE = {"sequence_length": 100, "split": "98,1,1", "samples": {"train": 9}}


def blend_of(blend: Any) -> list[tuple[str, float | None]]:
    """Return the prefixes and weights of a blend."""
    config = config_from_mapping({**BASE, "blend": blend})
    return [(entry.path, entry.weight) for entry in config.blends()["train"]]


@pytest.mark.parametrize(
    "blend",
    [
        ["30", "a", "70", "b"],
        [30, "a", 70.0, "b"],
        "30 a 70 b",
        [[30, "a"], ["70", "b"]],
        [{"path": "a", "weight": 30}, {"path": "b", "weight": 70}],
    ],
)
def test_weights_and_prefixes(blend: Any) -> None:
    """In turn, as Megatron and NeMo have them, in pairs, or as fields."""
    assert blend_of(blend) == [("a", 30), ("b", 70)]
    split = {key: value for key, value in BASE.items() if key != "split"}
    per_split = config_from_mapping({**split, "blend_per_split": {"train": blend}})
    assert per_split.blends()["train"] == (BlendEntry("a", 30), BlendEntry("b", 70))


@pytest.mark.parametrize("words", ["0.5 a web", "0.5 a web 0.3 b code 0.2 c books", "1 a x 2 b y"])
def test_lists_with_names(words: str) -> None:
    """Of some forks: neither an odd number of words nor an even one is taken for prefixes."""
    with pytest.raises(ConfigError, match="has a weight, a prefix and a name"):
        blend_of(words)
    with pytest.raises(ConfigError, match="has a weight, a prefix and a name"):
        blend_from_words(words.split())


def test_prefixes_that_are_numbers_alone() -> None:
    """They are prefixes where nothing stands beside them."""
    assert blend_of(["1", "2", "3"]) == [("1", None), ("2", None), ("3", None)]
    assert blend_of(["a", "b"]) == [("a", None), ("b", None)]


def test_a_folder_and_a_pattern_are_their_corpora(tmp_path: Path) -> None:
    """In the order of names; a weight is shared by the numbers of tokens."""
    (tmp_path / "web").mkdir()
    for name, size in (("b", 30), ("a", 10), ("other", 5)):
        write_lengths(tmp_path / "web" / name, np.full(size, 10))
    found = blend_of([{"path": f"{tmp_path}/web/[ab]", "weight": 0.8}, {"path": "c", "weight": 1}])
    assert found == [(f"{tmp_path}/web/a", 0.2), (f"{tmp_path}/web/b", 0.6), ("c", 1)]
    names = [path for path, _ in blend_of([f"{tmp_path}/web"])]
    assert names == [f"{tmp_path}/web/{name}" for name in ("a", "b", "other")]
    with pytest.raises(NotReady, match=r"x\*: there is no corpus in it"):
        blend_of([f"{tmp_path}/x*"])


def test_variables_and_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are expanded; an error names both what was written and what it became."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DATA", str(tmp_path))
    write_lengths(tmp_path / "a", np.full(3, 10))
    assert blend_of(["$DATA/a", "~/a"])[0][0] == blend_of(["${DATA}/a"])[0][0] == f"{tmp_path}/a"
    with pytest.raises(ConfigError, match=r"\$NO_SUCH is not set"):
        blend_of(["$NO_SUCH/a"])
    with pytest.raises(NotReady, match=r"~/b: expands to .*/b, and there is no .*/b\.idx"):
        blend_of(["~/b"])


@pytest.mark.parametrize(
    ("count", "expected"), [("1e6 tokens", 10_000), ("2.5M tokens", 25_000), ("199 tokens", 1)]
)
def test_samples_as_tokens(count: str, expected: int) -> None:
    """Samples as tokens are the whole samples that have so many."""
    config: Config = config_from_mapping({**BASE, "blend": ["a"], "samples": {"train": count}})
    assert config.samples_of("train") == expected
    with pytest.raises(ConfigError, match="is not a number of tokens"):
        config_from_mapping({**BASE, "blend": ["a"], "samples": {"train": "many tokens"}})
    with pytest.raises(ConfigError, match="99 tokens are less than one sample of 100"):
        config_from_mapping({**BASE, "blend": ["a"], "samples": {"train": "99 tokens"}})


def test_a_view_and_a_wide_type_have_the_share_of_their_tokens(tmp_path: Path) -> None:
    """Not of the bytes that they lie in."""
    (tmp_path / "web").mkdir()
    write_lengths(tmp_path / "web" / "wide", np.full(10, 10), "i4")
    whole = write_lengths(tmp_path / "whole", np.full(40, 10))
    view = tmp_path / "web" / "view"
    done = start(["select", whole, "--range", "0:30", "-o", view])
    assert done.returncode == 0, done.stderr
    found = blend_of([{"path": f"{tmp_path}/web", "weight": 1}])
    assert found == [(f"{tmp_path}/web/view", 0.75), (f"{tmp_path}/web/wide", 0.25)]


def test_a_copy_that_has_not_ended(tmp_path: Path) -> None:
    """No corpus of a folder is left out without a word."""
    for name in "ab":
        write_lengths(tmp_path / name, np.full(3, 10))
    (tmp_path / "a.bin").rename(tmp_path / "away")
    assert [path for path, _ in blend_of([str(tmp_path)])] == [f"{tmp_path}/a", f"{tmp_path}/b"]
    (tmp_path / "away").rename(tmp_path / "a.bin")
    (tmp_path / "b.idx").unlink()
    with pytest.raises(NotReady, match=r"b\.bin: has no \.idx beside it"):
        blend_of([str(tmp_path)])


@pytest.mark.parametrize(("count", "expected"), [("1e3", 1000), (2.0e3, 2000), ("10k", 10_000)])
def test_numbers_as_yaml_leaves_them(count: Any, expected: int) -> None:
    """Samples and weights may be numbers that YAML leaves as text."""
    config: Config = config_from_mapping({**BASE, "blend": ["a"], "samples": {"train": count}})
    assert config.samples_of("train") == expected
    assert blend_of([{"path": "a", "weight": "0.7"}]) == [("a", 0.7)]
