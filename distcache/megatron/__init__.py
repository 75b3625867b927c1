"""Everything of Megatron-Core: options, names, descriptions, exported files.

What a training script uses, `provider` and `CachedDatasetProvider`, is imported when it is first
used, from `distcache.train`, and then needs torch and Megatron.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcache.extras import importing

if TYPE_CHECKING:
    from distcache.train.bridge import CachedDatasetProvider
    from distcache.train.provider import MegatronProvider

    provider = MegatronProvider

__all__ = ["CachedDatasetProvider", "provider"]

__getattr__ = importing(
    __name__,
    {
        "CachedDatasetProvider": ("distcache.train.bridge", "CachedDatasetProvider"),
        "provider": ("distcache.train.provider", "MegatronProvider"),
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
