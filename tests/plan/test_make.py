"""Plans: what Megatron would loop on is an error, and what is hardly meant a warning."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distcache.builder.configuration import config_from_mapping
from distcache.errors import ConfigError
from distcache.plan.config import Config
from distcache.plan.model import Plan
from distcache.plan.problems import plan_warnings
from tests.support import here
from tests.support.corpora import LENGTHS, write_corpus, write_lengths
from tests.support.processes import start


def plan_of(config: Config | dict[str, Any]) -> Plan:
    """Examine the corpora of a configuration and make its plan."""
    return here.plan(config)


def problems_of(config: dict[str, Any]) -> tuple[str, ...]:
    """Return what speaks against a configuration."""
    with pytest.raises(ConfigError) as caught:
        plan_of(config)
    return caught.value.problems


def weighted(corpora: dict[str, str], weights: dict[str, float], **fields: Any) -> dict[str, Any]:
    """Return a configuration with a blend by weight, all of it for training."""
    return {
        "sequence_length": 32,
        "split": "1",
        "samples": {"train": 1000, "valid": 0, "test": 0},
        "blend": [{"path": corpora[name], "weight": w} for name, w in weights.items()],
        **fields,
    }


def test_paths_are_in_no_key(blend_config: dict[str, Any], tmp_path: Path) -> None:
    """A corpus that is moved keeps its key, one that is tokenized again does not."""
    here = plan_of(blend_config)
    moved = {**blend_config, "blend": [dict(source) for source in blend_config["blend"]]}
    for number, source in enumerate(moved["blend"]):
        for suffix in (".idx", ".bin"):
            target = tmp_path / f"{number}{suffix}"
            target.write_bytes(Path(source["path"] + suffix).read_bytes())
        source["path"] = str(tmp_path / str(number))
    there = plan_of(moved)
    assert there.key == here.key
    assert [s.key for s in there.sections] == [s.key for s in here.sections]
    write_lengths(tmp_path / "0", np.arange(1, 300))
    assert plan_of(moved).key != here.key


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", 5),
        ("sequence_length", 33),
        ("split", "80,14,6"),
        ("samples", {"train": 4001, "valid": 300, "test": 40}),
        ("mid_level_dataset_surplus", 0.006),
        ("add_extra_token", False),
        ("drop_last_partial_validation_sequence", False),
    ],
)
def test_whatever_changes_arrays_changes_the_key(
    blend_config: dict[str, Any], field: str, value: object
) -> None:
    """Each such field by itself."""
    blend_config["blend"].pop()  # with empty documents, a partial sample cannot always be kept
    assert plan_of({**blend_config, field: value}).key != plan_of(blend_config).key


def test_what_changes_no_array_is_in_no_key(blend_config: dict[str, Any]) -> None:
    """The tokenizer enters Megatron's names only."""
    assert plan_of({**blend_config, "tokenizer": {"x": 1}}).key == plan_of(blend_config).key


def test_sections_are_shared(corpora: dict[str, str]) -> None:
    """A corpus that is named twice in a blend with equal weights is built once."""
    config = weighted(corpora, {"plain": 1.0})
    config["blend"] *= 2
    plan = plan_of(config)
    assert (len(plan.sections), len(plan.members)) == (1, 2)


def test_all_problems_are_listed_at_once(corpora: dict[str, str]) -> None:
    """Weights that vanish, sizes that are missing."""
    config = weighted(corpora, {"plain": 0.0, "second": 1.0, "third": 0.0})
    config["samples"] = {"train": None, "valid": 5, "test": None}
    problems = problems_of(config)
    assert sum("weight 0.0 is 0 once normalized" in problem for problem in problems) == 2
    assert sum("null (one pass) cannot be combined" in problem for problem in problems) == 2


def test_weights_are_for_all_or_none(corpora: dict[str, str]) -> None:
    """The corpora without one are named."""
    config = weighted(corpora, {"plain": 1.0})
    config["blend"].append({"path": corpora["second"]})
    assert f"no weight for {corpora['second']}" in problems_of(config)[0]


def test_no_tokens_for_many_samples(tmp_path: Path) -> None:
    """Megatron would count epochs for ever."""
    prefix = write_lengths(tmp_path / "late", np.array([0] * 90 + [50] * 10))
    config = {
        "sequence_length": 8,
        "split": "50,50,0",
        "samples": {"train": 10, "valid": 10, "test": 0},
        "blend": [prefix],
    }
    (problem,) = problems_of(config)
    assert "has no tokens in split train" in problem
    assert "never finish" in problem


def test_empty_corpora(tmp_path: Path) -> None:
    """No sequences, and no tokens."""
    none = str(tmp_path / "none")
    write_corpus(none, [], "u2")
    hollow = write_lengths(tmp_path / "hollow", np.array([0, 0]))
    config = {"sequence_length": 8, "split": "1", "blend": [none, hollow]}
    problems = problems_of(config)
    assert any("has no sequences" in problem for problem in problems)
    assert any("has no tokens" in problem for problem in problems)


