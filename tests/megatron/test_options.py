"""Megatron's own spelling gives the configuration, and the nodes, that its training needs."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from distcache.builder.configuration import config_from_mapping
from distcache.errors import ConfigError
from distcache.megatron.arguments import ParallelLayout, parse_readers, reading_nodes
from distcache.megatron.options import blend_from_words, config_from_options
from distcache.plan.config import BlendEntry, Config

BASE = ["--seq-length", "64", "--train-samples", "1000", "--global-batch-size", "8"]


def samples_of(config: Config) -> list[int | None]:
    """Return the samples of train, valid and test."""
    return [config.samples_of(split) for split in ("train", "valid", "test")]


def test_a_weighted_blend() -> None:
    """Weights and prefixes in turn; the split's default is that of Megatron's arguments."""
    config = config_from_options([*BASE, "--data-path", "0.3", "a", "0.7", "b"])
    assert config.blends()["train"] == (BlendEntry("a", 0.3), BlendEntry("b", 0.7))
    assert config.split == "969, 30, 1"
    assert config.seed == 1234


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["a"], [("a", None)]),
        (["a", "b"], [("a", None), ("b", None)]),
        (["1", "2", "3"], [("1", None), ("2", None), ("3", None)]),
        (["1e-3", "a"], [("a", 0.001)]),
        (["30", "a", "70", "b"], [("a", 30.0), ("b", 70.0)]),
    ],
)
def test_words_of_a_blend(words: list[str], expected: list[tuple[str, float | None]]) -> None:
    """An odd number of words are prefixes; an even number are pairs if each starts as one."""
    assert [(source.path, source.weight) for source in blend_from_words(words)] == expected


def test_half_a_blend_of_weights() -> None:
    """Some weights and some none is what Megatron refuses too."""
    with pytest.raises(ConfigError, match="some prefixes have a weight"):
        blend_from_words(["1", "a", "b", "c"])


def test_samples_from_iterations() -> None:
    """Evaluations happen once per interval and once at the end."""
    words = [
        "--seq-length",
        "8",
        "--train-iters",
        "1000",
        "--global-batch-size",
        "16",
        "--data-path",
        "a",
    ]
    config = config_from_options([*words, "--eval-interval", "300", "--eval-iters", "5"])
    assert samples_of(config) == [16_000, (1000 // 300 + 1) * 5 * 16, 5 * 16]


def test_how_blends_are_rounded() -> None:
    """Which is no option of Megatron's, but a matter of where its helper was compiled."""
    words = [*BASE, "--data-path", "a", "b"]
    assert config_from_options(words).blend_arithmetic == "separate"
    fused = config_from_options([*words, "--blend-arithmetic", "fused"])
    assert fused.blend_arithmetic == "fused"


