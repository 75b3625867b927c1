"""Shards in the prefetch buffer: unpacked once, whole, and served as ranges."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

from tests.kernels.prefetch_node import (
    COPIED,
    DAMAGED,
    FAILED,
    SIZE,
    UNIT,
    Node,
    content,
)

SHARD = 3 * SIZE


def unpack(node: Node, most: int = 1000) -> int:
    """Unpack what the budget allows, and return how many shards."""
    count = 0
    while count < most and (taken := node.buffer.take(0.0, ahead=True)):
        for entry, _, begin, size, _ in taken:
            assert (begin, size) == (0, SHARD)
            node.buffer.store(entry, np.frombuffer(content(begin, size), np.uint8))
        count += len(taken)
    return count


def read_unpacked(node: Node, shard: int) -> int:
    """Read from a shard instead of a reader, while another thread unpacks it."""
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.append(node.read((shard, 100, 50), 60.0)))
    reader.start()
    while reader.is_alive():
        unpack(node)
        reader.join(0.001)
    return found[0]


def test_a_shard_is_unpacked_once_for_all_its_ranges(node: Node) -> None:
    """Whoever reads of it, announced or not; its reader waits for those who unpack."""
    shard = node.buffer.add_source(SHARD, packed=True)
    node.buffer.set_usual_budget(4 * SHARD)
    assert read_unpacked(node, shard) == COPIED
    assert [node.read((shard, begin, 10)) for begin in (0, 500, SHARD - 10)] == [COPIED] * 3
    stream = node.buffer.open_stream()
    node.announce(stream, [[(shard, 0, SHARD)]] * 3, 4 * SHARD)
    assert unpack(node) == 0
    for number in range(3):
        assert node.read((shard, number, 10)) == COPIED
        node.finish(stream, number)
    assert node.status()["misses"] == 1
    with pytest.raises(IndexError, match="a range is outside"):
        node.read((shard, SHARD - 5, 10))
    with pytest.raises(IndexError, match="a shard is announced as a whole"):
        node.announce(stream, [[(shard, 0, 10)]])
    with pytest.raises(IndexError, match="a shard has a size"):
        node.buffer.add_source(0, packed=True)


def test_a_bit_that_the_disk_has_flipped(node: Node) -> None:
    """It is noticed by the readers of its block."""
    shard = node.buffer.add_source(SHARD, packed=True)
    stream = node.buffer.open_stream()
    node.announce(stream, [[(shard, 0, SHARD)]])
    assert unpack(node) == 1
    assert node.read((shard, SHARD - 10, 10)) == COPIED
    os.pwrite(node.file, bytes([content(SHARD - 5, 1)[0] ^ 1]), SHARD - 5)
    assert node.read((shard, SHARD - 10, 10)) == DAMAGED


def test_few_are_unpacked_at_a_time(node: Node) -> None:
    """Other ranges are fetched meanwhile."""
    shards = [node.buffer.add_source(SHARD, packed=True) for _ in range(3)]
    node.buffer.set_unpackers(2)
    for shard in shards:
        node.announce(node.buffer.open_stream(), [[(shard, 0, SHARD)]])
    node.stream(range(1))
    taken = [node.buffer.take(0.0, ahead=True) for _ in range(4)]
    assert [len(some) for some in taken] == [1, 1, 1, 0]
    assert node.source in {source for some in taken for _, source, *_ in some}
    for some in taken:
        for entry, *_ in some:
            node.buffer.fail(entry)
    assert len(node.buffer.take(0.0, ahead=True)) == 1


def test_shards_and_ranges_share_a_budget(node: Node) -> None:
    """The file of the ranges and those of the shards are not larger than it together."""
    shards = [node.buffer.add_source(SHARD, packed=True) for _ in range(4)]
    stream = node.buffer.open_stream()
    cost = -(-SHARD // UNIT) * UNIT
    node.announce(stream, [[(shard, 0, SHARD)] for shard in shards[:2]], 3 * cost)
    node.announce(stream, [[node.key(number)] for number in range(10)], 3 * cost)
    node.announce(stream, [[(shard, 0, SHARD)] for shard in shards[2:]], 3 * cost)
    assert node.fetch() == 2 + cost // -(-SIZE // UNIT) // UNIT
    assert node.status()["used"] <= 3 * cost
    assert os.fstat(node.file).st_size <= 3 * cost


def test_what_is_read_again_later_makes_room(node: Node) -> None:
    """For what is read before: a budget of three shards serves two passes over six."""
    shards = [node.buffer.add_source(SHARD, packed=True) for _ in range(6)]
    stream = node.buffer.open_stream()
    cost = -(-SHARD // UNIT) * UNIT
    order = [*shards, *shards, *reversed(shards)]
    node.announce(stream, [[(shard, 0, SHARD)] for shard in order], 3 * cost)
    unpacked = 0
    for number, shard in enumerate(order):
        time.sleep(0.06)
        unpacked += unpack(node)
        assert node.read((shard, 0, SHARD)) == COPIED, number
        node.finish(stream, number)
        assert node.status()["used"] <= 3 * cost
    assert unpacked <= 6 + 6 + 3
    assert node.status()["misses"] == 0


def test_what_a_reader_waits_for_takes_the_place_of_what_is_read_later(node: Node) -> None:
    """It is unpacked once, not for each of its readers."""
    first, second = (node.buffer.add_source(SHARD, packed=True) for _ in range(2))
    stream = node.buffer.open_stream()
    node.announce(stream, [[(shard, 0, SHARD)] for shard in (first, second, first)], SHARD + UNIT)
    assert unpack(node) == 1
    node.finish(stream, 0)
    assert read_unpacked(node, second) == COPIED
    assert node.read((second, 0, 10)) == COPIED


def test_a_shard_that_nobody_announced_takes_nothing_from_a_stream(node: Node) -> None:
    """Of a budget that is full: it is read from memory."""
    shards = [node.buffer.add_source(SHARD, packed=True) for _ in range(8)]
    stream = node.buffer.open_stream()
    cost = -(-SHARD // UNIT) * UNIT
    node.announce(stream, [[(shard, 0, SHARD)] for shard in shards[:6]], 4 * cost)
    assert unpack(node) == 4
    for _ in range(2):
        assert read_unpacked(node, shards[7]) == COPIED
    assert [node.read((shard, 0, 10)) for shard in shards[:4]] == [COPIED] * 4
    assert (node.status()["held"], node.status()["used"]) == (4, 4 * cost)


def test_a_shard_without_any_budget(node: Node) -> None:
    """It is read from memory."""
    shard = node.buffer.add_source(SHARD, packed=True)
    assert read_unpacked(node, shard) == COPIED
    assert node.status()["held"] == 0


def test_a_shard_that_cannot_be_unpacked(node: Node) -> None:
    """Its readers are told, and the next one tries again."""
    shard = node.buffer.add_source(SHARD, packed=True)
    found: list[int] = []
    for _ in range(2):
        reader = threading.Thread(target=lambda: found.append(node.read((shard, 0, 10), 60.0)))
        reader.start()
        while not (taken := node.buffer.take(1.0, ahead=False)):
            pass
        node.buffer.fail(taken[0][0])
        reader.join(60)
    assert found == [FAILED, FAILED]