def test_the_smallest_surplus_is_exact(tmp_path: Path) -> None:
    """It works, and the next double below it does not."""
    # One document of one sample: a section has just the samples that it is asked for.
    prefix = write_lengths(tmp_path / "one", np.array([64]))
    found = 0
    for seed in range(200):
        weights = np.random.default_rng(seed).lognormal(0, 1, 20)
        config = {
            "sequence_length": 64,
            "split": "1",
            "samples": {"train": 501, "valid": 0, "test": 0},
            "mid_level_dataset_surplus": 0.0,
            "blend": [{"path": prefix, "weight": float(weight)} for weight in weights],
        }
        try:
            plan_of(config)
        except ConfigError as error:
            surplus = smallest_in(error.problems)
            found += 1
        else:
            continue
        plan_of({**config, "mid_level_dataset_surplus": surplus})
        below = float(np.nextafter(surplus, 0))
        assert smallest_in(problems_of({**config, "mid_level_dataset_surplus": below})) == surplus
    assert found >= 5


def smallest_in(problems: tuple[str, ...]) -> float:
    """Return the surplus that a problem names."""
    match = re.search(r"too small, (\S+) is the smallest that works", "\n".join(problems))
    assert match is not None
    return float(match.group(1))


def test_too_many_corpora(corpora: dict[str, str]) -> None:
    """Megatron's dataset index has 16 bits."""
    config = {"sequence_length": 8, "split": "1", "blend": [corpora["plain"]] * 32_767}
    assert "32767 corpora in a blend, expected at most 32766" in problems_of(config)[0]


def test_nothing_to_build() -> None:
    """A configuration without any corpus is refused."""
    config: dict[str, Any] = {"sequence_length": 8, "blend_per_split": {}}
    assert "nothing to build" in problems_of(config)[0]


def test_shares_beyond_all_numbers(corpora: dict[str, str]) -> None:
    """Shares beyond all numbers add up to infinity, which is no share."""
    split = f"{'9' * 308},{'9' * 308}"
    config = {"sequence_length": 8, "split": split, "blend": [corpora["plain"]]}
    assert "$.split" in problems_of(config)[0]


def test_epochs_beyond_32_bits(corpora: dict[str, str]) -> None:
    """More epochs than an int holds are refused before anything is built."""
    config = weighted(corpora, {"short": 1.0, "plain": 1.0})
    config["samples"] = {"train": 2**40, "valid": 0, "test": 0}
    assert any("more than 2**31 - 1" in problem for problem in problems_of(config))


def test_wide_types_are_chosen_as_megatron_does(corpora: dict[str, str]) -> None:
    """Beyond 2^31 - 1 entries the sample index is wide, from 2^32 - 2 samples on the shuffle."""

    def types(documents: int) -> tuple[str, str]:
        tokens = documents // 7 * int(LENGTHS["tiny"].sum())
        samples = {"train": tokens // 2 - 1, "valid": 0, "test": 0}
        config = {
            "sequence_length": 2,
            "split": "1",
            "blend": [corpora["tiny"]],
            "samples": samples,
        }
        (section,) = plan_of(config).sections
        assert abs(section.documents - documents) <= 7
        return section.sample_type, section.shuffle_type

    assert types(2**31 - 20) == ("<i4", "<i8")
    assert types(2**31 + 20)[0] == "<i8"
    assert types(7 * 2**20) == ("<i4", "<u4")


ABSURD: list[tuple[dict[str, Any], str]] = [
    ({"samples": {"train": 3_000_000}, "blend": ["tiny"]}, "is repeated for"),
    ({"split": "100,0,0", "samples": {"train": 10, "test": 7}}, "$.samples.test: 7 samples"),
    (
        {
            "samples": {"train": 50},
            "blend": [{"path": "plain", "weight": 1.0}, {"path": "second", "weight": 1e-6}],
        },
        "will most likely give no sample of 5",
    ),
    ({"split": "-100,0,0", "samples": {"train": 10}}, "is read as 100, 0, 0, as Megatron does"),
]


def with_paths(fields: dict[str, Any], corpora: dict[str, str]) -> dict[str, Any]:
    """Put prefixes for the names of corpora."""
    entries = fields.get("blend", ["plain"])
    blend = [
        {**entry, "path": corpora[entry["path"]]} if isinstance(entry, dict) else corpora[entry]
        for entry in entries
    ]
    return {"sequence_length": 32, "split": "100,0,0", **fields, "blend": blend}


@pytest.mark.parametrize(("fields", "expected"), ABSURD)
def test_absurd_requests(fields: dict[str, Any], expected: str, corpora: dict[str, str]) -> None:
    """Each has one sentence."""
    config = config_from_mapping(with_paths(fields, corpora))
    (warning,) = plan_warnings(config, plan_of(config))
    assert expected in warning


def test_what_is_meant_is_no_warning(blend_config: dict[str, Any]) -> None:
    """Some epochs, all splits, and weights that draw."""
    config = config_from_mapping(blend_config)
    assert plan_warnings(config, plan_of(config)) == []


def test_no_samples_of_a_blend_are_no_warning(corpora: dict[str, str]) -> None:
    """Nothing is drawn from it, whatever the weights."""
    fields = {"samples": {"train": 0}, "split": "90,10,0", "blend": ["plain", "second"]}
    config = config_from_mapping(with_paths(fields, corpora))
    assert plan_warnings(config, plan_of(config)) == []


@pytest.mark.parametrize("command", ["plan", "build"])
def test_commands_warn(command: str, corpora: dict[str, str], tmp_path: Path) -> None:
    """On standard error, and continue."""
    fields, expected = ABSURD[1]
    path = tmp_path / "c.json"
    path.write_text(json.dumps(with_paths(fields, corpora)))
    more = ["-o", tmp_path / "shared"] if command == "build" else []
    done = start([command, path, *more])
    assert done.returncode == 0, done.stderr
    assert expected in " ".join(done.stderr.split())
