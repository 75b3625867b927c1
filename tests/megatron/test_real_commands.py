"""Commands of forks, as their scripts give them to the shell, are read with the right samples.

Of swiss-ai's and ROCm's Megatron-LM, alibaba's Pai-Megatron-Patch, Ascend's MindSpeed-LLM and
bigscience's and Microsoft's Megatron-DeepSpeed, megablocks, and Megatron-LM's own examples: their
options and shapes, with other paths.
"""

from __future__ import annotations

import json
import shlex
import warnings
from pathlib import Path
from typing import Any

import pytest

from distcache.errors import ConfigError, OptionWarning
from distcache.megatron.options import config_from_options
from distcache.plan.config import Config

COMMANDS = Path(__file__).parents[1] / "fixtures" / "commands"
BASE = "--data-path a --seq-length 64 --train-iters 10 --global-batch-size 8 --eval-interval 5"


def read(text: str) -> Config:
    """Return the configuration of a command, without warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptionWarning)
        return config_from_options(shlex.split(text))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # sequence length, seed, split, prefixes, and samples of the three splits
        ("swiss_ai_llama3_8b", (8192, 28, "100,0,0", 2, (64_000, 12_800, 12_800))),
        ("pai_llama3_1", (2048, 1234, "99,1,0", 1, (48_824, 80, 80))),
        ("pai_baichuan2", (2048, 1234, "98,2,0", 1, (48_824, 62 * 80, 80))),
        ("mindspeed_deepseek3", (4096, 1234, "100,0,0", 1, (7_680_000, 0, 0))),
        ("mindspeed_llama2", (4096, 1234, "949,50,1", 1, (1_280_000, 153_600, 25_600))),
        ("rocm_mixtral", (4096, 1234, "99990,8,2", 1, (132_000_000, 501 * 2640, 2640))),
        ("bigscience_7b1", (2048, 42, "998,1,1", 1, (220_000, 1024, 1024))),
        ("numa_launcher", (4096, 7, "99,1,0", 2, (1_000_000, 2 * 7168, 7168))),
        ("megablocks_dmoe", (1024, 1234, "969,30,1", 3, (10_240_000, 21 * 51_200, 51_200))),
        ("deepspeed_1t", (1024, 1234, "98,2,0", 1, (8000, 640, 320))),
        ("hybrid_per_split", (8192, 1234, None, 4, (36_621_094, 4578 * 112, 112))),
        ("given_twice", (1024, 1234, "949,50,1", 1, (600_000, 151 * 40, 40))),
        ("deepspeed_rampup", (2048, 1234, "98,2,0", 4, (439_453_125, 9 * 5120, 5120))),
        ("rocm_llama3", (2048, 1234, "969, 30, 1", 1, (80, 80, 80))),
        ("rocm_deepseek_v3", (4096, 1234, None, 3, (1280, 256, 256))),
        ("pai_glm130b", (512, 1234, "98,2,0", 1, (19_528, 25 * 80, 80))),
        ("bigscience_176b", (2048, 42, "998,1,1", 1, (220_000_000, 1024, 1024))),
        ("no_split", (1024, 1234, "969, 30, 1", 1, (400, 80, 80))),
        ("quoted_split", (1024, 1234, "'99,1,0'", 1, (47_340_000, 8 * 2048, 2048))),
        ("engram", (1024, 11, "990,10,0", 2, (1_024_000, 9 * 5120, 5120))),
    ],
)
def test_commands_of_forks(name: str, expected: tuple[Any, ...], tmp_path: Path) -> None:
    """What has nothing to do with data is ignored."""
    text = (COMMANDS / f"{name}.txt").read_text()
    (tmp_path / "data").write_text("0.5 a 0.5 b")
    file = tmp_path / "command.txt"
    splits = {"train": ["0.7", "a", "0.3", "b"], "valid": ["c"], "test": ["d"]}
    (tmp_path / "splits").write_text(json.dumps(splits))
    text = text.replace("DATA", str(tmp_path / "data")).replace("SPLITS", str(tmp_path / "splits"))
    file.write_text(text)
    plain = "eval-interval" in text and "rampup-batch-size" not in text
    release = () if plain else ("--megatron", "0.16")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptionWarning)  # of tokenizers of forks
        config = config_from_options([*release, f"@{file}"])
    samples = tuple(config.samples_of(split) for split in ("train", "valid", "test"))
    found = (config.sequence_length, config.seed, config.split, len(config.prefixes()), samples)
    assert found == expected


def test_the_values_of_an_unknown_option_go_with_it() -> None:
    """Up to the next option; negative numbers are values. Elsewhere a stray word is an error."""
    plain = read(f"pretrain_gpt.py {BASE}")
    assert read(f"pretrain_gpt.py --xielu a b -3 -1e-5 {BASE} --zero=1 x --flag") == plain
    with pytest.raises(ConfigError, match="unknown option or word: stray"):
        read(f"pretrain_gpt.py {BASE} --seed 1 stray")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("--seq-lenght", "--seq-length"),
        ("--seq_length", "--seq-length"),
        ("--spilt", "--split"),
        ("--data-paths", "--data-path"),
        ("--train-sample", "--train-samples"),
        ("--sed", "--seed"),
    ],
)
def test_a_misspelt_option_of_data_is_an_error(word: str, meant: str) -> None:
    """It would change the arrays."""
    with pytest.raises(ConfigError, match=f"{word}; did you mean {meant}"):
        read(f"pretrain_gpt.py {BASE} {word} 3")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"bash -c 'torchrun pretrain_gpt.py {BASE}'", "bash -c: unpack the quoted command"),
        (f"srun sh -lc 'pretrain_gpt.py {BASE}'", "sh -lc: unpack the quoted command"),
        (
            f"python -m package.pretrain_gpt {BASE}",
            "-m: names a module; give the path of its script",
        ),
        (f"echo {BASE}", "a training command has a script"),
        (f"pretrain_bert.py {BASE}", "trains from other datasets than GPTDataset"),
        (f"torchrun /x/pretrain_t5.py {BASE}", "trains from other datasets"),
        (f"pretrain_vlm.py {BASE}", "trains from other datasets"),
        (f"pretrain_vision_classify.py {BASE}", "trains from other datasets"),
        (f"train.py {BASE} --dataloader-type external", "brings its own data"),
    ],
)
def test_commands_that_train_otherwise(text: str, problem: str) -> None:
    """They are refused by name: their training would never read a cache of GPTDataset."""
    with pytest.raises(ConfigError, match=problem):
        read(text)


def test_the_script_is_behind_launchers_that_are_scripts() -> None:
    """The last one before the first option that is read; values of options may end alike."""
    plain = read(f"pretrain_gpt.py {BASE}")
    assert read(f"python bind_numa.py --verbose pretrain_gpt.py {BASE} --spec my.py fn") == plain


def test_a_tokenizer_that_is_not_known_stops_no_plan() -> None:
    """No array depends on it."""
    with pytest.warns(OptionWarning, match=r"--tokenizer-type MyTokenizer: its names of files"):
        config = config_from_options(
            shlex.split(f"pretrain_gpt.py {BASE} --tokenizer-type MyTokenizer")
        )
    assert config.tokenizer is None
