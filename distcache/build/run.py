"""The way of a build from a configuration to a published cache."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from distcache.build.adopt import find_adoptable
from distcache.build.agreement import from_rank_0, together
from distcache.build.claim import is_finished
from distcache.build.communicator import Communicator
from distcache.build.finish import finish, lay_out
from distcache.build.heartbeat import Heartbeat
from distcache.build.job import Job
from distcache.build.journal import Journal, read_journals
from distcache.build.prepare import Attempt, cache_path, claim_together, make_plan_together
from distcache.build.progress import Progress, Silent, Stopwatch
from distcache.build.readback import digest_blocks, require_written, still_there
from distcache.build.record import RankRecord, rank_record, write_record
from distcache.build.work import build_items
from distcache.build.workspace import Workspace
from distcache.plan.assignment import Assignment, assign
from distcache.plan.config import Config
from distcache.plan.layout import make_layout

__all__ = ["Options", "Outcome", "build"]


class Options(msgspec.Struct, frozen=True):
    """How to build; none of it changes the cache.

    Attributes
    ----------
    threads : int
        Units that each rank works on at a time.
    memory_limit : int or None
        Bytes that no rank may exceed.
    reuse : tuple of Path
        Other caches to take sections and blends over from.
    """

    threads: int = 1
    memory_limit: int | None = None
    reuse: tuple[Path, ...] = ()


class Outcome(msgspec.Struct, frozen=True):
    """What a build came to.

    Attributes
    ----------
    path : str
        Of the cache.
    key : str
        What is in it.
    reused : bool
        Whether it was there, or another job was faster.
    resumed, adopted, built : int
        Sections and blends that an earlier build had, that another cache had, and that this build
        made.
    """

    path: str
    key: str
    reused: bool
    resumed: int = 0
    adopted: int = 0
    built: int = 0


def build(
    communicator: Communicator,
    config: Config,
    directory: str | Path,
    name: str | None = None,
    options: Options = Options(),  # noqa: B008  frozen
    progress: Progress | None = None,
) -> Outcome:
    """Build a cache, unless it is there; wait for another job that builds it. Collective.

    Parameters
    ----------
    communicator : Communicator
        Of all ranks.
    config : Config
        The same on all ranks.
    directory : path
        Shared by all ranks; made if it is not there.
    name : str or None
        File name without ``.h5``; by default the start of the key.
    options : Options
        How to build.
    progress : Progress or None
        Told what rank 0 does.

    Returns
    -------
    Outcome
        The same on all ranks.

    Raises
    ------
    DistcacheError
        On all ranks the same. What is finished stays in the journal, for the next build.
    """
    watch = Stopwatch(progress or Silent())
    plan = make_plan_together(communicator, config, options.threads, watch)
    layout = make_layout(plan.items)
    # A memory limit that cannot be kept is told before anything is claimed.
    every_unit = frozenset(range(len(layout.units)))
    assign(plan.items, layout, every_unit, communicator.size, 1, options.memory_limit)
    final = cache_path(directory, name, plan)
    workspace, attempt = claim_together(communicator, plan, layout, final, watch)
    if attempt is None:
        return Outcome(str(final), plan.key, reused=True)
    with contextlib.ExitStack() as stack:
        if communicator.rank == 0:
            stack.callback(workspace.leave)
            stack.enter_context(Heartbeat(workspace, watch))
        adopted = together(
            communicator, lambda: find_adoptable(plan, options.reuse), "opening caches to reuse"
        )
        job = Job(communicator, plan, layout, workspace.data, adopted, watch, options.threads)
        return _run(job, workspace, attempt, final, options)


def _run(
    job: Job, workspace: Workspace, attempt: Attempt, final: Path, options: Options
) -> Outcome:
    """Take the steps of a build that is claimed. Collective."""
    communicator, watch = job.communicator, job.watch
    watch.phase("resuming")
    records = together(communicator, lambda: read_journals(attempt.journals), "reading journals")
    job.digests |= still_there(job, records)
    resumed = len(job.digests)
    adopted = len(job.adopted.keys() - job.digests.keys())
    work = _assign(job, options)
    watch.phase("building", _own_bytes(job, work))
    path = workspace.journal(attempt.token, communicator.rank)
    with together(communicator, lambda: Journal(path), "opening journals") as journal:
        built = build_items(job, work, journal)
    job.digests |= built
    watch.phase("laying out")
    scratch = workspace.scratch
    from_rank_0(communicator, lambda: lay_out(job, scratch), None, "laying out HDF5")
    watch.phase("reading back")
    require_written(job, built)
    blocks = digest_blocks(job)
    watch.phase("publishing")
    published = from_rank_0(communicator, lambda: finish(job, blocks, final), bool, "publishing")
    watch.stop()
    mine = rank_record(communicator.rank, watch.seconds, work.memory[communicator.rank])
    ranks = communicator.gather_all(mine, RankRecord, "the build record")

    def conclude() -> None:
        if published:
            write_record(final, job.plan.key, work.threads, resumed, adopted, ranks)
        else:
            is_finished(final, job.plan.key)
        workspace.remove()

    from_rank_0(communicator, conclude, None, "writing the build record")
    fresh = len(built) - adopted
    return Outcome(str(final), job.plan.key, not published, resumed, adopted, fresh)


def _assign(job: Job, options: Options) -> Assignment:
    """Share out what is not finished."""
    unfinished = set(range(len(job.plan.items))) - job.digests.keys()
    units = {
        unit: unfinished.intersection(entry.items) for unit, entry in enumerate(job.layout.units)
    }
    return assign(
        job.plan.items,
        job.layout,
        frozenset(unit for unit, items in units.items() if items),
        job.communicator.size,
        options.threads,
        options.memory_limit,
        copied=frozenset(unit for unit, items in units.items() if items <= job.adopted.keys()),
    )


def _own_bytes(job: Job, work: Assignment) -> float:
    """Return the bytes that this rank is to write, for its progress."""
    split = [job.layout.units[entry.unit].items[0] for wave in work.waves for entry in wave]
    own = [
        item
        for unit in work.local[job.communicator.rank]
        for item in job.layout.units[unit].items
        if item not in job.digests
    ]
    shared = sum(map(job.bytes_of, split)) / job.communicator.size
    return shared + sum(map(job.bytes_of, own))
