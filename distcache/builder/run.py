"""The steps of a build, from a configuration to a published cache."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from distcache.builder.adopt import Adoptable, find_adoptable
from distcache.builder.build_record import RankRecord, rank_record, write_record
from distcache.builder.finish import finish, lay_out
from distcache.builder.job import Job, Record
from distcache.builder.prepare import (
    cache_path,
    claim_build,
    data_path,
    is_finished,
    journal_path,
    journals,
    link_equal,
    make_plan_together,
    make_ready,
    moves_of,
    require_name,
)
from distcache.builder.readback import read_back, still_there
from distcache.builder.work import build_items
from distcache.cache.corpus_places import add_known_moves
from distcache.corpus.examine import require_unchanged
from distcache.corpus.fetched import fetched_indices
from distcache.errors import ConfigError, DistcacheError, KeyMismatch
from distcache.plan.assignment import Assignment, assign
from distcache.plan.config import Config
from distcache.plan.layout import Layout, make_layout
from distcache.plan.model import Plan
from distcache.plan.problems import plan_warnings
from distcache.ranks.agreement import aborting_on_error, on_all_ranks, on_rank_0
from distcache.ranks.claim import conclude
from distcache.ranks.communicator import Communicator
from distcache.ranks.heartbeat import Heartbeat
from distcache.ranks.progress import NullProgress, Progress, Stopwatch
from distcache.ranks.workspace import Workspace
from distcache.storage.files import closing_fd, open_regular, set_mode
from distcache.storage.journal import Journal, read_journal
from distcache.storage.timeouts import limits

POLL: Final = 0.1  # seconds between two looks for what another node has made


class BuildOptions(msgspec.Struct, frozen=True):
    """How to build; none of it changes the cache.

    Attributes
    ----------
    threads : int
        Threads of each rank.
    memory_limit : int or None
        Bytes that no rank may exceed.
    reuse : tuple of Path
        Other caches from which sections and blends are copied.
    required_key : str or None
        The key that the configuration must have, so that a job builds what was submitted.
    """

    threads: int = 1
    memory_limit: int | None = None
    reuse: tuple[Path, ...] = ()
    required_key: str | None = None


class BuildOutcome(msgspec.Struct, frozen=True):
    """The result of a build.

    Attributes
    ----------
    path : str
        Of the cache.
    key : str
        Of the cache.
    reused : bool
        Whether it existed, or another job published it first.
    resumed, adopted, built : int
        Sections and blends from an earlier build, from another cache, and built now.
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
    options: BuildOptions = BuildOptions(),  # noqa: B008  frozen
    progress: Progress | None = None,
) -> BuildOutcome:
    """Build a cache, unless it exists; wait for another job that builds it. Collective.

    Parameters
    ----------
    communicator : Communicator
        Of all ranks.
    config : Config
        The same on all ranks.
    directory : path
        Shared by all ranks; made if it does not exist.
    name : str or None
        File name without ``.h5``; by default the start of the key.
    options : BuildOptions
        How to build.
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
            return _build(communicator, config, directory, name, options, watch)


def _build(
    communicator: Communicator,
    config: Config,
    directory: str | Path,
    name: str | None,
    options: BuildOptions,
    watch: Stopwatch,
) -> BuildOutcome:
    """Plan and build, or find the finished cache. Collective."""
    plan = make_plan_together(communicator, config, options.threads, watch)
    _require_key(plan, options)
    layout = make_layout(plan.items)
    final = cache_path(directory, name, plan)
    watch.note(f"key {plan.key}, cache {final}")
    if communicator.rank == 0:
        for warning in plan_warnings(config, plan):
            watch.note(f"warning: {warning}")
    adopted = on_rank_0(
        communicator,
        lambda: find_adoptable(plan, options.reuse),
        dict[int, Adoptable],
        "opening caches to reuse",
    )
    # Refuse a memory limit that cannot be kept before anything is claimed.
    _assign(communicator, plan, layout, frozenset(), adopted, options)

    def link() -> str:
        return str(link_equal(final, plan, options.threads) or "")

    linked = on_rank_0(communicator, link, str, "looking for this cache")
    if linked:
        watch.note(f"{linked} is the same cache: {final} is another name of it now")
    workspace = claim_build(communicator, plan.key, final, watch)
    if workspace is None:
        _note_moves(communicator, plan, final, watch)
        return BuildOutcome(str(final), plan.key, reused=True)
    with contextlib.ExitStack() as stack:
        stack.callback(workspace.release)
        _require_shared(communicator, workspace.path)
        heartbeat = stack.enter_context(Heartbeat(workspace.path, watch, communicator))
        data = data_path(workspace)
        job = Job(communicator, plan, layout, data, adopted, watch, options.threads)
        return _run(job, workspace, final, options, heartbeat)


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
            time.sleep(POLL)

    on_all_ranks(communicator, look, "looking for the output")


def _note_moves(communicator: Communicator, plan: Plan, final: Path, watch: Stopwatch) -> None:
    """Say how the corpora of a finished cache are found, if it has other paths than the plan."""
    if communicator.rank:
        return
    moves = moves_of(final, [source.prefix for source in plan.sources])
    if moves:
        pairs = ",".join(f"{old}={new}" for old, new in moves)
        try:
            add_known_moves(final, moves)
            how = "by what is written beside it now"
        except OSError:  # another user's
            how = f"with DISTCACHE_PREFIX={pairs}, open(..., prefixes=...) or localize --prefix"
        watch.note(
            f"the cache was built where its corpora have other paths ({pairs}); readers that do "
            f"not find them there do so {how}"
        )


def _require_key(plan: Plan, options: BuildOptions) -> None:
    """Refuse a plan whose key is not the required one; all ranks have the same plan."""
    wanted = options.required_key
    if wanted not in (None, plan.key):
        raise KeyMismatch(
            f"the configuration or a corpus has changed: the key is {plan.key} now, but "
            f"--require-key asks for {wanted}. Submit again, or build without --require-key"
        ).of_all_ranks()


def _run(
    job: Job,
    workspace: Workspace,
    final: Path,
    options: BuildOptions,
    heartbeat: Heartbeat,
) -> BuildOutcome:
    """Build in a claimed workspace. Collective."""
    communicator, watch = job.communicator, job.watch
    watch.phase("laying out")

    def prepare() -> tuple[str, dict[int, Record]]:
        attempt = make_ready(workspace, job.plan, job.layout)
        lay_out(job, str(workspace.path / "layout"))
        records = (read_journal(path, Record) for path in journals(workspace))
        return attempt, {record.item: record for record in itertools.chain(*records)}

    attempt, records = on_rank_0(
        communicator, prepare, tuple[str, dict[int, Record]], "laying out HDF5"
    )
    watch.phase("looking for an earlier run")
    job.digests |= still_there(job, records)
    resumed = len(job.digests)
    adopted = len(job.adopted.keys() - job.digests.keys())
    done = frozenset(job.digests)
    work = _assign(communicator, job.plan, job.layout, done, job.adopted, options)
    watch.phase("building", _own_bytes(job, work))
    path = journal_path(workspace, attempt, communicator.rank)
    with on_all_ranks(communicator, lambda: Journal(path), "opening journals") as journal:
        built = build_items(job, work, journal)
    job.digests |= built
    watch.phase("reading back")
    blocks = read_back(job)
    require_unchanged(communicator, job.plan.sources)
    published = _publish(job, workspace, blocks, final)
    outcome = BuildOutcome(
        str(final),
        job.plan.key,
        reused=not published,
        resumed=resumed,
        adopted=adopted,
        built=len(built) - adopted,
    )
    watch.stop()
    mine = rank_record(communicator.rank, watch, work.memory[communicator.rank])
    ranks = communicator.allgather(mine, RankRecord, "the build record")

    def write() -> None:
        if not published:
            return
        try:
            write_record(final, job.plan.key, work.threads, resumed, adopted, ranks)
        except OSError as error:  # the cache exists without it
            watch.note(f"the build record could not be written: {error}")

    conclude(communicator, workspace, heartbeat, write)
    return outcome


def _publish(job: Job, workspace: Workspace, blocks: Sequence[int], final: Path) -> bool:
    """Publish the cache, and return whether this job has done it, not another. Collective."""
    job.watch.phase("publishing")

    def publish() -> bool:
        workspace.require_mine()
        finish(job, blocks)
        if workspace.publish([(job.data, str(final))]) is None:
            with closing_fd(open_regular(final)) as descriptor:
                set_mode(descriptor, os.fstat(descriptor).st_mode & 0o444)
            return True
        if not is_finished(final, job.plan.key):
            raise DistcacheError(
                f"{final}: the name is taken, but no cache is there; move away what has it and run "
                "again, which resumes"
            )
        return False

    return on_rank_0(job.communicator, publish, bool, "publishing")


def _assign(
    communicator: Communicator,
    plan: Plan,
    layout: Layout,
    done: frozenset[int],
    adopted: Mapping[int, Adoptable],
    options: BuildOptions,
) -> Assignment:
    """Let rank 0 distribute the unfinished items over all ranks. Collective."""

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

    return on_rank_0(communicator, decide, Assignment, "assigning work")


def _own_bytes(job: Job, work: Assignment) -> float:
    """Return the bytes that this rank will write, for its progress."""
    split = [job.layout.units[unit].items[0] for unit in (*work.split_sections, *work.blends)]
    own = [
        item
        for unit in work.local[job.communicator.rank]
        for item in job.layout.units[unit].items
        if item not in job.digests
    ]
    shared = sum(map(job.bytes_of, split)) / job.communicator.size
    return shared + sum(map(job.bytes_of, own))
