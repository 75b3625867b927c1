"""The buffer of ranges that are read ahead: order, budget and shares, and what is discarded."""

from __future__ import annotations

import itertools
import os
import resource
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.prefetch_node import (
    COPIED,
    COST,
    DAMAGED,
    FAILED,
    LATE,
    SIZE,
    UNWRITABLE,
    Node,
    Range,
    content,
)
from tests.support.waiting import wait_until


def test_what_is_ahead_is_read_in_any_order(node: Node) -> None:
    """A range that was not announced is not there: the reader's thread fetches it."""
    node.stream(range(5))
    assert node.fetch() == 5
    assert [node.read(node.key(number)) for number in (3, 0, 4, 1, 2)] == [COPIED] * 5
    assert node.read(node.key(9)) == LATE
    assert (node.status()["hits"], node.status()["misses"]) == (5, 1)


def test_the_budget_is_never_exceeded(node: Node) -> None:
    """It is used again when readings are over."""
    budget = 40 * SIZE
    stream = node.stream(range(400), budget)
    for number in range(400):
        node.fetch()
        assert node.status()["used"] <= budget
        assert os.fstat(node.file).st_size <= budget
        assert node.read(node.key(number)) == COPIED
        node.finish(stream, number)


def test_a_range_beyond_the_budget_is_passed_over(node: Node) -> None:
    """It is fetched when it is needed, and holds nobody up."""
    stream = node.buffer.open_stream()
    keys = [node.key(0, 4000), node.key(1), node.key(2, 4000)]
    node.announce(stream, [[key] for key in keys], 9000)
    assert node.fetch() == 2
    assert [node.read(key) for key in keys] == [COPIED, LATE, COPIED]


def test_streams_share_the_budget(node: Node) -> None:
    """Streams that are opened together get nearly equal parts of it."""
    for start in (0, 1000, 2000):
        node.stream(range(start, start + 200), 90 * COST)
    node.fetch()
    ahead = [
        sum(node.read(node.key(start + number)) == COPIED for number in range(200))
        for start in (0, 1000, 2000)
    ]
    assert sum(ahead) == 90
    assert max(ahead) - min(ahead) <= 2


def test_a_stream_that_comes_later_gets_its_share(node: Node) -> None:
    """What was lent is given back, from what its borrower reads last."""
    first = node.stream(range(200), 100 * COST)
    assert node.fetch() == 100
    node.stream(range(1000, 1200), 100 * COST)
    assert node.fetch() == 50
    assert [node.read(node.key(1000 + number)) for number in range(50)] == [COPIED] * 50
    assert [node.read(node.key(number)) for number in range(50)] == [COPIED] * 50
    assert node.read(node.key(99)) == LATE
    for number in range(50):
        node.finish(first, number)
    assert node.fetch() == 50
    assert [node.read(node.key(number)) for number in range(50, 100)] == [COPIED] * 50


def test_what_a_stream_does_not_need_is_lent(node: Node) -> None:
    """A stream that is open, and has nothing more to read, takes nothing from others."""
    node.stream(range(1000, 1002), 100 * COST)
    node.stream(range(200), 100 * COST)
    assert node.fetch() == 100


def test_ranks_that_read_the_same(node: Node) -> None:
    """As context-parallel ranks do: a range is fetched once, and stays until both have read it."""
    budget = 12 * COST
    streams = [node.stream(range(30), budget) for _ in range(2)]
    for number in range(30):
        node.fetch()
        for stream in streams:
            assert node.read(node.key(number)) == COPIED
            node.finish(stream, number)
    assert node.status()["misses"] == 0


def test_a_closed_stream_leaves_nothing(node: Node) -> None:
    """The disk gets the space back."""
    stream = node.stream(range(20))
    node.fetch(10)
    node.buffer.close_stream(stream)
    assert node.status()["used"] == 0
    assert os.fstat(node.file).st_size == 0
    assert node.fetch() == 0
    node.finish(stream, 3)  # of a stream that is closed: nothing


