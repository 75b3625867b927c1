"""A training command is read as it is; `tests/judges/test_training.py` compares with Megatron."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from distcache.builder.configuration import load_config
from distcache.errors import ConfigError, DistcacheError, NotReady
from distcache.megatron.command_line import is_command, parse
from distcache.megatron.options import config_from_options, options_from_mapping
from distcache.plan.config import Config

COMMAND = (
    "--num-layers 32 --bf16 --use-mcore-models --data-path 0.3 a 0.7 b --seq-length 64 --lr 3e-4 "
    "--train-samples 1000 --global-batch-size 8 --split 99,1,0 --eval-interval 100"
)


def read(text: str) -> Config:
    """Return the configuration of a command."""
    return config_from_options(shlex.split(text))


def samples_of(text: str) -> tuple[int | None, ...]:
    """Return the samples that a command asks for, of train, valid and test."""
    base = "--data-path a --seq-length 64"
    return tuple(read(f"{base} {text}").samples_of(split) for split in ("train", "valid", "test"))


@pytest.mark.parametrize(
    "launcher",
    [
        "pretrain_gpt.py",
        "python -u pretrain_gpt.py",
        "torchrun --nproc-per-node 8 --nnodes=2 /opt/megatron/pretrain_gpt.py",
        "srun --seed 3 bash -c x pretrain_mamba.py",
    ],
)
def test_whole_commands(launcher: str) -> None:
    """Of which what has nothing to do with data is ignored, and the launcher dropped."""
    assert read(f"{launcher} {COMMAND}") == read(COMMAND)
    assert read(COMMAND).prefixes() == ["a", "b"]


def test_values_that_end_like_a_script() -> None:
    """They are none where the first word is an option."""
    assert read(f"--seed 5 --chat-template t.py {COMMAND} --spec my.py fn").seed == 5


def test_a_flag_that_is_on_by_default() -> None:
    """A flag that is on by default is switched off by false in a file."""
    name = "tokenizer_sentencepiece_ignore_extra_whitespaces"
    assert options_from_mapping({name: True, "bf16": True, "x": False}) == ["--bf16"]
    assert options_from_mapping({name: False}) == ["--no-" + name.replace("_", "-")]


def test_a_file_with_a_command(tmp_path: Path) -> None:
    """With comments and continued lines; also where a configuration's file is expected."""
    path = tmp_path / "train.txt"
    lines = COMMAND.replace(" --", " \\\n    --")
    path.write_text(f"# nightly\ntorchrun --nnodes 2 pretrain_gpt.py {lines}\n")
    assert load_config(f"@{path}") == read(COMMAND)
    release = read(f"--megatron 0.19 @{path} --tokenizer-type NullTokenizer --vocab-size 99")
    assert release.tokenizer is not None
    assert release.tokenizer["megatron"] == "0.19"


@pytest.mark.parametrize(
    "text",
    [
        f"python pretrain_gpt.py --wandb-exp-name exp#3 \\\n {COMMAND}",
        f"python pretrain_gpt.py --wandb-exp-name 'a #b' {COMMAND} # --seed 9",
        f"# a comment is not continued \\\npython pretrain_gpt.py {COMMAND}\n#\n",
        f"cd /x && python pretrain_gpt.py {COMMAND}; sleep 1",
        f"python prepare.py {'x ' * 50} && torchrun pretrain_gpt.py {COMMAND};",
        f"\ufeffpython pretrain_gpt.py {COMMAND} 2>&1|tee log",
        f"python pretrain_gpt.py {COMMAND} --wandb-exp-name ';' --log-interval 5 &",
        f"python pretrain_gpt.py {COMMAND} --log-interval 5\\\n0 2>&1 | tee 'log;#1'",
    ],
)
def test_what_a_shell_makes_of_a_file(text: str, tmp_path: Path) -> None:
    """Comments begin words, lines are joined, and of several commands the longest trains."""
    (tmp_path / "f").write_text(text)
    assert load_config(f"@{tmp_path}/f") == read(COMMAND)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x.py --data-path $DATA", "write the value of \\$DATA"),
        ("x.py --data-path ${DATA}/web", "write the value of"),
        (f"x.py {COMMAND} --save $DIR", "write the value of \\$DIR"),
        (f"x.py {COMMAND} --bf16 ${{DATA_ARGS[@]}}", "put `echo` before the launcher"),
        ("x.py --data-path 'a", "No closing quotation"),
        (f"x.py {COMMAND} --seed 1 echo", "unknown option or word: echo"),
        (f"x.py {COMMAND} --mock-data", "--mock-data: such data has no index"),
        (f"x.py {COMMAND} --sft", "--sft: such data has no index"),
        (f"x.py {COMMAND} --yaml-cfg x.yaml", "--yaml-cfg: is not read"),
        (f"x.py {COMMAND} --megatron 0.17,0.18", "expected one release"),
        (f"x.py {COMMAND} --arithmetic nemo", "invalid choice"),
    ],
)
def test_commands_that_cannot_be_read(text: str, problem: str, tmp_path: Path) -> None:
    """Commands that cannot be read say which word, and what to do."""
    (tmp_path / "f").write_text(text)
    with pytest.raises(DistcacheError, match=problem):
        load_config(f"@{tmp_path}/f")


