"""Small sections that follow one another in a unit, built and written together.

With thousands of sections most of the time would be Python's. So one call builds the arrays of many
sections, and one write takes all of their arrays of a name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from distcache.builder.job import Job
from distcache.cache.digests import array_digest, leaves_of
from distcache.kernels import build_small_sections
from distcache.plan.layout import ArrayPlace, Unit
from distcache.plan.model import SectionPlan
from distcache.plan.orders import ORDERS
from distcache.storage.unfinished_file import UnfinishedFile

MOST_TOGETHER: Final = 1024  # sections, whose indices are mapped at a time


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
        if run and (not small or len(run) == MOST_TOGETHER):
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
    unfinished = item not in job.digests and item not in job.adopted
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
