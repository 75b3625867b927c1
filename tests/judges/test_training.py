"""Training commands are read as Megatron's own parser and its arithmetic read them."""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from distcache.builder.configuration import complete
from distcache.cli.commands import COMMANDS, load
from distcache.errors import ConfigError, OptionWarning
from distcache.megatron.command_line import (
    DATA_OPTIONS,
    LOOKS_MISSPELT,
    _data_parser,
    meant_option,
    require_command,
)
from distcache.megatron.options import config_from_options
from distcache.megatron.tokenizers import identifiers_of
from tests.judges.megatron import RELEASE, selected
from tests.judges.tokenizers import ask_megatron_for
from tests.judges.training import counts, parse, parser, samples_of, validate

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

RANKS = 4  # that have a model of their own


def test_options_have_the_values_that_megatron_takes() -> None:
    """Those that are read; and no other option of Megatron looks like one of them."""
    ours = {
        name: "1" if action.nargs is None else str(action.nargs)
        for action in _data_parser()._actions
        for name in action.option_strings
    }
    theirs = counts()
    assert len(theirs) > 700
    both = ours.keys() & theirs.keys()
    assert len(both) > 40
    assert {name: ours[name] for name in both} == {name: theirs[name] for name in both}
    others = theirs.keys() - ours.keys() - {LOOKS_MISSPELT}
    assert [name for name in others if meant_option(name, tuple(ours))] == []


@pytest.mark.parametrize("command", [name for name, own in COMMANDS.items() if own.passes_options])
def test_no_option_of_megatron_looks_like_one_of_a_command(command: str) -> None:
    """It would be refused as a misspelt one."""
    known = tuple(name for option in load(command).params for name in option.opts)
    others = [name for name in counts() if name not in known and name not in DATA_OPTIONS]
    assert [name for name in others if name.startswith("--") and meant_option(name, known)] == []


def filler(choose: random.Random) -> list[str]:
    """Return options that have nothing to do with data, with values that are accepted."""
    actions = [
        action
        for action in parser()._actions
        if action.dest not in OF_DATA and action.option_strings and action.nargs != "?"
    ]
    words = []
    for action in choose.sample(actions, 12):
        if isinstance(action, argparse._HelpAction) or action.choices:
            continue
        name = choose.choice(action.option_strings)
        count = {None: 1, "*": 2, "+": 2}.get(action.nargs, action.nargs)  # type: ignore[arg-type]
        value = "x" if action.type in (None, str) else "7"
        if action.type in (None, str, int, float):
            words += [name, *[value] * int(count or 0)]
    return words


OF_DATA = {
    *("data_path", "train_data_path", "valid_data_path", "test_data_path", "data_args_path"),
    *("per_split_data_args_path", "split", "seed", "seq_length", "train_samples", "train_iters"),
    *("micro_batch_size", "global_batch_size", "rampup_batch_size", "step_batch_size_schedule"),
    *("eval_interval", "eval_iters", "eval_global_batch_size", "start_eval_at_iter", "skip_train"),
    *("full_validation", "phase_transition_iterations", "multiple_validation_sets", "mock_data"),
    *("sft", "fim_data", "yaml_cfg", "mid_level_dataset_surplus", "tokenizer_type", "vocab_size"),
    *("tokenizer_model", "vocab_file", "merge_file", "tokenizer_metadata", "metadata_path"),
    *("tokenizer_special_tokens", "special_tokens", "tiktoken_special_tokens", "chat_template"),
    *("tiktoken_pattern", "tiktoken_num_special_tokens", "tokenizer_sentencepiece_legacy"),
    *("tokenizer_sentencepiece_ignore_extra_whitespaces", "tokenizer_hf_use_fast"),
    *("tokenizer_hf_include_special_tokens", "tokenizer_hf_no_use_fast", "trust_remote_code"),
    *("tokenizer_hf_no_include_special_tokens", "null_tokenizer_eod_id", "null_tokenizer_pad_id"),
}


def arithmetic(choose: random.Random) -> list[str]:
    """Return options of batches, training and evaluation."""
    later = RELEASE >= "0.18"
    words = ["--micro-batch-size", str(choose.choice((1, 2)))]
    batch = choose.choice((8, 64, 512))
    by_samples = choose.random() < 0.6
    kind = choose.choice(("constant", "constant", "default", "ramp", "steps"))
    if kind == "steps" and later:
        by_samples = True
        second, third = choose.randint(1, 400), choose.randint(401, 3000)
        schedule = f"0:16 {second}K:64,{third}k:{choose.choice((128, 1000))}"
        words += ["--step-batch-size-schedule", schedule]
    elif kind != "default":
        words += ["--global-batch-size", str(batch)]
        if kind == "ramp" and by_samples:
            words += ["--rampup-batch-size", "4", "4", str(choose.choice((1, 100, 5000)))]
    samples = choose.choice((1, 1000, 49_999, 100_000))
    words += ["--train-samples", str(samples)] if by_samples else ["--train-iters", "333"]
    words += ["--eval-interval", str(choose.choice((1, 10, 1000)))]
    if choose.random() < 0.7:
        words += ["--eval-iters", str(choose.choice((0, 3, 10)))]
    if later and choose.random() < 0.5:
        words += ["--eval-global-batch-size", str(choose.choice((4, 96)))]
    if later and choose.random() < 0.5:
        words += ["--start-eval-at-iter", str(choose.choice((0, 20, 500)))]
    for flag in ("--skip-train", "--full-validation"):
        words += [flag] if choose.random() < 0.15 else []
    if by_samples and kind in ("constant", "default") and choose.random() < 0.4:
        words += ["--phase-transition-iterations", choose.choice(("5", "900,100", "7, 2"))]
    return words


