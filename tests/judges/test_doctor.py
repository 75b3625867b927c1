"""The doctor asks the release that is on the path, and says hit or miss for each file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from distcache.cache import open_cache
from distcache.launch.doctor.training import ExpectedFile, examine_training
from distcache.megatron.export import export
from distcache.megatron.options import config_from_options
from tests.judges.megatron import RELEASE
from tests.support import here, texts
from tests.support.corpora import LENGTHS, write_lengths
from tests.support.processes import start

pytestmark = pytest.mark.once

COMMAND = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 2 --hidden-size 8 --bf16 "
    "--seq-length 32 --train-samples 2000 --global-batch-size 8 --micro-batch-size 1 "
    "--eval-interval 100 --eval-iters 2"
)
NULL = "--tokenizer-type NullTokenizer --vocab-size 30000"


@pytest.fixture
def small(tmp_path: Path) -> dict[str, str]:
    """Corpora whose tokens all have two bytes."""
    directory = tmp_path / "data"
    directory.mkdir()
    return {name: write_lengths(directory / name, LENGTHS[name]) for name in ("plain", "second")}


def exported(words: list[str], tmp_path: Path, *more: str) -> Path:
    """Return the directory of an export of the cache that a command asks for."""
    out = tmp_path / "out"
    built = start(["build", "-o", tmp_path / "shared", "--megatron", RELEASE, "--", *words])
    assert built.returncode == 0, built.stderr
    done = start(["export", built.stdout.strip(), "--out", out, *more])
    assert done.returncode == 0, done.stderr
    return out


def ask(directory: Path, words: list[str]) -> tuple[list[str], list[ExpectedFile]]:
    """Return the problems that the doctor finds with this process's Megatron, and the files."""
    findings, files = examine_training(words, directory)
    return [found.text for found in findings if found.level == "problem"], files


def blended(small: dict[str, str]) -> list[str]:
    """Return the words of data of a blend."""
    return ["--data-path", "1", small["plain"], "3", small["second"], "--split", "90,8,2"]


@pytest.mark.parametrize("kind", ["blend", "per split", "one corpus"])
def test_everything_is_found(kind: str, small: dict[str, str], tmp_path: Path) -> None:
    """Everything is found, and nothing is written."""
    data = {
        "blend": blended(small),
        "per split": ["--train-data-path", *small.values(), "--valid-data-path", small["plain"]],
        "one corpus": ["--data-path", small["plain"], "--split", "9,1,0"],
    }[kind]
    words = [*COMMAND.split(), *NULL.split(), *data]
    out = exported(words, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    problems, files = ask(out, words)
    assert problems == []
    there = {path.name for path in out.iterdir() if not path.name.startswith("distcache")}
    assert {file.name for file in files} == there
    assert all(file.there for file in files)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_tokenizer_of_pieces(small: dict[str, str], tmp_path: Path) -> None:
    """That is really loaded."""
    model = tmp_path / "pieces.model"
    texts.train_sentencepiece(model, texts.documents(300))
    words = [*COMMAND.split(), *blended(small), "--tokenizer-type", "SentencePieceTokenizer"]
    words += ["--tokenizer-model", str(model)]
    assert ask(exported(words, tmp_path), words)[0] == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (["--seed", "7"], "random_seed is 7 in training, 1234 here"),
        (["--vocab-size", "31000"], "tokenizer.vocab_size is '31000' in training, '30000' here"),
        (["--train-samples", "2001"], "num_samples is 504 in training, 503 here"),
        (["--split", "80,18,2"], "split is '80,18,2' in training, '90,8,2' here"),
    ],
)
def test_which_field_differs(
    change: list[str], reason: str, small: dict[str, str], tmp_path: Path
) -> None:
    """The field that differs is named for files that Megatron would build."""
    words = [*COMMAND.split(), *NULL.split(), *blended(small)]
    out = exported(words, tmp_path)
    assert reason in "\n".join(ask(out, [*words, *change])[0])


