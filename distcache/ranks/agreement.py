"""What fails on one rank is agreed by all, before the next collective; what is not ends the job."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Final, NoReturn, TypeVar

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

__all__ = ["end_job", "ending_job", "from_rank_0", "together"]

Result = TypeVar("Result")

# What an action may raise: each becomes a sentence that all ranks have.
EXPECTED: Final = (DistcacheError, OSError, EOFError, MemoryError)
# Seconds in which a launcher passes on what was written, before it ends all ranks.
LAST_WORDS: Final = 0.3

# Of what this thread, and those that work for it, agree.
_agreeing: ContextVar[str | None] = ContextVar("agreeing", default=None)


class _Failure(msgspec.Struct, frozen=True):
    """What one rank raised.

    Attributes
    ----------
    rank, host : int, str
        Where.
    exit_code : int
        Of the error.
    problems : tuple of str
        Its sentences.
    local : bool
        Whether it is of this rank's machine, which the message then names.
    """

    rank: int
    host: str
    exit_code: int
    problems: tuple[str, ...]
    local: bool

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"


def together(communicator: Communicator, action: Callable[[], Result], what: str) -> Result:
    """Do something that may fail on some ranks. Collective.

    Parameters
    ----------
    communicator : Communicator
        Of all ranks that take part.
    action : callable
        Done by this rank alone; it may not agree on anything itself.
    what : str
        For messages.

    Returns
    -------
    object
        This rank's own result.

    Raises
    ------
    DistcacheError
        On all ranks the same, with the problems of all, if the action failed on any. Its
        `failed_ranks` are these.
    BuildInterrupted, OutOfStep
        On one rank, at once: the job is being ended.
    """
    failure, cause = None, None
    try:
        with _acting(what):
            result = action()
    except (BuildInterrupted, OutOfStep):
        raise
    except EXPECTED as error:
        failure, cause = _failure_of(error, communicator.rank), error
    found = communicator.gather_all(failure, _Failure | None, what)
    failures = [entry for entry in found if entry is not None]
    if failures:
        raised = error_from_exit_code(failures[0].exit_code, *_sentences(failures))
        raised.agreed = True
        raised.failed_ranks = tuple(entry.rank for entry in failures)
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


@contextlib.contextmanager
def _acting(what: str) -> Iterator[None]:
    """Refuse agreements within one another: the ranks that fail in the outer one leave the inner.

    Raises
    ------
    RuntimeError
        Which no agreement expects, so that it ends the job.
    """
    outer = _agreeing.get()
    if outer is not None:
        raise RuntimeError(f"an agreement ({what}) within another one ({outer})")
    token = _agreeing.set(what)
    try:
        yield
    finally:
        _agreeing.reset(token)


@contextlib.contextmanager
def ending_job(communicator: Communicator) -> Iterator[None]:
    """End all ranks if the block fails on this one alone, since the others would wait for it.

    An error that all ranks have passes, and so does one of a single process. An interruption is
    left to the command line, which lets all ranks end by themselves if they were all asked to.
    """
    try:
        yield
    except BuildInterrupted:
        raise
    except BaseException as error:
        if communicator.size == 1 or getattr(error, "agreed", False):
            raise
        end_job(communicator, error)


def end_job(communicator: Communicator, error: BaseException) -> NoReturn:
    """Say what this rank cannot go on with, and end all ranks. Not collective."""
    failure = _failure_of(error, communicator.rank)
    if not isinstance(error, EXPECTED):
        _write(traceback.format_exc())
    for problem in failure.problems:
        _write(f"distcache: {failure}: {problem}\n")
    if not isinstance(error, BuildInterrupted):
        _write(f"distcache: {failure} has ended all ranks; mend this, then run again to resume\n")
    time.sleep(LAST_WORDS)
    communicator.abort(failure.exit_code)


def _write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _failure_of(error: BaseException, rank: int) -> _Failure:
    host = socket.gethostname()
    if isinstance(error, DistcacheError):
        return _Failure(rank, host, error.exit_code, tuple(error.problems), error.local)
    if isinstance(error, MemoryError):
        problem = f"not enough memory ({error}); use more ranks or fewer threads"
        return _Failure(rank, host, NoSpace.exit_code, (problem,), local=True)
    full = isinstance(error, OSError) and error.errno in NO_SPACE
    code = (NoSpace if full else DistcacheError).exit_code
    text = f"{type(error).__name__}: {error}" if not isinstance(error, EXPECTED) else str(error)
    return _Failure(rank, host, code, (text,), local=True)


def _sentences(failures: list[_Failure]) -> list[str]:
    """Return every problem once, those of a machine with the first rank that has it."""
    found: dict[tuple[str, bool], list[_Failure]] = {}
    for failure in failures:
        for problem in failure.problems:
            found.setdefault((problem, failure.local), []).append(failure)
    sentences = []
    for (problem, local), ranks in found.items():
        others = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
        sentences.append(f"{ranks[0]}{others}: {problem}" if local else problem)
    return sentences
