"""The errors of names that belong to something else than a cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from distcache.errors import ConfigError, DistcacheError, NotReady

MAX_NAMED: Final = 8  # caches of a directory in a message


def missing_error(path: str | Path) -> DistcacheError:
    """Return the error of a cache that does not exist; the name may be a corpus's."""
    if Path(f"{path}.idx").exists():
        return ConfigError(f"{path}: is a corpus; give a cache, which `distcache build` writes")
    return NotReady(f"{path}: no such cache; build it first")


def directory_error(directory: Path) -> DistcacheError:
    """Return the error of a directory, with the caches in it."""
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(".h5"))
    except OSError:
        names = []
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    listed = ", ".join(str(directory / name) for name in names[:MAX_NAMED])
    there = f"; the caches in it are {listed}{more}" if names else ", and has no cache in it"
    return ConfigError(f"{directory}: is a directory{there}")
