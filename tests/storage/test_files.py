"""Files that are replaced at once or not at all, and journals of what is finished."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest

from distcache.errors import NoSpace
from distcache.storage.files import atomic_write
from distcache.storage.journal import Journal, read_journal


class Entry(msgspec.Struct):
    """An entry of a test."""

    number: int


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full")])
def test_a_file_is_replaced_at_once_or_not_at_all(error: BaseException, tmp_path: Path) -> None:
    """After an error the old file is as it was, and no other stays."""
    path = tmp_path / "a"
    with atomic_write(path) as stream:
        stream.write(b"one")

    def fail() -> None:
        with atomic_write(path) as stream:
            stream.write(b"two")
            raise error

    with pytest.raises((KeyboardInterrupt, NoSpace)):
        fail()
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]
    with atomic_write(path) as stream:
        stream.write(b"three")
    assert path.read_bytes() == b"three"


def test_what_was_appended_is_read(tmp_path: Path) -> None:
    """What was appended is read in order, without a line that a crash has torn."""
    path = tmp_path / "journal"
    with Journal(path, [Entry(1)]) as journal:
        journal.append(Entry(2))
    with open(path, "ab") as stream:
        stream.write(b'{"num')
    assert list(read_journal(path, Entry)) == [Entry(1), Entry(2)]


def test_a_full_disk_tears_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several lines in one write, those before it are read, and the next one is, too."""
    path, write = tmp_path / "journal", os.write
    with Journal(path) as journal:
        monkeypatch.setattr(os, "write", lambda file, lines: write(file, lines[:20]))
        with pytest.raises(NoSpace):
            journal.append(Entry(1), Entry(2))
        monkeypatch.undo()
        journal.append(Entry(3), Entry(4))
    assert list(read_journal(path, Entry)) == [Entry(1), Entry(3), Entry(4)]


@pytest.mark.parametrize("kind", ["pipe", "directory", "link", "nothing"])
def test_what_is_no_file_has_no_records(tmp_path: Path, kind: str) -> None:
    """Nor is it waited for, nor followed."""
    path = tmp_path / "journal"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(tmp_path / "gone")
    assert list(read_journal(path, Entry)) == []
