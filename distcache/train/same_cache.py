"""Check that all ranks train from the same cache, in one small collective."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from distcache.errors import ConfigError, KeyMismatch
from distcache.train.open import OpenCache

__all__ = ["agree"]


def agree(cache: OpenCache, group: Any = None) -> None:
    """Compare the cache's key over the ranks of a process group. Collective.

    Parameters
    ----------
    cache : OpenCache
        The open cache of this rank.
    group : ProcessGroup or None
        An initialized group; by default all ranks.

    Raises
    ------
    ConfigError
        If there is no process group.
    KeyMismatch
        On all ranks the same; names the ranks whose key differs from most.
    """
    if not isinstance(cache, OpenCache):
        raise ConfigError(f"agree({cache!r}): expected a cache, as distcache.open returns it")
    if not dist.is_available() or not dist.is_initialized():
        raise ConfigError("agree: call torch.distributed.init_process_group first")
    nccl = "nccl" in str(dist.get_backend(group))
    device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
    mine = torch.tensor(list(bytes.fromhex(cache.key)), dtype=torch.uint8, device=device)
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, mine, group=group)
    keys = [bytes(key.tolist()).hex() for key in found]
    if len(set(keys)) > 1:
        raise KeyMismatch(*disagreement(keys))


def disagreement(keys: list[str]) -> list[str]:
    """Return which ranks have another key than most, or than rank 0 if there is no majority."""
    common = max(keys, key=keys.count)
    if 2 * keys.count(common) <= len(keys):
        common = keys[0]
    others = dict.fromkeys(key for key in keys if key != common)
    return [
        f"rank(s) {', '.join(str(rank) for rank, key in enumerate(keys) if key == other)} read the "
        f"cache with key {other}, the others {common}; localize it again on their nodes"
        for other in others
    ]
