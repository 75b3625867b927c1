"""Megatron's samplers and collation get from the provider what its own datasets give them."""

from __future__ import annotations

import itertools
import runpy
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core import mpu
    from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer
    from megatron.training import global_vars, training
    from megatron.training.datasets.data_samplers import build_pretraining_data_loader

import distcache.megatron
from distcache.builder.configuration import complete
from distcache.cache.deal import Deal
from distcache.errors import ConfigError
from distcache.launch.doctor.training import examine_training
from distcache.megatron.command_line import megatron_words
from distcache.megatron.options import config_from_options
from tests.judges.megatron import OPTIONS, RELEASE, alone, build_with_megatron
from tests.judges.test_samples import require_equal
from tests.judges.training import parse, samples_of
from tests.support import here, texts
from tests.support.buckets import fresh_process_of_buckets, put_cache
from tests.support.corpora import write_corpus
from tests.support.processes import start
from tests.support.scripted_s3 import ScriptedS3

pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.once]
COMMAND = (
    "pretrain_gpt.py --num-layers 2 --hidden-size 8 --num-attention-heads 1 --seq-length 24 "
    "--max-position-embeddings 24 --train-samples 300 --global-batch-size 12 --micro-batch-size 3 "
    "--eval-interval 5 --eval-iters 1 --num-workers 2 --tokenizer-type NullTokenizer "
    "--vocab-size 9 --seed 77 --reset-position-ids --eod-mask-loss --data-parallel-size 2"
)
EVALUATION = ("--eval-global-batch-size", "8", "--eval-micro-batch-size", "2")  # since 0.18
LAST = 8  # token, which is the end of documents


@pytest.fixture(autouse=True, scope="module")
def _one_rank() -> Iterator[None]:
    with alone():
        mpu.initialize_model_parallel()
        yield
        mpu.destroy_model_parallel()


@pytest.fixture
def corpora(tmp_path: Path) -> list[str]:
    """Two corpora of few different tokens, with ends of documents anywhere."""
    random = np.random.default_rng(5)
    prefixes = []
    for name in ("a", "b"):
        documents = [random.integers(0, LAST + 1, n).astype("u2") for n in range(1, 60)]
        write_corpus(str(tmp_path / name), documents, "u2")
        prefixes.append(str(tmp_path / name))
    return prefixes


def data_words(kind: str, corpora: list[str]) -> list[str]:
    """Return the words of a training command that say which data."""
    first, second = corpora
    return {
        "blend": ["--data-path", "1", first, "3", second, "--split", "80,15,5"],
        "one corpus": ["--data-path", first, "--split", "90,10,0"],
        "several validation sets": [
            *("--train-data-path", first, second, "--valid-data-path", first, second),
            *("--multiple-validation-sets", "--full-validation"),
        ],
    }[kind]


def cached(words: list[str], tmp_path: Path) -> Path:
    """Return the cache of a training command."""
    done = start(["build", "-o", tmp_path / "shared", "--megatron", RELEASE, "--", *words])
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def start_training(words: list[str]) -> None:
    """Let Megatron parse a command, and make its tokenizer."""
    options = parse(megatron_words(words), 2)
    options.padded_vocab_size = options.rank = 1
    options.consumed_train_samples = options.consumed_valid_samples = 0
    options.exit_signal_handler = options.hybrid_context_parallel = False
    if options.dataloader_type is None:
        options.dataloader_type = "single"
    samples_of(options)
    global_vars._GLOBAL_TOKENIZER = build_tokenizer(options)


def megatrons(words: list[str], tmp_path: Path) -> list[Any]:
    """Return the datasets of Megatron, with the options that the commands here have."""
    config = complete(config_from_options(words, RELEASE))
    eod = global_vars.get_tokenizer().eod
    masks = {"reset_position_ids": True, "eod_mask_loss": True, "create_attention_mask": True}
    if "--dataloader-inter-document-masking" in words:
        masks["inter_document_masking"] = True
    return build_with_megatron(config, tmp_path / "theirs", eod, **masks)


def each(datasets: Any) -> list[Any]:
    """Return the datasets of a split."""
    return datasets if isinstance(datasets, list) else [datasets]


