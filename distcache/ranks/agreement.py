"""Agreement on errors: all ranks raise what one has raised, or the job is aborted."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from distcache.errors import (
    BuildInterrupted,
    CollectiveTimeout,
    DistcacheError,
    NoSpace,
    error_from_exit_code,
)
from distcache.ranks.communicator import Communicator
from distcache.ranks.job_environment import node_name
from distcache.ranks.partition import shares_of
from distcache.storage.files import NO_SPACE
from distcache.storage.interruption import require_uninterrupted
from distcache.storage.timeouts import limits
from distcache.storage.watchdog import run_with_watchdog

Item = TypeVar("Item")
Result = TypeVar("Result")

# What an action may raise; all ranks get the message.
EXPECTED: Final = (DistcacheError, OSError, EOFError, MemoryError)
# Seconds for the launcher to forward the output before all ranks are ended.
LAST_WORDS: Final = 0.3

# What this thread, and those that work for it, are agreeing on.
_agreeing: ContextVar[str | None] = ContextVar("agreeing", default=None)


class _Failure(msgspec.Struct, frozen=True):
    """What one rank raised."""

    # rank and host that failed
    rank: int
    host: str
    exit_code: int  # exit code of the error
    problems: tuple[str, ...]  # messages of the error
    local: bool  # whether it concerns this rank's machine, which the message then names

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"


def on_all_ranks(
    communicator: Communicator, action: Callable[[], Result], what: str, *, each: bool = True
) -> Result:
    """Run an action that may fail on some ranks. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks that take part.
    action : callable
        Run by this rank alone; it must not contain collectives.
    what : str
        Description for messages.
    each : bool
        Whether each rank does its own part, so that an error is one of its node.

    Returns
    -------
    object
        This rank's own result.

    Raises
    ------
    DistcacheError
        On all ranks the same, with the problems of all ranks, if the action failed on any.
        `failed_ranks` names them. A problem that only some of several nodes have names a node.
    BuildInterrupted, CollectiveTimeout
        On one rank, at once: the job is being ended.
    """
    failure, cause = None, None
    try:
        with _acting(what):
            result = action()
    except (BuildInterrupted, CollectiveTimeout):
        raise
    except EXPECTED as error:
        failure, cause = _failure_of(error, communicator.rank), error
    found = communicator.allgather(failure, _Failure | None, what)
    failures = [entry for entry in found if entry is not None]
    if failures:
        hosts = set(communicator.allgather(node_name(os.environ), str, what)) if each else set()
        raised = error_from_exit_code(failures[0].exit_code, *_sentences(failures, hosts))
        raise raised.of_all_ranks(entry.rank for entry in failures) from cause
    return result


def on_rank_0(
    communicator: Communicator, action: Callable[[], Result], kind: Any, what: str
) -> Result:
    """Run an action on rank 0 only, and return its result on all ranks. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks.
    action : callable
        Run by rank 0 alone.
    kind : type
        Type of the result, for msgpack.
    what : str
        Description for messages.

    Raises
    ------
    DistcacheError
        As `on_all_ranks`.
    """

    def act() -> Result | None:
        return action() if communicator.rank == 0 else None

    result: Result = communicator.broadcast(
        on_all_ranks(communicator, act, what, each=False), kind, what
    )
    return result


def spread(
    communicator: Communicator,
    items: Sequence[Item],
    action: Callable[[list[Item]], Iterable[Result]],
    kind: Any,
    what: str,
    costs: Sequence[float] | None = None,
) -> list[Result]:
    """Divide items among ranks, and gather the results in the order of the items. Collective.

    Parameters
    ----------
    communicator : Communicator
        All ranks that take part.
    items : sequence
        The same on all ranks.
    action : callable
        Takes the items of this rank, and returns one result for each. Must not contain collectives.
    kind : type
        Type of a result, for msgpack.
    what : str
        Description for messages.
    costs : sequence of float or None
        Cost of each item, by which ranks get about the same; by default every item costs as much.

    Returns
    -------
    list
        Results of all items, on all ranks.

    Raises
    ------
    DistcacheError
        On all ranks the same, with the problems of all ranks, if the action failed on any.
    """
    shares = shares_of(len(items), communicator.size, costs)
    own = [items[place] for place in shares[communicator.rank]]
    mine = on_all_ranks(communicator, lambda: list(action(own)), what)
    results: dict[int, Result] = {}
    for share, found in zip(shares, communicator.allgather(mine, list[kind], what), strict=True):
        results.update(zip(share, found, strict=True))
    return [results[place] for place in range(len(items))]


def own_share(
    communicator: Communicator, items: Sequence[Item], costs: Sequence[float] | None = None
) -> list[Item]:
    """Return the items of this rank, when ranks divide them as `spread` does."""
    shares = shares_of(len(items), communicator.size, costs)
    return [items[place] for place in shares[communicator.rank]]


def on_all_ranks_watched(
    communicator: Communicator, action: Callable[[], Result], what: str
) -> Result:
    """Run an action on local files that may fail or hang on some nodes. Collective.

    As `on_all_ranks`; raises `Stalled` after `limits().stalled` seconds without progress.
    """
    return on_all_ranks(
        communicator, lambda: run_with_watchdog(action, limits().stalled, what), what
    )


@contextlib.contextmanager
def _acting(what: str) -> Iterator[None]:
    """Refuse nested agreements: ranks that fail in the outer one would not join the inner one.

    Raises
    ------
    RuntimeError
        Not in `EXPECTED`, so that it ends the job.
    """
    outer = _agreeing.get()
    if outer is not None:
        raise RuntimeError(f"an agreement ({what}) within another one ({outer})")
    token = _agreeing.set(what)
    try:
        yield
    finally:
        _agreeing.reset(token)
        require_uninterrupted()  # a library may have made something else of a signal


@contextlib.contextmanager
def aborting_on_error(communicator: Communicator) -> Iterator[None]:
    """Abort the job if the block fails on this rank alone, since the others would wait for it.

    Collective errors, and errors of a single process, are raised. An interruption is handled by the
    command line, which lets all ranks end by themselves if all got the signal.
    """
    try:
        yield
    except BuildInterrupted:
        raise
    except BaseException as error:
        if communicator.size == 1 or getattr(error, "is_collective", False):
            raise
        abort_job(communicator, error)


def abort_job(communicator: Communicator, error: BaseException) -> NoReturn:
    """Print the error of this rank, and abort the job. Not collective."""
    failure = _failure_of(error, communicator.rank)
    if not isinstance(error, EXPECTED):
        _write(traceback.format_exc())
    for problem in failure.problems:
        _write(f"distcache: {failure}: {problem}\n")
    if not isinstance(error, BuildInterrupted):
        _write(f"distcache: {failure} has ended all ranks; fix this, then run again to resume\n")
    time.sleep(LAST_WORDS)
    communicator.abort(failure.exit_code)


def _write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _failure_of(error: BaseException, rank: int) -> _Failure:
    host = node_name(os.environ)
    if isinstance(error, DistcacheError):
        problems = tuple(map(_as_utf8, error.problems))
        return _Failure(rank, host, error.exit_code, problems, error.local)
    if isinstance(error, MemoryError):
        problem = _as_utf8(f"not enough memory ({error}); use more ranks or fewer threads")
        return _Failure(rank, host, NoSpace.exit_code, (problem,), local=True)
    full = isinstance(error, OSError) and error.errno in NO_SPACE
    code = (NoSpace if full else DistcacheError).exit_code
    text = f"{type(error).__name__}: {error}" if not isinstance(error, EXPECTED) else str(error)
    return _Failure(rank, host, code, (_as_utf8(text),), local=True)


def _as_utf8(text: str) -> str:
    """Escape what a message cannot carry: names of files may have any bytes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _sentences(failures: list[_Failure], hosts: set[str]) -> list[str]:
    """Return every problem once, with the first rank that has it if it is local.

    So is one that only some of several nodes have.
    """
    found: dict[tuple[str, bool], list[_Failure]] = {}
    for failure in failures:
        for problem in failure.problems:
            found.setdefault((problem, failure.local), []).append(failure)
    sentences = []
    for (problem, local), ranks in found.items():
        others = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
        named = local or len({failure.host for failure in ranks}) < len(hosts)
        sentences.append(f"{ranks[0]}{others}: {problem}" if named else problem)
    return sentences
