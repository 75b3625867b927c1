"""Run by other benchmarks in a process of its own: Megatron-Core builds its index files.

Writes one line of JSON: the seconds that its builder took, and its peak memory in bytes.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import ClassVar

warnings.simplefilter("ignore")
import torch
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig


class Tokenizer:
    """As much of a tokenizer as index building needs."""

    eod = 0
    pad = -1
    vocab_size = None
    special_tokens_dict: ClassVar[dict[str, int]] = {}
    unique_identifiers: ClassVar[OrderedDict[str, str]] = OrderedDict({"class": "NullTokenizer"})


def peak_memory() -> int:
    """Return the most memory that this process has held, in bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def main() -> None:
    """Build what the JSON file in the first argument asks for, into the second."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    fields = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    cache = Path(sys.argv[2])
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{cache}.store", rank=0, world_size=1
    )
    paths = [source["path"] for source in fields["blend"]]
    weights = [source.get("weight") for source in fields["blend"]]
    config = GPTDatasetConfig(
        random_seed=fields["seed"],
        sequence_length=fields["sequence_length"],
        blend=(paths, None if None in weights else weights),
        split=fields["split"],
        mid_level_dataset_surplus=fields["mid_level_dataset_surplus"],
        path_to_cache=str(cache),
        tokenizer=Tokenizer(),
        mmap_bin_files=False,  # else it holds two files of each corpus open
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )
    sizes = [fields["samples"][split] for split in ("train", "valid", "test")]
    begin = time.perf_counter()
    BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()
    print(json.dumps({"builder": time.perf_counter() - begin, "memory": peak_memory()}))


if __name__ == "__main__":
    main()
