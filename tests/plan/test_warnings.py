"""What is possible and hardly meant is a warning of `plan` and `build`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from distcache.builder.configuration import config_from_mapping
from distcache.plan.problems import plan_warnings
from tests.plan.test_make import plan_of
from tests.support.processes import start

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
