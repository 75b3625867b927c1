"""Megatron-Core as a peer: it builds indices, and has datasets; for processes of cases alone."""

from __future__ import annotations

import json
import resource
import tempfile
import time
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any, ClassVar


class Tokenizer:
    """As much of a tokenizer as index building needs."""

    eod = 0
    pad = -1
    vocab_size = None
    special_tokens_dict: ClassVar[dict[str, int]] = {}
    unique_identifiers: ClassVar[OrderedDict[str, str]] = OrderedDict({"class": "NullTokenizer"})


def start() -> None:
    """Import what is wanted later, and make a group of one rank."""
    warnings.simplefilter("ignore")
    import megatron.core.datasets.gpt_dataset  # noqa: F401, PLC0415
    import torch  # noqa: PLC0415

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    meeting = tempfile.mktemp()  # which torch makes, and must not be there
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=0, world_size=1
    )


def datasets(config: str | Path, cache: str | Path, **more: Any) -> list[Any]:
    """Return Megatron's datasets for a configuration; it builds what is not in the directory."""
    from megatron.core.datasets.blended_megatron_dataset_builder import (  # noqa: PLC0415
        BlendedMegatronDatasetBuilder,
    )
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig  # noqa: PLC0415

    fields = json.loads(Path(config).read_text(encoding="utf-8"))
    paths = [source["path"] for source in fields["blend"]]
    weights = [source.get("weight") for source in fields["blend"]]
    asked = GPTDatasetConfig(
        random_seed=fields["seed"],
        sequence_length=fields["sequence_length"],
        blend=(paths, None if None in weights else weights),
        split=fields["split"],
        mid_level_dataset_surplus=fields["mid_level_dataset_surplus"],
        path_to_cache=str(cache),
        tokenizer=Tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        **more,
    )
    sizes = [fields["samples"][split] for split in ("train", "valid", "test")]
    found: list[Any] = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, asked).build()
    return found


def build(config: str, cache: str) -> dict[str, float]:
    """Build indices, and return the seconds of the builder alone."""
    start()
    begin = time.perf_counter()
    datasets(config, cache, mmap_bin_files=False)  # else it holds two files of each corpus open
    return {"builder": time.perf_counter() - begin}
