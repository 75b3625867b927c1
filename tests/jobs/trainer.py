"""Train from a cache, with new workers in each epoch, until a file appears; compare what is read.

At least four epochs are read from the local copy, however slow the machine is.

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

LOCAL_EPOCHS = 4


def epoch(path: str, local: str) -> tuple[str, bool]:
    """Read an epoch of some samples; return the digest of its tokens, and whether it is local."""
    cache = distcache.open(path, local=local)
    train = cache.dataset("train")
    chosen = Subset(train, range(0, len(train), 7))
    digest = hashlib.sha256()
    for batch in DataLoader(chosen, batch_size=16, num_workers=2):
        digest.update(batch["tokens"].numpy().tobytes())
    return digest.hexdigest(), cache.is_local


def main() -> None:
    """Fail at the first wrong epoch."""
    warnings.simplefilter("ignore", distcache.SharedFileWarning)
    path, store, stop = sys.argv[1:]
    expected, _ = epoch(path, "/nonexistent")
    epochs = local = 0
    while local < LOCAL_EPOCHS or not Path(stop).exists():
        found, is_local = epoch(path, store)
        assert found == expected, f"epoch {epochs} has other tokens"
        epochs += 1
        local += is_local
    sys.stdout.write(json.dumps({"epochs": epochs, "local": local}))


if __name__ == "__main__":
    main()