@pytest.mark.parametrize("first", selected(range(0, 500, 10)))
def test_samples(first: int) -> None:
    """Of random commands, with options of everything else between."""
    for number in range(first, first + 10):
        choose = random.Random(number)
        data = ["--data-path", "a/b", "--seq-length", str(choose.choice((64, 100)))]
        parts = [arithmetic(choose), data, filler(choose)]
        choose.shuffle(parts)
        words = [word for part in parts for word in part]
        launcher = ["torchrun", "--nproc-per-node", "8", "pretrain_gpt.py"]
        own = ["--megatron", RELEASE, "--data-parallel-size", str(RANKS)]
        with contextlib.redirect_stdout(io.StringIO()):
            theirs = samples_of(parse(words, RANKS))
        config = config_from_options([*own, *launcher, *words])
        ours = tuple(config.samples_of(split) for split in ("train", "valid", "test"))
        assert ours == theirs, shlex.join(words)
        assert config.prefixes() == ["a/b"]


TOKENIZERS = [
    "HuggingFaceTokenizer --tokenizer-model m --trust-remote-code",
    "HuggingFaceTokenizer --tokenizer-model m --tokenizer-hf-no-use-fast "
    "--tokenizer-special-tokens <a> <b>",
    "SentencePieceTokenizer --tokenizer-model /m/p.model --tokenizer-sentencepiece-legacy",
    "TikTokenizer --tokenizer-model t.json --tiktoken-pattern v2 --vocab-size 131072 "
    "--tiktoken-num-special-tokens 9",
    "NullTokenizer --vocab-size 32000",
    "GPT2BPETokenizer --vocab-file v.json --merge-file m.txt",
]


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=lambda words: words.split()[0])
def test_tokenizers(tokenizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are called as the release calls what its own parser makes of the words."""
    command = shlex.split(
        f"--tokenizer-type {tokenizer} --seq-length 64 --micro-batch-size 1 --global-batch-size 1 "
        "--train-iters 1 --data-path a --eval-interval 1"
    )
    config = complete(config_from_options(["--megatron", RELEASE, "x.py", *command]))
    options = parse(command, 1)
    options.padded_vocab_size = options.make_vocab_size_divisible_by
    theirs = ask_megatron_for(options, monkeypatch)
    assert identifiers_of(config.tokenizer or {}) == [theirs]


def test_a_word_that_no_release_knows() -> None:
    """It is an error if it is like one of data, and else passed over."""
    words: list[Any] = ["--data-path", "a", "--seq-length", "64", "--train-iters", "1"]
    words += ["--global-batch-size", "1"]
    assert config_from_options([*words, "--num-layer", "3"]) == config_from_options(words)
    with pytest.raises(ConfigError, match="--sead; did you mean --seed"):
        config_from_options([*words, "--sead", "3"])


PAGE = Path(__file__).parents[2] / "docs" / "megatron-lm.md"


def commands() -> list[list[str]]:
    """Return the words of every command of the page that trains."""
    text = re.sub(r"\\\n\s*", " ", PAGE.read_text(encoding="utf-8"))
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    found = [line[line.index("torchrun") :] for line in lines if "--num-layers" in line]
    return [shlex.split(line) for line in found]


@pytest.fixture
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with eight GPUs, as Megatron's validation asks for it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    properties = SimpleNamespace(major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: properties)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")


def test_what_the_page_says_is_what_megatron_takes(on_gpus: None) -> None:
    """The command that builds, which trains as well, and the one that reads what was exported."""
    first, last = (words[words.index("pretrain_gpt.py") + 1 :] for words in commands())
    assert "--data-path" in first
    assert "--data-args-path" in last
    validate(first)
    validate(last)


def test_the_options_that_are_replaced(on_gpus: None) -> None:
    """Megatron refuses them beside those that `export` prints."""
    last = commands()[1]
    words = last[last.index("pretrain_gpt.py") + 1 :]
    with pytest.raises(AssertionError):
        validate([*words, "--data-path", "/shared/data/web"])


def test_distcache_reads_it_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    """Every option of both is known."""
    for words in commands():
        require_command(words)
    assert not [warning for warning in recwarn if warning.category is OptionWarning]
