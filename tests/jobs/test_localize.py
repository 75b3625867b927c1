"""Many nodes on one machine: each byte is read from the shared side once for all of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distcache.corpus import bin_path, idx_path
from distcache.node.records import read_records
from distcache.node.store import Store
from distcache.node.upkeep import verify_store
from tests.support import here
from tests.support.mds_corpora import fields_of, virtual_bin
from tests.support.mds_writer import write_mds
from tests.support.odd import odd
from tests.support.processes import DISTCACHE, LAUNCHERS, LIMIT, clean_environment, launch, start


@pytest.fixture(scope="module")
def world(large_config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared directory with a cache of several blocks, and the corpora it was built from."""
    shared = tmp_path_factory.mktemp("world")
    fields = json.loads(json.dumps(large_config))
    blends = fields["blend_per_split"]
    for split, entries in blends.items():
        moved = []
        for entry in entries:
            prefix = entry if isinstance(entry, str) else entry["path"]
            name = f"{split}-{os.path.basename(prefix)}"
            for suffix in (".idx", ".bin"):
                os.link(prefix + suffix, shared / f"{name}{suffix}")
            path = str(shared / name)
            moved.append(path if isinstance(entry, str) else {**entry, "path": path})
        blends[split] = moved
    here.build(fields, shared, "c")
    return shared


def on_nodes(
    world: Path,
    logs: Path,
    words: Sequence[str | Path],
    ranks: int,
    per_node: int,
    launcher: str = "mpich",
    before: Sequence[str] = (),
    environment: Mapping[str, str] = {},
) -> subprocess.CompletedProcess[str]:
    """Run a command on made-up nodes."""
    logs.mkdir(exist_ok=True)
    program = [sys.executable, "-m", "tests.jobs.on_node", str(per_node), str(world), str(logs)]
    return start(words, ranks, launcher, environment, [*program, *before, "--"])


