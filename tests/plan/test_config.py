"""Configurations are decoded strictly, and every wrong field is reported at once."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from distcache.builder.configuration import config_from_mapping, load_config, read_document
from distcache.corpus import CorpusFacts
from distcache.errors import ConfigError, NotReady
from distcache.plan.config import BlendEntry, Config, key_of
from distcache.plan.make import identity_of

GOOD: dict[str, Any] = {
    "sequence_length": 16,
    "split": "99,1,0",
    "blend": [{"path": "a", "weight": 0.7}, {"path": "b", "weight": 0.3}],
    "samples": {"train": 100, "valid": 10, "test": 0},
}


def test_keys_of_old_caches() -> None:
    """A field that is new changes no key while it has its default."""
    facts = CorpusFacts("a", "0" * 32, 100, 200, 8, 1, 1, 100, 0, ())
    corpora = {"a": facts, "b": facts}
    key = "b195be05b991370df2d8b37c85c0e66cd3891af2e6450f254a8b9c327c26600b"  # of 0.2.0
    assert key_of(identity_of(config_from_mapping(GOOD), corpora)) == key
    fused = config_from_mapping(GOOD | {"blend_arithmetic": "fused"})
    assert key_of(identity_of(fused, corpora)) != key


def problems_of(**changes: Any) -> tuple[str, ...]:
    """Return what is said against a configuration that is good but for some fields."""
    fields = {key: value for key, value in {**GOOD, **changes}.items() if value != "absent"}
    with pytest.raises(ConfigError) as caught:
        config_from_mapping(fields)
    return caught.value.problems


@pytest.mark.parametrize("changes", [{}, {"shuffle": "windows", "window": 2}, {"pack": {}}])
def test_ranks_are_sent_what_was_read(changes: dict[str, Any]) -> None:
    """A default is a value that a decoder takes, too."""
    config = config_from_mapping(GOOD | changes)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=Config) == config


def test_defaults_are_megatrons() -> None:
    """What is not said is as Megatron-LM has it."""
    config = config_from_mapping(GOOD)
    assert (config.seed, config.mid_level_dataset_surplus) == (1234, 0.005)
    assert config.add_extra_token
    assert config.drop_last_partial_validation_sequence
    assert config.blends()["valid"] == (BlendEntry("a", 0.7), BlendEntry("b", 0.3))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"sequence_len": 3}, "$.sequence_len: unknown field"),
        (
            {"shuffle": "some"},
            "$.shuffle: Invalid enum value 'some'; expected one of megatron, passes, windows, none",
        ),
        (
            {"shuffle": False},
            "$.shuffle: Expected `str | null`, got `bool`; expected one of megatron, passes",
        ),
        (
            {"pack": {"longer": "keep"}},
            "$.pack.longer: Invalid enum value 'keep'; expected one of cut, drop",
        ),
        ({"phases": [{"samples": 9, "weights": [1]}], "blend": 3}, "$.blend: Expected `array"),
        (
            {"pack": {"documents_per_sample": 3}},
            "$.pack.documents_per_sample: unknown field; did you mean documents? There are: "
            "documents, longer",
        ),
        ({"sequence_length": "absent"}, "$.sequence_length: missing"),
        ({"sequence_length": "16"}, "$.sequence_length: Expected `int`, got `str`"),
        ({"sequence_length": 0}, "$.sequence_length: Expected `int` >= 1"),
        ({"seed": -1}, "$.seed: Expected `int` >= 0"),
        ({"seed": 2**32}, "$.seed: Expected `int` <= 4294967295"),
        ({"samples": {"train": -3}}, "$.samples.train: Expected `int` >= 0"),
        (
            {"samples": {"training": 3}},
            "$.samples.training: unknown field; did you mean train?",
        ),
        ({"seq_length": 4096}, "sequence_length"),
        ({"data_path": ["a"]}, "blend, a list of {path, weight}"),
        ({"sequnce_length": 3}, "did you mean sequence_length?"),
        ({"sequence_len": 3}, "mid_level_dataset_surplus"),  # one of the known ones
        ({"blend": []}, "$.blend: Expected `array` of length >= 1"),
        ({"blend": [{"path": ""}]}, "$.blend[0].path: Expected `str` of length >= 1"),
        ({"blend": [{"path": "a", "weight": "x"}]}, "write numbers without quotes"),
        ({"blend": [{"path": "a", "weight": math.nan}]}, "$.blend[0].weight: Expected `float`"),
        ({"blend": [{"path": "a", "weight": math.inf}]}, "$.blend[0].weight: Expected `float`"),
        ({"blend": "absent"}, "$.blend: missing"),
        ({"split": "absent"}, "$.split: missing"),
        ({"blend_per_split": {"train": ["a"]}}, "$.blend_per_split: cannot be combined"),
        ({"add_extra_token": 1}, "$.add_extra_token: Expected `bool`, got `int`"),
        ({"tokenizer": {"a": math.nan}}, "$.tokenizer: is not JSON"),
        ({"tokenizer": {1: 2}}, "$.tokenizer: Expected `str`, got `int` in a key"),
        ({"blend": ["a\0b"]}, "'a\\x00b': contains a NUL byte, or cannot"),
        ({"blend": ["\ud800"]}, "'\\ud800': contains a NUL byte, or cannot"),
        ({"split": "1\ud800"}, "contains a NUL byte, or cannot"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], problem: str) -> None:
    """A wrong field is named by its path, with what was expected."""
    assert any(problem in found for found in problems_of(**changes)), problems_of(**changes)


def test_all_wrong_fields_are_listed() -> None:
    """Nobody should have to repair a file in rounds."""
    found = problems_of(seed="x", sequence_length=0, wrong=1, split="absent")
    assert [problem.split(":")[0] for problem in found] == [
        "$.seed",
        "$.sequence_length",
        "$.split",
        "$.wrong",
    ]


@pytest.mark.parametrize("suffix", [".yaml", ".yml", ".json", ".toml"])
def test_files(suffix: str, tmp_path: Path) -> None:
    """YAML, JSON and TOML give the same configuration."""
    path = tmp_path / f"blend{suffix}"
    toml = (
        'sequence_length = 16\nsplit = "99,1,0"\nsamples = {train = 100, valid = 10, test = 0}\n'
        '[[blend]]\npath = "a"\nweight = 0.7\n[[blend]]\npath = "b"\nweight = 0.3\n'
    )
    path.write_text(toml if suffix == ".toml" else json.dumps(GOOD))
    assert load_config(path) == config_from_mapping(GOOD)


def test_the_file_is_in_every_problem(tmp_path: Path) -> None:
    """A job log names the file to repair."""
    path = tmp_path / "c.yaml"
    path.write_text("seed: x\nsequence_length: y\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert len(caught.value.problems) == 3
    assert all(problem.startswith(f"{path}: $.") for problem in caught.value.problems)


@pytest.mark.parametrize(
    "text", ["- 1\n", "", "a: [", "\x00", "a: !!bool abc", "a: !!timestamp x", 'a: !!int ""']
)
def test_files_that_are_no_configuration(text: str, tmp_path: Path) -> None:
    """One clear error, and no traceback."""
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        load_config(path)


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    """A file that does not exist is not ready; one that is no text is wrong."""
    with pytest.raises(NotReady):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "c.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigError):
        load_config(tmp_path / "c.yaml")
    with pytest.raises(ConfigError):
        load_config(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe is not waited for: whatever is not a regular file is refused at once."""
    os.mkfifo(tmp_path / "c.yaml")
    with pytest.raises(ConfigError, match="Not a regular file"):
        load_config(tmp_path / "c.yaml")


