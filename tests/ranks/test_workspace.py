"""The directory of unfinished files: who may write in it, publish from it and remove it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from distcache.errors import DistcacheError
from distcache.ranks.claim import claim
from distcache.ranks.heartbeat import BEATS
from distcache.ranks.owner import OWNER
from distcache.ranks.progress import NullProgress
from distcache.ranks.workspace import Lock, Workspace, sweep
from distcache.storage.files import temporary_name


def claimed(shared: Path) -> Workspace:
    """Claim a workspace of something that is not finished."""
    found = claim(Workspace(shared), lambda: False, "it", NullProgress())
    assert found is not None
    return found


def test_a_directory_that_was_taken_over(tmp_path: Path) -> None:
    """By a process to which this one seemed dead: nothing is published, nor removed."""
    workspace = claimed(tmp_path / ".c.ingest")
    workspace.prepare("stamp")
    (workspace.path / "0.bin").write_bytes(b"x")
    (workspace.path / OWNER).write_bytes(b"another\n")
    with pytest.raises(DistcacheError, match="taken it over"):
        workspace.publish([(str(workspace.path / "0.bin"), str(tmp_path / "c.bin"))])
    workspace.remove()
    assert (workspace.path / "stamp").exists()
    assert not (tmp_path / "c.bin").exists()


def test_a_private_directory_is_its_makers(tmp_path: Path) -> None:
    """Other ranks write in it, and leave it as it is."""
    maker = Workspace(tmp_path / ".c.ingest").as_private()
    other = Workspace(tmp_path / ".c.ingest", maker.private)
    other.release()
    assert maker.path.exists()
    maker.release()
    assert not maker.path.exists()


def test_abandoned_private_directories_are_swept(tmp_path: Path) -> None:
    """When the same is made again, after an hour without life."""
    left = Workspace(tmp_path / ".c.ingest").as_private()
    left.prepare("stamp")
    claimed(tmp_path / ".c.ingest").release()
    assert left.path.exists()
    os.utime(left.path, (1, 1))
    claimed(tmp_path / ".c.ingest").release()
    assert not left.path.exists()


def test_a_filesystem_that_has_no_locks_for_this_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another node makes there meanwhile is left alone."""

    def refused(path: Path) -> int:
        (path.parent / OWNER).write_bytes(b"another\n")
        path.write_bytes(b"")
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("distcache.ranks.workspace.try_lock", refused)
    workspace = claimed(tmp_path / ".c.ingest")
    assert workspace.private
    workspace.release()
    assert (tmp_path / ".c.ingest" / OWNER).exists()


def test_what_was_made_from_something_else_is_removed(tmp_path: Path) -> None:
    """What was made from the same stays, and what no job has left is refused."""
    workspace = claimed(tmp_path / ".c.ingest")
    workspace.prepare("one")
    (workspace.path / "data").write_bytes(b"x")
    workspace.prepare("one")
    assert (workspace.path / "data").exists()
    workspace.prepare("two")
    assert not (workspace.path / "data").exists()
    (workspace.path / "stamp").unlink()
    (workspace.path / "precious").write_bytes(b"x")
    with pytest.raises(DistcacheError, match="has files of somebody else"):
        workspace.prepare("two")
    assert (workspace.path / "precious").exists()


