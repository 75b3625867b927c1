"""The steps of a build, from a configuration to a published cache."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from distcache.builder.build_record import RankRecord, rank_record, write_record
from distcache.builder.finish import finish, lay_out
from distcache.builder.job import BuildOptions, Job, Record
from distcache.builder.prepare import (
    agree_on_plan,
    cache_path,
    data_path,
    is_finished,
    journal_path,
    journals,
    make_ready,
    moves_of,
    require_name,
)
from distcache.builder.readback import intact_items, read_back
from distcache.builder.reuse import Reusable, find_reusable
from distcache.builder.work import build_items
from distcache.cache.readiness import building_directory
from distcache.corpus.examine import require_unchanged
from distcache.corpus.fetched import fetched_indices
from distcache.errors import DistcacheError, KeyMismatch
from distcache.plan.assignment import Assignment, assign
from distcache.plan.config import Config
from distcache.plan.layout import make_layout
from distcache.plan.problems import plan_warnings
from distcache.ranks.agreement import aborting_on_error, on_all_ranks, on_rank_0
from distcache.ranks.communicator import Communicator
from distcache.ranks.production import produce
from distcache.ranks.progress import NullProgress, Progress, Stopwatch
from distcache.ranks.workspace import Workspace, claim
from distcache.storage.files import closing_fd, open_regular, set_mode
from distcache.storage.journal import Journal, read_journal


class BuildOutcome(msgspec.Struct, frozen=True):
    """The result of a build.

    Attributes
    ----------
    path : str
        Path of the cache.
    key : str
        Key of the cache.
    reused : bool
        Whether it existed, or another job published it first.
    resumed, reused_items, built : int
        Sections and blends from an earlier build, from another cache, and built now.
    """

    path: str
    key: str
    reused: bool
    resumed: int = 0
    reused_items: int = 0
    built: int = 0


def build(
    communicator: Communicator,
    config: Config,
    directory: str | Path,
    name: str | None = None,
    options: BuildOptions = BuildOptions(),  # noqa: B008  frozen
    progress: Progress | None = None,
) -> BuildOutcome:
    """Build a cache, unless it exists; wait for another job that builds it. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks.
    config : Config
        The same on all ranks.
    directory : path
        Shared by all ranks; made if it does not exist.
    name : str or None
        File name without ``.h5``; by default the start of the key.
    options : BuildOptions
        Options that change no array.
    progress : Progress or None
        Receives the progress of rank 0.

    Returns
    -------
    BuildOutcome
        The same on all ranks.

    Raises
    ------
    DistcacheError
        On all ranks the same. What is finished stays in the journal for the next build.
    """
    watch = Stopwatch(progress or NullProgress(), lambda: communicator.waited)
    with aborting_on_error(communicator):
        on_rank_0(communicator, lambda: require_name(name), None, "the cache's name")
        with fetched_indices(communicator, config.prefixes(), watch):
            job = _plan_job(communicator, config, directory, name, options, watch)
            return _build(job)


def _plan_job(
    communicator: Communicator,
    config: Config,
    directory: str | Path,
    name: str | None,
    options: BuildOptions,
    watch: Stopwatch,
) -> Job:
    """Plan a build, and find what it may copy from other caches. Collective."""
    plan = agree_on_plan(communicator, config, options.threads, watch)
    wanted = options.required_key
    if wanted not in (None, plan.key):
        raise KeyMismatch(
            f"the configuration or a corpus has changed: the key is {plan.key} now, but "
            f"--require-key asks for {wanted}. Submit again, or build without --require-key"
        ).of_all_ranks()
    final = cache_path(directory, name, plan)
    watch.note(f"key {plan.key}, cache {final}")
    what = "looking at the plan"
    warned = on_rank_0(communicator, lambda: plan_warnings(config, plan), list[str], what)
    for warning in warned:
        watch.note(f"warning: {warning}")
    before = () if config.continued is None else (Path(config.continued.path),)
    reused_items = on_rank_0(
        communicator,
        lambda: find_reusable(plan, (*options.reuse, *before)),
        dict[int, Reusable],
        "opening caches to reuse",
    )
    return Job(communicator, options, plan, make_layout(plan.items), final, reused_items, watch)


def _build(job: Job) -> BuildOutcome:
    """Build the cache of a plan, or find it. Collective."""
    communicator, watch, final, key = job.communicator, job.watch, job.final, job.plan.key
    watch.phase("claiming")
    otherwise = "choose another directory with -o, or another --name"
    workspace = Workspace(building_directory(final), otherwise=otherwise)
    finished: list[tuple[_Made, list[RankRecord]]] = []

    def claim_or_find() -> bool:
        if job.options.memory_limit is not None:
            _assign(job)  # a limit that cannot be kept is refused before the claim
        return claim(workspace, lambda: is_finished(final, key), str(final), watch, key)

    def report(made: _Made, published: bool) -> BuildOutcome:
        watch.stop()
        mine = rank_record(communicator.rank, watch, made.work.memory[communicator.rank])
        ranks = communicator.allgather(mine, RankRecord, "the build record")
        if published:
            finished.append((made, ranks))
        return BuildOutcome(
            str(final), key, not published, made.resumed, made.reused_items, made.built
        )

    def write_beside() -> None:
        for made, ranks in finished:
            try:
                write_record(
                    workspace.path,
                    final,
                    key,
                    threads=made.work.threads,
                    resumed=made.resumed,
                    reused_items=made.reused_items,
                    ranks=ranks,
                )
            except OSError as error:  # the cache exists without it
                watch.note(f"the build record could not be written: {error}")

    return produce(
        communicator,
        workspace,
        watch,
        claim=claim_or_find,
        on_existing=lambda: _existing(job),
        make=lambda: _make(job, workspace),
        publish=lambda made: _publish(job, workspace, made.blocks),
        report=report,
        finalize=write_beside,
    )


def _existing(job: Job) -> BuildOutcome:
    """Return the outcome of a finished cache; say how corpora that have other paths are found."""
    if job.communicator.rank == 0:
        moves = moves_of(job.final, [source.prefix for source in job.plan.sources])
        if moves:
            pairs = ",".join(f"{old}={new}" for old, new in moves)
            job.watch.note(
                f"the cache was built where its corpora have other paths: readers find them by "
                f"DISTCACHE_PREFIX={pairs}"
            )
    return BuildOutcome(str(job.final), job.plan.key, reused=True)


class _Made(NamedTuple):
    """An unfinished cache: the digests of its blocks, and where its items come from."""

    blocks: Sequence[int]
    work: Assignment
    resumed: int
    reused_items: int
    built: int


def _make(job: Job, workspace: Workspace) -> _Made:
    """Build in a claimed workspace, and verify what was written. Collective."""
    communicator, watch = job.communicator, job.watch
    watch.phase("laying out")
    job.unfinished = data_path(workspace)

    def prepare() -> tuple[str, dict[int, Record]]:
        attempt = make_ready(workspace, job.plan, job.layout)
        lay_out(job, str(workspace.path / "layout"))
        records = (read_journal(path, Record) for path in journals(workspace))
        return attempt, {record.item: record for record in itertools.chain(*records)}

    attempt, records = on_rank_0(
        communicator, prepare, tuple[str, dict[int, Record]], "laying out HDF5"
    )
    watch.phase("looking for an earlier run")
    job.digests |= intact_items(job, records)
    resumed = len(job.digests)
    reused_items = len(job.reused.keys() - job.digests.keys())
    work = on_rank_0(communicator, lambda: _assign(job), Assignment, "assigning work")
    watch.phase("building", _own_bytes(job, work))
    path = journal_path(workspace, attempt, communicator.rank)
    with on_all_ranks(communicator, lambda: Journal(path), "opening journals") as journal:
        built = build_items(job, work, journal)
    job.digests |= built
    watch.phase("reading back")
    blocks = read_back(job)
    require_unchanged(communicator, job.plan.sources)
    return _Made(blocks, work, resumed, reused_items, len(built) - reused_items)


def _publish(job: Job, workspace: Workspace, blocks: Sequence[int]) -> bool:
    """Publish the cache; return whether this job has done it, and not another."""
    workspace.require_mine()
    finish(job, blocks)
    with closing_fd(open_regular(job.unfinished)) as descriptor:
        set_mode(descriptor, os.fstat(descriptor).st_mode & 0o444)
    if workspace.publish([(job.unfinished, str(job.final))]) is None:
        return True
    if not is_finished(job.final, job.plan.key):
        raise DistcacheError(
            f"{job.final}: the name is taken, but no cache is there; move away what has it and run "
            "again, which resumes"
        )
    return False


def _assign(job: Job) -> Assignment:
    """Distribute the unfinished items over all ranks."""
    unfinished = {
        unit: set(entry.items) - job.digests.keys()
        for unit, entry in enumerate(job.layout.units)
        if not job.digests.keys() >= set(entry.items)
    }
    return assign(
        job.plan.items,
        job.layout,
        job.communicator.size,
        job.options.threads,
        job.options.memory_limit,
        frozenset(unfinished),
        frozenset(unit for unit, items in unfinished.items() if items <= job.reused.keys()),
    )


def _own_bytes(job: Job, work: Assignment) -> float:
    """Return the bytes that this rank will write, for its progress."""
    split = [job.layout.units[unit].items[0] for unit in (*work.linked, *work.sliced)]
    own = [
        item
        for unit in work.local[job.communicator.rank]
        for item in job.layout.units[unit].items
        if item not in job.digests
    ]
    shared = sum(map(job.bytes_of, split)) / job.communicator.size
    return shared + sum(map(job.bytes_of, own))
