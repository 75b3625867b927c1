"""A large section, built by all ranks together.

Every rank gets a slice of the shuffled document index, knows from the prefix sums of the lengths
where its tokens start, and cuts and writes the samples that begin in them. There are two ways to
shuffle: `halves`, by two ranks, and `links`, by all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from distcache.builder.job import Job
from distcache.builder.section_slice import SectionSlice, joined_digests
from distcache.plan.memory import DOCUMENT_BYTES
from distcache.plan.model import STRIPE
from distcache.ranks.agreement import on_all_ranks
from distcache.ranks.partition import slice_bounds
from distcache.storage.unfinished_file import UnfinishedFile

Steps = Iterator[tuple[int, NDArray[np.int64]]]
"""Position of a rank's next entries, and the entries; as many steps on every rank."""


class Shuffle(ABC):
    """A way in which all ranks shuffle a section.

    Parameters
    ----------
    job : Job
        The build.
    item : int
        Index of the section into `Plan.items`.
    file : UnfinishedFile
        The unfinished cache.
    """

    def __init__(self, job: Job, item: int, file: UnfinishedFile) -> None:
        self._communicator = job.communicator
        self._section = job.plan.sections[item]
        self._job = job
        self._place = job.places(item)["shuffle_index"]
        self._file = file

    @abstractmethod
    def documents(self, bounds: Sequence[int]) -> tuple[list[int], Steps]:
        """Shuffle the documents. Collective, as is each step.

        Parameters
        ----------
        bounds : sequence of int, length ranks + 1
            Rank r gets positions [bounds[r], bounds[r + 1]) of the document index.

        Returns
        -------
        (list of int, iterator)
            Tokens before each rank's slice, and the entries of this rank's slice.
        """

    @abstractmethod
    def samples(self) -> bytes:
        """Shuffle and write the samples, after the documents. Collective.

        Returns
        -------
        bytes
            Leaf digests of what this rank has written of the shuffle index.
        """


def build_together(
    job: Job, item: int, file: UnfinishedFile, kind: type[Shuffle]
) -> dict[str, str]:
    """Build and write a section. Collective.

    Parameters
    ----------
    job : Job
        The build.
    item : int
        Index of the section into `Plan.items`.
    file : UnfinishedFile
        The unfinished cache.
    kind : type of Shuffle
        The way to shuffle it.

    Returns
    -------
    dict of str to str
        The digest of each array, on all ranks.
    """
    communicator, section = job.communicator, job.plan.sections[item]
    bounds = slice_bounds(section.documents, communicator.size, STRIPE // DOCUMENT_BYTES)
    shuffle = kind(job, item, file)
    firsts, steps = shuffle.documents(bounds)
    part = SectionSlice(communicator, section, job.places(item), file, bounds, firsts)
    for begin, entries in steps:
        on_all_ranks(communicator, partial(part.feed, begin, entries), "writing documents")
    leaves = part.finish()
    del entries, steps  # with their memory, before the samples take theirs
    return joined_digests(communicator, leaves | {"shuffle_index": shuffle.samples()})
