"""Each chunk is read once, soon before it is broadcast, and arrives everywhere in order."""

from __future__ import annotations

import threading

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from distcache.errors import DistcacheError
from distcache.ranks.striped_broadcast import Buffer, _Reader, striped_broadcast
from tests.support.threads import ThreadCommunicator, run_ranks
from tests.support.waiting import wait_until


class Sink:
    """Keeps what has arrived, and has room only when it is asked again."""

    def __init__(self) -> None:
        self.arrived: list[tuple[int, bytes]] = []
        self._asked = 0

    def has_room(self) -> bool:
        """Return it every third time."""
        self._asked += 1
        return self._asked % 3 == 0

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

    def localize(rank: ThreadCommunicator) -> tuple[list[int], list[tuple[int, bytes]]]:
        sink, read = Sink(), []

        def fill(chunk: int, out: Buffer) -> None:
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


@given(st.integers(1, 5), st.integers(1, 3), st.none() | st.integers(1, 6), st.integers(0, 29))
def test_a_chunk_that_cannot_be_read(
    agents: int, ahead: int, together: int | None, broken: int
) -> None:
    """All agents end with its error, and have what comes before it."""

    def localize(rank: ThreadCommunicator) -> list[tuple[int, bytes]]:
        sink = Sink()

        def fill(chunk: int, out: Buffer) -> None:
            if chunk >= broken:
                raise DistcacheError(f"chunk {chunk} is gone")
            out[:] = np.frombuffer(content(chunk, out.size), np.uint8)

        with pytest.raises(DistcacheError, match=f"chunk {broken} is gone"):
            striped_broadcast(rank, [3] * 30, fill, sink, lambda _: None, ahead, together)
        return sink.arrived

    outcomes, aborted = run_ranks(agents, localize)
    assert not aborted
    expected = [(chunk, content(chunk, 3)) for chunk in range(broken)]
    assert outcomes == agents * [expected]


def test_what_is_read_ahead() -> None:
    """Own chunks soon after those that have started; earlier, after one that was late."""
    read: list[int] = []
    free = threading.Event()
    free.set()

    def fill(chunk: int, _: Buffer) -> None:
        assert free.wait(30)
        read.append(chunk)

    own = [2, 5, 8, 11, 14, 17, 20]  # of the last of three agents
    reader = _Reader(own, [1] * 21, fill, ahead=7, together=4)

    def read_ahead(started: int, expected: list[int]) -> None:
        reader.read_ahead(started)
        wait_until(lambda: sorted(read) == expected, f"{expected} to be read")

    read_ahead(0, [2])
    reader.take()
    read_ahead(3, [2, 5])
    free.clear()
    reader.read_ahead(6)
    reader.take()
    assert not reader.is_ready()  # 8 is late
    free.set()
    read_ahead(6, [2, 5, 8])
    reader.take()
    read_ahead(9, [2, 5, 8, 11, 14])
    reader.close()
    assert 17 not in read