def test_a_death_while_another_one_s_files_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves the old stamp: what is still there is not treated as the new one's."""
    workspace = claimed(tmp_path / ".c.ingest")
    workspace.prepare("one")
    (workspace.path / "data").write_bytes(b"x")

    def die(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr("distcache.ranks.workspace.empty_directory", die)
    with pytest.raises(RuntimeError):
        workspace.prepare("two")
    assert workspace.stamp == "one"


def test_a_death_while_the_stamp_is_written(tmp_path: Path) -> None:
    """It leaves a file under a passing name, which is no stranger's."""
    workspace = claimed(tmp_path / ".c.ingest")
    temporary_name(workspace.path / "stamp").touch()
    workspace.prepare("one")
    assert workspace.stamp == "one"
    assert not list(workspace.path.glob(".stamp*"))


def test_a_publication_that_is_repeated(tmp_path: Path) -> None:
    """It gives the names that are missing, and stops at one that another file has."""
    workspace = claimed(tmp_path / ".c.ingest")
    names = [(str(workspace.path / name), str(tmp_path / name)) for name in ("a", "b")]
    for unfinished, _ in names:
        Path(unfinished).write_bytes(b"x")
    os.link(*names[0])
    (tmp_path / "b").write_bytes(b"another")
    assert workspace.publish(names) == names[1][1]
    assert (tmp_path / "b").read_bytes() == b"another"
    (tmp_path / "b").unlink()
    assert workspace.publish(names) is None
    assert [Path(final).read_bytes() for _, final in names] == [b"x", b"x"]
    assert not os.path.lexists(names[0][0])


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    """A lock has one holder, and is free when its holder leaves."""
    first, second = Workspace(tmp_path / ".x"), Workspace(tmp_path / ".x")
    assert first.lock() is Lock.HELD
    assert second.lock() is Lock.BUSY
    first.release()
    assert second.lock() is Lock.HELD
    second.remove()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("end", ["sweep", "claim", "remove"])
def test_what_no_job_has_made_stays(tmp_path: Path, end: str) -> None:
    """Although the directory has a workspace's name, and the output is finished."""
    precious = tmp_path / ".c.ingest" / "thesis.txt"
    precious.parent.mkdir()
    precious.write_text("years of work")
    if end == "sweep":
        sweep(tmp_path / ".c.ingest", finished=True)
    elif end == "claim":
        assert claim(Workspace(tmp_path / ".c.ingest"), lambda: True, "it", NullProgress()) is None
    else:
        claimed(tmp_path / ".c.ingest").remove()
    assert precious.read_text() == "years of work"
    assert [path.name for path in precious.parent.iterdir()] == ["thesis.txt"]


def test_a_death_while_links_are_tried(tmp_path: Path) -> None:
    """It leaves a probe and its link, which are no stranger's."""
    workspace = claimed(tmp_path / ".c.ingest")
    (workspace.path / "probe.0123abcd").touch()
    os.link(workspace.path / "probe.0123abcd", tmp_path / "..c.ingest.0123abcd")
    workspace.prepare("one")
    assert workspace.stamp == "one"
    assert [path.name for path in tmp_path.iterdir()] == [".c.ingest"]
    assert not list(workspace.path.glob("probe.*"))


def test_a_damaged_stamp(tmp_path: Path) -> None:
    """A damaged stamp is another one's: the job begins again."""
    workspace = claimed(tmp_path / ".c.ingest")
    workspace.prepare("one")
    (workspace.path / "data").write_bytes(b"x")
    (workspace.path / "stamp").write_bytes(b"\xff\xff\xff")
    workspace.prepare("one")
    assert workspace.stamp == "one"
    assert not (workspace.path / "data").exists()


def test_what_was_published_is_not_written_again(tmp_path: Path) -> None:
    """After a death between link and unlink both names are of one file, whatever it is called."""
    workspace = claimed(tmp_path / ".c.ingest")
    workspace.prepare("one")
    (workspace.path / "data").write_bytes(b"x")
    os.link(workspace.path / "data", tmp_path / "renamed-since")
    workspace.prepare("one")
    assert not (workspace.path / "data").exists()
    assert (tmp_path / "renamed-since").read_bytes() == b"x"


def test_a_heartbeat_while_an_earlier_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is renamed by another thread, at any time."""
    workspace = claimed(tmp_path / ".c.ingest")
    workspace.prepare("stamp")
    beat = workspace.path / BEATS[1]
    beat.touch()

    def look(path: Path) -> bool:
        found = path.is_file()
        if path == beat:
            beat.rename(workspace.path / BEATS[0])
        return found

    monkeypatch.setattr("distcache.ranks.workspace.is_plain_file", look)
    workspace.prepare("stamp")
    assert beat.exists()