def test_another_reader_of_a_closed_stream(node: Node) -> None:
    """It finds what the first had announced, on the disk or still to be fetched."""
    first = node.stream(range(10))
    second = node.stream(range(10))
    node.fetch(4)
    node.buffer.close_stream(first)
    assert node.fetch() == 6
    for number in range(10):
        assert node.read(node.key(number)) == COPIED
        node.finish(second, number)


def test_the_budget_of_a_job_that_has_ended(node: Node) -> None:
    """The greatest budget of the open streams counts."""
    node.stream(range(400), 40 * COST)
    large = node.stream(range(1000, 1200), 100 * COST)
    node.fetch()
    assert node.status()["used"] == 100 * COST
    node.buffer.close_stream(large)
    assert node.status()["budget"] == 40 * COST
    assert node.fetch() == 0
    assert node.status()["used"] <= 50 * COST


def test_a_flipped_bit_is_noticed(node: Node) -> None:
    """The range counts as not there."""
    node.stream(range(3))
    node.fetch()
    assert os.pwrite(node.file, b"\xee\xee", COST + 5) == 2
    assert [node.read(node.key(number)) for number in range(3)] == [COPIED, DAMAGED, COPIED]


def test_a_large_range_is_read_in_parts(node: Node) -> None:
    """All of a small source may be announced: any part of it is served, and verified."""
    whole = 100_000
    source = node.buffer.add_source(whole, packed=False)
    stream = node.buffer.open_stream()
    node.announce(stream, [[(source, 0, whole)]] * 3)
    assert node.fetch() == 1
    for begin, size in ((0, whole), (16_380, 10), (99_999, 1), (5, 40_000)):
        assert node.read((source, begin, size)) == COPIED
    os.pwrite(node.file, b"\xee\xee", 50_000)
    assert node.read((source, 49_990, 20)) == DAMAGED
    assert node.read((source, 0, 20)) == COPIED


def test_a_reader_waits_for_what_is_on_its_way(node: Node) -> None:
    """It is not fetched twice."""
    node.stream(range(1))
    ((entry, _, begin, size, _),) = node.buffer.take(0.0, ahead=True)
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.append(node.read(node.key(0), 60.0)))
    reader.start()
    reader.join(0.2)
    assert reader.is_alive()
    node.buffer.store(entry, np.frombuffer(content(begin, size), np.uint8))
    reader.join(10)
    assert found == [COPIED]


def test_readers_wait_no_longer_than_they_said(node: Node) -> None:
    """For all ranges of a request together, however many are on their way."""
    node.stream(range(20))
    while node.buffer.take(0.0, ahead=True):
        pass
    keys = np.array([node.key(number) for number in range(20)], np.int64)
    begin = time.monotonic()
    assert node.buffer.fetch(keys, np.zeros(20, np.int32), 0.2) == [LATE] * 20
    assert time.monotonic() - begin < 10


def test_what_could_not_be_fetched(node: Node) -> None:
    """Those who wait are told; the next reader lets it be fetched again."""
    node.stream(range(2))
    ((entry, *_),) = node.buffer.take(0.0, ahead=True)
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.append(node.read(node.key(0), 60.0)))
    reader.start()
    wait_until(lambda: node.status()["hits"] == 1, "it waits")
    node.buffer.fail(entry)
    reader.join(60)
    assert found == [FAILED]
    assert node.fetch() == 1
    reader = threading.Thread(target=lambda: found.append(node.read(node.key(0), 60.0)))
    reader.start()
    wait_until(lambda: node.fetch() == 1, "it is fetched again")
    reader.join(60)
    assert found == [FAILED, COPIED]


def test_a_target_that_cannot_be_written_to(node: Node, tmp_path: Path) -> None:
    """It is the reader's error, and nothing is kept for it."""
    stream = node.stream(range(1))
    node.fetch()
    (tmp_path / "target").write_bytes(b"")
    with open(tmp_path / "target", "rb") as target:
        files = np.array([target.fileno()], np.int32)
        assert node.buffer.fetch(np.array([node.key(0)], np.int64), files, 1.0) == [UNWRITABLE]
    node.buffer.close_stream(stream)
    assert node.status()["used"] == 0


