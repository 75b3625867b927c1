"""The directory of a node's store, and the number of nodes, from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from distcache.errors import ConfigError
from distcache.storage.files import require_text
from distcache.storage.url import require_file

LOCAL_DIRECTORY: Final = "DISTCACHE_LOCAL_DIR"
# Directories shared with others: the store is a directory of the user below them.
SCRATCH: Final = ("SLURM_TMPDIR", "TMPDIR")


def local_directory(given: str | Path | None, environment: Mapping[str, str]) -> Path | None:
    """Return the directory of this node's store, or None if it is not set.

    Parameters
    ----------
    given : path or None
        What the user asks for; it comes first.
    environment : mapping
        Then DISTCACHE_LOCAL_DIR, then a directory of the user's in SLURM_TMPDIR or TMPDIR.
    """
    if given == "":
        raise ConfigError("--store is empty; give a directory of the node")
    if given is not None:
        require_file(given, "--store", "give a directory of the node")
        return Path(given).absolute()
    if named := environment.get(LOCAL_DIRECTORY):
        return Path(named).absolute()
    for variable in SCRATCH:
        if scratch := environment.get(variable):
            return Path(scratch).absolute() / f"distcache-{os.geteuid()}"
    return None


def required_directory(given: str | Path | None, environment: Mapping[str, str]) -> Path:
    """Return the directory of this node's store.

    Raises
    ------
    ConfigError
        If nothing says it.
    """
    directory = local_directory(given, environment)
    if directory is not None:
        require_text(str(directory))
    else:
        raise ConfigError(
            f"name a directory of the node (`localize --store`), or set {LOCAL_DIRECTORY}; neither "
            f"{' nor '.join(SCRATCH)} is set either"
        )
    return directory


def node_count(environment: Mapping[str, str]) -> int:
    """Return how many nodes Slurm has started this step on, or 1."""
    for variable in ("SLURM_STEP_NUM_NODES", "SLURM_NNODES"):
        if (value := environment.get(variable, "")).isdecimal():
            return max(int(value), 1)
    return 1
