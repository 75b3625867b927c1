"""A store is the user's own, one process changes it, and whatever else lies there stays."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import distcache
from distcache.errors import ConfigError, DistcacheError, NotReady
from distcache.megatron.names import Naming
from distcache.node.lock import exclusive, is_used, try_exclusive, try_shared
from distcache.node.store import (
    Store,
    existing_store,
    local_directory,
    make_store,
    required_directory,
    sweep,
)
from distcache.node.upkeep import collect, list_store, open_store, verify_store
from distcache.ranks.progress import NullProgress
from distcache.storage.files import temporary_name
from distcache.storage.space import filesystem_type, space_at
from tests.support import here
from tests.support.processes import start


def stage(cache: Path, root: Path, **options: Any) -> str:
    """Localize, and return the copy's path."""
    return here.localize(cache, root, **options).nodes[0].cache


@pytest.fixture
def caches(blend_config: dict[str, Any], shared: Path) -> list[Path]:
    """Three caches of the same corpora."""
    return [
        Path(here.build({**blend_config, "seed": seed}, shared, f"c{seed}").path)
        for seed in range(3)
    ]


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        ("/a", {"DISTCACHE_LOCAL_DIR": "/b"}, "/a"),
        (None, {"DISTCACHE_LOCAL_DIR": "/b", "TMPDIR": "/t"}, "/b"),
        (None, {"SLURM_TMPDIR": "/s", "TMPDIR": "/t"}, f"/s/distcache-{os.geteuid()}"),
        (None, {"TMPDIR": "/t"}, f"/t/distcache-{os.geteuid()}"),
        (None, {}, None),
    ],
)
def test_where_a_store_is(
    given: str | None, environment: dict[str, str], expected: str | None
) -> None:
    """What is given comes first, then the environment; scratch is shared with other programs."""
    assert local_directory(given, environment) == (expected and Path(expected))


def test_without_a_place_nothing_is_guessed() -> None:
    """The error says what to set."""
    with pytest.raises(ConfigError, match="DISTCACHE_LOCAL_DIR"):
        required_directory(None, {})


def test_an_empty_directory_becomes_a_store(tmp_path: Path) -> None:
    """An empty directory becomes a store, and is closed to others."""
    root = tmp_path / "local"
    root.mkdir(mode=0o755)
    make_store(root)
    assert root.stat().st_mode & 0o777 == 0o700
    assert existing_store(root) is not None
    assert existing_store(tmp_path / "none") is None


def refused(root: Path, message: str) -> None:
    """Expect that a path is neither made a store nor read as one."""
    for action in (make_store, existing_store):
        with pytest.raises(DistcacheError, match=message):
            action(root)


def test_roots_that_are_refused(tmp_path: Path) -> None:
    """Links, other users' directories, files, directories of other things, and open ones."""
    own = make_store(tmp_path / "own").root
    link = tmp_path / "link"
    link.symlink_to(own)
    refused(link, "is a link")
    file = tmp_path / "file"
    file.write_text("")
    refused(file, "is not a directory")
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.tex").write_text("")
    with pytest.raises(DistcacheError, match="distcache has not made"):
        make_store(full)
    with pytest.raises(DistcacheError, match="is not a store"):
        existing_store(full)
    assert os.listdir(full) == ["thesis.tex"]
    own.chmod(0o755)
    refused(own, "chmod 700")
    own.chmod(0o700)
    foreign = make_store(tmp_path / "foreign").root
    os.chown(foreign, 12345, 12345)
    refused(foreign, "belongs to user 12345")
    (own / "caches").rmdir()
    (own / "caches").symlink_to(tmp_path)
    refused(own, "is a link")


def test_the_type_of_a_filesystem() -> None:
    """The type of a filesystem is that of the mount which is closest."""
    mounts = (
        "a / ext4 rw 0 0\nb /x tmpfs rw 0 0\nc /x/y xfs rw 0 0\nd /with\\040space ramfs rw 0 0\n"
    )
    for path, kind in {"/q": "ext4", "/x": "tmpfs", "/xx": "ext4", "/x/y/z": "xfs"}.items():
        assert filesystem_type(Path(path), mounts) == kind
    assert filesystem_type(Path("/with space/z"), mounts) == "ramfs"
    assert space_at(Path("/dev/shm")).in_memory


