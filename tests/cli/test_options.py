"""Options that structs declare, and the schema of a configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import msgspec
import pytest
import typer
from typer.testing import CliRunner

from distcache.builder.configuration import config_from_mapping
from distcache.cli.build import configuration_schema
from distcache.cli.options import with_options
from distcache.errors import ConfigError
from distcache.option import Option
from distcache.storage.units import parse_positive_size
from tests.support.processes import start


class Baking(msgspec.Struct, frozen=True):
    """A struct with a field of every kind."""

    flour: Annotated[str, Option("Kind of flour.", "--flour -f")]
    kneaded: Annotated[bool, Option("Knead it.")] = False
    oven: Annotated[Literal["gas", "wood"], Option("Kind of oven.")] = "gas"
    loaves: Annotated[int, Option("Number of loaves.", least=1, most=9)] = 1
    room: Annotated[int, Option("Room in it.", parse=parse_positive_size, shown="2K")] = 2048
    limit: Annotated[int | None, Option("At most.", parse=parse_positive_size)] = None
    spices: Annotated[tuple[str, ...], Option("A spice.", "--spice")] = ()
    recipe: Annotated[Path | None, Option("Its recipe.")] = None
    shape: Annotated[str, Option("Its shape.", choices=("round", "long"))] = "round"
    secret: int = 7


Limit = Annotated[int | None, Option("Most bytes.", "--most", parse_positive_size)]


def bake(*words: str) -> tuple[Any, str, int | None]:
    """Return what a command gets for these words."""
    got: list[Any] = []

    @with_options
    def command(name: str, baking: Baking, most: Limit = None) -> None:
        got.append((baking, name, most))

    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, words)
    if isinstance(result.exception, ConfigError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return got[0]  # type: ignore[no-any-return]


def test_defaults_are_those_of_the_fields() -> None:
    """A field without an option keeps its default, too."""
    assert bake("--flour", "rye", "anna") == (Baking("rye"), "anna", None)


def test_every_kind_of_field_is_read() -> None:
    """Texts that have a parser are parsed, and repeated options become a tuple."""
    words = "-f rye --kneaded --oven wood --loaves 3 --room 1M --limit 8G --spice a --spice b"
    made, name, most = bake(*words.split(), "--recipe", "r", "--shape", "long", "--most", "1", "bo")
    assert made == Baking("rye", True, "wood", 3, 1 << 20, 8 << 30, ("a", "b"), Path("r"), "long")
    assert (name, most) == ("bo", 1)


@pytest.mark.parametrize("words", ["--limit x", "--most 0", "--recipe s3://bucket/r"])
def test_a_wrong_value_is_one_error(words: str) -> None:
    """The parser of the field says what it expects, and a path is no URL."""
    with pytest.raises(ConfigError):
        bake("-f", "rye", *words.split(), "anna")


@pytest.mark.parametrize("words", ["--loaves 10", "--oven coal", "--shape square"])
def test_bounds_and_choices_are_those_of_the_field(words: str) -> None:
    """Bounds and choices are those of the field; the command line refuses other values."""
    with pytest.raises(AssertionError, match="Invalid value"):
        bake("-f", "rye", *words.split(), "anna")


def test_help_is_that_of_the_fields() -> None:
    """Help shows the text of each field, and its default as one would write it."""

    @with_options
    def command(baking: Baking) -> None:
        del baking

    app = typer.Typer(rich_markup_mode=None)
    app.command()(command)
    shown = " ".join(CliRunner().invoke(app, ["--help"]).output.split())
    for text in ("-f, --flour <str> Kind of flour.", "[default: 2K]", "<round|long>", "1<=x<=9"):
        assert text in shown, shown
    assert "secret" not in shown


BLEND = {"sequence_length": 32, "split": "9,1,0", "blend": ["a", {"path": "b"}]}
READ: list[dict[str, Any]] = [
    BLEND,
    BLEND | {"samples": {"train": 100, "valid": None}, "shuffle": "passes"},
    {"sequence_length": 8, "blend_per_split": {"train": [{"path": "a", "weight": 0.5}]}},
    {"seq_length": 8, "data_path": ["1", "a"], "split": "9,1,0", "train_iters": 1,
     "global_batch_size": 2, "eval_iters": 0, "eval_interval": 1},
    {"seq-length": 8, "data-path": ["1", "a"], "split": "9,1,0", "train-iters": 1,
     "global-batch-size": 2, "eval-iters": 0, "eval-interval": 1},
    {"seq_length": 8, "data_path": ["1", "a"], "split": "9,1,0", "train_iters": 1,
     "global_batch_size": 2, "tensor-model-parallel-size": 4, "bf16": True},
    BLEND | {"blend": "a"},
    BLEND | {"blend": "30 a 70.5 b", "samples": {"train": "300B tokens", "valid": "12e3"}},
    BLEND | {"blend": [30, "a", "7e1", "b"], "samples": {"train": 1e6, "valid": "1M"}},
    BLEND | {"blend": [["0.5", "a"], [0.5, "b"]], "samples": {"train": 9}},
    BLEND | {"blend": [{"path": "a", "weight": "0.5"}], "samples": {"train": 9}},
    {"sequence_length": 8, "blend_per_split": {"train": "0.5 a 0.5 b"}, "samples": {"train": 9}},
    BLEND | {"phases": [{"weights": [1, 2], "tokens": "12e3"}, {"weights": [2, 1], "steps": 2.0,
                                                               "batch_size": "1k"}]},
    BLEND | {"pack": {"documents": 8, "longer": "drop"}},
    BLEND | {"pack": True, "shuffle": "passes"},
    BLEND | {"slurm": {"sbatch": ["--exclusive"]}, "tokenizer": {"class": "X"}},
]  # fmt: skip
WRONG: list[dict[str, Any]] = [
    BLEND | {"sequnce_length": 3},
    BLEND | {"sequence_length": 0},
    BLEND | {"blend": [{"path": "a", "wieght": 1}]},
    BLEND | {"shuffle": "random"},
    BLEND | {"phases": []},
    BLEND | {"samples": {"train": "many"}},
    BLEND | {"of_command": True},
    BLEND | {"data_path": ["1", "a"]},
    {"sequnce_length": 3},
    {"blend": ["a"]},
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


def test_the_schema_describes_every_field() -> None:
    """Editors show it, and the documentation has a row of it."""
    fields = configuration_schema()["$defs"]["Config"]["properties"]
    assert [name for name, field in fields.items() if not field.get("description")] == []


def test_the_command() -> None:
    """The command prints a schema that is one."""
    done = start(["schema"])
    assert done.returncode == 0
    jsonschema.Draft202012Validator.check_schema(json.loads(done.stdout))
