"""Build this rank's share of an assignment, and the split items with all ranks.

Small sections are built several at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from distcache.builder.blends import SplitBlend, build_blend
from distcache.builder.job import Digests, Job, Record
from distcache.builder.links import build_linked
from distcache.builder.packed import build_packed_collectively
from distcache.builder.reuse import reuse
from distcache.cache.digests import array_digest, leaves_of
from distcache.extras import imported
from distcache.kernels import build_small_sections
from distcache.plan.assignment import Assignment
from distcache.plan.costs import blend_workers, workers_of
from distcache.plan.layout import ArrayPlace, Unit
from distcache.plan.model import SectionPlan
from distcache.plan.orders import ORDERS
from distcache.ranks.agreement import on_all_ranks, on_rank_0
from distcache.storage.journal import Journal
from distcache.storage.unfinished_file import UnfinishedFile

MAX_MAPPED_SECTIONS: Final = 1024  # sections, whose indices are mapped at a time


def runs_of(job: Job, unit: Unit) -> Iterator[tuple[list[int], bool]]:
    """Yield the unfinished items of a unit: runs of small sections, and others alone.

    Parameters
    ----------
    job : Job
        The build.
    unit : Unit
        A unit of its layout.

    Yields
    ------
    items : list of int
        Indices in `Plan.items`, which follow one another.
    small : bool
        Whether they are small sections, for `build_run`.
    """
    run: list[int] = []
    for item in unit.items:
        small = not unit.is_large and _can_join(job, item)
        if run and (not small or len(run) == MAX_MAPPED_SECTIONS):
            yield run, True
            run = []
        if small:
            run.append(item)
        elif item not in job.digests:
            yield [item], False
    if run:
        yield run, True


def _can_join(job: Job, item: int) -> bool:
    """Return whether an item is an unfinished section whose order can be built in runs."""
    entry = job.plan.items[item]
    unfinished = item not in job.digests and item not in job.reused
    return unfinished and isinstance(entry, SectionPlan) and ORDERS[entry.order].has_runs


def build_run(job: Job, run: Sequence[int], file: UnfinishedFile) -> list[dict[str, str]]:
    """Build and write small sections that follow one another.

    Parameters
    ----------
    job : Job
        The build.
    run : sequence of int
        Indices of the sections in `Plan.items`.
    file : UnfinishedFile
        The unfinished cache.

    Returns
    -------
    list of dict of str to str
        The digest of each array of each section.
    """
    sections = [job.plan.sections[item] for item in run]
    indices = [job.idx(section) for section in sections]
    places = {name: [job.places(item)[name] for item in run] for name in sections[0].arrays}
    arrays = {name: _room_for(column) for name, column in places.items()}
    cut = sections[0].cut  # one configuration has one sequence length
    build_small_sections(
        tuple(idx.lengths for idx in indices),
        np.array([_rules(section) for section in sections], np.int64),
        cut.sequence_length,
        cut.extra_token,
        arrays["document_index"],
        arrays["sample_index"],
        arrays["shuffle_index"],
    )
    for section, idx in zip(sections, indices, strict=True):
        idx.release_lengths(section.begin, section.end)
        idx.require_intact()
    digests: list[dict[str, str]] = [{} for _ in run]
    for name, column in places.items():
        flat, begin = arrays[name].reshape(-1).view(np.uint8), column[0].offset
        file.write(begin, flat)
        for found, place in zip(digests, column, strict=True):
            own = flat[place.offset - begin : place.offset - begin + place.nbytes]
            found[name] = array_digest(leaves_of(own))
    return digests


def _room_for(places: Sequence[ArrayPlace]) -> NDArray[Any]:
    """Return an array for several that follow one another."""
    rows = sum(place.shape[0] for place in places)
    return np.empty((rows, *places[0].shape[1:]), places[0].dtype)


def _rules(section: SectionPlan) -> tuple[int, ...]:
    """Return a row of the rules of the kernel."""
    return (
        section.begin,
        section.end,
        section.first_documents,
        section.first_samples,
        section.seed,
        section.documents,
        section.size.samples + 1,
        section.shuffled_samples,
    )


BuildTogether = Callable[[Job, int, UnfinishedFile], dict[str, str]]
"""Builds an item with all ranks, and returns the digests of its arrays."""


def build_items(job: Job, assignment: Assignment, journal: Journal) -> Digests:
    """Build all that is not finished. Collective.

    Parameters
    ----------
    job : Job
        Build whose `digests` has what is finished.
    assignment : Assignment
        Assignment of the unfinished items.
    journal : Journal
        Journal of this rank.

    Returns
    -------
    Digests
        Digests of what all ranks have built.
    """
    communicator = job.communicator
    built: Digests = {}
    with on_all_ranks(
        communicator, lambda: UnfinishedFile(job.unfinished), "opening the unfinished file"
    ) as file:
        shared: list[tuple[int, BuildTogether]] = [
            *((unit, build_linked) for unit in assignment.linked),
            *((unit, partial(_build_slices, assignment.threads)) for unit in assignment.sliced),
        ]
        for unit, build in shared:
            (item,) = job.layout.units[unit].items
            found = build(job, item, file)
            record = Record(item, found)
            on_rank_0(communicator, partial(journal.append, record), None, "writing the journal")
            job.watch.advance(job.bytes_of(item) / communicator.size)
            built[item] = found

        def build_own() -> Digests:
            own = _build_local(job, assignment, file, journal)
            file.sync()
            return own

        own = on_all_ranks(communicator, build_own, "building sections and blends")
    for share in communicator.allgather(own, Digests, "digests of arrays"):
        built |= share
    return built


def _build_slices(threads: int, job: Job, item: int, file: UnfinishedFile) -> dict[str, str]:
    """Build a blend, or a packed section, of which each rank makes a slice. Collective."""
    if isinstance(job.plan.items[item], SectionPlan):
        return build_packed_collectively(job, item, file)
    return SplitBlend(job, item, file, threads).build()


def _build_local(
    job: Job, assignment: Assignment, file: UnfinishedFile, journal: Journal
) -> Digests:
    """Build this rank's own units, several at a time."""
    digests: Digests = {}
    stop = threading.Event()
    lock = threading.Lock()

    def build_unit(entry: Unit) -> None:
        for run, small in runs_of(job, entry):
            if stop.is_set():
                return
            if small:
                found = build_run(job, run, file)
            else:
                found = [_build_item(job, item, file, entry, threads) for item in run]
            with lock:
                digests.update(zip(run, found, strict=True))
                journal.append(*map(Record, run, found))
            job.watch.advance(sum(map(job.bytes_of, run)))

    threads = assignment.threads
    with ThreadPoolExecutor(threads) as pool:
        units = [job.layout.units[unit] for unit in assignment.local[job.communicator.rank]]
        try:
            tasks = [pool.submit(build_unit, unit) for unit in units]
            wait(tasks, return_when=FIRST_EXCEPTION)
        finally:
            # After an error every thread finishes what it builds; after a signal it ends sooner.
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
        for task in tasks:
            task.result()
    return digests


def _build_item(
    job: Job, item: int, file: UnfinishedFile, unit: Unit, threads: int
) -> dict[str, str]:
    entry, places = job.plan.items[item], job.places(item)
    if item in job.reused:
        return reuse(job.reused[item], places, file, job.other_caches.__getitem__)
    if isinstance(entry, SectionPlan):
        idx = job.idx(entry)
        has_windows = ORDERS[entry.order].has_windows
        shards = job.shards_of(entry) if has_windows else np.empty(0, np.int64)
        build = imported(ORDERS[entry.order].build)
        workers = workers_of(unit.splittable, threads)
        digests: dict[str, str] = build(entry, idx, shards, places, file, workers)
        idx.require_intact()
        return digests
    return build_blend(entry, places, file, blend_workers(entry.size, threads))
