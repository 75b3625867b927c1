"""Copies of whole objects behind training: unit by unit, at a share of the time, taken up again."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from distcache.errors import StorageError
from distcache.node.ahead import copying
from distcache.node.ahead.copying import Copier
from distcache.node.ahead.protocol import Source
from distcache.node.store import Store, make_store
from distcache.storage.files import FileVersion, version_of
from distcache.storage.place import Place
from tests.support.waiting import wait_until

UNIT = 1000
SIZE = 4 * UNIT + 300
CONTENT = np.arange(SIZE, dtype=np.uint8)


class Object:
    """An object that can be slow, away, or another one."""

    path = "s3://lake/a.bin"

    def __init__(self) -> None:
        self.read = 0
        self.most = SIZE  # bytes that are there
        self.away = 0

    def read_into(self, out: NDArray[np.uint8], begin: int) -> None:
        """Read, or wait until there is something."""
        if self.away:
            self.away -= 1
            raise StorageError(self.path, "no answer")
        wait_until(lambda: begin + out.size <= self.most, "more of the object")
        out[:] = CONTENT[begin : begin + out.size]
        self.read += out.size


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store; units are small."""
    monkeypatch.setattr(copying, "UNIT", UNIT)
    monkeypatch.setattr(copying, "PIECE", 300)
    monkeypatch.setattr(copying, "AGAIN", 0.1)
    return make_store(tmp_path / "store")


@pytest.fixture
def found() -> Object:
    """The object."""
    return Object()


@pytest.fixture
def copier(store: Store, found: Object) -> Iterator[Copier]:
    """A copier that reads the object."""

    @contextlib.contextmanager
    def open_place(_: Source) -> Iterator[Place]:
        yield found  # type: ignore[misc]

    made = Copier(store, open_place)
    yield made
    found.most = SIZE
    made.close()


def source(share: float = 1.0, stem: str = "a-0", reserve: int = 0) -> Source:
    """Return the object as a source that is copied."""
    version = FileVersion(SIZE, 0, 0, '"x"')
    return Source(Object.path, version, stem=stem, share=share, reserve=reserve)


def final(store: Store) -> Path:
    """Return the path of the complete copy."""
    return Path(store.prefix("a-0") + ".bin")


def read(copier: Copier, *ranges: tuple[int, int]) -> list[bool]:
    """Read ranges of the object that have arrived, and return which."""
    file = os.memfd_create("target")
    try:
        wanted = np.array([(0, begin, size) for begin, size in ranges], np.int64)
        files = np.full(len(ranges), file, np.int32)
        there = copier.read([source()], wanted, files)
        for (begin, size), arrived in zip(ranges, there, strict=True):
            if arrived:
                assert os.pread(file, size, begin) == CONTENT[begin : begin + size].tobytes()
        return there.tolist()
    finally:
        os.close(file)


def test_what_has_arrived_is_read(store: Store, copier: Copier, found: Object) -> None:
    """Unit by unit; a copy that is complete has its name."""
    found.most = 2 * UNIT
    copier.add(source())
    copier.add(source())
    wait_until(lambda: copier.progress() == (2 * UNIT, SIZE), "two units")
    ranges = [(0, 10), (UNIT - 5, 10), (2 * UNIT - 10, 10), (2 * UNIT - 10, 11), (SIZE - 1, 1)]
    assert read(copier, *ranges) == [True, True, True, False, False]
    assert read(copier, (SIZE - 10, 20)) == [False]
    assert not final(store).exists()
    found.most = SIZE
    wait_until(final(store).exists, "the copy")
    assert final(store).read_bytes() == CONTENT.tobytes()
    assert read(copier, *ranges) == [True] * 5
    assert copier.progress() == (SIZE, SIZE)
    assert found.read == SIZE
    final(store).unlink()
    assert read(copier, *ranges) == [False] * 5
    copier.add(source())
    wait_until(final(store).exists, "another copy")
    assert final(store).read_bytes() == CONTENT.tobytes()


def test_what_an_earlier_process_has_copied(store: Store, copier: Copier, found: Object) -> None:
    """It is not copied again, nor with another share."""
    final(store).write_bytes(CONTENT.tobytes())
    copier.add(source())
    copier.add(source(0.5))
    copier.add(source(stem="b-0"))
    wait_until((store.corpora / "b-0.bin").exists, "the copy of another object")
    assert found.read == SIZE
    assert not list(store.corpora.glob(".*.part"))
    assert copier.progress() == (2 * SIZE, 2 * SIZE)
    assert read(copier, (0, 10), (UNIT, UNIT)) == [True, True]


