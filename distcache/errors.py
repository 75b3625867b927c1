"""One tree of exceptions; each carries the exit code that the command line ends with."""

from __future__ import annotations

__all__ = [
    "BuildInterrupted",
    "CacheCorrupt",
    "ConfigError",
    "CorpusError",
    "DistcacheError",
    "DistcacheWarning",
    "KeyMismatch",
    "NoSpace",
    "NotReady",
    "OutOfStep",
    "SharedFileWarning",
    "StateWarning",
    "error_from_exit_code",
]


class DistcacheError(Exception):
    """The base of all errors that distcache raises on purpose.

    Parameters
    ----------
    *problems : str
        One sentence each. Where several inputs are bad, all of them are listed.
    """

    exit_code = 1
    agreed = False
    """Whether all ranks have raised the same error, so that nobody waits for this one."""
    failed_ranks: tuple[int, ...] = ()
    """Of an agreed error: the ranks that had it."""
    local = False
    """Whether it is of one rank's machine, which a message for all ranks must name."""

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(self.problems)


class ConfigError(DistcacheError, ValueError):
    """The configuration or the use of a command is wrong."""

    exit_code = 2


class CorpusError(DistcacheError, ValueError):
    """A corpus is not sound, or not the one that a cache was built from."""

    exit_code = 3


class CacheCorrupt(DistcacheError, ValueError):
    """A cache file does not hold what it says."""

    exit_code = 4


class NotReady(DistcacheError, FileNotFoundError):
    """Something that must be there is not, or not yet."""

    exit_code = 5


class NoSpace(DistcacheError, OSError):
    """A disk or a memory limit is too small for what was asked."""

    exit_code = 6


class KeyMismatch(DistcacheError, ValueError):
    """A cache is there under the wanted name but holds something else."""

    exit_code = 7


class BuildInterrupted(DistcacheError):
    """A signal ended a build or a localization; what is done is kept."""

    exit_code = 8


class OutOfStep(DistcacheError):
    """One rank cannot go on, and cannot tell the others, which wait for it: the job is ended."""


class DistcacheWarning(UserWarning):
    """The base of all warnings that distcache gives."""


class SharedFileWarning(DistcacheWarning):
    """Training reads the shared file, since this node has no copy that is right."""


class StateWarning(DistcacheWarning):
    """The state of a sampler does not say all that it belongs to."""


def error_from_exit_code(exit_code: int, *problems: str) -> DistcacheError:
    """Make the error that another rank had, from what it sent.

    Parameters
    ----------
    exit_code : int
        The exit code of the class.
    *problems : str
        Its sentences.

    Returns
    -------
    DistcacheError
        An instance of the class with that exit code.
    """
    kinds: list[type[DistcacheError]] = [DistcacheError, *DistcacheError.__subclasses__()]
    return next(kind for kind in kinds if kind.exit_code == exit_code)(*problems)
