"""What fails on one rank is agreed by all, before the next collective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from distcache.errors import (
    BuildInterrupted,
    DistcacheError,
    NoSpace,
    OutOfStep,
    error_from_exit_code,
)
from distcache.files import NO_SPACE
from distcache.ranks.communicator import Communicator

__all__ = ["from_rank_0", "together"]

Result = TypeVar("Result")


class _Failure(msgspec.Struct, frozen=True):
    exit_code: int
    problems: tuple[str, ...]


def together(communicator: Communicator, action: Callable[[], Result], what: str) -> Result:
    """Do something that may fail on some ranks. Collective.

    Parameters
    ----------
    communicator : Communicator
        Of all ranks that take part.
    action : callable
        Done by this rank alone; without collectives of its own.
    what : str
        For messages.

    Returns
    -------
    object
        This rank's own result.

    Raises
    ------
    DistcacheError
        On all ranks the same, with the problems of all, if the action failed on any.
    BuildInterrupted, OutOfStep
        On one rank, at once: the job is being ended.
    """
    failure, cause = None, None
    try:
        result = action()
    except (BuildInterrupted, OutOfStep):
        raise
    except (DistcacheError, OSError, EOFError, MemoryError) as error:
        failure, cause = _failure_of(error, communicator.rank), error
    found = communicator.gather_all(failure, _Failure | None, what)
    failures = [entry for entry in found if entry is not None]
    if failures:
        problems = dict.fromkeys(problem for entry in failures for problem in entry.problems)
        raised = error_from_exit_code(failures[0].exit_code, *problems)
        raised.agreed = True
        raise raised from cause
    return result


def from_rank_0(
    communicator: Communicator, action: Callable[[], Result], kind: Any, what: str
) -> Result:
    """Do something that may fail on rank 0 only, and return its result on all ranks. Collective.

    Parameters
    ----------
    communicator : Communicator
        Of all ranks.
    action : callable
        Done by rank 0 alone.
    kind : type
        Of its result, for msgpack.
    what : str
        For messages.

    Raises
    ------
    DistcacheError
        As `together`.
    """

    def act() -> Result | None:
        return action() if communicator.rank == 0 else None

    result: Result = communicator.broadcast(together(communicator, act, what), kind, what)
    return result


def _failure_of(error: Exception, rank: int) -> _Failure:
    if isinstance(error, DistcacheError):
        return _Failure(error.exit_code, tuple(error.problems))
    if isinstance(error, MemoryError):
        problem = f"rank {rank} has not enough memory ({error}); use more ranks or fewer threads"
        return _Failure(NoSpace.exit_code, (problem,))
    full = isinstance(error, OSError) and error.errno in NO_SPACE
    kind = NoSpace if full else DistcacheError
    return _Failure(kind.exit_code, (f"rank {rank}: {error}",))