@pytest.mark.parametrize("kind", ["blend", "one corpus", "several validation sets"])
@pytest.mark.parametrize("loader", ["single", "cyclic"])
def test_batches_are_megatrons(
    kind: str, loader: str, corpora: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches are Megatron's on every rank, from the first on and after some are consumed."""
    words = [*COMMAND.split(), *data_words(kind, corpora), "--dataloader-type", loader]
    if RELEASE != "0.17":
        words += EVALUATION
    if "inter_document_masking" in OPTIONS:
        words += ["--dataloader-inter-document-masking"]
    cache = cached(words, tmp_path)
    start_training(words)
    ours = training.build_train_valid_test_datasets(distcache.megatron.provider(cache))
    theirs = megatrons(words, tmp_path)
    monkeypatch.setattr(mpu, "get_data_parallel_world_size", lambda: 2)
    compared = 0
    for found, expected in zip(ours, theirs, strict=True):
        pairs = list(zip(each(found), each(expected), strict=True))
        for (mine, judge), rank in itertools.product(pairs, (0, 1)):
            if judge is None:
                assert mine is None
                continue
            monkeypatch.setattr(mpu, "get_data_parallel_rank", lambda rank=rank: rank)
            loaders = [
                build_pretraining_data_loader(data, 24 % len(data)) for data in (mine, judge)
            ]
            batches = itertools.islice(zip(*loaders, strict=True), 30)
            for batch, wanted in batches:
                require_equal(batch, wanted)
                compared += 1
    assert compared > 20


def test_dealt_steps(corpora: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Megatron's loaders take the same samples in each step, also of a run that is resumed."""
    words = [*COMMAND.split(), *data_words("blend", corpora)]
    cache = cached(words, tmp_path)
    start_training(words)
    monkeypatch.setattr(mpu, "get_data_parallel_world_size", lambda: 2)
    taken: dict[tuple[bool, int], list[list[list[int]]]] = {}  # samples of each step
    for deal in (False, True):
        for consumed in (0, 24):
            global_vars.get_args().consumed_train_samples = consumed
            provide = distcache.megatron.provider(cache, deal=deal)
            train, valid, _ = training.build_train_valid_test_datasets(provide)
            assert train.dataset.deal == (Deal(12, 2, 3, consumed) if deal else None)
            assert valid.dataset.deal is None
            of_ranks = []
            for rank in (0, 1):
                monkeypatch.setattr(mpu, "get_data_parallel_rank", lambda rank=rank: rank)
                loader = build_pretraining_data_loader(train, consumed)
                of_ranks.append([batch["tokens"].tolist() for batch in loader])
            micro_batches = [one + other for one, other in zip(*of_ranks, strict=True)]
            steps = range(0, len(micro_batches), 2)
            found = [[*itertools.chain(*micro_batches[s : s + 2])] for s in steps]
            taken[deal, consumed] = found
    for consumed in (0, 24):
        plain, dealt = taken[False, consumed], taken[True, consumed]
        assert plain != dealt
        assert [sorted(step) for step in plain] == [sorted(step) for step in dealt]
    assert taken[True, 24] == taken[True, 0][2:]


@pytest.mark.parametrize("option", ["--rampup-batch-size 6 6 100", "--dataloader-type cyclic"])
def test_steps_that_are_not_dealt(option: str, corpora: list[str], tmp_path: Path) -> None:
    """Steps that grow, and samples that are not taken in order."""
    words = [*COMMAND.split(), *data_words("blend", corpora)]
    cache = cached(words, tmp_path)
    start_training([*words, *option.split()])
    with pytest.raises(ConfigError, match=option.split(maxsplit=1)[0]):
        training.build_train_valid_test_datasets(distcache.megatron.provider(cache, deal=True))


@pytest.mark.parametrize(
    "more",
    [
        {"pack": True},
        {
            "phases": [
                {"samples": 150, "weights": [1, 1]},
                {"steps": 15, "batch_size": 10, "weights": [0, 1]},
            ]
        },
    ],
)
def test_orders_that_megatron_has_not(
    more: dict[str, Any], corpora: list[str], tmp_path: Path
) -> None:
    """Training gets the samples of the cache, whatever made them."""
    words = [*COMMAND.split(), *data_words("blend", corpora)]
    asked = config_from_options(words, RELEASE)
    assert asked.samples is not None
    fields: dict[str, Any] = {
        "sequence_length": 24, "seed": 77, "split": asked.split,
        "samples": {split: asked.samples_of(split) for split in ("train", "valid", "test")},
        "blend": [{"path": path, "weight": n} for n, path in zip((1, 3), corpora, strict=True)],
    }  # fmt: skip
    if "phases" in more:
        fields |= {"blend": corpora, "samples": fields["samples"] | {"train": 0}}
    path = here.build(fields | more, tmp_path / "shared").path
    start_training(words)
    train, valid, _ = training.build_train_valid_test_datasets(distcache.megatron.provider(path))
    cache = distcache.open(path)
    for found, split in ((train, "train"), (valid, "valid")):
        ours = cache.dataset(split, eod=LAST, eod_mask_loss=True, reset_position_ids=True)
        assert len(found) == len(ours)
        for number in range(0, len(ours), 7):
            assert torch.equal(torch.as_tensor(found[number]["tokens"]), ours[number]["tokens"])


def test_the_example(corpora: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example's `pretrain` gets a provider whose samples are Megatron's."""
    words = [*COMMAND.split(), *data_words("blend", corpora)]
    monkeypatch.setenv("DISTCACHE_CACHE", str(cached(words, tmp_path)))
    scripts = ModuleType("pretrain_gpt")
    scripts.forward_step = scripts.model_provider = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pretrain_gpt", scripts)
    given: list[Any] = []
    monkeypatch.setattr("megatron.training.pretrain", lambda *words: given.extend(words))
    example = Path(__file__).parents[2] / "examples" / "megatron_lm.py"
    runpy.run_path(str(example), run_name="__main__")
    start_training(words)
    ours, theirs = training.build_train_valid_test_datasets(given[0]), megatrons(words, tmp_path)
    require_equal(ours[0][7], theirs[0][7])


def test_a_rank_that_reads_no_data(corpora: list[str], tmp_path: Path) -> None:
    """A rank that reads no data gets none, but takes part."""
    words = [*COMMAND.split(), *data_words("several validation sets", corpora)]
    cache = cached(words, tmp_path)
    start_training(words)
    nowhere = distcache.megatron.provider(cache, is_built=lambda vp_stage=None: False)
    assert nowhere.is_distributed
    found = training.build_train_valid_test_datasets(nowhere)
    assert found == (None, [None, None], None)


def test_a_cache_for_something_else(corpora: list[str], tmp_path: Path) -> None:
    """It is an error that says what differs; more samples may be allowed."""
    words = [*COMMAND.split(), *data_words("blend", corpora)]
    provide = distcache.megatron.provider(cached(words, tmp_path))
    for change, message in (
        (["--seed", "5"], "seed is 77 in the cache, 5 in training"),
        (["--seq-length", "32"], "sequence_length is 24 in the cache, 32 in training"),
        (
            ["--train-samples", "200"],
            "samples.train is 300 in the cache, 200 in training; .*exact=False",
        ),
    ):
        start_training([*words, *change])
        with pytest.raises(ConfigError, match=message):
            training.build_train_valid_test_datasets(provide)
    provide.exact = False
    assert len(training.build_train_valid_test_datasets(provide)[0]) >= 300
    start_training([*words, "--train-samples", "3000"])
    with pytest.raises(ConfigError, match="samples in split 'train', training asks for 3000"):
        training.build_train_valid_test_datasets(provide)


def test_samples_that_no_cache_has(corpora: list[str], tmp_path: Path) -> None:
    """Fill-in-the-middle draws while it reads, differently in every worker."""
    words = [*COMMAND.split(), *data_words("blend", corpora)]
    provide = distcache.megatron.provider(cached(words, tmp_path))
    start_training([*words, "--fim-data"])
    with pytest.raises(ConfigError, match="--fim-data: draws with a generator"):
        training.build_train_valid_test_datasets(provide)


def test_megatron_finds_those_in_an_export(corpora: list[str], tmp_path: Path) -> None:
    """By the names of its class of fill-in-the-middle samples, beside the others."""
    model = tmp_path / "pieces.model"
    texts.train_sentencepiece(model, texts.documents(300))
    words = [*COMMAND.split(), *data_words("blend", corpora), "--tokenizer-model", str(model)]
    words += ["--tokenizer-type", "SentencePieceTokenizer"]
    cache, out = cached(words, tmp_path), tmp_path / "out"
    tokens = [f"--fim-{name}-token" for name in ("prefix", "middle", "suffix", "pad", "eod")]
    filling = ["--fim-data", "--fim-rate", "0.5", "--fim-spm-rate", "0.5"]
    filling += [word for name in tokens for word in (name, "<s>")]
    for more, found in ((["--no-fim-data"], False), (["--fim-data"], True)):
        assert start(["export", cache, "--out", out, *more]).returncode == 0
        findings, files = examine_training([*words, *filling], out)
        levels = {finding.level for finding in findings if finding.topic == "files"}
        assert levels == {"ok" if found else "problem"}
        assert {file.there for file in files} == {found}
        assert not any("GPTDataset" in file.name for file in files)


def test_from_a_bucket(corpora: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider of a URL gives Megatron's loop the samples of files."""
    words = [*COMMAND.split(), *data_words("blend", corpora), "--dataloader-type", "single"]
    words += EVALUATION if RELEASE != "0.17" else ()
    cache = cached(words, tmp_path)
    start_training(words)
    with ScriptedS3() as server, fresh_process_of_buckets(monkeypatch, server.environment):
        url, store = put_cache(server, cache), tmp_path / "store"
        here.localize(url, store)
        remote = distcache.megatron.provider(url, store)
        ours = training.build_train_valid_test_datasets(remote)
        theirs = training.build_train_valid_test_datasets(distcache.megatron.provider(cache))
        server.script()
        loaders = [build_pretraining_data_loader(found[0], 24) for found in (ours, theirs)]
        for batch, wanted in itertools.islice(zip(*loaders, strict=True), 30):
            require_equal(batch, wanted)
        assert server.bytes_of(".bin") > 0
