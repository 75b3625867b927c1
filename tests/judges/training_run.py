"""A run of two ranks on a CPU, by Megatron's loader, batch calculator and log: DIRECTORY JOB.

The model is a tiny one of torch; what Megatron asks of GPUs answers for the CPU. A log is written
to standard output, and what each rank was served to ``DIRECTORY/served-JOB.json``.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import distcache
from tests.judges.training import parser

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core import num_microbatches_calculator as calculator
    from megatron.core.timers import Timers
    from megatron.training import arguments, global_vars, training
    from megatron.training.datasets import data_samplers

LENGTH, MICRO, RANKS = 16, 2, 2
WORDS = (
    f"--micro-batch-size {MICRO} --seq-length {LENGTH} --train-iters 30 --num-layers 1 "
    "--hidden-size 8 --num-attention-heads 1 --max-position-embeddings 16 --lr 0.1 "
    f"--step-batch-size-schedule 0:8,{20 * LENGTH}:12 --num-workers 0"
)


def on_the_cpu() -> None:
    """Let what logging asks of GPUs answer for the CPU."""
    torch.cuda.synchronize = lambda *_: None  # type: ignore[assignment]
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
    for name in ("tensor", "zeros"):
        setattr(torch, name, functools.partial(_without_device, getattr(torch, name)))
    training.reduce_max_stat_across_model_parallel_group = lambda value, group=None: value
    training.num_floating_point_operations = lambda *_, **__: 1.0
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )


def _without_device(make: Any, *values: Any, **options: Any) -> Any:
    options.pop("device", None)
    return make(*values, **options)


def set_up(interval: int, consumed: int) -> Any:
    """Set Megatron's options and calculators, and print the options."""
    options = parser().parse_args([*WORDS.split(), "--log-interval", str(interval)])
    more = {
        "rank": 0,
        "world_size": RANKS,
        "data_parallel_size": RANKS,
        "consumed_train_samples": consumed,
        "skipped_train_samples": 0,
        "gtp_weight_remat_size": 1,
        "dataloader_type": options.dataloader_type or "single",
    }
    for name, value in more.items():
        setattr(options, name, value)
    global_vars.unset_global_variables()
    global_vars.set_args(options)
    global_vars._GLOBAL_TIMERS = Timers(0, "minmax")
    global_vars._GLOBAL_ENERGY_MONITOR = SimpleNamespace()
    calculator.unset_num_microbatches_calculator()
    calculator.init_num_microbatches_calculator(
        rank=0,
        rampup_batch_size=None,
        global_batch_size=None,
        micro_batch_size=MICRO,
        data_parallel_size=RANKS,
        decrease_batch_size_if_needed=False,
        step_batch_size_schedule=options.step_batch_size_schedule,
        seq_length=LENGTH,
    )
    arguments._print_args("arguments", options)
    return options


def main() -> None:
    """Train, and log."""
    directory, job, first, last, consumed, interval = Path(sys.argv[1]), *map(int, sys.argv[2:])
    on_the_cpu()
    options = set_up(interval, consumed)
    if first:
        where = f"[ t 1/1, p 1/1 ] at iteration {first}"
        sys.stdout.write(f"  successfully loaded checkpoint from /c {where}\n")
    dataset = distcache.open(os.environ["CACHE"]).dataset("train", position=True)
    model = torch.nn.Embedding(1 << 14, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loaders = []
    for rank in range(RANKS):
        data_samplers.mpu = SimpleNamespace(
            get_data_parallel_rank=lambda rank=rank: rank,
            get_data_parallel_world_size=lambda: RANKS,
        )
        loaders.append(iter(data_samplers.build_pretraining_data_loader(dataset, consumed)))
    served, total = [], {}
    global_vars.get_timers()("interval-time", log_level=0).start(barrier=False)
    for iteration in range(first + 1, last + 1):
        calculator.update_num_microbatches(options.consumed_train_samples, verbose=False)
        for micro in range(calculator.get_num_microbatches()):
            for rank, loader in enumerate(loaders):
                batch = next(loader)
                loss = model(batch["tokens"] % (1 << 14)).square().mean()
                loss.backward()
                served += [
                    [iteration, micro, rank, slot, position]
                    for slot, position in enumerate(batch["position"].tolist())
                ]
        optimizer.step()
        optimizer.zero_grad()
        options.consumed_train_samples += MICRO * RANKS * calculator.get_num_microbatches()
        training.training_log(
            {"lm loss": loss.detach()}, total, 0.1, iteration, 1.0, False, 0, 1.0, None, None, None
        )
    (directory / f"served-{job}.json").write_text(json.dumps(served))
    (directory / f"consumed-{job}.json").write_text(str(options.consumed_train_samples))


if __name__ == "__main__":
    main()
