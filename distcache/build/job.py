"""What every step of a build needs to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from distcache.build.communicator import Communicator
from distcache.build.progress import Stopwatch
from distcache.cache import ArrayView, Cache
from distcache.corpus import Corpus
from distcache.plan.layout import ArrayPlace, Layout
from distcache.plan.model import Plan, SectionPlan

__all__ = ["Digests", "Job"]

Digests = dict[int, dict[str, str]]
"""The digests of arrays, by index into `Plan.items` and by array name."""


@dataclass
class Job:
    """One build.

    Attributes
    ----------
    communicator : Communicator
        Of all ranks.
    plan, layout : Plan, Layout
        What to build, and where each array lies.
    data : str
        Path of the unfinished file.
    adopted : mapping of int to (Cache, dict of str to ArrayView)
        Items that another cache has.
    watch : Stopwatch
        Told what this rank does.
    threads : int
        Units that a rank works on at a time.
    digests : Digests
        Of everything that is finished, by any rank.
    """

    communicator: Communicator
    plan: Plan
    layout: Layout
    data: str
    adopted: Mapping[int, tuple[Cache, dict[str, ArrayView]]]
    watch: Stopwatch
    threads: int
    digests: Digests = field(default_factory=dict)

    def places(self, item: int) -> dict[str, ArrayPlace]:
        """Return where the arrays of an item lie, by name."""
        return {place.name: place for place in self.layout.arrays[item]}

    def corpus(self, section: SectionPlan) -> Corpus:
        """Return the corpus of a section, to be opened when it is needed."""
        return Corpus(self.plan.sources[section.source])

    def bytes_of(self, item: int) -> int:
        """Return the bytes of all arrays of an item."""
        return sum(place.nbytes for place in self.layout.arrays[item])