def test_memory_is_warned_of_and_counted(caches: list[Path]) -> None:
    """Memory is warned of and counted, since the job needs it too."""
    root = Path(f"/dev/shm/distcache-test-{os.getpid()}")
    try:
        done = start(["localize", caches[0], "--store", root, "--json"])
        assert done.returncode == 0, done.stderr
        assert "is held in memory" in done.stderr
        assert json.loads(done.stdout)["nodes"][0]["memory"] > caches[0].stat().st_size
    finally:
        collect(Store(root), 0, NullProgress())
        for path in sorted(root.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        root.rmdir()


def test_the_oldest_use_goes_first(caches: list[Path], tmp_path: Path) -> None:
    """Until the store is within its budget; corpora that others need stay."""
    root = tmp_path / "local"
    copies = [stage(cache, root) for cache in caches]
    store = Store(root)
    for age, copy in zip((10, 30, 20), copies, strict=True):
        os.utime(store.use_lock(Path(copy).stem), (time.time() - age, time.time() - age))
    assert [held.record.name for held in list_store(store)] == [
        Path(copies[i]).stem for i in (0, 2, 1)
    ]
    budget = int(2.5 * caches[0].stat().st_size)
    would = collect(store, budget, NullProgress(), dry_run=True)
    assert would.removed == [Path(copies[1]).stem]
    assert all(Path(copy).exists() for copy in copies)
    done = collect(store, budget, NullProgress())
    assert (done.removed, done.freed) == (would.removed, would.freed)
    assert [Path(copy).exists() for copy in copies] == [True, False, True]
    assert verify_store(store) == []
    would = collect(store, 0, NullProgress(), dry_run=True)
    assert collect(store, 0, NullProgress()) == would
    assert not list(store.caches.iterdir())
    assert not list(store.corpora.iterdir())
    assert all(cache.exists() for cache in caches)
    store.megatron.rmdir()  # a store that lacks a directory has nothing in it
    assert collect(store, 0, NullProgress()).removed == []


def test_a_cache_in_use_stays(caches: list[Path], tmp_path: Path) -> None:
    """Whether by a loader or mapped by Megatron, and its corpora with it."""
    root = tmp_path / "local"
    copies = [stage(cache, root, naming=Naming()) for cache in caches]
    opened = distcache.open(caches[0], local=root)
    import numpy as np  # noqa: PLC0415

    view = next(Store(root).view(Path(copies[1]).stem).glob("*-shuffle_index.npy"))
    mapped = np.load(view, mmap_mode="r")
    done = collect(Store(root), 0, NullProgress())
    assert sorted(done.in_use) == sorted(Path(copy).stem for copy in copies[:2])
    assert done.removed == [Path(copies[2]).stem]
    assert verify_store(Store(root)) == []
    del opened, mapped
    assert collect(Store(root), 0, NullProgress()).in_use == []


def test_a_cache_that_lost_its_record_in_use_stays(caches: list[Path], tmp_path: Path) -> None:
    """With all corpora, since nothing says which are its own."""
    root = tmp_path / "local"
    copy = Path(stage(caches[0], root))
    opened = distcache.open(caches[0], local=root)
    assert opened.is_local
    Store(root).ready(copy.stem).unlink()
    collect(Store(root), 0, NullProgress())
    assert copy.exists()
    assert list(Store(root).corpora.glob("*.idx"))


def test_nothing_else_is_removed(caches: list[Path], tmp_path: Path) -> None:
    """Not a file that somebody put there, nor anything behind a link."""
    root = tmp_path / "local"
    copy = Path(stage(caches[0], root, naming=Naming()))
    store = Store(root)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / f"{'0' * 32}-GPTDataset-train-description.txt").write_text("mine")
    others = [
        store.caches / "thesis.h5",
        store.corpora / "notes.idx",
        root / "x",
        store.megatron / "y",
    ]
    others.append(store.view(copy.stem) / "mine.txt")
    for path in others:
        path.write_text("mine")
    (store.megatron / f"{'a' * 16}-{'b' * 16}").symlink_to(outside)
    collect(store, 0, NullProgress())
    assert not copy.exists()
    assert all(path.read_text() == "mine" for path in others)
    assert len(list(outside.iterdir())) == 1
    for path in (Path(caches[0]), *map(Path, os.listdir(caches[0].parent))):
        assert path.exists() or (caches[0].parent / path).exists()


