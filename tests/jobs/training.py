"""What torchrun starts: a tiny model trains from a cache.

    torchrun --nproc-per-node 4 -m tests.jobs.training TIMEOUT KIND WORDS...

Every rank writes a line of JSON when it is done. KIND is ``distcache CACHE STEPS``, ``agree CACHE
OTHER RANK`` (one rank opens another cache), or ``open CACHE OTHER RANK`` (likewise, together).
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import distcache
from distcache.errors import DistcacheError, KeyMismatch
from distcache.train.dataset import CachedDataset
from distcache.train.provider import open_on_all_ranks

VOCABULARY = 30_000
BATCH = 4


def train(dataset: Any, steps: int, **facts: Any) -> None:
    """Train for some steps, and say the result of it."""
    ranks = dist.get_world_size()
    known = isinstance(dataset, CachedDataset)
    sampler = distcache.ResumableSampler(
        dataset if known else len(dataset), BATCH, dist.get_rank(), ranks
    )
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 8), torch.nn.Linear(8, VOCABULARY))
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(parallel.parameters(), lr=0.05)
    losses = []
    loader = DataLoader(dataset, batch_sampler=sampler)
    for _, batch in zip(range(steps), loader, strict=False):
        logits = parallel(batch["tokens"])
        loss = cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = sum(float(weight.double().sum()) for weight in model.parameters())
    tell(losses=losses, weights=weights, state=sampler.state_dict(), **facts)


def tell(**facts: Any) -> None:
    """Write what this rank has found, as one line."""
    sys.stdout.write(json.dumps({"rank": dist.get_rank(), **facts}) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Do it."""
    timeout, kind, *words = sys.argv[1:]
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    dist.barrier()
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=float(timeout)), dist.group.WORLD)
    if kind == "agree":
        chosen = words[1] if dist.get_rank() == int(words[2]) else words[0]
        try:
            distcache.agree(distcache.open(chosen))
            tell(agreed=True)
        except KeyMismatch as error:
            tell(agreed=False, problem=str(error))
    elif kind == "open":
        chosen = words[1] if dist.get_rank() == int(words[2]) else words[0]
        try:
            tell(key=open_on_all_ranks(chosen, None).key)
        except DistcacheError as error:
            tell(key=None, problem=str(error))
    else:
        cache = distcache.open(words[0])
        distcache.agree(cache)
        train(cache.dataset("train"), int(words[1]), local=cache.is_local)
    dist.barrier()  # gloo may abort a rank whose peers have closed their connections
    dist.destroy_process_group()


main()
