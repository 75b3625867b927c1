"""Read Megatron-LM's options as its training does, and make Megatron-Core's loaders of them."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.judges.megatron import (
    BlendedMegatronDatasetBuilder,
    GPTDataset,
    GPTDatasetConfig,
    Tokenizer,
)


def flags_in(output: str) -> list[str]:
    """Return the flags that a command has printed for Megatron."""
    text = output.partition("# for Megatron-Core:\n")[2]
    return shlex.split(text.replace("\\\n", " "), comments=True)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the options that say which data is used."""
    parser = argparse.ArgumentParser()
    for name in ("--data-path", "--train-data-path", "--valid-data-path", "--test-data-path"):
        parser.add_argument(name, nargs="*")
    for name in (
        "--data-args-path",
        "--per-split-data-args-path",
        "--per-dataset-sequences-path",
        "--data-cache-path",
        "--object-storage-cache-path",
        "--split",
    ):
        parser.add_argument(name)
    parser.add_argument("--seq-length", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--train-samples", type=int)
    parser.add_argument("--mid-level-dataset-surplus", type=float, default=0.005)
    parser.add_argument("--full-validation", action="store_true")
    parser.add_argument("--multiple-validation-sets", action="store_true")
    parser.add_argument("--dataloader-defer-npy-index-mmap", action="store_true")
    parser.add_argument("--dataloader-fast-cache-load", action="store_true")
    parser.add_argument("--no-mmap-bin-files", dest="mmap_bin_files", action="store_false")
    return parser.parse_args(list(words))


def blend_of(words: Sequence[str] | None) -> Any:
    """Return prefixes and weights; weights are there where words come in pairs with numbers."""
    if not words:
        return None
    if len(words) % 2:
        return list(words), None
    return list(words[1::2]), [float(word) for word in words[::2]]


def datasets_of(
    words: Sequence[str], sizes: Sequence[int | None], tokenizer: dict[str, Any], vocabulary: int
) -> list[Any]:
    """Return the datasets of each split for a command line.

    Parameters
    ----------
    words : sequence of str
        Megatron's options.
    sizes : sequence of int or None
        Samples of each split, as batch size, iterations and evaluations would make them.
    tokenizer : dict
        Its identifiers.
    vocabulary : int
        Its size.
    """
    options = parse(words)
    if options.data_args_path:
        options.data_path = Path(options.data_args_path).read_text().split()
    per_split = None
    if options.per_split_data_args_path:
        document = json.loads(Path(options.per_split_data_args_path).read_text())
        per_split = [blend_of(document[split]) for split in ("train", "valid", "test")]
    sequences = None
    if options.per_dataset_sequences_path:
        sequences = json.loads(Path(options.per_dataset_sequences_path).read_text())
    judge = Tokenizer(tokenizer)
    judge.vocab_size = vocabulary  # type: ignore[misc]
    config = GPTDatasetConfig(
        random_seed=options.seed,
        sequence_length=options.seq_length,
        blend=blend_of(options.data_path),
        blend_per_split=per_split,
        split=options.split,
        path_to_cache=options.data_cache_path,
        mid_level_dataset_surplus=options.mid_level_dataset_surplus,
        multiple_validation_sets=options.multiple_validation_sets,
        full_validation=options.full_validation,
        sequences_per_dataset=sequences,
        defer_npy_index_mmap=options.dataloader_defer_npy_index_mmap,
        fast_cache_load=options.dataloader_fast_cache_load,
        object_storage_cache_path=options.object_storage_cache_path,
        mmap_bin_files=options.mmap_bin_files,
        tokenizer=judge,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    built: list[Any] = BlendedMegatronDatasetBuilder(
        GPTDataset, list(sizes), lambda: True, config
    ).build()
    return built
