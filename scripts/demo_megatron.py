"""Megatron-Core builds what distcache has built; files and samples are compared: for `make demo`.

python scripts/demo_megatron.py CONFIG CACHE EXPORTED DIRECTORY [SAMPLES]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any, ClassVar

import torch
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

import distcache
from distcache.builder.configuration import load_config
from distcache.plan.config import SPLITS, Config

NAMES = ("tokens", "labels", "loss_mask", "position_ids")


class Tokenizer:
    """As much of a tokenizer as Megatron's datasets need."""

    eod = 0
    pad = -1
    vocab_size = None
    special_tokens_dict: ClassVar[dict[str, int]] = {}
    unique_identifiers: ClassVar[OrderedDict[str, str]] = OrderedDict({"class": "DemoTokenizer"})


def build_with_megatron(config: Config, directory: Path) -> tuple[Any, float]:
    """Return Megatron's training dataset, and the seconds that it took to build all three."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{directory.absolute()}.store", rank=0, world_size=1
    )
    sources = config.blends()["train"]
    weights = [source.weight for source in sources]
    options = GPTDatasetConfig(
        random_seed=config.seed,
        sequence_length=config.sequence_length,
        blend=([source.path for source in sources], weights),
        split=config.split,
        mid_level_dataset_surplus=config.mid_level_dataset_surplus,
        path_to_cache=str(directory),
        tokenizer=Tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    sizes = [config.samples_of(split) for split in SPLITS]
    begin = time.perf_counter()
    built = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, options).build()
    return built[0], time.perf_counter() - begin


def main() -> None:
    """Build, compare, and print what was equal and how long each took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("config", "cache", "exported", "directory"):
        parser.add_argument(name, type=Path)
    parser.add_argument("samples", type=int, nargs="?", default=0)
    asked = parser.parse_args()
    theirs, seconds = build_with_megatron(load_config(asked.config), asked.directory)
    files = sorted(asked.directory.iterdir())
    for path in files:
        if (asked.exported / path.name).read_bytes() != path.read_bytes():
            sys.exit(f"{path.name} differs")
    ours = distcache.open(asked.cache).dataset("train", eod=0)
    for i in range(asked.samples):
        mine, other = ours[i], theirs[i]
        if not all(torch.equal(mine[name], torch.as_tensor(other[name])) for name in NAMES):
            sys.exit(f"sample {i} differs")
    record = json.loads(asked.cache.with_suffix(".h5.build.json").read_text(encoding="utf-8"))
    own = sum(record["ranks"][0]["seconds"].values())
    compared = f"{len(files)} of {len(files)} files equal"
    if asked.samples:
        compared += f", {asked.samples:,} of {asked.samples:,} samples equal"
    print(
        f"{compared}; Megatron-Core on one rank {seconds:.2f} s, "
        f"distcache on {len(record['ranks'])} ranks {own:.2f} s"
    )


if __name__ == "__main__":
    main()
