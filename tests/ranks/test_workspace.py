"""The directory of unfinished files: who may write in it, publish from it and remove it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from distcache.errors import DistcacheError
from distcache.ranks.heartbeat import BEATS
from distcache.ranks.owner import OWNER
from distcache.ranks.progress import NullProgress
from distcache.ranks.workspace import Workspace, claim, empty_directory
from distcache.storage.files import temporary_name
from tests.support.odd import odd
from tests.support.processes import start


def claimed(shared: Path) -> Workspace:
    """Claim a workspace of something that is not finished."""
    found = Workspace(shared)
    assert claim(found, lambda: False, "it", NullProgress(), "stamp")
    return found


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_directory_that_was_taken_over(has_ended: bool, tmp_path: Path) -> None:
    """By a process to which this one seemed dead: nothing is published, nor removed."""
    workspace = claimed(tmp_path / ".c.ingest")
    workspace.prepare("stamp")
    (workspace.path / "0.bin").write_bytes(b"x")
    (workspace.path / OWNER).write_bytes(b"another\n")
    if has_ended:
        (workspace.path / OWNER).unlink()
    with pytest.raises(DistcacheError, match="taken it over"):
        workspace.publish([(str(workspace.path / "0.bin"), str(tmp_path / "c.bin"))])
    workspace.remove()
    assert (workspace.path / "stamp").exists()
    assert not (tmp_path / "c.bin").exists()


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


def test_a_death_while_another_one_s_files_are_removed(tmp_path: Path, library: Path) -> None:
    """It leaves the old stamp: what is still there is not treated as the new one's."""
    workspace = claimed(tmp_path / ".c.ingest")
    workspace.prepare("one")
    (workspace.path / "data").write_bytes(b"x")
    program = (
        "import sys; from tests.ranks.test_workspace import claimed, Path; "
        "claimed(Path(sys.argv[1])).prepare('two')"
    )
    words = [workspace.path]
    environment = odd(library, f"strike=kill:unlink:1:{workspace.path}/data")
    workspace.release()
    done = start(words, environment=environment, program=(sys.executable, "-c", program))
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert claimed(workspace.path).stamp == "one"


def test_a_death_while_the_stamp_is_written(tmp_path: Path) -> None:
    """It leaves a file under a passing name, which is no stranger's."""
    workspace = claimed(tmp_path / ".c.ingest")
    temporary_name(workspace.path / "stamp").touch()
    workspace.prepare("one")
    assert workspace.stamp == "one"
    assert not list(workspace.path.glob(".stamp*"))


def test_a_publication_that_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives the names that are missing, and stops at one that another file has."""
    workspace = claimed(tmp_path / ".c.ingest")
    names = [(str(workspace.path / name), str(tmp_path / name)) for name in ("a", "b")]
    for unfinished, _ in names:
        Path(unfinished).write_bytes(b"x")
    (tmp_path / "b").write_bytes(b"another")
    assert workspace.publish(names) == names[1][1]
    assert (tmp_path / "b").read_bytes() == b"another"
    assert workspace.published() == {names[0][1]}
    (tmp_path / "b").unlink()
    assert workspace.publish(names) is None
    assert workspace.published() == {final for _, final in names}
    assert [Path(final).read_bytes() for _, final in names] == [b"x", b"x"]
    assert not os.path.lexists(names[0][0])


def test_a_published_file_that_was_replaced_is_anothers(tmp_path: Path) -> None:
    """By its time, though it has the same size; and nothing replaces it."""
    workspace = claimed(tmp_path / ".c.ingest")
    names = [(str(workspace.path / "a"), str(tmp_path / "a"))]
    Path(names[0][0]).write_bytes(b"x")
    assert workspace.publish(names) is None
    (tmp_path / "a").unlink()
    (tmp_path / "a").write_bytes(b"y")
    os.utime(tmp_path / "a", (1, 1))
    assert workspace.published() == set()
    assert workspace.publish(names) == names[0][1]
    assert (tmp_path / "a").read_bytes() == b"y"


@pytest.mark.parametrize("notes", [b"", b"no json", b'{"a": 5}', b"\xff"])
def test_damaged_notes_of_a_publication(notes: bytes, tmp_path: Path) -> None:
    """They note nothing."""
    workspace = claimed(tmp_path / ".c.ingest")
    (workspace.path / "published.json").write_bytes(notes)
    assert workspace.published() == set()


def test_a_workspace_has_one_owner(tmp_path: Path) -> None:
    """A workspace has one owner, and another when that leaves."""
    first, second = Workspace(tmp_path / ".x"), Workspace(tmp_path / ".x")
    assert first.take()
    assert not second.take()
    first.release()
    assert second.take()
    second.remove()
    assert not list(tmp_path.iterdir())


def test_a_directory_that_was_exchanged(tmp_path: Path) -> None:
    """Nothing is removed from what is not the directory that was claimed."""
    workspace = claimed(tmp_path / ".c.ingest")
    workspace.path.rename(tmp_path / "moved")
    other = tmp_path / ".c.ingest"
    other.mkdir()
    (other / "stamp").write_text("precious")
    workspace.remove()
    assert (other / "stamp").read_text() == "precious"


@pytest.mark.parametrize("end", ["claim", "remove"])
def test_what_no_job_has_made_stays(tmp_path: Path, end: str) -> None:
    """Although the directory has a workspace's name, and the output is finished."""
    precious = tmp_path / ".c.ingest" / "thesis.txt"
    precious.parent.mkdir()
    precious.write_text("years of work")
    if end == "claim":
        assert not claim(
            Workspace(tmp_path / ".c.ingest"), lambda: True, "it", NullProgress(), "stamp"
        )
    else:
        claimed(tmp_path / ".c.ingest").remove()
    assert precious.read_text() == "years of work"
    assert [path.name for path in precious.parent.iterdir()] == ["thesis.txt"]


