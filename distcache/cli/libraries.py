"""What to say where an optional library is missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from distcache.errors import ConfigError

__all__ = ["needing_libraries"]


@contextlib.contextmanager
def needing_libraries() -> Iterator[None]:
    """Name the extra that has the libraries which importing within the block needs.

    Raises
    ------
    ConfigError
        If one is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(
            f'{error.name} is not installed; pip install "distcache[ingest]"'
        ) from error
