"""Check that all ranks train from the same cache, in one small collective."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from distcache.errors import ConfigError, DistcacheError, KeyMismatch, NotReady
from distcache.train.open import OpenCache, open_cache

NO_KEY: Final = bytes(32)  # of a rank that could not open its cache


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
    _require_one_key(_gather(bytes.fromhex(cache.key), group))


def open_on_all_ranks(path: str | Path, local: str | Path | None) -> OpenCache:
    """Open a cache on every rank of torch.distributed, if it is initialized. Collective then.

    Parameters
    ----------
    path, local
        Arguments of `open_cache`.

    Raises
    ------
    DistcacheError
        This rank's own, as `open_cache` raises it.
    NotReady
        If only other ranks could not open it; names them.
    KeyMismatch
        On all ranks the same, if they have opened different caches.
    """
    if not dist.is_available() or not dist.is_initialized():
        return open_cache(path, local)
    try:
        cache = open_cache(path, local)
    except DistcacheError:
        _gather(NO_KEY, None)  # nobody waits for this rank
        raise
    keys = _gather(bytes.fromhex(cache.key), None)
    failed = [str(rank) for rank, key in enumerate(keys) if key == NO_KEY]
    if failed:
        raise NotReady(f"{path}: rank(s) {', '.join(failed)} could not open it, and say why")
    _require_one_key(keys)
    return cache


def _gather(key: bytes, group: Any) -> list[bytes]:
    """Return the keys of all ranks. Collective."""
    nccl = "nccl" in str(dist.get_backend(group))
    device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
    mine = torch.tensor(list(key), dtype=torch.uint8, device=device)
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, mine, group=group)
    return [bytes(other.tolist()) for other in found]


def _require_one_key(keys: list[bytes]) -> None:
    if len(set(keys)) > 1:
        raise KeyMismatch(*disagreement([key.hex() for key in keys]))


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