def test_ranges_that_touch_are_taken_together(node: Node) -> None:
    """One request fetches them."""
    stream = node.buffer.open_stream()
    keys = [(node.source, 0, 100), (node.source, 100, 50), node.key(1)]
    node.announce(stream, [[key] for key in keys])
    assert [entry[2] for entry in node.buffer.take(0.0, ahead=True)] == [0, 100]
    assert [entry[2] for entry in node.buffer.take(0.0, ahead=True)] == [100_000]


def test_ranges_that_come_again(node: Node) -> None:
    """As those of a small corpus in a large blend: each is fetched once, and pins nothing."""
    order = [number % 7 if number % 2 else 100 + number for number in range(1500)]
    stream = node.buffer.open_stream()
    node.announce(stream, [[node.key(number)] for number in order], 40 * COST)
    fetched = 0
    for place, number in enumerate(order):
        fetched += node.fetch()
        assert node.read(node.key(number)) == COPIED
        node.finish(stream, place)
    assert fetched == len(set(order))


def test_what_is_read_again_much_later_is_still_there(node: Node) -> None:
    """Ranges stay after their last reading, the least recently read go first."""
    stream = node.stream(range(30), 100 * COST)
    fetched = node.fetch()
    for number in range(30):
        node.finish(stream, number)
    node.announce(stream, [[node.key(number)] for number in range(30)], 100 * COST)
    assert node.fetch() == 0
    node.announce(stream, [[node.key(number)] for number in range(100, 180)], 100 * COST)
    assert node.fetch() == 70
    for number in range(30, 60):
        assert node.read(node.key(number - 30)) == COPIED
        node.finish(stream, number)
    assert node.fetch() == 10
    assert fetched == 30
    assert [node.read(node.key(number)) for number in range(30)] == [LATE] * 10 + [COPIED] * 20


def test_a_reader_that_has_not_announced(node: Node) -> None:
    """Nothing that others have announced is given up for it."""
    stream = node.stream(range(200), 50 * COST)
    node.fetch()
    assert node.read(node.key(40)) == COPIED
    for number in range(200):
        node.fetch()
        assert node.read(node.key(number)) == COPIED
        node.finish(stream, number)


def test_readings_that_are_over_twice_or_out_of_order(node: Node) -> None:
    """Workers read in an order of their own, and one may read again."""
    stream = node.stream(range(10), 20 * COST)
    node.fetch()
    for number in (9, 4, 4, 0, 9, 1, 2, 3):
        node.finish(stream, number)
    node.announce(stream, [[node.key(number)] for number in range(20, 40)], 20 * COST)
    assert node.fetch() == 16  # 5 to 8 are still to be read
    assert [node.read(node.key(number)) for number in range(5, 9)] == [COPIED] * 4
    node.finish(stream, 999)
    node.finish(stream, -1)


@pytest.mark.parametrize("streams", [1, 4, 16, 33])
def test_none_of_many_streams_is_jammed(streams: int, node: Node) -> None:
    """By what the others have read."""
    opened = [node.stream(range(1000 * p, 1000 * p + 60), 40 * COST) for p in range(streams)]
    hits = 0
    for number in range(60):
        for place, stream in enumerate(opened):
            node.fetch()
            hits += node.read(node.key(1000 * place + number)) == COPIED
            node.finish(stream, number)
    assert hits == 60 * streams


def test_a_full_disk_leaves_nothing_on_its_way(node: Node) -> None:
    """What it holds is the budget for a while; who waits gets the bytes all the same."""
    node.stream(range(60), 60 * COST)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20 * COST, limits[1]))
    try:
        assert node.fetch() >= 20
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert node.status()["error"]
    assert node.status()["budget"] <= 20 * COST
    assert node.read(node.key(0)) == COPIED
    assert node.read(node.key(59)) == LATE