def test_the_tokenizer_of_a_description(tmp_path: Path) -> None:
    """Of a section's or of a blend's description, in its order."""
    identifiers = {"z": 1, "a": {"b": 2}}
    for document in ({"tokenizer": identifiers}, {"datasets": [{"tokenizer": identifiers}]}):
        path = tmp_path / "description.txt"
        path.write_text(json.dumps(document))
        config = config_from_mapping({**GOOD, "tokenizer": {"description": str(path)}})
        assert json.dumps(config.tokenizer) == json.dumps(identifiers)
    path.write_text("[]")
    with pytest.raises(ConfigError, match=r"is neither a description\.txt"):
        config_from_mapping({**GOOD, "tokenizer": {"description": str(path)}})
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="Not a regular file"):
        config_from_mapping({**GOOD, "tokenizer": {"description": str(tmp_path / "pipe")}})


def test_samples_that_are_not_named() -> None:
    """None named is one epoch each; of those named, the rest draw nothing."""

    def samples(**fields: Any) -> list[int | None]:
        config = Config(sequence_length=8, blend=("a",), split="1", **fields)
        return [config.samples_of(split) for split in ("train", "valid", "test")]

    assert samples() == [None, None, None]
    named = config_from_mapping({**GOOD, "samples": {"train": 5}})
    assert [named.samples_of(split) for split in ("train", "valid", "test")] == [5, 0, 0]
    full = config_from_mapping({**GOOD, "samples": {"train": 5}, "full_validation": True})
    assert full.samples_of("valid") is None


