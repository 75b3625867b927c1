"""A sample's index with the number under which it was announced to the fetcher."""

from __future__ import annotations

from typing import Any


class AnnouncedIndex(int):
    """The index of a sample, as any other integer, that was announced to the node's fetcher.

    Parameters
    ----------
    index : int
        Number of the sample.
    reading : (int, int)
        Number of a stream, and of the reading in it.
    """

    reading: tuple[int, int]

    def __new__(cls, index: int, reading: tuple[int, int]) -> AnnouncedIndex:
        """Make an index."""
        made = super().__new__(cls, index)
        made.reading = reading
        return made

    def __reduce__(self) -> Any:
        return AnnouncedIndex, (int(self), self.reading)
