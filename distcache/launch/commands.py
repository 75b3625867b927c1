"""Run the commands of schedulers, without a shell and with a time limit."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from distcache.errors import ConfigError, DistcacheError
from distcache.storage.timeouts import limits


def call(words: Sequence[str], environment: Mapping[str, str] = {}, text: str | None = None) -> str:
    """Run a scheduler's command, with additional variables and input, and return its output.

    Raises
    ------
    ConfigError
        If there is no such command.
    DistcacheError
        With its own words, if it fails, or does not answer in time.
    """
    done = run_command(words, limits().command, environment, text)
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise DistcacheError(f"{' '.join(words[:2])}: {said}")
    return done.stdout


def run_command(
    words: Sequence[str],
    limit: float,
    environment: Mapping[str, str] = {},
    text: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program without a shell; kill it after a timeout.

    Raises
    ------
    ConfigError
        If there is no such program.
    DistcacheError
        If it has not ended in time.
    """
    try:
        return subprocess.run(
            words,
            env={**os.environ, **environment},
            input=text or "",
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
