"""The way of a build from a configuration to a published cache."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from distcache.build.adopt import Adoptable, find_adoptable
from distcache.build.claim import is_finished
from distcache.build.finish import finish, lay_out
from distcache.build.job import Job
from distcache.build.journal import Journal, Record, read_journals
from distcache.build.prepare import (
    Attempt,
    cache_path,
    claim_together,
    make_plan_together,
    make_ready,
    require_name,
)
from distcache.build.readback import digest_blocks, require_written, still_there
from distcache.build.record import RankRecord, rank_record, write_record
from distcache.build.work import build_items
from distcache.build.workspace import Workspace
from distcache.corpus.changes import require_unchanged
from distcache.errors import DistcacheError, KeyMismatch
from distcache.plan.assignment import Assignment, assign
from distcache.plan.config import Config
from distcache.plan.layout import Layout, make_layout
from distcache.plan.model import Plan
from distcache.plan.warnings import plan_warnings
from distcache.progress import Progress, Silent, Stopwatch
from distcache.ranks.agreement import ending_job, from_rank_0, together
from distcache.ranks.communicator import Communicator
from distcache.ranks.heartbeat import Heartbeat

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
    required_key : str or None
        What must come of the configuration; so that a job builds what it was submitted for.
    """

    threads: int = 1
    memory_limit: int | None = None
    reuse: tuple[Path, ...] = ()
    required_key: str | None = None


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
    watch = Stopwatch(progress or Silent(), lambda: communicator.waited)
    with ending_job(communicator):
        from_rank_0(communicator, lambda: require_name(name), None, "the cache's name")
        plan = make_plan_together(communicator, config, options.threads, watch)
        _require_key(plan, options)
        layout = make_layout(plan.items)
        final = cache_path(directory, name, plan)
        watch.note(f"key {plan.key}, cache {final}")
        if communicator.rank == 0:
            for warning in plan_warnings(config, plan):
                watch.note(f"warning: {warning}")
        adopted = from_rank_0(
            communicator,
            lambda: find_adoptable(plan, options.reuse),
            dict[int, Adoptable],
            "opening caches to reuse",
        )
        # A memory limit that cannot be kept is told before anything is claimed.
        _assign(communicator, plan, layout, frozenset(), adopted, options)
        workspace, attempt = claim_together(communicator, plan.key, final, watch)
        if attempt is None:
            return Outcome(str(final), plan.key, reused=True)
        with contextlib.ExitStack() as stack:
            if communicator.rank == 0:
                stack.callback(workspace.leave)
            heartbeat = stack.enter_context(Heartbeat(workspace.path, watch, communicator))
            job = Job(communicator, plan, layout, workspace.data, adopted, watch, options.threads)
            return _run(job, workspace, attempt, final, options, heartbeat)


def _require_key(plan: Plan, options: Options) -> None:
    """Refuse a plan of another key than is asked for; all ranks have the same plan."""
    wanted = options.required_key
    if wanted not in (None, plan.key):
        error = KeyMismatch(
            f"the configuration and its corpora have key {plan.key} now, but {wanted} is to be "
            "built: one of them has changed since. Submit again, or build without --require-key"
        )
        error.agreed = True
        raise error


def _run(
    job: Job,
    workspace: Workspace,
    attempt: Attempt,
    final: Path,
    options: Options,
    heartbeat: Heartbeat,
) -> Outcome:
    """Take the steps of a build that is claimed. Collective."""
    communicator, watch = job.communicator, job.watch
    watch.phase("laying out")

    def prepare() -> None:
        make_ready(workspace, job.plan, job.layout)
        lay_out(job, workspace.scratch)

    from_rank_0(communicator, prepare, None, "laying out HDF5")
    watch.phase("resuming")
    records = from_rank_0(
        communicator,
        lambda: read_journals(workspace.journals()),
        dict[int, Record],
        "reading journals",
    )
    job.digests |= still_there(job, records)
    resumed = len(job.digests)
    adopted = len(job.adopted.keys() - job.digests.keys())
    done = frozenset(job.digests)
    work = _assign(communicator, job.plan, job.layout, done, job.adopted, options)
    watch.phase("building", _own_bytes(job, work))
    path = workspace.journal(attempt.token, communicator.rank)
    with together(communicator, lambda: Journal(path), "opening journals") as journal:
        built = build_items(job, work, journal)
    job.digests |= built
    watch.phase("reading back")
    require_written(job, built)
    blocks = digest_blocks(job)
    require_unchanged(communicator, job.plan.sources)
    outcome = _publish(job, workspace, blocks, final, resumed, adopted, len(built) - adopted)
    watch.stop()
    mine = rank_record(communicator.rank, watch, work.memory[communicator.rank])
    ranks = communicator.gather_all(mine, RankRecord, "the build record")
    heartbeat.end()  # of all ranks, before their files are removed
    together(communicator, lambda: None, "the last heartbeats")

    def conclude() -> None:
        if not outcome.reused:
            _write_record(job, final, work.threads, outcome, ranks)
        workspace.remove()

    from_rank_0(communicator, conclude, None, "writing the build record")
    return outcome


def _publish(
    job: Job,
    workspace: Workspace,
    blocks: Sequence[int],
    final: Path,
    resumed: int,
    adopted: int,
    built: int,
) -> Outcome:
    """Give the cache its name, unless another job has been faster. Collective."""
    job.watch.phase("publishing")

    def publish() -> bool:
        workspace.require_mine()
        if finish(job, blocks, final):
            return True
        if not is_finished(final, job.plan.key):
            raise DistcacheError(
                f"{final}: the name is taken, but no cache is there; move away what has it and run "
                "again, which resumes"
            )
        return False

    published = from_rank_0(job.communicator, publish, bool, "publishing")
    return Outcome(str(final), job.plan.key, not published, resumed, adopted, built)


def _write_record(
    job: Job, final: Path, threads: int, outcome: Outcome, ranks: list[RankRecord]
) -> None:
    """Write the build record; the cache is there without it. Rank 0 only."""
    try:
        write_record(final, job.plan.key, threads, outcome.resumed, outcome.adopted, ranks)
    except OSError as error:
        job.watch.note(f"the build record could not be written: {error}")


def _assign(
    communicator: Communicator,
    plan: Plan,
    layout: Layout,
    done: frozenset[int],
    adopted: Mapping[int, Adoptable],
    options: Options,
) -> Assignment:
    """Share out the items that are not done: rank 0 does, for all. Collective."""

    def decide() -> Assignment:
        unfinished = {
            unit: set(entry.items) - done
            for unit, entry in enumerate(layout.units)
            if not done.issuperset(entry.items)
        }
        return assign(
            plan.items,
            layout,
            frozenset(unfinished),
            communicator.size,
            options.threads,
            options.memory_limit,
            frozenset(unit for unit, items in unfinished.items() if items <= adopted.keys()),
        )

    return from_rank_0(communicator, decide, Assignment, "assigning work")


def _own_bytes(job: Job, work: Assignment) -> float:
    """Return the bytes that this rank is to write, for its progress."""
    split = [job.layout.units[unit].items[0] for unit in (*work.together, *work.blends)]
    own = [
        item
        for unit in work.local[job.communicator.rank]
        for item in job.layout.units[unit].items
        if item not in job.digests
    ]
    shared = sum(map(job.bytes_of, split)) / job.communicator.size
    return shared + sum(map(job.bytes_of, own))
