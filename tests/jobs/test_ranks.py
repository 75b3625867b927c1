"""What ranks of MPICH and of Open MPI share: bytes, errors, memory, and their end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.jobs import Runner
from tests.support import here
from tests.support.large import write_blend, write_large
from tests.support.processes import DISTCACHE, LAUNCHERS, LIMIT, clean_environment, launch, start


@pytest.mark.few(1)
@pytest.mark.parametrize(("launcher", "ranks"), [("mpich", 3), ("openmpi", 4)])
def test_bytes_are_equal_by_links(
    launcher: str, ranks: int, large_file: Path, serial_bytes: bytes, shared: Path
) -> None:
    """Bytes are equal by links where no rank has more than its slices of the large sections."""
    program = [sys.executable, "-m", "tests.jobs.linked"]
    done = start(["build", large_file, "-o", shared], ranks, launcher, program=program)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == serial_bytes


@pytest.mark.few(1)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_all_ranks_end_with_the_same_error(
    launcher: str, blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """What is wrong is said once, with its exit code, and nothing hangs."""
    blend_config["blend"].append({"path": "/none/such", "weight": 1.0})
    path = tmp_path / "c.json"
    path.write_text(json.dumps(blend_config))
    done = start(["build", path, "-o", shared], 3, launcher)
    assert done.returncode == 5
    assert done.stderr.count("/none/such.idx: no such file") == 1


@pytest.mark.few(1)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_merge_and_check(launcher: str, jobs: Runner, shared: Path) -> None:
    """Shards merged by any number of ranks are the corpus that was not cut."""
    words = ["ingest", "text", jobs.inputs.text, "--tokenizer", jobs.inputs.tokenizer]
    for name, size in (("whole", "1T"), ("cut", "2M")):
        made = start([*words, "--shard-size", size, "-o", shared / name], 2, launcher)
        assert made.returncode == 0, made.stderr
    shards = sorted(shared.glob("cut-*.bin"))
    assert len(shards) > 2
    for ranks in (1, 3):
        out = shared / f"merged{ranks}"
        done = start(["merge", *shards, "-o", out], ranks, launcher)
        assert done.returncode == 0, done.stderr
        for suffix in (".bin", ".idx"):
            whole = (shared / f"whole-00000{suffix}").read_bytes()
            assert Path(f"{out}{suffix}").read_bytes() == whole
    command = ["check", *shards, shared / "merged3", "--tokens", "--readback", 5]
    done = start([*command, "--json"], 3, launcher)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["corpora"]) == len(shards) + 1


def test_every_rank_has_the_same_error(jobs: Runner, shared: Path) -> None:
    """It is said once, whichever rank has found it, and it is the first one of the input."""
    lines = jobs.inputs.text.read_text().splitlines(keepends=True)
    lines[150], lines[-100] = '{"text": 1}\n', "nonsense\n"
    (shared / "in.jsonl").write_text("".join(lines))
    words = ["ingest", "text", shared / "in.jsonl", "--tokenizer", jobs.inputs.tokenizer]
    for ranks in (1, 2, 3):
        done = start([*words, "-o", shared / "out"], ranks)
        assert done.returncode == 3
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("distcache:")]
        assert line.startswith(f"distcache: {shared}/in.jsonl: line 151, byte ")
    assert not list(shared.glob("out*"))


def test_a_check_shares_out_the_bytes(large_config: dict[str, Any]) -> None:
    """A check shares out the bytes, and finds what one process finds."""
    blends = large_config["blend_per_split"]
    prefixes = [*blends["train"], *blends["valid"], *(b["path"] for b in blends["test"])]
    alone, together = (start(["check", *prefixes, "--json"], ranks) for ranks in (1, 3))
    assert alone.returncode == together.returncode == 0
    assert json.loads(together.stdout) == json.loads(alone.stdout)


def test_memory_stays_within_its_prediction(large_file: Path, shared: Path) -> None:
    """Memory stays within its prediction on every rank, in a build whose sections are split."""
    done = start(["build", large_file, "-o", shared, "--threads", "1"], 2)
    assert done.returncode == 0, done.stderr
    record = json.loads(next(shared.glob("*.build.json")).read_text())
    for rank in record["ranks"]:
        assert rank["peak_memory"] <= rank["predicted_memory"]


def test_a_memory_limit_is_kept(large_file: Path, serial_bytes: bytes, shared: Path) -> None:
    """A memory limit is kept by fewer threads, where one rank could not hold two sections."""
    words = ["build", large_file, "-o", shared, "--memory-limit", "270M", "--threads", "2"]
    done = start(words, 3)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == serial_bytes
    record = json.loads(next(shared.glob("*.build.json")).read_text())
    assert record["threads"] == 1
    assert all(rank["peak_memory"] <= 270 << 20 for rank in record["ranks"])


# A command after which a thread of rank 1 hangs; the other ranks end a second after it.
LEAVING = """
import sys, time
from distcache.cli import main
from distcache.storage.watchdog import abandon_thread
from distcache.ranks.connect import connect