def test_commands_look_after_a_store(caches: list[Path], tmp_path: Path) -> None:
    """Commands look after a store with exit codes and JSON."""
    root = tmp_path / "local"
    assert start(["local", "ls", "--store", root]).returncode == 5
    done = start(["localize", caches[0], "--store", root])
    assert f"export DISTCACHE_LOCAL_DIR={root}" in done.stdout
    held = json.loads(start(["local", "ls", "--store", root, "--json"]).stdout)
    assert [entry["record"]["source"] for entry in held] == [str(caches[0])]
    assert str(caches[0]) in start(["local", "ls", "--store", root]).stdout
    environment = {"DISTCACHE_LOCAL_DIR": str(root)}
    assert start(["local", "verify"], environment=environment).returncode == 0
    copy = next((root / "caches").glob("*.h5"))
    with open(copy, "r+b") as stream:
        stream.seek(9000)
        stream.write(b"\x5a")
    done = start(["local", "verify", "--store", root, "--json"])
    assert done.returncode == 4
    assert str(copy) in json.loads(done.stdout)["problems"][0]
    assert "run `distcache localize` again" in done.stderr
    collected = start(["local", "gc", "--store", root, "--budget", "0", "--json"])
    assert json.loads(collected.stdout)["removed"] == [copy.stem]
    assert start(["local", "gc", "--store", root]).returncode == 2


def test_a_wrong_root_is_one_clear_error(caches: list[Path], tmp_path: Path) -> None:
    """A wrong root is one clear error with what to do."""
    (tmp_path / "file").write_text("")
    done = start(["localize", caches[0], "--store", tmp_path / "file"])
    assert done.returncode == 1
    assert "choose another with --store" in done.stderr
    odd = os.fsdecode(b"%s/od\xffd" % os.fsencode(tmp_path))
    done = start(["localize", caches[0], "--store", odd])
    assert (done.returncode, "is not UTF-8" in done.stderr) == (2, True)
    assert start(["localize", f"{odd}/c.h5", "--store", tmp_path / "s"]).returncode == 2
    done = start(["localize", caches[0]], environment={"TMPDIR": "", "SLURM_TMPDIR": ""})
    assert done.returncode == 2
    assert start(["localize", "/none/c.h5", "--store", tmp_path / "s"]).returncode == 5
    assert not (tmp_path / "s").exists()


def test_without_a_store(tmp_path: Path) -> None:
    """There is nothing to list."""
    with pytest.raises(NotReady, match="distcache localize"):
        open_store(tmp_path / "none")


def test_one_process_changes_a_store_at_a_time(tmp_path: Path) -> None:
    """Others wait for a bounded time, and say for what."""
    store = make_store(tmp_path / "local")
    held = try_exclusive(store.lock)
    assert held is not None
    assert try_exclusive(store.lock) is None
    ticks = iter(range(0, 10**9, 5000))
    with (
        pytest.raises(DistcacheError, match="another process has held this lock"),
        exclusive(here.ALONE, store.lock, NullProgress(), lambda: float(next(ticks))),
    ):
        pass
    os.close(held)
    with exclusive(here.ALONE, store.lock, NullProgress()) as waited:
        assert not waited
    assert try_shared(store.use_lock("none")) is None


def test_looking_does_not_keep_users_out(tmp_path: Path) -> None:
    """Who asks whether a cache is used holds its lock for a moment; users wait for that."""
    path = tmp_path / "lock"
    path.touch()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            is_used(path)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(300):
            descriptor = try_shared(path)
            assert descriptor is not None
            os.close(descriptor)
    finally:
        stop.set()
        watcher.join()


def test_a_sweep_beside_probes_of_another_job(tmp_path: Path) -> None:
    """What another job removes while it is looked at is no error."""
    store = make_store(tmp_path / "store")
    ended = threading.Event()

    def probe() -> None:
        while not ended.is_set():
            path = temporary_name(store.caches / "probe")
            path.touch(0o600)
            path.unlink(missing_ok=True)

    others = [threading.Thread(target=probe) for _ in range(4)]
    for other in others:
        other.start()
    try:
        for _ in range(2000):
            sweep(store)
    finally:
        ended.set()
        for other in others:
            other.join()
    assert list(store.caches.iterdir()) == []
