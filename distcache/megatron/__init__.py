"""Everything of Megatron-Core: options, names, descriptions, exported files.

What a training script uses, `provider` and `CachedDatasetProvider`, is imported when it is first
used, from `distcache.train`, and then needs torch and Megatron.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distcache.train.bridge import CachedDatasetProvider
    from distcache.train.provider import MegatronProvider

    provider = MegatronProvider

__all__ = ["CachedDatasetProvider", "provider"]

_PLACES = {
    "CachedDatasetProvider": ("distcache.train.bridge", "CachedDatasetProvider"),
    "provider": ("distcache.train.provider", "MegatronProvider"),
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PLACES[name]
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
