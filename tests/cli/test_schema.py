"""The schema of a configuration admits what distcache reads, and no misspelt field."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from distcache.builder.configuration import config_from_mapping
from distcache.cli.build import configuration_schema
from distcache.errors import ConfigError
from tests.support.processes import start

BLEND = {"sequence_length": 32, "split": "9,1,0", "blend": ["a", {"path": "b"}]}
READ: list[dict[str, Any]] = [
    BLEND,
    BLEND | {"samples": {"train": 100, "valid": None}, "order": "passes"},
    {"sequence_length": 8, "blend_per_split": {"train": [{"path": "a", "weight": 0.5}]}},
    {"seq_length": 8, "data_path": ["1", "a"], "split": "9,1,0", "train_iters": 1,
     "global_batch_size": 2, "eval_iters": 0, "eval_interval": 1},
    {"seq-length": 8, "data-path": ["1", "a"], "split": "9,1,0", "train-iters": 1,
     "global-batch-size": 2, "eval-iters": 0, "eval-interval": 1},
    BLEND | {"slurm": {"sbatch": ["--exclusive"]}, "tokenizer": {"class": "X"}},
]  # fmt: skip
WRONG: list[dict[str, Any]] = [
    BLEND | {"sequnce_length": 3},
    BLEND | {"sequence_length": 0},
    BLEND | {"blend": [{"path": "a", "wieght": 1}]},
    BLEND | {"order": "random"},
    BLEND | {"of_command": True},
]


@pytest.mark.parametrize("fields", READ)
def test_what_is_read(fields: dict[str, Any]) -> None:
    """Both the schema and distcache take it."""
    jsonschema.validate(fields, configuration_schema())
    config_from_mapping(fields)


@pytest.mark.parametrize("fields", WRONG)
def test_what_is_wrong(fields: dict[str, Any]) -> None:
    """The schema refuses it, as distcache does."""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(fields, configuration_schema())
    if "of_command" not in fields:
        with pytest.raises(ConfigError):
            config_from_mapping(fields)


def test_the_command() -> None:
    """The command prints a schema that is one."""
    done = start(["schema"])
    assert done.returncode == 0
    jsonschema.Draft202012Validator.check_schema(json.loads(done.stdout))