def test_samples_given_directly() -> None:
    """Iterations then are samples by batch size, for the evaluations."""
    config = config_from_options([*BASE, "--data-path", "a", "--eval-interval", "100"])
    assert samples_of(config) == [1000, (125 // 100 + 1) * 100 * 8, 100 * 8]


def test_full_validation_is_one_epoch() -> None:
    """Its size is not a number."""
    assert (
        samples_of(config_from_options([*BASE, "--data-path", "a", "--full-validation"]))[1] is None
    )


def test_files_of_paths(tmp_path: Path) -> None:
    """A blend in a file, and blends of each split in another."""
    (tmp_path / "paths").write_text("0.5 a\n0.5 b\n")
    common = config_from_options([*BASE, "--data-args-path", str(tmp_path / "paths")])
    assert common.prefixes() == ["a", "b"]
    (tmp_path / "splits.json").write_text(
        json.dumps({"train": ["0.5", "a", "0.5", "b"], "valid": "c d", "test": None})
    )
    config = config_from_options(
        [*BASE, "--per-split-data-args-path", str(tmp_path / "splits.json")]
    )
    assert config.prefixes() == ["a", "b", "c", "d"]
    assert config.blend is None
    assert list(config.blends()) == ["train", "valid"]


def test_data_of_each_split() -> None:
    """As options of their own."""
    config = config_from_options([*BASE, "--train-data-path", "a", "--valid-data-path", "b"])
    assert list(config.blends()) == ["train", "valid"]
    assert config.split is None


def test_megatrons_names_in_a_file() -> None:
    """Megatron's names in a file with dashes or underscores, flags as true."""
    fields: dict[str, Any] = {
        "data_path": [0.3, "a", 0.7, "b"],
        "seq-length": 64,
        "train_samples": 1000,
        "global-batch-size": 8,
        "split": "99,1,0",
        "full_validation": True,
    }
    words = [
        *BASE,
        *["--data-path", "0.3", "a", "0.7", "b", "--split", "99,1,0", "--full-validation"],
    ]
    assert config_from_mapping(fields) == config_from_options(words)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            [*BASE, "--data-path", "a", "--sed", "1"],
            "unknown option or word: --sed; did you mean --seed",
        ),
        (BASE, "give either --data-path"),
        (["--data-path", "a", "--train-samples", "8", "--global-batch-size", "1"], "--seq-length"),
        ([*BASE, "--data-path", "a", "--train-data-path", "b"], "give either"),
        (["--seq-length", "8", "--data-path", "a"], "--train-samples, or --train-iters"),
        (["--seq-length", "8", "--data-path", "a", "--train-samples", "9"], "--global-batch-size"),
        ([*BASE, "--data-path", "a", "--data-args-path", "b"], "cannot be combined"),
        ([*BASE, "--per-split-data-args-path", "a", "--test-data-path", "b"], "cannot be combined"),
        ([*BASE, "--data-path", "a", "--eval-interval", "0"], "--eval-interval: 0"),
        ([*BASE, "--train-data-path", "a", "--split", "1"], "--split cannot be combined"),
        ([*BASE, "--data-args-path", "/none/such"], "'/none/such': cannot be read"),
        ([*BASE, "--data-path", "a", "--seed", "x"], "invalid int value"),
        (
            [*BASE, "--data-path", "a", "--train-samples", "-4"],
            "--train-samples: -4: must not be negative",
        ),
        ([*BASE, "--data-path", "a", "--seed", "-1"], "Expected `int` >= 0"),
        (
            [*BASE, *["--data-path", "a", "--arithmetic", "bridge", "--full-validation"]],
            "has no such option",
        ),
        ([*BASE, "--data-path", "a", "--blend-arithmetic", "x"], "invalid choice: 'x'"),
        ([*BASE, "--data-path", "a", "--micro-batch-size", "-2"], "must be positive"),
        ([*BASE, "--data-path", "a", "--start-eval-at-iter", "-1"], "must not be negative"),
    ],
)
def test_what_megatron_would_refuse(words: list[str], problem: str) -> None:
    """One error that names the option."""
    with pytest.raises(ConfigError, match=problem.replace("(", r"\(")):
        config_from_options(words)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"train": ["a"]}', '{"train": 3, "valid": null, "test": null}']
)
def test_a_file_of_paths_that_is_none(text: str, tmp_path: Path) -> None:
    """A file of paths that is none is named, with what it should have."""
    path = tmp_path / "splits.json"
    path.write_text(text)
    with pytest.raises(
        ConfigError, match=r"splits\.json: expected JSON with train, valid and test"
    ):
        config_from_options([*BASE, "--per-split-data-args-path", str(path)])


SIZES = st.sampled_from([1, 2, 3, 4])


@given(SIZES, SIZES, SIZES, SIZES, SIZES)
def test_by_every_rank(tp: int, cp: int, dp: int, pp: int, gpus: int) -> None:
    """In Megatron's order of ranks, tensor parallel the fastest and pipeline the slowest."""
    ranks = itertools.product(range(pp), range(dp), range(cp), range(tp))
    reads = [stage in (0, pp - 1) and tensor == 0 for stage, _, _, tensor in ranks]
    reads += [False] * (-len(reads) % gpus)
    assume(tp * cp * dp * pp % gpus == 0)
    wanted = {rank // gpus for rank, has in enumerate(reads) if has}
    assert reading_nodes(ParallelLayout(tp, cp, pp, gpus), len(reads) // gpus) == wanted


def test_a_large_job() -> None:
    """Half of the nodes of four pipeline stages, and none of a tensor group's second node."""
    assert len(reading_nodes(parse_readers("tp=8,pp=4"), 64)) == 32
    assert reading_nodes(parse_readers("tp=16,gpus=8"), 4) == {0, 2}


@pytest.mark.parametrize(
    "text", ["", "tp", "tp=0", "tp=-1", "dp=2", "tp=2;pp=2", "tp=2,pp", "tp=2,tp=8"]
)
def test_other_forms(text: str) -> None:
    """Other forms are refused."""
    with pytest.raises(ConfigError, match="--readers"):
        parse_readers(text)


def test_an_impossible_layout() -> None:
    """An impossible layout is refused with the numbers."""
    with pytest.raises(ConfigError, match="24"):
        reading_nodes(ParallelLayout(tp=8, pp=2, gpus=8), 3)
