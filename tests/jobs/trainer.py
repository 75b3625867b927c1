"""Train from a cache, with new workers in each epoch, until a file appears; compare what is read.

python -m tests.jobs.trainer CACHE STORE STOP
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Subset

import distcache

CACHE, STORE, STOP = sys.argv[1:]


def epoch(local: str | None) -> tuple[str, bool]:
    """Read an epoch of some samples; return the digest of its tokens, and whether it is local."""
    cache = distcache.open(CACHE, local=local)
    train = cache.dataset("train")
    chosen = Subset(train, range(0, len(train), 7))
    digest = hashlib.sha256()
    for batch in DataLoader(chosen, batch_size=16, num_workers=2):
        digest.update(batch["tokens"].numpy().tobytes())
    return digest.hexdigest(), cache.is_local


def main() -> None:
    """Fail at the first wrong epoch."""
    warnings.simplefilter("ignore", distcache.SharedFileWarning)
    expected, _ = epoch("/nonexistent")
    epochs = local = 0
    while not Path(STOP).exists():
        found, is_local = epoch(STORE)
        assert found == expected, f"epoch {epochs} has other tokens"
        epochs += 1
        local += is_local
    sys.stdout.write(json.dumps({"epochs": epochs, "local": local}))


if __name__ == "__main__":
    main()
