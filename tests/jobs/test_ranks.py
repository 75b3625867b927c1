"""What ranks of MPICH and of Open MPI share: bytes, errors, memory, and their end."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distcache.plan.assignment import assign
from distcache.plan.layout import make_layout
from tests.jobs.jobs import Runner
from tests.support import here
from tests.support.processes import LAUNCHERS, start


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


def test_links_are_taken_where_they_cost_nothing(
    large_config: dict[str, Any], limit: Callable[..., None]
) -> None:
    """Or the test above would say nothing about them; and with very many ranks as they are."""
    plan = here.plan(large_config)
    layout = make_layout(plan.items)
    assert len(assign(plan.items, layout, 2048).linked) > 0
    limit("distcache.plan.costs", LINK_SHARE=0.0)
    limit("distcache.plan.costs", DRAW_SHARE=0.0)
    for ranks in (2, 3, 4):
        assert len(assign(plan.items, layout, ranks).linked) == 2


def test_two_threads_of_one_process(
    large_config: dict[str, Any], serial_bytes: bytes, shared: Path
) -> None:
    """A second thread takes half of a large section."""
    assert Path(here.build(large_config, shared, threads=2).path).read_bytes() == serial_bytes


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
    assert done.returncode == 3
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
    words = ["build", large_file, "-o", shared, "--memory-limit", "320M", "--threads", "2"]
    done = start(words, 3)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == serial_bytes
    record = json.loads(next(shared.glob("*.build.json")).read_text())
    assert all(rank["peak_memory"] <= 320 << 20 for rank in record["ranks"])


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
