"""A cache as the data of Megatron-Bridge: use(config, CACHE) before pretrain(config)."""

from typing import Any

from distcache.megatron import CachedDatasetProvider


def use(config: Any, cache: str) -> None:
    """Let a configuration of Megatron-Bridge train from a cache.

    Parameters
    ----------
    config : ConfigContainer
        Configuration of a recipe, whose model says the sequence length of the cache.
    cache : str
        Path of the shared cache; this node's copy is read if there is one.
    """
    config.dataset = CachedDatasetProvider(
        cache=cache,
        seq_length=config.model.seq_length,
        random_seed=config.rng.seed,
        num_workers=2,
    )
