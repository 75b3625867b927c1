"""Filesystems that lack something: what can be done is done, all else is refused beforehand."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from distcache.cache import open_cache
from tests.jobs.jobs import NAME, Runner, hidden, published
from tests.support import here
from tests.support.caches import workspace_of
from tests.support.odd import odd
from tests.support.processes import DISTCACHE, LIMIT, clean_environment, start

NO_LOCKS = [f"flock={number}" for number in (37, 95, 22, 38)]
# No links, none that is right, and no rename that refuses to replace.
NO_LINKS = [
    *("link=1", "link=18", "link=symlink", "link=within"),
    *("link=1 renameat2=22", "link=symlink renameat2=38"),
]
HARMLESS = [
    *("chmod=1", "chmod=95", "dirsync=22", "dirsync=95", "link=1 renameat2=22 chmod=1 dirsync=95"),
    *("flock=0", "madvise=22", "fallocate=95", "fallocate=38", "statvfs=none", "times=1"),
]
LYING = ["statvfs=endless"]
NAMES = ("build", "ingest tokens", "merge", "localize")


@pytest.mark.few(24)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("what", [*NO_LOCKS, *NO_LINKS, *HARMLESS, *LYING])
def test_it_works_or_is_refused(what: str, name: str, jobs: Runner, shared: Path) -> None:
    """With one sentence, before there is anything; and nothing hidden stays."""
    done = jobs.run(name, shared, environment=odd(jobs.library, what))
    if what not in NO_LOCKS or name != "localize":
        assert done.returncode == 0, done.stderr
        assert published(name, shared) == jobs.expected(name)
    else:
        assert done.returncode in (1, 2), done.stderr
        said = [line for line in done.stderr.splitlines() if line.startswith("distcache: ")]
        assert len(said) == 1, done.stderr
        assert "lock" in said[0]
        assert not list(shared.glob("*.idx"))
    assert hidden(shared) == []


def test_without_symbolic_links(jobs: Runner, shared: Path) -> None:
    """What needs one says what to do instead; all else works."""
    odd_one = odd(jobs.library, "symlink=1")
    for name in ("build", "ingest tokens", "merge"):
        assert jobs.run(name, shared / name, environment=odd_one).returncode == 0
    done = jobs.run("localize", shared, environment=odd_one)
    assert done.returncode == 2, done.stderr
    assert "its filesystem has no symbolic links; give --bin none, or --bin copy" in done.stderr
    for kind in ("none", "copy"):
        again = jobs.run("localize", shared, more=["--bin", kind], environment=odd_one)
        assert again.returncode == 0, again.stderr
    done = jobs.run("select", shared / "views", environment=odd_one)
    assert done.returncode == 2, done.stderr
    assert "has no symbolic links; write the view elsewhere" in done.stderr


@pytest.mark.few(1)
@pytest.mark.parametrize("what", NO_LOCKS)
def test_made_up_corpora_need_no_locks(what: str, library: Path, shared: Path) -> None:
    """`mock` writes them nevertheless."""
    words = ["mock", "-o", shared / "mock", "--documents", "100"]
    done = start(words, environment=odd(library, what))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_a_directory_that_cannot_be_synced(name: str, jobs: Runner, shared: Path) -> None:
    """A directory that cannot be synced is named."""
    done = jobs.run(name, shared, environment=odd(jobs.library, "dirsync=5"))
    assert done.returncode == 1
    assert "Input/output error: '/" in done.stderr


@pytest.mark.few(2)
@pytest.mark.parametrize("what", NO_LINKS)
def test_without_links_no_output_is_replaced(
    what: str, jobs: Runner, shared: Path, tmp_path: Path
) -> None:
    """Another cache of the name is kept, the same is found, and no file is a symbolic link."""
    without = odd(jobs.library, what)
    for _ in range(2):
        assert jobs.run("build", shared, environment=without).returncode == 0
    fields = json.loads(jobs.inputs.build.read_text())
    other = tmp_path / "other.json"
    other.write_text(json.dumps({**fields, "seed": 4321}))
    taken = start(["build", other, "-o", shared, "--name", NAME], environment=without)
    assert taken.returncode == 7, taken.stderr
    assert published("build", shared) == jobs.expected("build")
    (shared / f"{NAME}.bin").write_bytes(b"mine")
    assert jobs.run("merge", shared, environment=without).returncode != 0
    assert (shared / f"{NAME}.bin").read_bytes() == b"mine"
    assert not (shared / f"{NAME}.idx").exists()
    assert not any(path.is_symlink() for path in shared.iterdir())


@pytest.mark.few(1)
@pytest.mark.parametrize("number", [1, 12, 19])
def test_files_that_cannot_be_mapped_are_read(number: int, jobs: Runner, shared: Path) -> None:
    """By every command, and in training: some filesystems allow few mappings, or none."""
    refusing = odd(jobs.library, f"mmap={number}:.idx mmap={number}:.h5")
    for name in NAMES:
        done = jobs.run(name, shared / name, environment=refusing)
        assert done.returncode == 0, done.stderr
    path = str(shared / "build" / f"{NAME}.h5")
    code = f"import distcache; d = distcache.open({path!r}).dataset('train'); "
    code += "print(len(d), d[0]['tokens'][:5].tolist())"
    words = [sys.executable, "-W", "ignore", "-c", code]
    found = [
        subprocess.run(words, env=clean_environment(more), capture_output=True, check=True).stdout
        for more in ({}, refusing)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["build", "ingest tokens", "merge"])
def test_a_full_filesystem_is_refused_or_noticed(name: str, jobs: Runner, shared: Path) -> None:
    """One that says that it is full, though it is not."""
    done = jobs.run(name, shared, environment=odd(jobs.library, "statvfs=full"))
    assert done.returncode == (6 if name == "build" else 0), done.stderr
    if name == "build":
        assert "free space" in done.stderr
        assert jobs.run(name, shared).returncode == 0


@pytest.mark.few(2)
@pytest.mark.parametrize("rounds", range(3))
@pytest.mark.parametrize("nodes", [("", ""), ("a", "b")])
def test_jobs_that_build_the_same(
    blend_config: dict[str, Any],
    tmp_path: Path,
    library: Path,
    shared: Path,
    nodes: tuple[str, str],
    rounds: int,
) -> None:
    """They end with one right cache, and both well, though locks do not exclude."""
    config = tmp_path / "c.json"
    config.write_text(json.dumps({**blend_config, "samples": {"train": 400_000}}))
    words = [DISTCACHE, "build", str(config), "-o", str(shared), "--name", "c"]
    jobs = []
    for node in nodes:
        name = {"DISTCACHE_NODE_NAME": node} if node else {}
        environment = clean_environment({**odd(library, "flock=0"), **name})
        jobs.append(subprocess.Popen(words, env=environment, stderr=subprocess.PIPE))
        time.sleep(0.2 * rounds)
    ends = [(job.communicate(timeout=LIMIT)[1].decode(), job.returncode) for job in jobs]
    assert [code for _, code in ends] == [0, 0], ends
    alone = here.build(json.loads(config.read_text()), tmp_path / "alone", "c")
    assert (shared / "c.h5").read_bytes() == Path(alone.path).read_bytes()
    assert hidden(shared) == []


def test_many_files_and_slow_unlinks(jobs: Runner, shared: Path, tmp_path: Path) -> None:
    """What 2,048 ranks have left is gone after a build, though the heartbeat continued."""
    workspace = workspace_of(shared / f"{NAME}.h5")
    assert workspace.take()
    fields = json.loads(jobs.inputs.build.read_text())
    workspace.prepare(here.build(fields, tmp_path / "once").key)
    for rank in range(2048):
        (workspace.path / f"journal.0123.{rank}.jsonl").touch()
    workspace.release()
    done = jobs.run("build", shared, environment=odd(jobs.library, "unlink=slow"))
    assert done.returncode == 0, done.stderr
    assert hidden(shared) == []


def test_a_cache_opens_wherever_it_was_built(jobs: Runner, shared: Path) -> None:
    """A cache opens wherever it was built; whatever was missing, the bytes are the same."""
    for number, what in enumerate((*NO_LOCKS, *HARMLESS)):
        out = shared / str(number)
        assert jobs.run("build", out, environment=odd(jobs.library, what)).returncode == 0
        assert published("build", out) == jobs.expected("build")
        assert open_cache(out / f"{NAME}.h5").key
