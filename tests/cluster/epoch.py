"""Read an epoch under torchrun, and write what was read, a file for each rank.

    torchrun ... -m tests.cluster.epoch OUT SHARED-FILES...

The shared files are moved away first: what is read must be on the node's own disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import distcache


def read_maps() -> str:
    """Return the files that this process has mapped, and those that it has open."""
    opened = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return Path("/proc/self/maps").read_text() + "\n".join(opened)


def digest(tokens: torch.Tensor) -> str:
    """Return the digest of a sample's tokens."""
    return hashlib.md5(tokens.numpy().tobytes()).hexdigest()


def main() -> None:
    """Do it."""
    out, *hidden = map(Path, sys.argv[1:])
    dist.init_process_group("gloo", timeout=timedelta(seconds=90))
    if dist.get_rank() == 0:
        for path in hidden:
            path.rename(f"{path}.hidden")
    dist.barrier()
    cache = distcache.open(os.environ["DISTCACHE_CACHE"])
    distcache.agree(cache)
    dataset = cache.dataset("train")
    sampler = distcache.ResumableSampler(
        len(dataset), 4, dist.get_rank(), dist.get_world_size(), drop_last=False
    )
    batches = list(sampler)
    loader = DataLoader(dataset, batch_sampler=batches)
    samples = [
        [index, digest(tokens)]
        for ids, batch in zip(batches, loader, strict=True)
        for index, tokens in zip(ids, batch["tokens"], strict=True)
        if index is not None
    ]
    found = {
        "key": cache.key,
        "local": cache.is_local,
        "host": os.uname().nodename,
        "files": read_maps(),
        "samples": samples,
    }
    (out / f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