def test_variables_of_options_that_are_not_read(tmp_path: Path) -> None:
    """They are ignored, if they cannot stand for options that are."""
    text = f"x.py {COMMAND} --save /x/${{RUN}}/c --tensorboard-dir=$HOME"
    (tmp_path / "f").write_text(text)
    assert load_config(f"@{tmp_path}/f") == read(COMMAND)


def test_files_of_windows(tmp_path: Path) -> None:
    """Files of windows have other line ends."""
    lines = COMMAND.replace(" --", " \\\r\n    --")
    (tmp_path / "f").write_text(f"pretrain_gpt.py {lines}\r\n", newline="")
    assert load_config(f"@{tmp_path}/f") == read(COMMAND)


def test_values_that_begin_like_a_file() -> None:
    """Values that begin like a file are values."""
    found = read(
        f"{COMMAND} --megatron 0.19 --tokenizer-type NullTokenizer --vocab-size 9 --load @x"
    )
    assert found == read(f"{COMMAND} --megatron 0.19 --tokenizer-type NullTokenizer --vocab-size 9")


def test_two_releases() -> None:
    """Two releases are one too many."""
    with pytest.raises(ConfigError, match=r"both 0\.18 and 0\.19 are given"):
        read(f"--megatron 0.18 x.py {COMMAND} --megatron 0.19")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"a.py --data-path {'x' * 200_000}", "has a word of more than 131,072 characters"),
        ("a.py --data-path " + "y " * (5 << 19), "Larger than 4 MiB"),
        ("word " * 100_000, r"unknown option or word: word .*\.\.\.; a training command has"),
    ],
)
def test_a_file_without_bounds(text: str, said: str, tmp_path: Path) -> None:
    """It is never cut, costs no hours, and is not repeated in the message."""
    (tmp_path / "command.txt").write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        parse([f"@{tmp_path}/command.txt"])
    assert len(str(caught.value)) < 1000


def test_a_file_that_is_not_there() -> None:
    """A file that is not there is named."""
    with pytest.raises(NotReady, match="/none/such: no such file"):
        load_config("@/none/such")


def test_what_a_command_is() -> None:
    """Options, a script, or a file of them; everything else is a configuration's file."""
    assert all(map(is_command, (["--x"], ["@f"], ["torchrun", "x.py"], ["x.py"])))
    assert not any(map(is_command, (["x.yaml"], ["x"], ["a/b.json", "c"])))


def test_fim_and_tokenizers() -> None:
    """Enter the names; without a release, an export has to name it."""
    config = read(f"{COMMAND} --fim-data --tokenizer-type HuggingFaceTokenizer --tokenizer-model m")
    assert config.fim_data
    assert config.tokenizer is not None
    assert "megatron" not in config.tokenizer
    assert read(COMMAND).tokenizer is None