def test_a_missing_array(small: dict[str, str], tmp_path: Path) -> None:
    """Of a name that is right."""
    words = [*COMMAND.split(), *NULL.split(), *blended(small)]
    out = exported(words, tmp_path)
    next(out.glob("*train-shuffle_index.npy")).unlink()
    (problem,), files = ask(out, words)
    assert "1 of its files are missing or cut short; export again" in problem
    assert [file.there for file in files].count(False) == 1


def test_an_array_that_was_cut_short(small: dict[str, str], tmp_path: Path) -> None:
    """It is as bad as a missing one: training would crash."""
    words = [*COMMAND.split(), *NULL.split(), *blended(small)]
    out = exported(words, tmp_path)
    for size in (100, 0):
        os.truncate(next(out.glob("*-shuffle_index.npy")), size)
        problems, _ = ask(out, words)
        assert "1 of its files are missing or cut short" in problems[0]


def test_what_megatron_refuses(small: dict[str, str], tmp_path: Path) -> None:
    """It is said in its words."""
    words = [*COMMAND.split(), *blended(small), "--tokenizer-type", "TikTokenizer"]
    words += ["--tokenizer-model", str(tmp_path / "none.json")]
    (problem,), files = ask(tmp_path, words)
    assert "would not start" in problem
    assert files == []


def test_the_command(small: dict[str, str], tmp_path: Path) -> None:
    """With exit code 0 only if training will find everything."""
    words = [*COMMAND.split(), *NULL.split(), *blended(small)]
    out = exported(words, tmp_path)
    where = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}  # of the release that judges
    done = start(["doctor", out, "--json", "--", *words], environment=where)
    document = json.loads(done.stdout)
    assert (done.returncode, document["ready"]) == (0, True), document
    assert all(file["there"] for file in document["files"])
    done = start(["doctor", out, "--", *words, "--seed", "7"], environment=where)
    assert done.returncode == 5
    assert "random_seed is 7 in training, 1234 here" in done.stdout
    assert f"Megatron-Core {RELEASE}" in done.stdout


def test_what_packed_rows_need(small: dict[str, str], tmp_path: Path) -> None:
    """Is a problem if the command lacks it, or has what they do not bear."""
    words = [*COMMAND.split(), *NULL.split(), *blended(small)]
    config = config_from_options(words, RELEASE)
    fields: dict[str, Any] = {
        "sequence_length": config.sequence_length, "seed": config.seed, "split": config.split,
        "samples": {split: config.samples_of(split) for split in ("train", "valid", "test")},
        "blend": [{"path": small["plain"], "weight": 1}, {"path": small["second"], "weight": 3}],
        "tokenizer": config.tokenizer, "pack": True,
    }  # fmt: skip
    out = tmp_path / "out"
    export(open_cache(here.build(fields, tmp_path / "shared").path), out)
    problems, files = ask(out, words)
    assert all(file.there for file in files)
    assert any("training needs one of --eod-mask-loss" in text for text in problems)
    assert ask(out, [*words, "--eod-mask-loss"])[0] == []
    wrong = [*words, "--eod-mask-loss", "--dataloader-defer-npy-index-mmap"]
    assert any("does not know how many" in text for text in ask(out, wrong)[0])


def test_steps_that_are_not_those_of_a_deal(small: dict[str, str], tmp_path: Path) -> None:
    """Are a problem: of another batch size, of a ramp, or in another order."""
    words = [*COMMAND.split(), *NULL.split(), *blended(small)]
    out = exported(words, tmp_path, "--deal", "8x4x1")
    assert ask(out, words)[0] == []
    for option, value, needed in (
        ("--global-batch-size", "16", "8"),
        ("--micro-batch-size", "2", "1"),
        ("--dataloader-type", "cyclic", "single"),
    ):
        problems, _ = ask(out, [*words, option, value])
        said = f"{out}: dealt as 8x4x1: train with {option} {needed}, not with {value}"
        assert said in problems