def reads(logs: Path) -> Counter[tuple[str, int]]:
    """Count how often each KiB of each shared file was read, by all ranks."""
    found: Counter[tuple[str, int]] = Counter()
    for log in logs.glob("*.jsonl"):
        for line in log.read_text().splitlines():
            path, offset, count = json.loads(line)
            for place in range(offset // 1024, -(-(offset + count) // 1024)):
                whole = min((place + 1) * 1024, offset + count) - max(place * 1024, offset)
                found[path, place] += whole
    return found


def require_read_once(world: Path, logs: Path) -> None:
    """Every byte of the cache and of every index was read, and none twice."""
    found = reads(logs)
    files = [world / "c.h5", *world.glob("*.idx")]
    expected = {
        (str(path), place): min(1024, path.stat().st_size - place * 1024)
        for path in files
        for place in range(-(-path.stat().st_size // 1024))
    }
    assert found == expected


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("launcher", "ranks", "per_node"), [("mpich", 8, 2), ("mpich", 8, 1), ("openmpi", 4, 1)]
)
def test_each_byte_is_read_once(
    world: Path, tmp_path: Path, launcher: str, ranks: int, per_node: int
) -> None:
    """Each byte is read once by whichever agent; all nodes then have all of it."""
    words = ["localize", world / "c.h5", "--store", f"{tmp_path}/local{{node}}", "--json"]
    done = on_nodes(world, tmp_path / "logs", words, ranks, per_node, launcher)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    nodes = ranks // per_node
    assert [node["node"] for node in outcome["nodes"]] == [f"node{i}" for i in range(nodes)]
    require_read_once(world, tmp_path / "logs")
    shares = [node["read"] for node in outcome["nodes"]]
    assert min(shares) > max(shares) / 4
    for node in range(nodes):
        store = Store(tmp_path / f"local{node}")
        record = next(read_records(store))
        assert store.cache(record.name).read_bytes() == (world / "c.h5").read_bytes()
        for corpus in record.corpora:
            local = Path(idx_path(store.prefix(corpus.stem)))
            assert local.read_bytes() == Path(idx_path(corpus.shared)).read_bytes()


def test_a_repair_reads_what_any_node_needs_once(world: Path, tmp_path: Path) -> None:
    """A repair reads once what any node needs, and a node that needs nothing writes nothing."""
    words = ["localize", world / "c.h5", "--store", f"{tmp_path}/local{{node}}", "--json"]
    assert on_nodes(world, tmp_path / "first", words, 3, 1).returncode == 0
    for node, offset in ((0, 20_000), (1, 20_000), (1, 80 << 20)):
        copy = next((tmp_path / f"local{node}" / "caches").glob("*.h5"))
        with open(copy, "r+b") as stream:
            stream.seek(offset)
            byte = stream.read(1)
            stream.seek(offset)
            stream.write(bytes([byte[0] ^ 1]))
    done = on_nodes(world, tmp_path / "second", words, 3, 1)
    assert done.returncode == 0, done.stderr
    nodes = json.loads(done.stdout)["nodes"]
    assert [node["written"] > 0 for node in nodes] == [True, True, False]
    blocks = reads(tmp_path / "second")
    del blocks[str(world / "c.h5"), 0]
    counted = [count for (path, place), count in blocks.items() if 4 <= place < 100_000]
    assert max(counted) == 1024
    for node in range(3):
        assert verify_store(Store(tmp_path / f"local{node}")) == []


@pytest.mark.few(1)
def test_hashes_agree_on_all_nodes(world: Path, tmp_path: Path) -> None:
    """Hashes agree on all nodes where every node has a disk of its own under the same path."""
    local = tmp_path / "local"
    local.mkdir()
    words = ["localize", world / "c.h5", "--store", f"{local}/store", "--megatron"]
    words += ["--json"]
    done = on_nodes(world, tmp_path / "logs", words, 4, 1, before=["--mount", str(local)])
    assert done.returncode == 0, done.stderr
    assert not os.listdir(local)
    names = []
    for node in range(4):
        disk = tmp_path / "logs" / f"disk-{node}" / "store"
        names.append(sorted(str(path.relative_to(disk)) for path in disk.rglob("*")))
    assert names[0] == names[1] == names[2] == names[3]
    assert sum(name.endswith("-description.txt") for name in names[0]) == 5


def fail_alike(done: subprocess.CompletedProcess[str], exit_code: int, message: str) -> None:
    """Expect one clear error for all ranks."""
    assert done.returncode == exit_code, done.stderr
    assert done.stderr.count(message) == 1, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.few(1)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_what_is_wrong_is_said_once_on_all_ranks(
    world: Path, tmp_path: Path, launcher: str
) -> None:
    """A corrupt cache, a changed index: no node has a record, and nothing hangs."""
    shared = tmp_path / "shared"
    shutil.copytree(world, shared)
    words = ["localize", shared / "c.h5", "--store", f"{tmp_path}/{{node}}"]
    with open(shared / "c.h5", "r+b") as stream:
        stream.seek(100 << 20)
        stream.write(b"nonsense")
    done = on_nodes(shared, tmp_path / "logs", words, 4, 2, launcher)
    fail_alike(done, 4, "differ from their digest")
    (shared / "c.h5").unlink()
    done = on_nodes(shared, tmp_path / "logs", words, 4, 2, launcher)
    fail_alike(done, 5, "no such cache")
    for node in range(2):
        assert not list(read_records(Store(tmp_path / str(node))))


def test_nodes_that_share_a_directory_are_told_so(world: Path, tmp_path: Path) -> None:
    """Nodes that share a directory are told so at once: they would wait for each other's lock."""
    words = ["localize", world / "c.h5", "--store", tmp_path / "one-for-all"]
    done = on_nodes(world, tmp_path / "logs", words, 3, 1)
    fail_alike(done, 2, "is one directory for 3 nodes")
    assert not list((tmp_path / "one-for-all" / "caches").iterdir())
    # The first node has a store of its own.
    (tmp_path / "2").symlink_to(tmp_path / "1")
    (tmp_path / "1").mkdir(mode=0o700)
    words = ["localize", world / "c.h5", "--store", f"{tmp_path}/{{node}}/store"]
    done = on_nodes(world, tmp_path / "logs", words, 3, 1)
    fail_alike(done, 2, "is one directory for 2 nodes")
    assert not list((tmp_path / "1" / "store" / "caches").iterdir())


def test_one_full_node_is_an_error_on_all(world: Path, tmp_path: Path) -> None:
    """With its numbers; the others keep nothing unfinished under a final name."""
    small = tmp_path / "1"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(small)], check=True)
    try:
        words = ["localize", world / "c.h5", "--store", f"{tmp_path}/{{node}}/store"]
        done = on_nodes(world, tmp_path / "logs", words, 3, 1)
        fail_alike(done, 6, "bytes are needed")
        for node in range(3):
            store = Store(tmp_path / str(node) / "store")
            assert not list(read_records(store))
            assert not list(store.caches.glob("*.h5"))
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_two_jobs_at_once(world: Path, tmp_path: Path) -> None:
    """Of several nodes each: neither waits for the other for ever, and both succeed."""
    words = ["localize", str(world / "c.h5"), "--store", f"{tmp_path}/{{node}}", "--json"]
    before, environment = launch("mpich", 2)
    program = [sys.executable, "-m", "tests.jobs.on_node", "1", str(world), str(tmp_path)]
    jobs = [
        subprocess.Popen(
            [*before, *program, "--", *words],
            env=clean_environment(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for job in jobs:
        _, errors = job.communicate(timeout=LIMIT)
        assert job.returncode == 0, errors
    written = reads(tmp_path)
    assert max(written.values()) <= 3 * 1024
    for node in range(2):
        assert verify_store(Store(tmp_path / str(node))) == []


def test_processes_of_a_node_without_mpi(world: Path, tmp_path: Path) -> None:
    """Find each other by the lock: one copies, the others use what it has brought."""
    words = ["localize", str(world / "c.h5"), "--store", str(tmp_path / "local"), "--json"]
    jobs = [
        subprocess.Popen(
            [DISTCACHE, *words],
            env=clean_environment({"SLURM_STEP_NUM_TASKS": "4", "SLURM_NNODES": "1"}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    read = []
    for job in jobs:
        out, errors = job.communicate(timeout=LIMIT)
        assert job.returncode == 0, errors
        read.append(json.loads(out)["nodes"][0]["read"])
    assert sorted(value > 0 for value in read) == [False, False, False, True]


@pytest.mark.few(1)
@pytest.mark.parametrize("best_effort", [True, False])
@pytest.mark.parametrize("what", ["broken", "hung"])
def test_a_node_that_cannot_hold_a_copy(
    world: Path, tmp_path: Path, library: Path, what: str, best_effort: bool
) -> None:
    """It is an error, or is reported while the others continue; a hung disk ends it in time."""
    words = ["localize", world / "c.h5", "--store", f"{tmp_path}/local{{node}}", "--json"]
    environment = {"DISTCACHE_TIMEOUT_SCALE": "0.01"}
    if what == "broken":
        (tmp_path / "local1").write_text("in the way")
    else:
        environment |= odd(library, "strike=hang:fsync:1:/local1/")
    more = ["--best-effort"] if best_effort else []
    logs = tmp_path / "logs"
    done = on_nodes(world, logs, [*words, *more], 3, 1, environment=environment)
    assert "local1" in done.stderr or "rank 1 on " in done.stderr
    if not best_effort:
        assert done.returncode != 0
        return
    assert done.returncode == 0, done.stdout + done.stderr
    nodes = json.loads(done.stdout)["nodes"]
    assert [bool(node["problem"]) for node in nodes] == [False, True, False]
    for node in (0, 2):
        assert verify_store(Store(tmp_path / f"local{node}")) == []
        assert next(read_records(Store(tmp_path / f"local{node}")))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared directory with a cache over compressed shards of several blocks."""
    shared = tmp_path_factory.mktemp("packed")
    random = np.random.default_rng(5)
    samples = [{"tokens": random.integers(0, 999, 40_000).astype("i4")} for _ in range(60)]
    for name in ("a", "b"):
        data = write_mds(shared / name, {"tokens": "ndarray:int32"}, samples[::2], codec="zstd")
        here.index(data, shared / f"{name}-corpus")
        samples = samples[1:]
    here.build(fields_of(str(shared / "a-corpus"), str(shared / "b-corpus")), shared, "c")
    return shared


@pytest.mark.few(1)
@pytest.mark.parametrize(("launcher", "per_node"), [("mpich", 2), ("openmpi", 1)])
def test_compressed_shards_are_read_once(
    packed: Path, tmp_path: Path, launcher: str, per_node: int
) -> None:
    """Their compressed bytes travel; each node unpacks them, here into memory."""
    stores = tmp_path / "stores"
    stores.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", stores], check=True)
    try:
        words = ["localize", packed / "c.h5", "--store", f"{stores}/{{node}}", "--json"]
        done = on_nodes(packed, tmp_path / "logs", words, 2 * per_node, per_node, launcher)
        assert done.returncode == 0, done.stderr
        shards = [path for name in ("a", "b") for path in (packed / name).glob("*.zstd")]
        found = reads(tmp_path / "logs")
        for path in shards:
            counts = [count for (read, _), count in found.items() if read == str(path)]
            assert sum(counts) == path.stat().st_size
            assert max(counts) == 1024
        for node in range(2):
            store = Store(stores / str(node))
            (record,) = read_records(store)
            for corpus, name in zip(record.corpora, ("a", "b"), strict=True):
                content = Path(bin_path(store.prefix(corpus.stem))).read_bytes()
                assert content == virtual_bin(packed / f"{name}-corpus").tobytes()
            assert verify_store(store) == []
    finally:
        subprocess.run(["umount", "-l", stores], check=True)
