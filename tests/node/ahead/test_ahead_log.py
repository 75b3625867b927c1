"""The read-ahead log by itself: order, budget, what is discarded, and what is taken up again."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from distcache.errors import StorageError
from distcache.node.ahead import ahead_log
from distcache.node.ahead.ahead_log import AheadLog
from distcache.node.ahead.protocol import Source
from distcache.node.ahead.segment import LogSegment, RangeKey
from distcache.node.ahead.streams import BEHIND, Entry, Stream, cost_of
from distcache.storage.files import FileVersion

SOURCE = Source("s3://lake/c.bin", FileVersion(1 << 40, 1, 0, '"tag"'))
SIZE = 10_000


def key(number: int, size: int = SIZE) -> RangeKey:
    """Return a range that is far from others."""
    return RangeKey(SOURCE, number * 100_000, size)


def content(entry: RangeKey) -> bytes:
    """Return the bytes of a range."""
    return (entry.begin % 251).to_bytes(1, "little") * entry.size


def take(log: AheadLog, wanted: RangeKey) -> bytes | None:
    """Return a range, if it is ahead."""
    entry = log.claim(wanted)
    return None if entry is None else log.read(entry, time.monotonic() + 60)


def fetch(log: AheadLog, most: int = 1000) -> int:
    """Fetch what the budget allows, and return how many ranges."""
    count = 0
    while count < most and (entries := next_now(log)):
        for entry in entries:
            log.store(entry, memoryview(content(entry.key)))
        count += len(entries)
    return count


def next_now(log: AheadLog) -> list[Entry]:
    """Return what is to be fetched next, if anything is."""
    with log._changed:
        return log._next_entries()


@pytest.fixture
def log(tmp_path: Path) -> AheadLog:
    """An empty log."""
    return AheadLog(tmp_path)


def stream_of(log: AheadLog, count: int, budget: int = 1 << 30) -> Stream:
    """Return a stream of so many ranges."""
    stream = log.open_stream()
    log.announce(stream, [key(number) for number in range(count)], budget)
    return stream


def test_what_is_ahead_is_taken(log: AheadLog) -> None:
    """What is ahead is taken in any order, with its bytes; what was not told is not there."""
    stream_of(log, 5)
    assert fetch(log) == 5
    for number in (3, 0, 4, 1, 2):
        assert take(log, key(number)) == content(key(number))
    assert take(log, key(9)) is None
    assert (log.hits, log.misses) == (5, 1)


def test_the_budget(log: AheadLog, tmp_path: Path) -> None:
    """It is never exceeded, and is used again when ranges were read."""
    budget = 40 * SIZE
    stream_of(log, 400, budget)
    read = 0
    while read < 400:
        fetch(log)
        assert log.used <= budget
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= budget
        for _ in range(min(20, 400 - read)):
            assert take(log, key(read)) == content(key(read))
            read += 1
    assert log.hits == 400


def test_a_range_beyond_the_budget(log: AheadLog) -> None:
    """It is left to be read when it is needed, and holds nobody up."""
    stream = log.open_stream()
    log.announce(stream, [key(0, 4000), key(1), key(2, 4000)], 9000)
    fetch(log)
    assert take(log, key(0, 4000)) is not None
    fetch(log)
    assert take(log, key(2, 4000)) is not None
    assert take(log, key(1)) is None


def test_what_is_skipped_is_given_up(log: AheadLog) -> None:
    """What is skipped is discarded when the reader is far beyond it."""
    budget = 40 * SIZE
    stream_of(log, BEHIND + 500, budget)
    fetch(log)
    for number in range(100, BEHIND + 400):  # the first hundred are never read
        take(log, key(number))
    assert fetch(log) > 0
    assert take(log, key(BEHIND + 410)) is not None


def test_streams_share_the_budget(log: AheadLog) -> None:
    """Streams share the budget in nearly equal parts."""
    streams = []
    for start in (0, 1000, 2000):
        stream = log.open_stream()
        log.announce(stream, [key(start + number) for number in range(200)], 90 * SIZE)
        streams.append(stream)
    fetch(log)
    assert max(s.taken for s in streams) - min(s.taken for s in streams) <= 2 * cost_of(key(0))


def test_ranks_that_read_the_same(log: AheadLog) -> None:
    """As context-parallel ranks do: it is fetched once, and stays until both have read it."""
    first, second = stream_of(log, 10), stream_of(log, 10)
    assert fetch(log) == 10
    for number in range(10):
        assert take(log, key(number)) is not None
    for number in range(10):
        assert take(log, key(number)) is not None
    assert first is not second


def test_a_client_that_is_gone(log: AheadLog, tmp_path: Path) -> None:
    """A client that is gone leaves nothing."""
    stream = stream_of(log, 20)
    fetch(log, 10)
    log.close_stream(stream)
    assert log.used == 0
    assert list(tmp_path.glob("*.log")) == []
    assert next_now(log) == []


def test_a_flipped_bit(log: AheadLog, tmp_path: Path) -> None:
    """A flipped bit is noticed: the range counts as not there."""
    stream_of(log, 3)
    fetch(log)
    path = next(tmp_path.glob("*.log"))
    with path.open("r+b") as file:
        file.seek(SIZE + 5)
        file.write(b"\xee")
    assert take(log, key(0)) is not None
    assert take(log, key(1)) is None
    assert take(log, key(2)) is not None


def test_what_a_killed_fetcher_has_left(log: AheadLog, tmp_path: Path) -> None:
    """It is taken up by the next: it is not fetched again, and what nobody wants is given up."""
    stream_of(log, 10)
    fetch(log, 6)
    other = AheadLog(tmp_path)
    assert other.used == 6 * cost_of(key(0))
    stream = other.open_stream()
    other.announce(stream, [key(number) for number in range(3, 10)], 1 << 30)
    assert fetch(other) == 4
    for number in range(3, 10):
        assert take(other, key(number)) == content(key(number))
    other.close()
    assert list(tmp_path.glob("*.log")) == []


def test_a_torn_journal(log: AheadLog, tmp_path: Path) -> None:
    """Loses what it does not say, and nothing more."""
    stream_of(log, 4)
    fetch(log)
    path = next(tmp_path.glob("*.jsonl"))
    path.write_bytes(path.read_bytes()[:-20])
    other = AheadLog(tmp_path)
    other.announce(other.open_stream(), [key(number) for number in range(4)], 1 << 30)
    assert fetch(other) == 1
    assert all(take(other, key(number)) == content(key(number)) for number in range(4))


def test_a_reader_waits_for_what_is_on_its_way(log: AheadLog) -> None:
    """It is not fetched twice."""
    stream_of(log, 1)
    (entry,) = next_now(log)
    found: list[bytes | None] = []
    reader = threading.Thread(target=lambda: found.append(take(log, key(0))))
    reader.start()
    reader.join(0.2)
    assert reader.is_alive()
    log.store(entry, memoryview(content(entry.key)))
    reader.join(10)
    assert found == [content(key(0))]


def test_readers_wait_no_longer_than_they_said(log: AheadLog) -> None:
    """For all ranges of a request together, however many are on their way."""
    stream_of(log, 20)
    while next_now(log):
        pass
    claimed = [log.claim(key(number)) for number in range(20)]
    end = time.monotonic() - 1
    for entry in claimed:
        assert entry is not None
        with pytest.raises(StorageError, match="no answer"):
            log.read(entry, end)


def test_what_could_not_be_fetched(log: AheadLog) -> None:
    """What could not be fetched is left to its reader, who gets the error."""
    stream_of(log, 2)
    (entry,) = next_now(log)
    log.fail(entry, "it is another object")
    assert take(log, key(0)) is None
    assert log.note == "it is another object"
    assert fetch(log) == 1


def test_ranges_that_touch(log: AheadLog) -> None:
    """Ranges that touch are fetched by one request."""
    stream = log.open_stream()
    log.announce(stream, [RangeKey(SOURCE, 0, 100), RangeKey(SOURCE, 100, 50), key(1)], 1 << 20)
    assert [entry.key.begin for entry in next_now(log)] == [0, 100]
    assert [entry.key.begin for entry in next_now(log)] == [100_000]


@pytest.mark.parametrize("streams", [1, 4, 16, 33])
def test_many_streams(log: AheadLog, streams: int) -> None:
    """None is jammed by what the others have read."""
    opened = [log.open_stream() for _ in range(streams)]
    for place, stream in enumerate(opened):
        keys = [key(1000 * place + number) for number in range(60)]
        log.announce(stream, keys, 40 * SIZE)
    hits = 0
    for number in range(60):
        for place in range(streams):
            fetch(log)
            hits += take(log, key(1000 * place + number)) is not None
    assert hits > 0.9 * 60 * streams


def test_another_reader_of_a_closed_stream(log: AheadLog) -> None:
    """It finds what the first had told, on the disk or still to be fetched."""
    first, _ = stream_of(log, 10), stream_of(log, 10)
    fetch(log, 4)
    log.close_stream(first)
    assert fetch(log) == 6
    assert all(take(log, key(number)) == content(key(number)) for number in range(10))
    assert log.used == 0


def test_an_earlier_segment_that_is_claimed_twice(log: AheadLog, tmp_path: Path) -> None:
    """By two messages: nothing is read of a file that was removed."""
    stream_of(log, 10)
    fetch(log)
    other = AheadLog(tmp_path)
    stream = other.open_stream()
    for numbers in (range(4), range(4, 8)):
        other.announce(stream, [key(number) for number in numbers], 1 << 30)
        fetch(other)
        assert all(take(other, key(number)) == content(key(number)) for number in numbers)
    other.close()
    assert other.used == 0
    assert list(tmp_path.iterdir()) == []


def test_ranges_that_come_again(log: AheadLog) -> None:
    """Ranges that come again, as those of a small corpus in a large blend, pin nothing."""
    budget = 40 * cost_of(key(0))
    stream = log.open_stream()
    order = [number % 7 if number % 2 else 100 + number for number in range(1500)]
    log.announce(stream, [key(number) for number in order], budget)
    hits = 0
    for number in order:
        fetch(log)
        assert log.used <= budget
        hits += take(log, key(number)) == content(key(number))
    assert hits == 1500


def test_a_reader_that_has_not_said_so(log: AheadLog) -> None:
    """Of a range that is far ahead: nobody's read-ahead is given up for it."""
    stream_of(log, 4000, 1 << 22)
    fetch(log)
    take(log, key(3900))
    hits = 0
    for number in range(3000):
        fetch(log)
        hits += take(log, key(number)) is not None
    assert hits == 3000


