"""A node's store: a disk that fills up, bits that flip, shared directories that are only read."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distcache
from distcache.cache.format import BLOCK_SIZE
from distcache.node.records import read_records
from distcache.node.store import Store
from distcache.node.upkeep import verify_store
from tests.support import here
from tests.support.odd import odd
from tests.support.processes import DISTCACHE, LIMIT, clean_environment, start
from tests.support.waiting import wait_until


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


@pytest.fixture
def ext4_disk(tmp_path: Path) -> Iterator[Path]:
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


def test_a_disk_that_somebody_else_fills(
    blend_config: dict[str, Any], shared: Path, library: Path, ext4_disk: Path
) -> None:
    """What is reserved is there; what is not ends with exit code 6 and no record."""
    cache = here.build(blend_config, shared, "c").path
    root = ext4_disk / "store"
    words = ["localize", cache, "--store", root, "--megatron", "--json"]
    struck = ext4_disk.parent / "struck"
    strike = f"strike=pause:fsync:1:{root}/caches struck={struck}"
    job = subprocess.Popen(
        [DISTCACHE, *map(str, words)],
        env=clean_environment(odd(library, strike)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(struck.exists, "a cache that has been copied", 60)
    assert list(root.glob("caches/.*.part"))
    fill(ext4_disk, 1 << 20)
    with contextlib.suppress(OSError), open(ext4_disk / "filler", "ab", buffering=0) as stream:
        while True:  # the last megabyte, within blocks, too
            stream.write(bytes(512))
    struck.unlink()
    errors = job.communicate(timeout=LIMIT)[1]
    assert job.returncode == 6, errors
    assert "No space left on device" in errors
    store = Store(root)
    assert not list(read_records(store))
    assert not list(store.root.rglob("*.npy.*part"))
    (ext4_disk / "filler").unlink()
    again = start(words)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["nodes"][0]["read"] == 0  # all of it was there
    assert verify_store(store) == []


def test_megatrons_files_do_not_fit(
    blend_config: dict[str, Any], shared: Path, ext4_disk: Path
) -> None:
    """`verify --against-megatron` says what to do, and leaves nothing."""
    cache = here.build(blend_config, shared, "c").path
    fill(ext4_disk, 1 << 16)
    before = set(ext4_disk.iterdir())
    words = ["verify", cache, "--against-megatron"]
    done = start(words, environment={"TMPDIR": str(ext4_disk)})
    assert done.returncode == 6, done.stderr
    assert "set TMPDIR" in done.stderr
    assert not {path.name for path in set(ext4_disk.iterdir()) - before} - {"torchinductor_root"}
    assert start(words).returncode == 0


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
