"""Run the commands of schedulers, without a shell and with a time limit."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Collection, Sequence
from typing import Final

from distcache.errors import ConfigError, DistcacheError
from distcache.storage.timeouts import limits

# Variables of a job of Slurm around this process: its commands would take them for options.
JOB_VARIABLES: Final = re.compile(r"SLURM_(?!CONF$|CLUSTERS$|JWT$)\w*")


def call(words: Sequence[str], text: str = "", hidden: Collection[str] = ()) -> str:
    """Run a scheduler's command with some input and without some variables; return its output.

    Raises
    ------
    ConfigError
        If there is no such command.
    DistcacheError
        With its own words, if it fails, or does not answer in time.
    """
    done = run_command(words, limits().command, text, hidden)
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise DistcacheError(f"{' '.join(words[:2])}: {said}")
    return done.stdout


def run_command(
    words: Sequence[str], limit: float, text: str = "", hidden: Collection[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a program without a shell; kill it after a timeout.

    Raises
    ------
    ConfigError
        If there is no such program.
    DistcacheError
        If it has not ended in time.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in hidden and not JOB_VARIABLES.fullmatch(name)
    }
    try:
        return subprocess.run(
            words,
            env=kept,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit,
            check=False,
        )
    except (FileNotFoundError, PermissionError) as error:
        raise ConfigError(f"{words[0]}: {error.strerror}; is it in PATH?") from error
    except subprocess.TimeoutExpired as error:
        raise DistcacheError(f"{words[0]}: has not ended within {limit:.0f} s") from error