def test_a_stream_that_moves_on(log: AheadLog) -> None:
    """A stream that moves on without reading what is between is followed."""
    stream_of(log, 9000, 1 << 22)
    fetch(log)
    hits = 0
    for number in range(5000, 8000):
        fetch(log)
        hits += take(log, key(number)) is not None
    assert hits > 2000


def test_names_that_something_has(tmp_path: Path) -> None:
    """Links and directories are left alone, and hold nobody up."""
    (tmp_path / "00000001.log").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "00000002.log").mkdir()
    log = AheadLog(tmp_path)
    stream_of(log, 20)
    assert fetch(log) == 20
    assert not (tmp_path / "elsewhere").exists()
    assert take(log, key(7)) == content(key(7))


def test_what_no_journal_names(log: AheadLog, tmp_path: Path) -> None:
    """What no journal names is removed by the next fetcher."""
    stream_of(log, 4)
    fetch(log)
    for path in tmp_path.glob("*.jsonl"):
        path.write_bytes(b"")
    other = AheadLog(tmp_path)
    assert other.used == 0
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full(log: AheadLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full leaves no range on its way indefinitely."""
    stream = log.open_stream()
    keys = [RangeKey(SOURCE, number * SIZE, SIZE) for number in range(60)]
    log.announce(stream, keys, 1 << 20)
    made = 0
    original = LogSegment.__init__

    def fail_the_second(self: LogSegment, *arguments: Any, **options: Any) -> None:
        nonlocal made
        made += 1
        if made > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(self, *arguments, **options)

    monkeypatch.setattr(LogSegment, "__init__", fail_the_second)
    while entries := next_or_none(log):
        for entry in entries:
            log.store(entry, memoryview(content(entry.key)))
    assert all(entry.state.name != "fetching" for entry in log._all())
    assert take(log, keys[0]) == content(keys[0])


def test_a_full_disk_is_tried_again(log: AheadLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is tried again after a while; until then what it holds is the budget."""
    keys = [RangeKey(SOURCE, number * SIZE, SIZE) for number in range(60)]
    log.announce(log.open_stream(), keys, 1 << 20)
    log._note(0, OSError(errno.ENOSPC, "No space left on device"))
    assert log.budget == 0
    assert next_or_none(log) == []
    assert "No space left" in log.note
    monkeypatch.setattr(ahead_log, "FULL", 0.0)
    assert log.budget == 1 << 20
    assert next_or_none(log)


def next_or_none(log: AheadLog) -> list[Entry]:
    """Return what is to be fetched next, or nothing if the disk is full."""
    try:
        return next_now(log)
    except OSError:
        return []


def test_the_budget_of_a_job_that_has_ended(log: AheadLog) -> None:
    """The budget of a job that has ended does not hold any more."""
    first, second = log.open_stream(), log.open_stream()
    log.announce(first, [key(0)], 4 << 20)
    log.announce(second, [key(1)], 1 << 30)
    assert log.budget == 1 << 30
    log.close_stream(second)
    assert log.budget == 4 << 20
