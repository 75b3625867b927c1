"""A step of training under torchrun, from this node's copy: `make demo` runs this.

torchrun --nproc-per-node 2 scripts/demo_train.py CACHE TOKENIZER
"""

from __future__ import annotations

import sys

import torch
from tokenizers import Tokenizer
from torch.utils.data import DataLoader

import distcache


def main() -> None:
    """Load a few batches on every rank, and show what a sample says."""
    torch.distributed.init_process_group("gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    tokenizer = Tokenizer.from_file(sys.argv[2])
    cache = distcache.open(sys.argv[1])
    distcache.agree(cache)
    dataset = cache.dataset("train", eod=tokenizer.token_to_id("<|endoftext|>"))
    sampler = distcache.ResumableSampler(
        dataset, micro_batch_size=4, data_parallel_rank=rank, data_parallel_size=ranks
    )
    batches = iter(DataLoader(dataset, batch_sampler=sampler))
    first = next(batches)
    total = torch.tensor(sum(batch["tokens"].numel() for batch in (first, next(batches))))
    torch.distributed.all_reduce(total)
    if rank == 0:
        print(f"{ranks} ranks read {total.item():,} tokens; local copy: {cache.is_local}")
        text = tokenizer.decode(first["tokens"][0][:60].tolist(), skip_special_tokens=False)
        print(f"the first sample begins:\n{text}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
