"""Seconds until Megatron's own loader has its first batch of a blend of 800 corpora.

Of Megatron that builds its indices, as on global rank 0; that finds them exported; and that is
given distcache's provider. Each in a process of its own, from the call of the provider of datasets
to the first batch of `build_pretraining_data_loader` with two workers.

    python -m benchmarks first_batch
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")
from loading import Case, make_cache
from machine import machine

BATCH = 8
KINDS = ("Megatron builds", "Megatron finds an export", "distcache.megatron.provider")


def start_megatron(config: Path) -> None:
    """Do what `pretrain` does before it asks for datasets."""
    import torch  # noqa: PLC0415
    from megatron.core import mpu  # noqa: PLC0415
    from megatron.training import arguments, global_vars  # noqa: PLC0415

    fields = json.loads(config.read_text(encoding="utf-8"))
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1
    )
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


def datasets(kind: str, config: Path, cache: Path, directory: Path) -> Callable[[], Any]:
    """Return what makes the training dataset."""
    from loading_peer import megatron_dataset  # noqa: PLC0415

    import distcache.megatron  # noqa: PLC0415

    if kind != KINDS[2]:
        return lambda: megatron_dataset(config, directory)
    samples = json.loads(config.read_text(encoding="utf-8"))["samples"]
    provide = distcache.megatron.provider(cache)
    return lambda: provide([samples[split] for split in ("train", "valid", "test")])[0]


def first_batch(kind: str, config: Path, cache: Path, directory: Path) -> float:
    """Return the seconds, of this process."""
    start_megatron(config)
    from megatron.training.datasets.data_samplers import (  # noqa: PLC0415
        build_pretraining_data_loader,
    )

    make = datasets(kind, config, cache, directory)
    begin = time.perf_counter()
    batch = next(iter(build_pretraining_data_loader(make(), 0)))
    seconds = time.perf_counter() - begin
    assert len(batch["tokens"]) == BATCH
    return seconds


def in_a_process(kind: str, config: Path, cache: Path, work: Path) -> float:
    """Return the seconds of a process of its own."""
    with tempfile.TemporaryDirectory() as empty:
        directory = Path(empty) if kind == KINDS[0] else work / "megatron"
        words = [sys.executable, __file__, "--kind", kind, str(config), str(cache), str(directory)]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, default=2_200_000_000)
    parser.add_argument("--corpora", type=int, default=800)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("paths", nargs="*", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.kind:
        print(first_batch(options.kind, *options.paths))
        return
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        config, cache = make_cache(work, Case(options.corpora, 4096, BATCH), options.bytes)
        for turn in range(options.rounds):
            for kind in KINDS[:: 1 if turn % 2 else -1]:
                seconds[kind].append(in_a_process(kind, config, cache, work))
        facts = machine(work)
    medians = {kind: statistics.median(found) for kind, found in seconds.items()}
    if options.json:
        print(json.dumps({"machine": facts, "results": medians}, indent=2))
        return
    print(", ".join(f"{name}: {value}" for name, value in facts.items()), end="\n\n")
    print("| | first batch | |\n|---|--:|--:|")
    for kind, found in medians.items():
        print(f"| {kind} | {found:.2f} s | {medians[KINDS[0]] / found:.1f}x |")


if __name__ == "__main__":
    main()
