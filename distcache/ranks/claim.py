"""One policy for jobs that make the same output: claim its workspace, or wait for the other job."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from distcache.ranks.agreement import on_rank_0
from distcache.ranks.communicator import Communicator
from distcache.ranks.heartbeat import Monitor
from distcache.ranks.progress import Progress
from distcache.ranks.workspace import Lock, Workspace, sweep
from distcache.storage.timeouts import limits
from distcache.storage.watchdog import tick

CLAIM_POLL: Final = 0.5  # seconds between two inspections of another job
NOTE_EVERY: Final = 60.0  # seconds between two messages about it


def claim(
    workspace: Workspace,
    is_finished: Callable[[], bool],
    what: str,
    progress: Progress,
    clock: Callable[[], float] = time.monotonic,
) -> Workspace | None:
    """Claim the workspace of an output, or wait for the job that makes it.

    The workspace of a job that has died is resumed. If the other job hangs, or has died and is of
    another user, or if the filesystem has no locks, this job works in a private workspace, and the
    first to finish publishes.

    Parameters
    ----------
    workspace : Workspace
        The shared one.
    is_finished : callable
        Returns whether the output exists; may raise if something else has its name.
    what : str
        Description for messages.
    progress : Progress
        Receives for which job this one waits.
    clock : callable
        Seconds.

    Returns
    -------
    Workspace or None
        The claimed one; None if the output exists.
    """
    monitor = Monitor(workspace.path, clock)
    begin, noted = clock(), -NOTE_EVERY
    while not is_finished():
        state = workspace.lock()
        if state is Lock.HELD:
            if not workspace.take():
                workspace.release()  # its lock does not exclude, and its owner lives
            elif not is_finished():
                sweep(workspace.shared, finished=False)
                return workspace
            else:
                workspace.remove()
                continue
        tick()
        monitor.look()
        if (reason := _reason_for_private(state, monitor, clock() - begin)) is not None:
            progress.note(f"working in a private workspace: {reason}")
            return workspace.as_private()
        now = clock()
        if now - noted >= NOTE_EVERY:
            who = "another user" if monitor.hidden else monitor.beat or "another job"
            progress.note(f"waiting for {who}, which is making {what}")
            noted = now
        time.sleep(CLAIM_POLL)
    sweep(workspace.shared, finished=True)
    return None


def _reason_for_private(state: Lock, monitor: Monitor, waited: float) -> str | None:
    """Return why this job should stop waiting for the other one, or None."""
    if state is Lock.UNSUPPORTED:
        return "the filesystem has no locks, so unfinished work cannot be resumed"
    time_limits = limits()
    gone = state is Lock.FOREIGN and not monitor.hidden and not monitor.locked
    longest = time_limits.silent if gone else time_limits.abandoned
    if monitor.silence > longest:
        who = "another user's job" if state is Lock.FOREIGN else "the other job"
        return f"{who} has shown no heartbeat for {longest:.0f} s"
    if waited > time_limits.collective:
        return f"the other job has not ended for {waited:.0f} s"
    return None


def claim_together(
    communicator: Communicator, workspace: Workspace, decide: Callable[[], Workspace | None]
) -> Workspace | None:
    """Let rank 0 claim a workspace for all ranks. Collective.

    Returns
    -------
    Workspace or None
        Workspace in which all ranks write; locked by rank 0. None if the output exists.
    """
    held: list[Workspace] = []

    def act() -> str | None:
        if (mine := decide()) is None:
            return None
        held.append(mine)
        return mine.private

    private = on_rank_0(communicator, act, str | None, "claiming the output")
    if private is None:
        return None
    return held[0] if held else Workspace(workspace.shared, private, workspace.otherwise)