BY_BATCHES = "--train-samples 1000 --eval-iters 2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Bridge: an interval of 0 validates never, and one pass more comes before training.
        (f"{BY_BATCHES} --global-batch-size 8 --eval-interval 0", (1000, 0, 16)),
        (f"{BY_BATCHES} --global-batch-size 8 --eval-interval 50", (1000, 3 * 16, 16)),
        (f"{BY_BATCHES} --global-batch-size 8 --eval-interval 50 --skip-train", (1000, 48, 16)),
        (
            f"{BY_BATCHES} --global-batch-size 8 --eval-interval 50 --eval-at-step-zero",
            (1000, 4 * 16, 16),
        ),
        ("--train-iters 10 --global-batch-size 8 --eval-interval 3 --eval-iters 1", (80, 32, 8)),
    ],
)
def test_bridge(text: str, expected: tuple[int, ...]) -> None:
    """It counts by the formula of its `get_train_valid_test_num_samples`."""
    assert samples_of(f"--arithmetic bridge {text}") == expected


def test_later_phases() -> None:
    """They are those of the iteration that training resumes with."""
    text = "--train-samples 1000 --global-batch-size 10 --phase-transition-iterations 70,20"
    assert [samples_of(f"{text} --iteration {n}")[0] for n in (0, 19, 20, 69, 70)] == [
        200,
        200,
        500,
        500,
        300,
    ]
    with pytest.raises(ConfigError, match="training has ended"):
        samples_of(f"{text} --iteration 100")


def test_a_ramp_counts_by_release() -> None:
    """It has been ignored since 0.18."""
    text = "--train-samples 1000 --global-batch-size 10 --eval-interval 10 --eval-iters 1 "
    text += "--rampup-batch-size 2 2 500"
    assert samples_of(f"--megatron 0.19 {text}")[1] == (100 // 10 + 1) * 10
    assert samples_of(f"--megatron 0.17 {text}")[1] != (100 // 10 + 1) * 10
    with pytest.raises(ConfigError, match="say which release"):
        samples_of(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("--train-samples 9 --global-batch-size 1 --megatron 0.17", "--eval-interval: missing"),
        (f"{BY_BATCHES} --train-iters 3 --global-batch-size 1", "cannot be combined"),
        ("--train-samples 9", "--global-batch-size: missing"),
        ("--train-samples 9 --micro-batch-size 2", "give both, the second as --data-parallel-size"),
        (f"{BY_BATCHES} --arithmetic bridge --global-batch-size 1", "--eval-interval: missing"),
        (f"{BY_BATCHES} --step-batch-size-schedule 0:1 --global-batch-size 1", "be combined"),
        (
            f"{BY_BATCHES} --phase-transition-iterations x --global-batch-size 1",
            "invalid literal for int",
        ),
        (
            f"{BY_BATCHES} --phase-transition-iterations -5 --global-batch-size 1",
            "must not be negative",
        ),
        (f"{BY_BATCHES} --iteration -1 --global-batch-size 1", "--iteration: -1: must not"),
        (f"{BY_BATCHES} --micro-batch-size -2 --data-parallel-size -4", "must be positive"),
        (
            "--train-iters 9 --phase-transition-iterations 3 --global-batch-size 1",
            "needs --train-samples",
        ),
        *(
            (
                f"{BY_BATCHES} --micro-batch-size 1 --data-parallel-size 1 "
                f"--step-batch-size-schedule '{schedule}'",
                problem,
            )
            for schedule, problem in (
                ("100:2", "from 0 on"),
                ("0:2 1:3", "no two"),
                ("0:0", "expected batch sizes from 1"),
                ("0", "--step-batch-size-schedule: '0'"),
                ("0:x", "could not convert"),
                ("0:inf", "infinity"),
            )
        ),
        *(
            (
                f"{BY_BATCHES} --eval-interval 9 --megatron 0.17 --global-batch-size 8 "
                f"--rampup-batch-size {ramp}",
                "--rampup-batch-size",
            )
            for ramp in ("0 1 5", "8 1 5", "2 4 5", "2 2 0", "9 -1 5", "2 x 5", "2 2")
        ),
    ],
)
def test_what_megatron_would_refuse(text: str, problem: str) -> None:
    """What Megatron would refuse is an error here too."""
    with pytest.raises(ConfigError, match=problem):
        samples_of(text)