def command(standalone_mode):
    communicator = connect()
    if communicator.rank == 1:
        abandon_thread()
    else:
        communicator.close()
        time.sleep(1)
    sys.exit(0)

main.app = command
main.main()
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_rank_that_ends_although_a_thread_hangs(launcher: str) -> None:
    """Signs off from its launcher, which otherwise kills the ranks that have not ended yet."""
    done = start(["-c", LEAVING], 3, launcher, program=[sys.executable])
    assert done.returncode == 0, done.stdout + done.stderr


ABSENT = """
import os, time
from distcache.ranks.connect import connect
if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1":
    time.sleep(100)
connect()
"""


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_rank_that_does_not_join(launcher: str) -> None:
    """The others end after a time, and say that they are joining: MPI itself waits for ever."""
    words = ["-c", ABSENT]
    limit = {"DISTCACHE_TIMEOUT_SCALE": "0.005"}  # three seconds
    done = start(words, 2, launcher, limit, program=[sys.executable])
    assert done.returncode != 0
    assert "Timeout" in done.stderr
    assert "in _world" in done.stderr


PROGRAM = """
import numpy as np
from distcache.ranks.mpi import MpiCommunicator

ranks = MpiCommunicator()
for turn, size in enumerate((0, 1, 5_000, 3_000_001)):
    counts = np.array([size * (rank % 3) for rank in range(ranks.size)])
    expected = np.random.default_rng(turn).integers(0, 256, int(counts.sum()), np.uint8)
    end = int(counts[: ranks.rank + 1].sum())
    own = expected[end - counts[ranks.rank] : end]
    assert np.array_equal(ranks.allgather_bytes(own, counts, "bytes"), expected), size
print("equal")
"""


@pytest.mark.few(2)
@pytest.mark.parametrize("ranks", [4, 2, 7])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_bytes_are_equal(launcher: str, ranks: int) -> None:
    """On every rank, in the order of the ranks."""
    done = start([], ranks, launcher, program=[sys.executable, "-c", PROGRAM])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("equal") == ranks  # lines of ranks may be mixed


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("launcher", "ranks", "weighted"), [("mpich", 3, True), ("openmpi", 2, False)]
)
def test_bytes_are_those_of_one_process(
    launcher: str, ranks: int, weighted: bool, tmp_path: Path
) -> None:
    """Whichever rank draws them; tests/builder has other numbers of ranks, as threads."""
    (tmp_path / "corpora").mkdir()
    fields = write_blend(tmp_path / "corpora", weighted=weighted)
    config = tmp_path / "c.json"
    config.write_text(json.dumps(fields))
    alone = Path(here.build(fields, tmp_path / "alone").path)
    done = start(["build", config, "-o", tmp_path], ranks, launcher)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == alone.read_bytes()


