"""Made-up corpora are sound, of the sizes that were asked for, and the same each time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distcache.corpus import bin_path, open_idx
from distcache.corpus.mock import Mock, MockCorpora, parse_lengths, write_mock
from distcache.errors import ConfigError
from distcache.ranks.progress import NullProgress
from tests.support import here
from tests.support.processes import start


def make(directory: Path, **fields: Any) -> MockCorpora:
    """Make corpora."""
    asked = {"documents": 5000, "lengths": "lognormal:60:1.2", "vocabulary": 1000} | fields
    return write_mock(Mock(**asked), directory, 2, NullProgress())


def lengths_of(made: MockCorpora) -> np.ndarray[Any, Any]:
    """Return the lengths of all documents."""
    return np.concatenate([np.array(open_idx(prefix).lengths) for prefix in made.prefixes])


@pytest.mark.parametrize("fill", [False, True])
def test_corpora_are_sound(fill: bool, tmp_path: Path) -> None:
    """Corpora are sound, and have as many documents and tokens as is said."""
    made = make(tmp_path, corpora=7, fill=fill)
    facts = here.facts(list(made.prefixes))
    assert sum(found.documents for found in facts.values()) == 5000
    assert tuple(found.tokens for found in facts.values()) == made.tokens
    tokens = np.fromfile(bin_path(made.prefixes[0]), "<u2")
    assert tokens.max() == (999 if fill else 0)
    assert tokens.size == made.tokens[0]


@pytest.mark.parametrize(
    ("text", "mean", "least", "most"),
    [
        ("constant:7", 7, 7, 7),
        ("uniform:3:9", 6, 3, 9),
        ("lognormal:60:1.2", 60, 1, 2**31),
        ("lognormal:1:0", 1, 1, 1),
    ],
)
def test_lengths(text: str, mean: float, least: int, most: int, tmp_path: Path) -> None:
    """They have the distribution."""
    lengths = lengths_of(make(tmp_path, documents=40_000, lengths=text))
    assert lengths.mean() == pytest.approx(mean, rel=0.06)
    assert lengths.min() >= least
    assert lengths.max() <= most


@pytest.mark.parametrize(
    "text",
    [
        "",
        "normal:3:4",
        "constant",
        "constant:0",
        "uniform:9:3",
        "lognormal:1:x",
        "a:1:2:3",
        "constant:1.5",
    ],
)
def test_lengths_that_are_none(text: str) -> None:
    """They are refused."""
    with pytest.raises(ConfigError, match="expected constant:TOKENS"):
        parse_lengths(text)


def contents(directory: Path) -> dict[str, bytes]:
    """Return the bytes of each file."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    """And nothing that is there is overwritten."""
    make(tmp_path / "a", corpora=3, fill=True)
    make(tmp_path / "b", corpora=3, fill=True)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    with pytest.raises(ConfigError, match="has something in it"):
        make(tmp_path / "a", corpora=3, fill=True)


@pytest.mark.parametrize(
    "fields",
    [{"documents": 2, "corpora": 3}, {"vocabulary": 0}, {"seed": -1}, {"documents": 10**30}],
)
def test_numbers_that_make_no_sense(fields: dict[str, Any], tmp_path: Path) -> None:
    """Numbers that make no sense are refused before anything is written."""
    with pytest.raises(ConfigError):
        make(tmp_path / "out", **fields)
    assert not (tmp_path / "out").exists()


def test_tiny_corpora(tmp_path: Path) -> None:
    """They have a blend of which a cache can be built, too."""
    words = ["mock", "--documents", "6", "--count", "3", "--lengths", "constant:2"]
    done = start([*words, "--out", tmp_path / "mock"])
    assert done.returncode == 0, done.stderr
    built = start(["build", done.stdout.strip(), "-o", tmp_path / "caches"])
    assert built.returncode == 0, built.stderr


def test_a_corpus_that_is_too_short_is_named(tmp_path: Path) -> None:
    """A blend leaves it out, and the command says so."""
    words = ["mock", "--documents", "4", "--count", "4", "--lengths", "uniform:1:5"]
    done = start([*words, "--seed", "2", "--out", tmp_path / "mock"])
    assert "1 corpus is too short for a sample, and left out of blend.json: /" in done.stderr
    assert len(json.loads((tmp_path / "mock" / "blend.json").read_text())["blend"]) == 3
    assert start(["build", tmp_path / "mock/blend.json", "-o", tmp_path / "c"]).returncode == 0


def test_the_command(tmp_path: Path) -> None:
    """It writes a blend, of which a cache can be built."""
    out = tmp_path / "mock"
    words = ["mock", "--documents", "2e4", "--count", "5", "--out", out]
    done = start(words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(out / "blend.json")
    built = start(["build", out / "blend.json", "-o", tmp_path / "caches"])
    assert built.returncode == 0, built.stderr
    assert start(words).returncode == 2
    again = json.loads(start([*words[:-1], tmp_path / "again", "--json"]).stdout)
    assert len(again["corpora"]) == 5
    assert start(["mock", "--documents", "x", "--out", out]).returncode == 2
