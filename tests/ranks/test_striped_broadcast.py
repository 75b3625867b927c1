"""Each chunk is read once, soon before it is broadcast, and arrives everywhere in order."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from distcache.ranks.striped_broadcast import WINDOW, Buffer, striped_broadcast
from tests.support.threads import ThreadCommunicator, run_ranks


class Sink:
    """Keeps what has arrived."""

    def __init__(self) -> None:
        self.arrived: list[tuple[int, bytes]] = []

    def has_room(self) -> bool:
        """Take any number of chunks."""
        return True

    def give(self, chunk: int, data: Buffer) -> None:
        """Keep a chunk."""
        self.arrived.append((chunk, data.tobytes()))

    def close(self) -> None:
        """Have nothing to wait for."""


def content(chunk: int, size: int) -> bytes:
    """Return the bytes of a chunk."""
    return np.random.default_rng(chunk).bytes(size)


@settings(max_examples=30)
@given(
    st.integers(1, 5),
    st.lists(st.integers(0, 20), max_size=40),
    st.integers(1, 3),
    st.none() | st.integers(1, 6),
    st.data(),
)
def test_chunks(
    agents: int, sizes: list[int], ahead: int, together: int | None, data: st.DataObject
) -> None:
    """For any number of agents that read, and that read ahead."""
    readers = data.draw(st.sets(st.integers(0, agents - 1), min_size=1).map(sorted))
    most = len(sizes) if together is None else together

    def localize(rank: ThreadCommunicator) -> tuple[list[int], list[tuple[int, bytes]]]:
        sink, read = Sink(), []

        def fill(chunk: int, out: Buffer) -> None:
            # The broadcasts of at most so many chunks have started that have not arrived here.
            assert chunk < len(sink.arrived) + WINDOW + most
            read.append(chunk)
            out[:] = np.frombuffer(content(chunk, out.size), np.uint8)

        striped_broadcast(rank, sizes, fill, sink, lambda _: None, ahead, together, readers)
        return read, sink.arrived

    outcomes, aborted = run_ranks(agents, localize)
    assert not aborted
    expected = [(chunk, content(chunk, size)) for chunk, size in enumerate(sizes)]
    found = []
    for outcome in outcomes:
        assert isinstance(outcome, tuple), outcome
        read, arrived = outcome
        assert arrived == expected
        found += read
    assert sorted(found) == list(range(len(sizes)))
