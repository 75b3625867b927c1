"""Build Megatron-style index caches with all MPI ranks before training starts, and train from them.

The names below are imported when they are first used: importing distcache imports neither torch
nor MPI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distcache.extras import importing

if TYPE_CHECKING:
    from distcache.cache.readiness import wait
    from distcache.errors import LoaderWarning, ShardWaitWarning, SharedFileWarning, StateWarning
    from distcache.ledger.trace import trace
    from distcache.train.batches import Batches
    from distcache.train.bin_reader import MegatronBinReader
    from distcache.train.open import open_cache as open  # noqa: A004
    from distcache.train.provider import agree
    from distcache.train.read_ahead import ReadAhead
    from distcache.train.sampler import ResumableSampler

__all__ = [
    "Batches",
    "LoaderWarning",
    "MegatronBinReader",
    "ReadAhead",
    "ResumableSampler",
    "ShardWaitWarning",
    "SharedFileWarning",
    "StateWarning",
    "__version__",
    "agree",
    "open",
    "trace",
    "wait",
]

__version__ = "0.3.0"

__getattr__ = importing(
    __name__,
    {
        "Batches": ("distcache.train.batches", "Batches"),
        "LoaderWarning": ("distcache.errors", "LoaderWarning"),
        "MegatronBinReader": ("distcache.train.bin_reader", "MegatronBinReader"),
        "ReadAhead": ("distcache.train.read_ahead", "ReadAhead"),
        "ResumableSampler": ("distcache.train.sampler", "ResumableSampler"),
        "ShardWaitWarning": ("distcache.errors", "ShardWaitWarning"),
        "SharedFileWarning": ("distcache.errors", "SharedFileWarning"),
        "StateWarning": ("distcache.errors", "StateWarning"),
        "agree": ("distcache.train.provider", "agree"),
        "megatron": ("distcache.megatron", ""),
        "open": ("distcache.train.open", "open_cache"),
        "trace": ("distcache.ledger.trace", "trace"),
        "wait": ("distcache.cache.readiness", "wait"),
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
