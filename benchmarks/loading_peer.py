"""Run by `loading.py` in processes of their own: open a cache for training, and read one sample.

    python benchmarks/loading_peer.py megatron CONFIG DIRECTORY
    python benchmarks/loading_peer.py distcache CACHE
    python benchmarks/loading_peer.py cold-distcache CACHE BATCH SEED      # or cold-megatron

Writes one line of JSON: seconds beyond imports, open descriptors and mappings that came with it; or
the 95th percentile of the seconds of batches.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

BATCHES = 100


def megatron_dataset(config: Path, directory: Path) -> Any:
    """Return Megatron's training dataset for a configuration whose indices are in a directory."""
    warnings.simplefilter("ignore")
    from megatron.core.datasets.blended_megatron_dataset_builder import (  # noqa: PLC0415
        BlendedMegatronDatasetBuilder,
    )
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig  # noqa: PLC0415
    from peer import Tokenizer  # noqa: PLC0415

    fields = json.loads(config.read_text(encoding="utf-8"))
    blend = [source["path"] for source in fields["blend"]]
    arguments = GPTDatasetConfig(
        random_seed=fields["seed"],
        sequence_length=fields["sequence_length"],
        blend=(blend, [source["weight"] for source in fields["blend"]]),
        split=fields["split"],
        mid_level_dataset_surplus=fields["mid_level_dataset_surplus"],
        path_to_cache=str(directory),
        tokenizer=Tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    sizes = [fields["samples"][split] for split in ("train", "valid", "test")]
    return BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, arguments).build()[0]


def open_files() -> tuple[int, int]:
    """Return the numbers of this process's descriptors and mappings."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").count("\n")
    return len(list(Path("/proc/self/fd").iterdir())), maps


def latency(dataset: Any, batch: int, seed: int) -> float:
    """Return the 95th percentile of the seconds of batches from all over a dataset."""
    from torch.utils.data import DataLoader  # noqa: PLC0415

    order = np.random.default_rng(seed).permutation(len(dataset))[: (BATCHES + 2) * batch]
    loader = iter(DataLoader(dataset, batch, sampler=order.tolist()))
    seconds = []
    for _ in range(BATCHES + 2):
        begin = time.perf_counter()
        next(loader)
        seconds.append(time.perf_counter() - begin)
    return float(np.percentile(seconds[2:], 95))


def main() -> None:
    """Open what the words say."""
    kind, *words = sys.argv[1:]
    cold = kind.startswith("cold-")
    kind = kind.removeprefix("cold-")
    import torch  # noqa: PLC0415

    if kind == "megatron":
        import megatron.core.datasets.gpt_dataset  # noqa: F401, PLC0415

        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1
        )
    else:
        import distcache.train.dataset  # noqa: F401, PLC0415  else imported with the first one
        from distcache.train.open import open_cache  # noqa: PLC0415
    before = open_files()
    begin = time.perf_counter()
    if kind == "megatron":
        dataset = megatron_dataset(Path(words[0]), Path(words[1]))
    else:
        dataset = open_cache(words[0]).dataset("train")
    if cold:
        print(json.dumps({"95th percentile": latency(dataset, int(words[-2]), int(words[-1]))}))
        return
    assert len(dataset[0]["tokens"]) > 0
    seconds = time.perf_counter() - begin
    descriptors, mappings = (after - old for after, old in zip(open_files(), before, strict=True))
    print(json.dumps({"seconds": seconds, "descriptors": descriptors, "mappings": mappings}))


if __name__ == "__main__":
    main()
