"""A rank of training from a bucket.

python -m tests.jobs.bucket_trainer URL STORE RANK RANKS STEPS [--workers N] [--budget SIZE]:
writes a digest of its batches, and how many bytes the fetcher has fetched and used.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, default_collate

import distcache
from distcache.node.ahead.client import fetcher_status

PATIENCE = 120.0  # seconds
CLIENTS = {"obstore", "boto3", "multistorageclient", "distcache.storage.bucket"}


def held(store: str) -> int:
    """Return how many bytes are ahead."""
    found = fetcher_status(Path(store) / "ahead")
    return 0 if found is None else found.held


def streams(store: str) -> int:
    """Return how many ranks read ahead."""
    found = fetcher_status(Path(store) / "ahead")
    return 0 if found is None else found.streams


def collate(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Make a batch, in the process that has read its samples: there is no network code."""
    assert not CLIENTS & sys.modules.keys()
    batch: dict[str, torch.Tensor] = default_collate(rows)
    return batch


def main() -> None:
    """Do it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cache")
    parser.add_argument("store")
    parser.add_argument("rank", type=int)
    parser.add_argument("ranks", type=int)
    parser.add_argument("steps", type=int)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--budget", default="16M")
    parser.add_argument("--beside", type=int, default=0, help="Ranks to wait for, after a batch.")
    parser.add_argument("--pause", type=float, default=0.0, help="Seconds after each batch.")
    parser.add_argument("--until", type=int, default=0, help="Bytes ahead, after the first batch.")
    options = parser.parse_args()
    dataset = distcache.open(options.cache, options.store or None).dataset("train")
    sampler = distcache.ResumableSampler(dataset, 4, options.rank, options.ranks)
    ahead = distcache.ReadAhead(sampler, dataset, options.budget)
    digest = hashlib.sha256()
    loader = DataLoader(
        dataset, batch_sampler=ahead, num_workers=options.workers, collate_fn=collate
    )
    for step, batch in enumerate(loader):
        if step == options.steps:
            break
        digest.update(batch["tokens"].numpy().tobytes())
        end = time.monotonic() + PATIENCE
        while step == 0 and time.monotonic() < end:
            if held(options.store) >= options.until and streams(options.store) >= options.beside:
                break
            time.sleep(0.1)
        time.sleep(options.pause)
    assert not CLIENTS & sys.modules.keys()
    found = fetcher_status(Path(options.store) / "ahead") if options.store else None
    facts = {"digest": digest.hexdigest(), "fetcher": found is not None}
    if found is not None:
        facts |= {"fetched": found.fetched, "used": found.used, "requests": found.requests}
    sys.stdout.write(json.dumps(facts) + "\n")


if __name__ == "__main__":
    main()