LLAMA = {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "meta-llama/Llama-3.1-8B"}


def test_the_tokenizer_by_megatrons_options() -> None:
    """They are kept, without defaults, so that names of other releases can be made later."""
    given = {"megatron": "0.19.2", "trust_remote_code": False, **LLAMA}
    config = config_from_mapping({**GOOD, "tokenizer": given})
    assert config.tokenizer == {**LLAMA, "megatron": "0.19"}


@pytest.mark.parametrize(
    ("tokenizer", "problem"),
    [
        (
            {**LLAMA, "megatron": "0.15"},
            "'0.15' is not a known release of Megatron-Core",
        ),
        ({**LLAMA, "megatron": "0.18,0.19"}, "expected one release"),
        ({**LLAMA, "megatron": 0.19, "model": "x"}, "unknown field `model`"),
        ({"tokenizer_type": "X", "megatron": "0.19"}, "Invalid enum value 'X'"),
        ({"tokenizer_type": "TikTokenizer", "megatron": "0.19"}, "needs a tokenizer_model"),
    ],
)
def test_options_that_megatron_would_refuse(tokenizer: dict[str, Any], problem: str) -> None:
    """Options that Megatron would refuse are named."""
    with pytest.raises(ConfigError, match=problem):
        config_from_mapping({**GOOD, "tokenizer": tokenizer})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.yaml", "seed: 1\nsplit: '1'\nseed: 2\n"),
        ("c.yaml", "samples: {train: 1, valid: 2, train: 3}\n"),
        ("c.json", '{"seed": 1, "seed": 2}'),
        ("c.toml", "seed = 1\nseed = 2\n"),
    ],
)
def test_a_field_that_is_given_twice(name: str, text: str, tmp_path: Path) -> None:
    """Would silently replace the first: lists that were put together lose data so."""
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=r"given twice|overwrite"):
        read_document(tmp_path / name)


def test_fields_of_a_merge_may_be_given_again(tmp_path: Path) -> None:
    """Fields of a merge may be given again as YAML means it."""
    text = "base: &base {seed: 1, split: '1'}\nown: {<<: *base, seed: 2}\nagain: *base\n"
    (tmp_path / "c.yaml").write_text(text)
    found = read_document(tmp_path / "c.yaml")
    assert found["own"] == {"seed": 2, "split": "1"}
    assert found["again"] == found["base"] == {"seed": 1, "split": "1"}
