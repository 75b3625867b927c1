"""An ingest killed anywhere, disks full or read-only, two at once: nothing is torn."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.test_faults import strike, visible
from tests.support import texts
from tests.support.processes import DISTCACHE, LIMIT, clean_environment, start

pytestmark = pytest.mark.mpi

PHASES = [
    "listing inputs",
    "looking for an earlier run",
    "reading inputs",
    "reading back",
    "writing the index",
    "examining",
    "publishing",
]
PLAIN = (sys.executable, "-m", "tests.faults.driver", "never", "0", "none", "--")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text in many pieces, and a tokenizer."""
    directory = tmp_path_factory.mktemp("inputs")
    documents = texts.documents(400)
    texts.train_bpe(directory / "tokenizer.json", documents)
    texts.write_jsonl(directory / "a.jsonl", documents)
    return directory


@pytest.fixture(scope="module")
def expected(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one process makes."""
    directory = tmp_path_factory.mktemp("expected")
    done = start(words(inputs, directory), program=PLAIN)
    assert done.returncode == 0, done.stderr
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def words(inputs: Path, directory: Path) -> list[Any]:
    """Return the command, in shards."""
    command = ["ingest", "text", inputs / "a.jsonl", "--tokenizer", inputs, "--append-eod"]
    return [*command, "--shard-size", "100K", "-o", directory / "out", "--threads", 1]


def found(directory: Path) -> dict[str, bytes]:
    """Return the content of every file that exists; there must be no other."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.few(2)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("place", [*PHASES, "write:2", "write:6"])
def test_a_rank_that_is_killed(
    place: str, rank: int, inputs: Path, expected: dict[str, bytes], shared: Path
) -> None:
    """Nothing is visible, and the next run continues from there, with any number of ranks."""
    command = words(inputs, shared)
    assert strike(place, rank, "kill", command).returncode != 0
    if (place, rank) != ("publishing", 1):  # rank 0 may then have published everything
        assert visible(shared) == []
    done = start([*command, "--json"], 3, program=PLAIN)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    if place in PHASES[3:6]:
        assert outcome["resumed"] == 1
    if place == "write:6":
        assert 0 < outcome["resumed"] < 1
    assert found(shared) == expected


def test_cleaning_up_that_is_killed(inputs: Path, expected: dict[str, bytes], shared: Path) -> None:
    """After everything has its name; whatever is left of the directory, running again is done."""
    command = words(inputs, shared)
    for count in (1, 2, 4):
        program = (sys.executable, "-m", "tests.faults.publisher", "-1", str(count), "--")
        assert start(command, program=program).returncode == -9
        done = start([*command, "--json"], program=PLAIN)
        assert json.loads(done.stdout)["reused"], done.stderr
        assert found(shared) == expected
        for path in shared.iterdir():
            path.unlink()


def test_a_publication_that_is_killed(
    inputs: Path, expected: dict[str, bytes], shared: Path
) -> None:
    """A publication may be killed between two names of a corpus, and between two corpora."""
    for count in (1, 2, 4):
        program = (sys.executable, "-m", "tests.faults.publisher", str(count), "-1", "--")
        died = start(words(inputs, shared), program=program)
        assert died.returncode == -9
        names = visible(shared)
        assert len(names) == count
        assert all(name in expected for name in names)
    # Somebody else's command for the same names completes it too, before it is refused.
    other = [*words(inputs, shared), "--token-type", "i32"]
    done = start(other, program=PLAIN)
    assert (done.returncode, "already exist" in done.stderr) == (7, True)
    assert found(shared) == expected
    done = start([*words(inputs, shared), "--json"], program=PLAIN)
    assert json.loads(done.stdout)["reused"]


@pytest.mark.few(1)
@pytest.mark.parametrize("action", ["term", "usr1"])
def test_a_signal(action: str, inputs: Path, expected: dict[str, bytes], shared: Path) -> None:
    """A signal ends it with 8; running again resumes."""
    command = words(inputs, shared)
    died = start(command, program=(*PLAIN[:3], "write:5", "0", action, "--"))
    assert died.returncode == 8, died.stderr
    assert "run again to resume" in died.stderr
    done = start([*command, "--json"], program=PLAIN)
    assert json.loads(done.stdout)["resumed"] > 0
    assert found(shared) == expected


def test_what_was_lost_is_made_again(
    inputs: Path, expected: dict[str, bytes], shared: Path
) -> None:
    """A journal is not believed: a crash may have lost bytes that it says are there."""
    command = words(inputs, shared)
    assert strike("write:6", 1, "kill", command).returncode != 0
    with open(shared / ".out.ingest/0.bin", "r+b") as stream:
        stream.seek(30_000)
        stream.write(bytes(500))
    done = start([*command, "--json"], 2, program=PLAIN)
    assert 0 < json.loads(done.stdout)["resumed"] < 0.5
    assert found(shared) == expected


def test_inputs_that_changed_begin_anew(inputs: Path, tmp_path: Path, shared: Path) -> None:
    """What an interrupted run has made of other inputs is of no use."""
    copy = tmp_path / "a.jsonl"
    copy.write_bytes((inputs / "a.jsonl").read_bytes())
    command = ["ingest", "text", copy, "--tokenizer", inputs, "-o", shared / "out"]
    assert strike("write:6", 1, "kill", command).returncode != 0
    texts.write_jsonl(copy, ["short"])
    done = start([*command, "--json"], program=PLAIN)
    outcome = json.loads(done.stdout)
    assert (outcome["resumed"], outcome["documents"]) == (0, 1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk with little room."""
    directory = tmp_path / "disk"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(directory)], check=True)
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


def test_a_full_disk(inputs: Path, expected: dict[str, bytes], small_disk: Path) -> None:
    """It ends it with 6 on all ranks; with more room, it is resumed."""
    command = words(inputs, small_disk)
    done = start(command, 2, program=PLAIN)
    assert done.returncode == 6, done.stderr
    assert "free space and run again" in done.stderr
    assert visible(small_disk) == []
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    done = start([*command, "--json"], 2, program=PLAIN)
    assert json.loads(done.stdout)["resumed"] > 0
    assert found(small_disk) == expected


def test_a_read_only_output(inputs: Path, small_disk: Path) -> None:
    """A read only output is one clear error."""
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    done = start(words(inputs, small_disk), 2, program=PLAIN)
    assert done.returncode == 2
    assert "Read-only file system" in done.stderr
    assert done.stderr.count("distcache: ") == 1


def test_two_at_once(inputs: Path, shared: Path) -> None:
    """One makes the corpora, the other waits for it and finds them."""
    command = [DISTCACHE, *map(str, words(inputs, shared))]
    both = [
        subprocess.Popen(
            command, env=clean_environment(), stderr=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    errors = [process.communicate(timeout=LIMIT)[1].decode() for process in both]
    assert [process.returncode for process in both] == [0, 0], errors


def test_a_merge_that_is_killed(inputs: Path, expected: dict[str, bytes], shared: Path) -> None:
    """It shows nothing, and is done again from its beginning."""
    for name, content in expected.items():
        (shared / name).write_bytes(content)
    shards = sorted(shared.glob("*.idx"))
    for place in ("copying tokens", "writing the index", "publishing"):
        died = strike(place, 0, "kill", ["merge", *shards, "-o", shared / "all"])
        assert died.returncode != 0
        assert not list(shared.glob("all*"))
    done = start(["merge", *shards, "-o", shared / "all"], 2)
    assert done.returncode == 0, done.stderr
    assert (shared / "all.bin").read_bytes() == b"".join(
        expected[path.with_suffix(".bin").name] for path in shards
    )
    assert not [path for path in shared.iterdir() if path.name.startswith(".")]
