"""Shards in the prefetch buffer: unpacked once, whole, and served as ranges."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tests.kernels.prefetch_node import (
    COPIED,
    MISSING,
    SIZE,
    UNIT,
    Node,
    content,
)

SHARD = 3 * SIZE


def unpack(node: Node, most: int = 1000) -> int:
    """Unpack what the budget allows, and return how many shards."""
    count = 0
    while count < most and (taken := node.buffer.take(0.0, "unpackers")):
        for entry, _, begin, size in taken:
            assert (begin, size) == (0, SHARD)
            node.buffer.store(entry, np.frombuffer(content(begin, size), np.uint8))
        count += len(taken)
    return count


def read_unpacked(node: Node, shard: int) -> int:
    """Read from a shard in the place of a reader, while another thread unpacks it."""
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.append(node.read((shard, 100, 50))))
    reader.start()
    while reader.is_alive():
        unpack(node)
        reader.join(0.001)
    return found[0]


def test_a_shard_is_unpacked_once_for_all_its_ranges(node: Node) -> None:
    """Whoever reads of it, announced or not; its reader waits for those who unpack."""
    shard = node.buffer.add_source("unpackers", SHARD)
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
        node.buffer.add_source("unpackers", 0)
    with pytest.raises(ValueError, match="nobody fetches by x"):
        node.buffer.add_source("x", 0)


def test_a_shard_that_nobody_announced_takes_nothing_from_a_stream(node: Node) -> None:
    """Of a budget that is full: it is read from memory."""
    shards = [node.buffer.add_source("unpackers", SHARD) for _ in range(8)]
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
    shard = node.buffer.add_source("unpackers", SHARD)
    assert read_unpacked(node, shard) == COPIED
    assert node.status()["held"] == 0


def test_a_shard_that_cannot_be_unpacked(node: Node) -> None:
    """Its readers are told, and the next one tries again."""
    shard = node.buffer.add_source("unpackers", SHARD)
    found: list[int] = []
    for _ in range(2):
        reader = threading.Thread(target=lambda: found.append(node.read((shard, 0, 10))))
        reader.start()
        while not (taken := node.buffer.take(1.0, "unpackers")):
            pass
        node.buffer.fail(taken[0][0])
        reader.join(60)
    assert found == [MISSING, MISSING]
