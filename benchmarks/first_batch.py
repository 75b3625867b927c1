"""Seconds until Megatron's own loader has its first batch of a blend of 800 corpora.

Of Megatron that builds its indices, as on global rank 0; that finds them exported; and that is
given distcache's provider: from the call of the provider of datasets to the first batch of
`build_pretraining_data_loader` with two workers.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks import megatron
from benchmarks.harness import Run, Table, factor, process
from benchmarks.loading import Case, make

MARKS = ("first batch",)
JUDGE = "0.19.2"
BATCH = 8
BUILDS, FINDS, PROVIDER = "Megatron builds", "Megatron finds an export", "the provider"


def start(config: str) -> None:
    """Do what `pretrain` does before it asks for datasets."""
    megatron.start()
    from megatron.core import mpu  # noqa: PLC0415
    from megatron.training import arguments, global_vars  # noqa: PLC0415

    fields = json.loads(Path(config).read_text(encoding="utf-8"))
    mpu.initialize_model_parallel()
    words = f"--seq-length {fields['sequence_length']} --seed {fields['seed']} --num-workers 2 "
    words += f"--micro-batch-size {BATCH} --no-create-attention-mask-in-dataloader "
    words += f"--mid-level-dataset-surplus {fields['mid_level_dataset_surplus']}"
    options = arguments.add_megatron_arguments(argparse.ArgumentParser()).parse_args(words.split())
    options.dataloader_type = "single"
    options.exit_signal_handler = options.hybrid_context_parallel = False
    global_vars.set_args(options)
    tokenizer = argparse.Namespace(eod=0, pad=-1, unique_identifiers={"class": "NullTokenizer"})
    global_vars._GLOBAL_TOKENIZER = tokenizer


def first_batch(kind: str, config: str, cache: str, directory: str) -> dict[str, float]:
    """Return the seconds until the first batch."""
    start(config)
    from megatron.training.datasets.data_samplers import (  # noqa: PLC0415
        build_pretraining_data_loader,
    )

    import distcache.megatron  # noqa: PLC0415

    samples = json.loads(Path(config).read_text(encoding="utf-8"))["samples"]
    provide = distcache.megatron.provider(cache)
    begin = time.perf_counter()
    if kind == PROVIDER:
        train = provide([samples[split] for split in ("train", "valid", "test")])[0]
    else:
        train = megatron.datasets(config, directory)[0]
    batch = next(iter(build_pretraining_data_loader(train, 0)))
    seconds = time.perf_counter() - begin
    assert len(batch["tokens"]) == BATCH
    return {"first": seconds}


def tables(run: Run) -> Iterator[Table]:
    """Compare the three."""
    config, cache = make(run, run.directory, Case(800, 4096, BATCH))

    def one(kind: str) -> dict[str, float]:
        shutil.rmtree(run.directory / "empty", ignore_errors=True)
        directory = run.directory / ("empty" if kind == BUILDS else "megatron")
        return process(first_batch, kind, config, cache, directory)

    found = run.in_turn({kind: partial(one, kind) for kind in (BUILDS, FINDS, PROVIDER)})
    rows = [
        [kind, own.said("first"), factor(found[BUILDS], own, "first")]
        for kind, own in found.items()
    ]
    yield Table("first batch", ["", "first batch", ""], rows)
