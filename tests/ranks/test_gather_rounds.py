"""Each chunk is read once, and arrives everywhere in order."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from distcache.errors import DistcacheError
from distcache.ranks import gather_rounds as rounds
from distcache.ranks.agreement import on_all_ranks, on_all_ranks_watched
from distcache.ranks.communicator import SerialCommunicator
from distcache.ranks.gather_rounds import (
    MAX_CHUNK,
    MIN_CHUNK,
    ROUND_BYTES,
    Buffer,
    chunk_bytes,
    gather_rounds,
)
from distcache.storage import watchdog
from tests.support.threads import ThreadCommunicator, run_ranks


def content(chunk: int, size: int) -> bytes:
    """Return the bytes of a chunk."""
    return np.random.default_rng(chunk).bytes(size)


@pytest.fixture(autouse=True, scope="module")
def _small_rounds() -> Iterator[None]:
    """Cut few bytes into several rounds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "ROUND_BYTES", 50)
        yield


@settings(max_examples=40)
@given(st.integers(1, 5), st.lists(st.integers(0, 70), max_size=40), st.integers(1, 3), st.data())
def test_chunks(agents: int, sizes: list[int], threads: int, data: st.DataObject) -> None:
    """For any number of agents that read; a chunk may be longer than a round."""
    readers = data.draw(st.sets(st.integers(0, agents - 1), min_size=1).map(sorted))

    def localize(rank: ThreadCommunicator) -> tuple[list[int], list[tuple[int, bytes]], float]:
        read: list[int] = []
        arrived: list[tuple[int, bytes]] = []
        moved = [0.0]

        def fill(chunk: int, out: Buffer) -> None:
            read.append(chunk)
            out[:] = np.frombuffer(content(chunk, out.size), np.uint8)

        def advance(size: float) -> None:
            moved[0] += size

        def keep(chunk: int, data: Buffer) -> None:
            arrived.append((chunk, data.tobytes()))

        agree = functools.partial(on_all_ranks, rank)
        gather_rounds(rank, sizes, fill, keep, advance, agree, threads, readers)
        return read, arrived, moved[0]

    outcomes, aborted = run_ranks(agents, localize)
    assert not aborted
    expected = [(chunk, content(chunk, size)) for chunk, size in enumerate(sizes)]
    found = []
    for rank, outcome in enumerate(outcomes):
        assert isinstance(outcome, tuple), outcome
        read, arrived, moved = outcome
        assert arrived == expected
        assert moved == sum(sizes)
        assert rank in readers or not read
        found += read
    assert sorted(found) == list(range(len(sizes)))


@given(st.integers(1, 5), st.integers(1, 3), st.integers(0, 29), st.booleans())
def test_a_chunk_that_is_lost(agents: int, threads: int, broken: int, written: bool) -> None:
    """All agents end with one error, whether it cannot be read or not be written."""

    def localize(rank: ThreadCommunicator) -> None:
        def keep(chunk: int, _: Buffer) -> None:
            if written and rank.rank == agents - 1 and chunk == broken:
                raise DistcacheError(f"no room for chunk {broken}")

        def fill(chunk: int, out: Buffer) -> None:
            if not written and chunk == broken:
                raise DistcacheError(f"chunk {chunk} is gone")
            out[:] = 0

        agree = functools.partial(on_all_ranks, rank)
        with pytest.raises(DistcacheError, match=f"chunk {broken}"):
            gather_rounds(rank, [3] * 30, fill, keep, lambda _: None, agree, threads)

    outcomes, aborted = run_ranks(agents, localize)
    assert not aborted
    assert outcomes == agents * [None]


@pytest.mark.parametrize("fails", [False, True])
def test_a_read_that_hangs(
    fails: bool, monkeypatch: pytest.MonkeyPatch, scale_time: Callable[[float], None]
) -> None:
    """It is noticed where the agreement watches, also after another one has failed."""
    monkeypatch.setattr(watchdog, "_stuck", False)
    scale_time(0.0005)
    hanging = threading.Event()
    alone = SerialCommunicator()
    agree = functools.partial(on_all_ranks_watched, alone)

    def read(chunk: int, _: Buffer) -> None:
        if chunk == 0 and fails:
            raise DistcacheError("chunk 0 is gone")
        hanging.wait(30)

    begin = time.monotonic()
    with pytest.raises(DistcacheError, match="bringing bytes: no progress"):
        gather_rounds(alone, [3, 3], read, lambda *_: None, lambda _: None, agree)
    assert time.monotonic() - begin < 20
    assert watchdog.has_abandoned_thread()
    hanging.set()


def test_all_agents_have_something_to_read() -> None:
    """In every round, of up to 32 of them; chunks are never too small for a disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "ROUND_BYTES", ROUND_BYTES)
        for agents in (1, 2, 3, 8, 16, 32, 100, 5000):
            size = chunk_bytes(agents)
            assert MIN_CHUNK <= size <= MAX_CHUNK
            assert agents > 32 or ROUND_BYTES // size >= agents
