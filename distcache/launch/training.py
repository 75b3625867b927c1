"""The training job: the user's own script, started when the cache is there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from distcache.errors import ConfigError, NotReady
from distcache.launch.slurm import call

__all__ = ["CACHE_VARIABLE", "require_script", "submit_training"]

CACHE_VARIABLE: Final = "DISTCACHE_CACHE"


def require_script(script: str, cache: Path) -> None:
    """See that a file is a batch script that can be told of a cache.

    ``sbatch --test-only`` would say more, but also refuses what only has to wait for its nodes.

    Raises
    ------
    NotReady
        If there is no such file.
    ConfigError
        If it is no script, or Slurm could not pass it the cache's path.
    """
    if not Path(script).is_file():
        raise NotReady(f"{script}: no such script")
    if not _head(script).startswith("#!"):
        raise ConfigError(
            f"{script}: is no batch script, which starts with a line like #!/bin/bash"
        )
    _export(script, cache)


def submit_training(words: Sequence[str], cache: Path, after: str | None) -> str:
    """Submit a script, and return the job's number.

    Parameters
    ----------
    words : sequence of str
        The script and its arguments.
    cache : Path
        The script finds its path in ``DISTCACHE_CACHE``.
    after : str or None
        The job that must have succeeded; if it does not, Slurm cancels the script's job.

    Raises
    ------
    DistcacheError
        In Slurm's words, if it refuses the script.
    """
    dependency = [] if after is None else [f"--dependency=afterok:{after}"]
    if after is not None:
        dependency.append("--kill-on-invalid-dep=yes")
    said = call(
        ["sbatch", "--parsable", *dependency, *_export(words[0], cache), *words],
        {CACHE_VARIABLE: str(cache)},
    )
    return said.strip().splitlines()[-1].partition(";")[0]


def _export(script: str, cache: Path) -> list[str]:
    """Return what adds the cache to the variables that a script wants, if it names them.

    Without ``--export`` a job gets all variables of the process that submits it.
    """
    named = re.findall(r"^#SBATCH\s+--export[=\s](\S+)", _head(script), re.MULTILINE)
    if not named or named[-1] == "ALL":
        return []
    if "," in str(cache):
        raise ConfigError(
            f"{script}: has --export, with which Slurm cannot pass on the comma in {cache}"
        )
    variables = [] if named[-1] == "NONE" else [named[-1].strip("\"'")]
    return [f"--export={','.join([*variables, f'{CACHE_VARIABLE}={cache}'])}"]


def _head(script: str) -> str:
    with open(script, encoding="utf-8", errors="replace") as stream:
        return stream.read(1 << 16)
