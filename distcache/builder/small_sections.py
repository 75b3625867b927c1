"""Small sections in Megatron's order that follow one another in a unit, built and written together.

Of thousands of them the overhead of Python dominates: one call builds all of their arrays, and each
name has one write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from distcache.builder.job import Job
from distcache.cache.digests import digest_of
from distcache.kernels import build_small_sections
from distcache.plan.layout import Unit
from distcache.plan.model import SectionPlan
from distcache.storage.unfinished_file import UnfinishedFile


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
        Whether they are small sections in Megatron's order, for `build_run`.
    """
    run: list[int] = []
    for item in unit.items:
        small = not unit.is_large and _is_built_whole(job, item)
        if run and not small:
            yield run, True
            run = []
        if small:
            run.append(item)
        elif item not in job.digests:
            yield [item], False
    if run:
        yield run, True


def _is_built_whole(job: Job, item: int) -> bool:
    """Return whether an item is an unfinished section in Megatron's order, and is not copied."""
    entry = job.plan.items[item]
    unfinished = item not in job.digests and item not in job.adopted
    return unfinished and isinstance(entry, SectionPlan) and entry.order == "megatron"


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
    places = [job.layout.arrays[item] for item in run]
    indices = [job.idx(section) for section in sections]
    arrays = []
    for column in zip(*places, strict=True):
        rows = sum(place.shape[0] for place in column)
        arrays.append(np.empty((rows, *column[0].shape[1:]), column[0].dtype))
    cut = sections[0].cut
    build_small_sections(
        [idx.lengths for idx in indices],
        np.array([_rules(section) for section in sections], np.int64),
        cut.sequence_length,
        cut.extra_token,
        *arrays,
    )
    for section, idx in zip(sections, indices, strict=True):
        idx.release_lengths(section.begin, section.end)
        idx.require_intact()
    digests: list[dict[str, str]] = [{} for _ in run]
    for column, array in zip(zip(*places, strict=True), arrays, strict=True):
        flat = array.reshape(-1).view(np.uint8)
        file.write(column[0].offset, flat)
        begin = column[0].offset
        for found, place in zip(digests, column, strict=True):
            first = place.offset - begin
            found[place.name] = digest_of(flat[first : first + place.nbytes])
    return digests


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
