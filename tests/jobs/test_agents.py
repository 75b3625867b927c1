"""Agents that are killed, and disks that fill up: what has a final name is whole, and runs heal."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distcache
from distcache.cache.format import BLOCK_SIZE
from distcache.corpus import idx_path
from distcache.node.records import read_records
from distcache.node.store import Store
from distcache.node.upkeep import verify_store
from tests.support import here
from tests.support.odd import odd
from tests.support.processes import DISTCACHE, LIMIT, clean_environment, start
from tests.support.waiting import wait_until

KILLS = 30


@pytest.fixture(scope="module")
def cache(large_config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of two blocks."""
    fields = {
        "sequence_length": 24,
        "samples": {"train": 4_500_000},
        "blend_per_split": {"train": large_config["blend_per_split"]["train"]},
        "tokenizer": {"class": "X"},
    }
    path = Path(here.build(fields, tmp_path_factory.mktemp("shared"), "c").path)
    assert BLOCK_SIZE < path.stat().st_size < 2 * BLOCK_SIZE
    return path


class Agent:
    """An agent that waits to be told to begin."""

    def __init__(self, cache: Path, root: Path) -> None:
        words = [sys.executable, "-m", "tests.jobs.agent", str(cache), str(root)]
        self.process = subprocess.Popen(
            words,
            env=clean_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def begin(self) -> None:
        """Let it work."""
        assert self.process.stdout is not None
        assert self.process.stdin is not None
        assert self.process.stdout.readline() == b"ready\n"
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()

    def end(self) -> int:
        """Kill it if it still works; return its exit code."""
        self.process.kill()
        code = self.process.wait(30)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        return code


def require_whole(store: Store, cache: Path, content: bytes, spoilt: bytes = b"") -> bool:
    """Everything under a final name is right, or as the test has spoilt it; tell if it is ready."""
    for path in store.caches.glob("*.h5"):
        found = path.read_bytes()
        if found == spoilt:
            return False
        assert found == content
    records = list(read_records(store))
    for path in store.corpora.glob("[!.]*.idx"):
        assert path.stat().st_size > 0
    if not records:
        with pytest.warns(distcache.SharedFileWarning):
            assert not distcache.open(cache, local=store.root).is_local
        return False
    assert verify_store(store) == []
    for corpus in records[0].corpora:
        local = Path(idx_path(store.prefix(corpus.stem)))
        assert local.read_bytes() == Path(idx_path(corpus.shared)).read_bytes()
    assert distcache.open(cache, local=store.root).is_local
    return True


@pytest.mark.more
@pytest.mark.timeout(600)
def test_agents_killed_at_random_moments(cache: Path, tmp_path: Path) -> None:
    """Thirty of them, in the middle of their work; each time the next one continues."""
    chance = random.Random(11)
    content = cache.read_bytes()
    timed = Agent(cache, tmp_path / "timed")
    timed.begin()
    begin = time.monotonic()
    assert timed.process.wait(60) == 0
    took = time.monotonic() - begin
    timed.end()
    killed, number, spoilt = 0, 0, b""
    while killed < KILLS:
        store = Store(tmp_path / f"local-{number}")
        agent = Agent(cache, store.root)
        agent.begin()
        time.sleep(chance.uniform(0, took))
        if agent.end() < 0:
            killed += 1
        else:
            took *= 0.9  # it was measured while the machine was busy
        if store.caches.is_dir() and require_whole(store, cache, content, spoilt):
            if spoilt:
                number, spoilt = number + 1, b""
            else:
                spoilt = spoil(store, chance)  # the next ones are killed while they repair it
    final = start(["localize", cache, "--store", store.root, "--megatron"])
    assert final.returncode == 0, final.stderr
    assert require_whole(store, cache, content)
    assert not list(store.root.rglob("*.part"))


def spoil(store: Store, chance: random.Random) -> bytes:
    """Flip a bit of a complete copy, and return what it is then."""
    path = next(store.caches.glob("*.h5"))
    offset = chance.randrange(path.stat().st_size)
    with open(path, "r+b") as stream:
        stream.seek(offset)
        byte = stream.read(1)[0]
        stream.seek(offset)
        stream.write(bytes([byte ^ 4]))
    return path.read_bytes()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 400 MiB in a file."""
    image, mount = tmp_path / "image", tmp_path / "disk"
    mount.mkdir()
    with open(image, "wb") as stream:
        stream.truncate(400 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(mount)], check=True)
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def fill(directory: Path, left: int) -> None:
    """Leave so many bytes free."""
    free = os.statvfs(directory)
    with open(directory / "filler", "ab") as stream:
        os.posix_fallocate(stream.fileno(), stream.tell(), free.f_bavail * free.f_frsize - left)


def test_a_full_disk(
    cache: Path, blend_config: dict[str, Any], shared: Path, small_disk: Path
) -> None:
    """Exit code 6 with the numbers before anything is copied; what was there stays as it was."""
    other = here.build(blend_config, shared, "other").path
    root = small_disk / "store"
    assert start(["localize", other, "--store", root, "--megatron"]).returncode == 0
    before = {path: path.lstat().st_mtime_ns for path in root.rglob("*")}
    fill(small_disk, 64 << 20)
    done = start(["localize", cache, "--store", root])
    assert done.returncode == 6
    assert f"{root}: " in done.stderr
    assert "bytes are needed" in done.stderr
    assert {path: path.lstat().st_mtime_ns for path in root.rglob("*")} == before
    assert verify_store(Store(root)) == []
    (small_disk / "filler").unlink()
    done = start(["localize", cache, "--store", root, "--reserve", "330M"])
    assert done.returncode == 6
    assert "are to stay free" in done.stderr
    assert {path: path.lstat().st_mtime_ns for path in root.rglob("*")} == before
    assert start(["localize", cache, "--store", root]).returncode == 0


def test_a_disk_that_somebody_else_fills(
    blend_config: dict[str, Any], shared: Path, library: Path, small_disk: Path
) -> None:
    """What is reserved is there; what is not ends with exit code 6 and no record."""
    cache = here.build(blend_config, shared, "c").path
    root = small_disk / "store"
    words = ["localize", cache, "--store", root, "--megatron", "--json"]
    job = subprocess.Popen(
        [DISTCACHE, *map(str, words)],
        env=clean_environment(odd(library, f"strike=pause:fsync:1:{root}/caches")),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: bool(list(root.glob("caches/.*.part"))), "a copy that has begun", 60)
    fill(small_disk, 1 << 20)
    with contextlib.suppress(OSError), open(small_disk / "filler", "ab", buffering=0) as stream:
        while True:  # the last megabyte, within blocks, too
            stream.write(bytes(512))
    errors = job.communicate(timeout=LIMIT)[1]
    assert job.returncode == 6, errors
    assert "No space left on device" in errors
    store = Store(root)
    assert not list(read_records(store))
    assert not list(store.root.rglob("*.npy.*part"))
    (small_disk / "filler").unlink()
    again = start(words)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["nodes"][0]["read"] == 0  # all of it was there
    assert verify_store(store) == []


def test_bits_flipped_anywhere_are_found_and_mended(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """In the cache, in indices and in Megatron's files."""
    cache = here.build(blend_config, shared, "c").path
    root = tmp_path / "local"
    assert start(["localize", cache, "--store", root, "--megatron"]).returncode == 0
    store = Store(root)
    chance = np.random.default_rng(3)
    files = [
        p for p in root.rglob("*") if p.suffix in (".h5", ".idx", ".npy") and not p.is_symlink()
    ]
    assert len(files) > 30
    for path in files:
        content = bytearray(path.read_bytes())
        place = int(chance.integers(len(content)))
        content[place] ^= 1 << int(chance.integers(8))
        times = path.stat()
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    found = start(["local", "verify", "--store", root])
    assert found.returncode == 4
    for path in files:
        if path.suffix != ".npy":
            assert str(path) in found.stderr
    assert start(["localize", cache, "--store", root, "--megatron"]).returncode == 0
    assert verify_store(store) == []


def test_read_only_shared_directories(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """They are all that an agent needs: nothing is written there, and no lock is taken."""
    cache = here.build(blend_config, shared, "c").path
    data = Path(blend_config["blend"][0]["path"]).parent
    bound = []
    try:
        for directory in (shared, data):
            subprocess.run(["mount", "--bind", str(directory), str(directory)], check=True)
            bound.append(directory)
            remount = ["mount", "-o", "remount,bind,ro", str(directory)]
            subprocess.run(remount, check=True)
        with pytest.raises(OSError, match="Read-only"):
            (shared / "x").touch()
        done = start(["localize", cache, "--store", tmp_path / "local", "--megatron"])
        assert done.returncode == 0, done.stderr
        assert start(["ready", cache]).returncode == 0
        opened = distcache.open(cache, local=tmp_path / "local")
        assert opened.is_local
        assert len(opened.dataset("train")[0]["tokens"]) == 32
    finally:
        for directory in bound:
            subprocess.run(["umount", str(directory)], check=True)
    assert verify_store(Store(tmp_path / "local")) == []
