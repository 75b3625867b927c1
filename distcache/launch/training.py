"""The training job: the user's own script, started when the cache is there."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from distcache.errors import ConfigError, NotReady
from distcache.launch.slurm import submit_script

__all__ = ["require_script", "submit_training"]

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
    if not "".join(_head(script)[:1]).startswith("#!"):
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
    ConfigError
        If Slurm cannot pass on the path.
    DistcacheError
        In Slurm's words, if it refuses the script.
    """
    waiting = [f"--dependency=afterok:{after}", "--kill-on-invalid-dep=yes"]
    dependency = [] if after is None else waiting
    command = [*dependency, *_export(words[0], cache), *words]
    return submit_script(command, {CACHE_VARIABLE: str(cache)})


def _export(script: str, cache: Path) -> list[str]:
    """Return what adds the cache to the variables that a script wants, if it names them.

    Without ``--export`` a job gets all variables of the process that submits it.
    """
    found = (re.match(r"#SBATCH\s(?:.*\s)?--export[=\s]+(\S+)", line) for line in _head(script))
    named = [match.group(1) for match in found if match]
    wanted = named[-1].strip("\"'") if named else os.environ.get("SBATCH_EXPORT", "ALL")
    if wanted == "ALL":
        return []
    if "," in str(cache):
        raise ConfigError(
            f"{script}: has --export, with which Slurm cannot pass on the comma in {cache}"
        )
    variable = f"{CACHE_VARIABLE}={cache}"
    if wanted == "NONE":
        return [f"--export={variable}", "--get-user-env"]  # as Slurm does with NONE itself
    return [f"--export={variable if wanted == 'NIL' else f'{wanted},{variable}'}"]


def _head(script: str) -> list[str]:
    """Return the lines in which Slurm looks for options: comments before the first command."""
    with open(script, encoding="utf-8", errors="replace") as stream:
        lines = stream.read(1 << 16).splitlines()
    return list(itertools.takewhile(lambda line: not line or line.startswith("#"), lines))
