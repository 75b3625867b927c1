"""How all ranks make an output: claim it or find it, make it, publish it, clean up.

Every command that writes goes this way; the steps that differ are its own.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from distcache.errors import ConfigError, DistcacheError
from distcache.ranks.agreement import on_all_ranks, on_rank_0
from distcache.ranks.communicator import Communicator
from distcache.ranks.heartbeat import Heartbeat
from distcache.ranks.progress import Stopwatch
from distcache.ranks.workspace import Workspace
from distcache.storage.timeouts import limits

OUTPUT_POLL: Final = 0.1  # seconds between two looks for what another node has made

Made = TypeVar("Made")
Outcome = TypeVar("Outcome")


def produce(
    communicator: Communicator,
    workspace: Workspace,
    watch: Stopwatch,
    *,
    claim: Callable[[], bool],
    on_existing: Callable[[], Outcome],
    make: Callable[[], Made],
    publish: Callable[[Made], Any],
    report: Callable[[Made, Any], Outcome],
    finalize: Callable[[], None] = lambda: None,
    resumes: bool = False,
) -> Outcome:
    """Make an output in a claimed workspace, unless it exists. Collective.

    Parameters
    ----------
    communicator : Communicator
        All ranks.
    workspace : Workspace
        The workspace of the output.
    watch : Stopwatch
        Progress of this rank, which the heartbeat shows.
    claim : callable
        Claims the workspace, or waits for the job that makes the output; false if the output
        exists. On rank 0 alone.
    on_existing : callable
        Returns the outcome for an output that exists. Collective.
    make : callable
        Prepares the claimed workspace, writes the unfinished files, and verifies what was written
        and that its inputs have not changed. Collective.
    publish : callable
        Gives the unfinished files their names. On rank 0 alone; its result is broadcast as JSON.
    report : callable
        Returns the outcome, from the results of `make` and of `publish`. Collective.
    finalize : callable
        Writes what belongs beside the output, before the workspace is removed. On rank 0 alone.
    resumes : bool
        Whether another run continues unfinished work, so that an error says where it is kept.

    Returns
    -------
    object
        The result of `on_existing` or of `report`.

    Raises
    ------
    DistcacheError
        On all ranks the same.
    """
    beat = Heartbeat(workspace.path, watch)
    with contextlib.ExitStack() as stack:

        def claim_or_find() -> bool:
            stack.callback(workspace.release)  # also if claiming fails
            if claim():
                stack.enter_context(beat)
                return True
            return False

        if not on_rank_0(communicator, claim_or_find, bool, "claiming the output"):
            return on_existing()
        stack.enter_context(_advice(workspace, watch, resumes=resumes))
        _require_shared(communicator, workspace.path)
        made = make()
        watch.phase("publishing")
        published = on_rank_0(communicator, lambda: publish(made), Any, "publishing")
        outcome = report(made, published)

        def clean_up() -> None:
            beat.end()
            finalize()
            workspace.remove()

        on_rank_0(communicator, clean_up, None, "cleaning up")
    return outcome


@contextlib.contextmanager
def _advice(workspace: Workspace, watch: Stopwatch, *, resumes: bool) -> Iterator[None]:
    """After an error, say that unfinished work is kept."""
    try:
        yield
    except DistcacheError:
        with contextlib.suppress(OSError):  # the error is more important than the advice
            if resumes and workspace.is_mine():
                watch.note(f"what is done is kept in {workspace.path}; run again to resume")
        raise


def _require_shared(communicator: Communicator, workspace: Path) -> None:
    """Refuse an output that only some nodes see. Collective.

    Raises
    ------
    ConfigError
        After the seconds in which a network filesystem shows what rank 0 has made.
    """

    def look() -> None:
        until = time.monotonic() + limits().visible
        while not workspace.is_dir():
            if time.monotonic() > until:
                raise ConfigError(
                    f"{workspace.parent}: does not have what rank 0 made there; the output must be "
                    "on a filesystem that every node shares"
                )
            time.sleep(OUTPUT_POLL)

    on_all_ranks(communicator, look, "looking for the output")
