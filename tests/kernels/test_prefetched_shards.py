"""Shards in the prefetch buffer: unpacked once, whole, and served as ranges."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

from distcache.storage.files import open_unnamed
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
            file = open_unnamed(node.directory)
            node.buffer.store(entry, np.frombuffer(content(begin, size), np.uint8), file)
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


def opened(node: Node, *shards: int) -> list[int]:
    """Return descriptors of shards that are ahead, or -1."""
    return node.buffer.open_shards(np.array(shards, np.int64), 0.0)


def test_a_shard_is_read_in_place(node: Node) -> None:
    """From a file of its own, which is empty once the shard is discarded, and never another's."""
    first, second = (node.buffer.add_source("unpackers", SHARD) for _ in range(2))
    stream = node.buffer.open_stream()
    node.announce(stream, [[(shard, 0, SHARD)] for shard in (first, second)], SHARD + UNIT)
    assert unpack(node) == 1
    (mine,) = opened(node, first)
    assert opened(node, second) == [-1]
    assert os.pread(mine, SHARD, 0) == content(0, SHARD)
    node.finish(stream, 0)
    assert os.fstat(mine).st_size == SHARD, "nobody needs its room yet"
    assert unpack(node) == 1
    assert os.fstat(mine).st_size == 0
    os.close(mine)
    (other,) = opened(node, second)
    assert os.pread(other, SHARD, 0) == content(0, SHARD)
    before = node.status()["used"]
    node.buffer.close_stream(stream)
    assert (before, node.status()["used"], os.fstat(other).st_size) == (SHARD + 16, 0, 0)
    os.close(other)
    with pytest.raises(IndexError, match="there is no such shard"):
        opened(node, node.source)


def test_a_shard_needs_a_file_of_its_own(node: Node) -> None:
    """And nothing else has one; the buffer closes it all the same."""
    shard = node.buffer.add_source("unpackers", SHARD)
    stream = node.buffer.open_stream()
    node.announce(stream, [[(shard, 0, SHARD)], [node.key(1)]])
    ((entry, _, begin, size),) = node.buffer.take(0.0, "unpackers")
    data = np.frombuffer(content(begin, size), np.uint8)
    node.buffer.store(entry, data, open_unnamed(node.directory))
    ((entry, _, begin, size),) = node.buffer.take(0.0)
    data = np.frombuffer(content(begin, size), np.uint8)
    file = open_unnamed(node.directory)
    with pytest.raises(IndexError, match="only shards have a file"):
        node.buffer.store(entry, data, file)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(file)


def test_a_shard_without_a_file(node: Node) -> None:
    """Where none can be made: its readers get it from memory, as on a full disk."""
    shard = node.buffer.add_source("unpackers", SHARD)
    stream = node.buffer.open_stream()
    node.announce(stream, [[(shard, 0, SHARD)]])
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.append(node.read((shard, 100, 50))))
    ((entry, _, begin, size),) = node.buffer.take(0.0, "unpackers")
    reader.start()
    while not node.buffer.is_awaited(entry):
        time.sleep(0.001)
    node.buffer.store(entry, np.frombuffer(content(begin, size), np.uint8))
    reader.join(60)
    assert found == [COPIED]
    assert node.status()["used"] == 0
    assert node.status()["error"] != 0


def test_a_bit_that_the_disk_has_flipped(node: Node) -> None:
    """A shard that it returns otherwise is not read in place."""
    shard = node.buffer.add_source("unpackers", SHARD)
    stream = node.buffer.open_stream()
    node.announce(stream, [[(shard, 0, SHARD)]])
    ((entry, _, begin, size),) = node.buffer.take(0.0, "unpackers")
    file = open_unnamed(node.directory)
    kept = os.dup(file)
    node.buffer.store(entry, np.frombuffer(content(begin, size), np.uint8), file)
    (right,) = opened(node, shard)
    assert right >= 0
    os.close(right)
    os.pwrite(kept, bytes([content(SHARD - 5, 1)[0] ^ 1]), SHARD - 5)
    assert opened(node, shard) == [-1]
    os.close(kept)


def test_shards_and_ranges_share_a_budget(node: Node) -> None:
    """The file of the ranges and those of the shards are not larger than it together."""
    shards = [node.buffer.add_source("unpackers", SHARD) for _ in range(4)]
    stream = node.buffer.open_stream()
    cost = -(-SHARD // UNIT) * UNIT
    node.announce(stream, [[(shard, 0, SHARD)] for shard in shards[:2]], 3 * cost)
    node.announce(stream, [[node.key(number)] for number in range(10)], 3 * cost)
    node.announce(stream, [[(shard, 0, SHARD)] for shard in shards[2:]], 3 * cost)
    assert unpack(node) == 2
    assert node.fetch() == cost // -(-SIZE // UNIT) // UNIT
    assert node.status()["used"] <= 3 * cost
    assert os.fstat(node.file).st_size <= cost


def test_what_is_read_again_later_makes_room(node: Node) -> None:
    """For what is read before: a budget of three shards serves two passes over six."""
    shards = [node.buffer.add_source("unpackers", SHARD) for _ in range(6)]
    stream = node.buffer.open_stream()
    cost = -(-SHARD // UNIT) * UNIT
    order = [*shards, *shards, *reversed(shards)]
    node.announce(stream, [[(shard, 0, SHARD)] for shard in order], 3 * cost)
    unpacked = 0
    for number, shard in enumerate(order):
        time.sleep(0.06)
        unpacked += unpack(node)
        (file,) = opened(node, shard)
        assert file >= 0, number
        assert os.pread(file, SHARD, 0) == content(0, SHARD)
        os.close(file)
        node.finish(stream, number)
        assert node.status()["used"] <= 3 * cost
    assert unpacked <= 6 + 6 + 3
    assert node.status()["misses"] == 0


def test_what_a_reader_waits_for_takes_the_place_of_what_is_read_later(node: Node) -> None:
    """It is unpacked once, not for each of its readers."""
    first, second = (node.buffer.add_source("unpackers", SHARD) for _ in range(2))
    stream = node.buffer.open_stream()
    node.announce(stream, [[(shard, 0, SHARD)] for shard in (first, second, first)], SHARD + UNIT)
    assert unpack(node) == 1
    node.finish(stream, 0)
    assert read_unpacked(node, second) == COPIED
    (file,) = opened(node, second)
    assert file >= 0
    os.close(file)


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