def test_what_is_not_asked_for_sensibly(node: Node) -> None:
    """Numbers that lead outside of one another are errors."""
    stream = node.buffer.open_stream()
    source = node.buffer.add_source(100, packed=False)
    wrong: list[list[Range]] = [
        [(source + 1, 0, 1)],
        [(-1, 0, 1)],
        [(source, 90, 11)],
        [(source, 0, 0)],
        [(node.source, -1, 5)],
        [(node.source, 0, 2**62)],
        [(node.source, 2**63 - 1, 2)],
    ]
    for ranges in wrong:
        with pytest.raises(IndexError):
            node.announce(stream, [ranges])
        with pytest.raises(IndexError):
            node.read(ranges[0])
    with pytest.raises(IndexError, match="readings"):
        node.buffer.announce(stream, np.array([node.key(0)], np.int64), np.array([2], np.int64), 1)
    with pytest.raises(IndexError, match="no such stream"):
        node.announce(stream + 1, [[node.key(0)]])
    with pytest.raises(IndexError):
        node.buffer.store(77, np.zeros(1, np.uint8))


def test_what_readers_wait_for_comes_first(node: Node) -> None:
    """Neighbours together; threads that read nothing ahead take it, too."""
    node.stream(range(3))
    found: list[int] = []
    keys = [node.key(2), *((node.source, begin, 100) for begin in (0, 100))]

    def wait(key: Range) -> None:
        found.append(node.read(key, 60.0))

    readers = [threading.Thread(target=wait, args=(key,)) for key in keys]
    for number, reader in enumerate(readers, 1):
        reader.start()
        wait_until(lambda wanted=number: node.status()["misses"] == wanted, "it waits")  # type: ignore[misc]
    taken = [node.buffer.take(0.0, ahead=False) for _ in range(3)]
    assert [[begin for _, _, begin, _, _ in some] for some in taken] == [[200_000], [0, 100], []]
    assert all(urgent for some in taken for *_, urgent in some)
    for entry, _, begin, size, _ in itertools.chain(*taken):
        node.buffer.store(entry, np.frombuffer(content(begin, size), np.uint8))
    for reader in readers:
        reader.join(60)
    assert found == [COPIED] * 3
    assert [begin for _, _, begin, *_ in node.buffer.take(0.0, ahead=True)] == [0]


def test_closing_lets_all_go(node: Node) -> None:
    """Readers that wait, and threads that wait for work."""
    node.stream(range(1))
    node.buffer.take(0.0, ahead=True)
    found: list[Any] = []
    waiting = [
        threading.Thread(target=lambda: found.append(node.read(node.key(0), 60.0))),
        threading.Thread(target=lambda: found.append(node.buffer.take(60.0, ahead=True))),
    ]
    for thread in waiting:
        thread.start()
    time.sleep(0.2)
    node.buffer.close()
    for thread in waiting:
        thread.join(10)
    assert len(found) == 2


readings = st.lists(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 3 * SIZE)), max_size=4), max_size=30
)


@given(data=st.data(), plans=st.lists(readings, min_size=1, max_size=3))
def test_any_readings_in_any_order(
    data: st.DataObject, plans: list[list[list[tuple[int, int]]]], tmp_path_factory: Any
) -> None:
    """Bytes are right, the budget holds, and nothing is left: whoever reads what, and when."""
    node = Node(tmp_path_factory.getbasetemp())
    budget = 6 * COST
    todo = []
    for plan in plans:
        stream = node.buffer.open_stream()
        keys = [[node.key(number, size) for number, size in reading] for reading in plan]
        node.announce(stream, keys, budget)
        todo += [(stream, number, own) for number, own in enumerate(keys)]
    for stream, number, own in data.draw(st.permutations(todo)):
        node.fetch(data.draw(st.integers(0, 5)))
        assert node.status()["used"] <= budget
        for key in own:
            assert node.read(key) in (COPIED, LATE)
        node.finish(stream, number)
    assert node.fetch() == 0
    assert node.status()["queued"] == 0
    for stream in {stream for stream, *_ in todo}:
        node.buffer.close_stream(stream)
    if todo and len({s for s, *_ in todo}) == len(plans):
        assert node.status()["used"] == 0
    os.close(node.file)
