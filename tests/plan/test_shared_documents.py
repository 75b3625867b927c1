"""Documents that a blend has twice, or that two splits share, are a warning of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distcache.plan.shared_documents import shared_document_warnings
from tests.support import here
from tests.support.corpora import write_lengths
from tests.support.processes import start


@pytest.fixture
def corpora(tmp_path: Path) -> dict[str, str]:
    """Two corpora, and a view of half of the first."""
    lengths = np.random.default_rng(1).integers(20, 90, 80)
    found = {
        "web": write_lengths(tmp_path / "web", lengths),
        "code": write_lengths(tmp_path / "code", lengths[::-1], first=9),
        "half": str(tmp_path / "half"),
    }
    here.select(found["web"], found["half"], sample=0.5, seed=1)
    return found


def warnings_of(**fields: Any) -> list[str]:
    """Return the warnings of a configuration."""
    base = {
        "sequence_length": 16,
        "samples": {"train": 40, "valid": 4, "test": 0},
        "split": "90,10,0",
    }
    config = {name: value for name, value in (base | fields).items() if value is not None}
    return shared_document_warnings(here.plan(config))


def weighted(*paths: str) -> list[dict[str, Any]]:
    """Return a blend of equal weights."""
    return [{"path": path, "weight": 1.0} for path in paths]


def test_a_blend_of_different_corpora_has_no_warning(corpora: dict[str, str]) -> None:
    """Whose splits are ranges of their documents."""
    assert warnings_of(blend=weighted(corpora["web"], corpora["code"])) == []


def test_a_corpus_twice_in_a_blend(corpora: dict[str, str]) -> None:
    """By its path, and by a view: the numbers, both names, and what helps."""
    twice = warnings_of(blend=weighted(corpora["web"], corpora["code"], corpora["web"]))
    assert f"of {corpora['web']} are in the blend more than once" in twice[0]
    assert "one entry with the sum of the weights" in twice[0]
    view = warnings_of(blend=weighted(corpora["half"], corpora["web"]))
    assert any(f"of {corpora['web']} are the same as in {corpora['half']}" in text for text in view)


def test_a_corpus_five_times_is_one_sentence(corpora: dict[str, str]) -> None:
    """However many pairs of entries there are."""
    found = warnings_of(split="100,0,0", blend=weighted(*[corpora["web"]] * 5))
    assert len([text for text in found if "more than once" in text]) == 1


def test_documents_of_two_splits(corpora: dict[str, str]) -> None:
    """Training on documents of the validation set is said; several validation sets may share."""
    alone = weighted(corpora["web"])
    found = warnings_of(
        split=None, blend=None, blend_per_split={"train": alone, "valid": weighted(corpora["half"])}
    )
    (text,) = found
    assert f"documents of {corpora['half']} in valid are in train, too" in text
    apart = warnings_of(
        split=None,
        blend=None,
        multiple_validation_sets=True,
        blend_per_split={
            "train": weighted(corpora["code"]),
            "valid": [corpora["web"], corpora["half"]],
        },
    )
    assert apart == []


def test_a_view_in_the_place_of_its_corpus(corpora: dict[str, str], tmp_path: Path) -> None:
    """Of a cache that continues another: what was trained comes again."""
    phases = [{"samples": 60, "weights": [1, 1]}]
    first = {"sequence_length": 16, "split": "100,0,0", "samples": {"valid": 0}}
    blend = [corpora["web"], corpora["code"]]
    built = here.build({**first, "blend": blend, "phases": phases}, tmp_path / "caches", "one")
    found = warnings_of(
        **first,
        blend=[*blend, corpora["half"]],
        phases=[{"samples": 20, "weights": [0, 1, 1]}],
        **{"continue": {"cache": str(built.path), "samples": 50}},
    )
    assert any(
        f"of {corpora['half']} are the same as in {corpora['web']}" in text for text in found
    )


def test_plan_says_it(corpora: dict[str, str], tmp_path: Path) -> None:
    """On the command line."""
    path = tmp_path / "c.json"
    path.write_text(
        f'{{"sequence_length": 16, "split": "1,0,0", "samples": {{"train": 9, "valid": 0}}, '
        f'"blend": ["1", "{corpora["web"]}", "1", "{corpora["web"]}"]}}'
    )
    assert "are in the blend more than once" in start(["plan", path]).stderr


def test_many_corpora_beside_a_copy(tmp_path: Path) -> None:
    """Splits of one corpus are no pairs that have to be compared."""
    random = np.random.default_rng(2)
    prefixes = [
        write_lengths(tmp_path / f"c{n}", random.integers(5, 30, 40), first=n) for n in range(200)
    ]
    for suffix in ("idx", "bin"):
        (tmp_path / f"copy.{suffix}").write_bytes((tmp_path / f"c199.{suffix}").read_bytes())
    found = warnings_of(blend=weighted(*prefixes, str(tmp_path / "copy")), samples={"train": 900})
    assert any("copy are the same as in" in text for text in found)
