"""The exceptions, with the exit codes of the command line."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Self

__all__ = [
    "AccessDenied",
    "BuildInterrupted",
    "CacheCorrupt",
    "CollectiveTimeout",
    "ConfigError",
    "CorpusError",
    "DistcacheError",
    "DistcacheWarning",
    "KeyMismatch",
    "LoaderWarning",
    "NoSpace",
    "NotReady",
    "ObjectChanged",
    "ObjectMissing",
    "OptionWarning",
    "ShardWaitWarning",
    "SharedFileWarning",
    "StateWarning",
    "StorageError",
    "StoreWaitWarning",
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
    is_collective = False
    """Whether all ranks have raised the same error, so that none waits for this one."""
    failed_ranks: tuple[int, ...] = ()
    """Of a collective error: the ranks that had it."""
    local = False
    """Whether it concerns one rank's machine, which a message for all ranks must name."""

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems = problems

    def of_all_ranks(self, failed: Iterable[int] = ()) -> Self:
        """Mark this as an error that all ranks raise, and which of them had it; return it."""
        self.is_collective = True
        self.failed_ranks = tuple(failed)
        return self

    def __str__(self) -> str:
        return "\n".join(self.problems)


class ConfigError(DistcacheError, ValueError):
    """The configuration or the use of a command is wrong."""

    exit_code = 2


class CorpusError(DistcacheError, ValueError):
    """A corpus is unsound, or not the one that a cache was built from."""

    exit_code = 3


class CacheCorrupt(DistcacheError, ValueError):
    """A cache file is damaged, or not a cache."""

    exit_code = 4


class NotReady(DistcacheError, FileNotFoundError):
    """A required file or cache does not exist, or does not exist yet."""

    exit_code = 5


class NoSpace(DistcacheError, OSError):
    """A disk or a memory limit is too small."""

    exit_code = 6


class KeyMismatch(DistcacheError, ValueError):
    """Another cache has the wanted name."""

    exit_code = 7


class BuildInterrupted(DistcacheError):
    """A signal ended a build or a localization; finished work is kept."""

    exit_code = 8


class CollectiveTimeout(DistcacheError):
    """A rank failed, or waited too long, in a collective; the job must be aborted."""


class StorageError(DistcacheError, OSError):
    """A store of objects cannot be reached, or does not do what is asked.

    Parameters
    ----------
    url : str
        URL of the object.
    reason : str
        Reason in a few words.
    number : int
        The nearest error number of a file.
    """

    def __init__(self, url: str, reason: str, number: int = errno.EIO) -> None:
        super().__init__(f"{url}: {reason}")
        self.errno, self.strerror, self.filename = number, reason, url

    @property
    def passes(self) -> bool:
        """Whether another attempt, later, may succeed."""
        return self.errno == errno.EIO


class AccessDenied(StorageError, PermissionError):
    """There are no credentials, or they are not allowed what is asked."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason, errno.EACCES)


class ObjectMissing(StorageError, FileNotFoundError):
    """There is no such object."""

    exit_code = 5

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason, errno.ENOENT)


class ObjectChanged(CorpusError):
    """Another object has the name of one that was used before.

    Parameters
    ----------
    url : str
        URL of the object.
    """

    def __init__(self, url: str) -> None:
        super().__init__(
            f"{url}: is another object than before; objects that are in use must not be replaced. "
            "Localize again if it has the same content, or else build again"
        )


class DistcacheWarning(UserWarning):
    """The base of all warnings of distcache."""


class OptionWarning(DistcacheWarning):
    """A training command has options that no release of Megatron has; they are ignored."""


class SharedFileWarning(DistcacheWarning):
    """Training reads the shared file, since this node has no valid copy."""


class ShardWaitWarning(DistcacheWarning):
    """Training has waited for data that the node's fetcher did not have ahead."""


class StateWarning(DistcacheWarning):
    """The state of a sampler does not identify its samples completely."""


class StoreWaitWarning(DistcacheWarning):
    """A store of objects does not answer; it is asked again."""


class LoaderWarning(DistcacheWarning):
    """What iterates over a sampler would skip samples, or gets none."""


def error_from_exit_code(exit_code: int, *problems: str) -> DistcacheError:
    """Return the error of another rank, by its exit code.

    Parameters
    ----------
    exit_code : int
        The exit code of the class.
    *problems : str
        Messages of the error.

    Returns
    -------
    DistcacheError
        An instance of the class with that exit code.
    """
    kinds: list[type[DistcacheError]] = [DistcacheError, *DistcacheError.__subclasses__()]
    return next(kind for kind in kinds if kind.exit_code == exit_code)(*problems)
