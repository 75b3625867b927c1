"""The fetcher: one process per node that reads tokens from buckets for all training processes."""

from typing import Final

LOCK: Final = "fetcher.lock"
"""The name of the lock that a running fetcher holds in its directory."""
