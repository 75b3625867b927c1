"""Other programs: started without a shell, waited for with a bound."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from distcache.errors import ConfigError, DistcacheError

__all__ = ["run_program"]


def run_program(
    words: Sequence[str], limit: float, environment: Mapping[str, str] = {}
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, whatever that is, and return what it wrote.

    Parameters
    ----------
    words : sequence of str
        The program and its arguments.
    limit : float
        Seconds.
    environment : mapping
        Variables to set beside those of this process.

    Raises
    ------
    ConfigError
        If there is no such program.
    DistcacheError
        If it has not ended in time; it is killed then.
    """
    try:
        return subprocess.run(
            words,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
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