CORPORA = 700
LIMITED = ("sh", "-c", 'ulimit -n 256 && exec "$@"', "sh")
TRAIN = """
import sys, distcache
train = distcache.open(sys.argv[1], local=sys.argv[2]).dataset("train")
batches = [train.__getitems__(list(range(i, i + 64))) for i in range(0, 2048, 64)]
print(sum(int(sample["tokens"].sum()) for batch in batches for sample in batch))
"""


@pytest.mark.more
def test_256_open_files_are_enough(tmp_path: Path) -> None:
    """For every command, and for training: with 700 corpora, twice as many files and more."""
    made = start(
        ["mock", "--count", str(CORPORA), "--documents", "70000", "--fill", "-o", tmp_path / "d"]
    )
    assert made.returncode == 0, made.stderr
    fields = json.loads((tmp_path / "d/blend.json").read_text())
    fields |= {"samples": {"train": 20000}, "tokenizer": {"class": "Made"}}
    config, cache, store = (tmp_path / name for name in ("c.json", "out/c.h5", "store"))
    config.write_text(json.dumps(fields))
    prefixes = [entry["path"] if isinstance(entry, dict) else entry for entry in fields["blend"]]
    build = ["build", config, "-o", cache.parent, "--name", "c", "--threads", "2"]
    commands = [
        (["check", *prefixes], 1),
        (["plan", config], 1),
        (build, 2),
        (["verify", cache, "--corpora"], 1),
        (["export", cache, "-o", tmp_path / "npy"], 1),
        (["localize", cache, "--store", store, "--megatron"], 1),
        (["local", "verify", "--store", store], 1),
        (["merge", *prefixes, "-o", tmp_path / "merged"], 2),
    ]
    for words, ranks in commands:
        done = start(words, ranks, program=(*LIMITED, DISTCACHE))
        assert done.returncode == 0, (words[0], done.stderr)
    sums = [
        subprocess.run(
            [*before, sys.executable, "-c", TRAIN, str(cache), str(store)],
            env=clean_environment(),
            capture_output=True,
            check=True,
        ).stdout
        for before in (LIMITED, ())
    ]
    assert sums[0] == sums[1]


# A UTS namespace is what a node's name belongs to; then the CPUs that the ranks are bound to.
ON_NODE = 'hostname "$1"; cpus="$2"; shift 2; exec taskset -c "$cpus" "$@"'


def on_node(ranks: int, node: str, cpus: str, words: list[str]) -> list[str]:
    """Return the words by which mpiexec starts ranks on a made-up node."""
    return ["-n", str(ranks), "unshare", "--uts", "sh", "-c", ON_NODE, "sh", node, cpus, *words]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a size at which it depends on the threads whether a section is split."""
    return write_large(tmp_path_factory.mktemp("unlike") / "large", 4_500_000, 12.0)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("split", "length"), [("50,50,0", 12), ("34,33,33", 7), ("34,33,33", 5), ("1", 12)]
)
def test_unlike_nodes(corpus: str, split: str, length: int, shared: Path, tmp_path: Path) -> None:
    """Two ranks of one core on one node and one of two cores on another; with both orders."""
    fields: dict[str, Any] = {"sequence_length": length, "split": split, "samples": None}
    fields["blend"] = [corpus]
    config = tmp_path / "c.json"
    config.write_text(json.dumps(fields))
    expected = Path(here.build(fields, tmp_path / "serial").path).read_bytes()
    nodes = [(2, "a", "0"), (1, "b", "0,1")]
    for number, order in enumerate((nodes, nodes[::-1])):
        output = shared / str(number)
        words = [DISTCACHE, "build", str(config), "-o", str(output), "--name", "c"]
        first, second = (on_node(*node, words) for node in order)
        mpiexec = launch("mpich", 3)[0][0]
        done = subprocess.run(
            [mpiexec, *first, ":", *second],
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert (output / "c.h5").read_bytes() == expected