def test_a_damaged_stamp(tmp_path: Path) -> None:
    """A damaged stamp is another one's: the job begins again."""
    workspace = claimed(tmp_path / ".c.ingest")
    workspace.prepare("one")
    (workspace.path / "data").write_bytes(b"x")
    (workspace.path / "stamp").write_bytes(b"\xff\xff\xff")
    workspace.prepare("one")
    assert workspace.stamp == "one"
    assert not (workspace.path / "data").exists()


def test_a_heartbeat_while_an_earlier_run_is_resumed(tmp_path: Path) -> None:
    """Its file is renamed by another thread, at any time."""
    workspace = claimed(tmp_path / ".c.ingest")
    workspace.prepare("stamp")
    names = [workspace.path / name for name in BEATS]
    names[0].touch()
    ended = threading.Event()

    def beat() -> None:
        while not ended.is_set():
            names[0].rename(names[1])
            names[1].rename(names[0])

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        for _ in range(300):
            workspace.prepare("stamp")
    finally:
        ended.set()
        thread.join()
    assert names[0].exists()


def test_emptying_a_directory(tmp_path: Path) -> None:
    """Files, links and directories go; what links lead to stays, and so do names to keep."""
    (tmp_path / "kept").write_text("")
    work = tmp_path / "work"
    (work / "inner" / "more").mkdir(parents=True)
    (work / "file").write_text("")
    (work / "mine").write_text("")
    (work / "link").symlink_to(tmp_path / "kept")
    (work / "loop").symlink_to(tmp_path)
    empty_directory(work, ["mine"])
    assert os.listdir(work) == ["mine"]
    assert (tmp_path / "kept").exists()


@pytest.mark.parametrize("link", [True, False])
def test_a_directory_that_a_colleague_has_exchanged(link: bool, tmp_path: Path) -> None:
    """For a link, or for another directory of this user: nothing in it is removed."""
    work, other = tmp_path / "work", tmp_path / "other"
    work.mkdir()
    other.mkdir()
    (other / "precious").write_text("")
    known = os.open(work, os.O_DIRECTORY)
    work.rename(tmp_path / "aside")
    if link:
        work.symlink_to(other)
    else:
        other.rename(work)
    with pytest.raises(OSError, match=str(work)):
        empty_directory(work, (), known)
    assert (work / "precious").exists()
    os.close(known)


def test_releasing_a_workspace(tmp_path: Path) -> None:
    """It is removed if nothing is in it that anybody needs."""
    for name, stays in (("progress.json", False), ("stamp", True)):
        workspace = claimed(tmp_path / ".c.ingest")
        (workspace.path / name).write_text("")
        workspace.release()
        assert workspace.path.exists() == stays
