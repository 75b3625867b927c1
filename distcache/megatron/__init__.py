"""Everything of Megatron-Core: options, names, descriptions, exported files.

What a training script uses, `provider` and `CachedDatasetProvider`, is imported when it is first
used, from `distcache.train`, and then needs torch and Megatron.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distcache.train.bridge import CachedDatasetProvider
    from distcache.train.provider import provider

__all__ = ["CachedDatasetProvider", "provider"]

_PLACES = {
    "CachedDatasetProvider": "distcache.train.bridge",
    "provider": "distcache.train.provider",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
