"""Build what an assignment gives to this rank, and the large sections with all ranks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial

from distcache.build.adopt import adopt
from distcache.build.blends import build_blend
from distcache.build.data_file import DataFile
from distcache.build.job import Digests, Job
from distcache.build.journal import Journal, Record
from distcache.build.linked_section import LinkedSection
from distcache.build.sections import build_section
from distcache.build.split_blend import SplitBlend
from distcache.build.split_section import SplitSection
from distcache.errors import BuildInterrupted
from distcache.plan.assignment import Assignment, SplitUnit
from distcache.plan.costs import workers_of
from distcache.plan.layout import Unit
from distcache.plan.model import BlendPlan, SectionPlan
from distcache.ranks.agreement import from_rank_0, together

__all__ = ["build_items"]


def build_items(job: Job, assignment: Assignment, journal: Journal) -> Digests:
    """Build all that is not finished. Collective.

    Parameters
    ----------
    job : Job
        Its `digests` say what is finished.
    assignment : Assignment
        Of what is not.
    journal : Journal
        Of this rank.

    Returns
    -------
    Digests
        Of what was built, by all ranks.
    """
    communicator = job.communicator
    built: Digests = {}
    with together(communicator, lambda: DataFile(job.data), "opening the unfinished file") as file:
        for wave in assignment.waves:
            built |= _build_wave(job, wave, file, journal)
        for unit in assignment.linked:
            built |= _build_linked(job, job.layout.units[unit], file, journal)
        for unit in assignment.blends:
            built |= _build_blend(job, job.layout.units[unit], file, journal)

        def build_own() -> Digests:
            own = _build_local(job, assignment, file, journal)
            file.sync()
            return own

        own = together(communicator, build_own, "building sections and blends")
    for share in communicator.gather_all(own, Digests, "digests of arrays"):
        built |= share
    return built


def _build_wave(job: Job, wave: Sequence[SplitUnit], file: DataFile, journal: Journal) -> Digests:
    """Shuffle the sections of a wave at the same time, then cut one after the other. Collective."""
    digests: Digests = {}
    sections = {
        job.layout.units[entry.unit].items[0]: _split_section(job, entry, file) for entry in wave
    }

    def shuffle() -> None:
        for section in sections.values():
            section.shuffle()

    together(job.communicator, shuffle, "shuffling")
    for item, section in sections.items():
        digests[item] = section.cut()
        _record(job, item, digests[item], journal)
    return digests


def _build_linked(job: Job, entry: Unit, file: DataFile, journal: Journal) -> Digests:
    """Build a section of which no rank holds more than its slice. Collective."""
    (item,) = entry.items
    section = job.plan.sections[item]
    corpus, places = job.corpus(section), job.places(item)
    found = LinkedSection(job.communicator, section, corpus, places, file).build()
    _record(job, item, found, journal)
    return {item: found}


def _build_blend(job: Job, entry: Unit, file: DataFile, journal: Journal) -> Digests:
    """Draw a large blend with all ranks. Collective."""
    (item,) = entry.items
    blend = job.plan.items[item]
    assert isinstance(blend, BlendPlan)
    found = SplitBlend(job.communicator, blend, job.places(item), file).build()
    _record(job, item, found, journal)
    return {item: found}


def _record(job: Job, item: int, digests: dict[str, str], journal: Journal) -> None:
    """Write down what all ranks have built together. Collective."""
    record = Record(item, digests)
    from_rank_0(job.communicator, partial(journal.append, record), None, "writing the journal")
    job.watch.advance(job.bytes_of(item) / job.communicator.size)


def _split_section(job: Job, entry: SplitUnit, file: DataFile) -> SplitSection:
    (item,) = job.layout.units[entry.unit].items
    section = job.plan.sections[item]
    corpus, places = job.corpus(section), job.places(item)
    return SplitSection(job.communicator, entry, section, corpus, places, file)


def _build_local(job: Job, assignment: Assignment, file: DataFile, journal: Journal) -> Digests:
    """Build this rank's own units, several at a time."""
    digests: Digests = {}
    stop = threading.Event()
    lock = threading.Lock()

    def build_unit(entry: Unit) -> None:
        for item in entry.items:
            if stop.is_set() or item in job.digests:
                continue
            found = _build_item(job, item, file, workers_of(entry.splittable, threads))
            with lock:
                digests[item] = found
                journal.append(Record(item, found))
            job.watch.advance(job.bytes_of(item))

    threads = assignment.threads
    with ThreadPoolExecutor(threads) as pool:
        units = [job.layout.units[unit] for unit in assignment.local[job.communicator.rank]]
        try:
            tasks = [pool.submit(build_unit, unit) for unit in units]
            wait(tasks, return_when=FIRST_EXCEPTION)
        except BuildInterrupted:
            file.abandon()
            raise
        finally:
            # After an error every thread ends with the item that it is at, after a signal sooner.
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
        for task in tasks:
            task.result()
    return digests


def _build_item(job: Job, item: int, file: DataFile, workers: int) -> dict[str, str]:
    entry, places = job.plan.items[item], job.places(item)
    if item in job.adopted:
        return adopt(job.adopted[item], places, file, job.other_caches.__getitem__)
    if isinstance(entry, SectionPlan):
        idx = job.corpus(entry).idx
        digests = build_section(entry, idx, places, file, workers)
        idx.require_intact()
        return digests
    return build_blend(entry, places, file)