def test_it_goes_on_where_it_ended(store: Store, copier: Copier, found: Object) -> None:
    """With units whose digests are right."""
    part = final(store).with_name(".a-0.bin.part")
    digests = final(store).with_name("a-0.bin.xxh3")
    content = bytearray(CONTENT.tobytes())
    content[2 * UNIT] ^= 1
    part.write_bytes(bytes(content))
    known = [copying._digest(CONTENT[UNIT * n : UNIT * (n + 1)]) for n in range(3)]
    digests.write_bytes(known[0] + bytes(8) + known[2])
    copier.add(source())
    wait_until(final(store).exists, "the copy")
    assert final(store).read_bytes() == CONTENT.tobytes()
    assert found.read == SIZE - UNIT


def test_a_store_that_is_away(store: Store, copier: Copier, found: Object) -> None:
    """The object is tried again, after all others."""
    found.away = 3
    copier.add(source())
    copier.add(source(stem="b-0"))
    wait_until((store.corpora / "b-0.bin").exists, "the copy of another object")
    wait_until(final(store).exists, "the copy")
    assert final(store).read_bytes() == CONTENT.tobytes()


def test_what_another_process_writes_gets_no_name(
    store: Store, copier: Copier, found: Object
) -> None:
    """Its own files were removed meanwhile, as by `distcache local gc`."""
    found.most = 2 * UNIT
    copier.add(source())
    wait_until(lambda: copier.progress()[0] == 2 * UNIT, "two units")
    part = final(store).with_name(".a-0.bin.part")
    part.unlink()
    part.write_bytes(bytes(SIZE))
    found.most = SIZE
    wait_until(lambda: "was removed while it was written" in copier.note, "what is wrong")
    assert not final(store).exists()
    wait_until(final(store).exists, "the copy of the next attempt")
    assert final(store).read_bytes() == CONTENT.tobytes()


def test_a_part_that_was_cut(store: Store, copier: Copier, found: Object) -> None:
    """What is not there is left to the store."""
    found.most = 2 * UNIT
    copier.add(source())
    wait_until(lambda: copier.progress()[0] == 2 * UNIT, "two units")
    os.truncate(final(store).with_name(".a-0.bin.part"), 10)
    assert read(copier, (0, 5), (UNIT, 5)) == [True, False]


def test_a_file_that_changes_while_it_is_copied(
    store: Store, copier: Copier, found: Object, tmp_path: Path
) -> None:
    """It gets no name."""
    path = tmp_path / "a.bin"
    path.write_bytes(CONTENT.tobytes())
    version = version_of(path.stat())
    found.most = UNIT
    copier.add(Source(str(path), version, stem="a-0", share=1.0))
    wait_until(lambda: copier.progress()[0] == UNIT, "a unit")
    os.utime(path, ns=(0, version.modified + 1))
    found.most = SIZE
    wait_until(lambda: "has changed while it was copied" in copier.note, "what is wrong")
    assert not final(store).exists()


def test_what_cannot_be_copied(
    store: Store, copier: Copier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said, and the next object is copied nevertheless."""
    (store.corpora / ".b-0.bin.part").symlink_to("/etc/passwd")
    copier.add(source(stem="b-0"))
    copier.add(source())
    wait_until(final(store).exists, "the copy")
    assert "s3://lake/a.bin: is not copied: " in copier.note
    for stem, share in (("../x", 1.0), ("", 1.0), ("c-0", 0.0), ("c-0", 2.0)):
        with pytest.raises(ValueError, match="a copy has no sensible name"):
            copier.add(source(share, stem))


def test_a_share_of_the_time(store: Store, copier: Copier, found: Object) -> None:
    """After each unit it pauses."""

    def slow(out: NDArray[np.uint8], begin: int) -> None:
        time.sleep(0.01)
        out[:] = CONTENT[begin : begin + out.size]

    found.read_into = slow  # type: ignore[method-assign]
    begin = time.monotonic()
    copier.add(source(0.1))
    wait_until(final(store).exists, "the copy")
    assert time.monotonic() - begin > 4 * 0.1


def test_space_that_is_to_stay_free(store: Store, copier: Copier) -> None:
    """No copy takes of it, and nothing of one stays."""
    copier.add(source(reserve=1 << 47))
    wait_until(lambda: "are to stay free" in copier.note, "a note")
    assert not any("a-0" in path.name and path.stat().st_size for path in store.root.rglob("*"))
