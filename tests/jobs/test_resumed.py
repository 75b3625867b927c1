"""What a job finds of one that was killed is used, completed, or made again; others wait for it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import distcache
from distcache.cache import open_cache
from distcache.cache.digests import verify_cache
from distcache.cache.readiness import Readiness, State
from distcache.errors import BuildInterrupted
from tests.jobs.jobs import JOBS, NAME, Runner, published, with_part
from tests.support import here
from tests.support.odd import odd
from tests.support.processes import DISTCACHE, LIMIT, clean_environment, launch, start
from tests.support.waiting import wait_until

BUILD, TEXT = "build of split sections", "ingest text"


def start_job(
    jobs: Runner, name: str, out: Path, ranks: int, strike: str = ""
) -> subprocess.Popen[str]:
    """Start a job and do not wait for it."""
    before, needed = launch("mpich", ranks) if ranks > 1 else ([], {})
    extra = odd(jobs.library, with_part(strike, out)) if strike else {}
    return subprocess.Popen(
        [*before, DISTCACHE, *map(str, JOBS[name].words(jobs.inputs, out)), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment({**needed, **extra}),
        start_new_session=True,
    )


def outcome_of(job: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return what a job that has succeeded says."""
    assert job.returncode == 0, job.stderr
    found: dict[str, Any] = json.loads(job.stdout)
    return found


def test_a_build_is_not_drawn_again(jobs: Runner, shared: Path) -> None:
    """Whatever was drawn and synced stays, also if the next job has other ranks."""
    died = jobs.run(BUILD, shared, 2, strike="kill:rename:1:final")
    assert died.returncode != 0
    assert outcome_of(jobs.run(BUILD, shared, 3, more=["--json"]))["built"] == 0


@pytest.mark.parametrize(("strike", "least", "most"), [("write:25", 0.1, 0.9), ("fsync:9", 1, 1)])
def test_an_ingest_goes_on(
    strike: str, least: float, most: float, jobs: Runner, shared: Path
) -> None:
    """With the pieces that were written, by any number of ranks."""
    died = jobs.run(TEXT, shared, strike=f"kill:{strike}")
    assert died.returncode != 0
    found = outcome_of(jobs.run(TEXT, shared, 3, more=["--json"]))
    assert least <= found["resumed"] <= most
    assert published(TEXT, shared) == jobs.expected(TEXT)


def test_what_was_lost_is_made_again(jobs: Runner, shared: Path) -> None:
    """A journal is not believed: a crash may have lost bytes that it says are there."""
    assert jobs.run(TEXT, shared, strike="kill:fsync:9").returncode != 0
    (workspace,) = shared.glob(".*")
    with open(max(workspace.glob("*.bin")), "r+b") as stream:
        stream.seek(-3000, os.SEEK_END)
        stream.write(bytes(500))
    assert 0 < outcome_of(jobs.run(TEXT, shared, 2, more=["--json"]))["resumed"] < 1
    assert published(TEXT, shared) == jobs.expected(TEXT)


def test_other_inputs_are_read_from_the_beginning(jobs: Runner, shared: Path) -> None:
    """What was made of another text is of no use."""
    assert jobs.run(TEXT, shared, 2, strike="kill:write:14").returncode != 0
    (shared / "b.jsonl").write_text('{"text": "a"}\n')
    words = ["ingest", "text", shared / "b.jsonl", "--tokenizer", jobs.inputs.tokenizer]
    found = outcome_of(start([*words, "-o", shared / NAME, "--json"]))
    assert (found["resumed"], found["documents"]) == (0, 1)


def test_a_publication_is_completed_by_others(jobs: Runner, shared: Path) -> None:
    """Killed between two names, it is completed by another command before that is refused."""
    for number in (2, 3, 4):
        died = jobs.run(TEXT, shared, strike=f"kill:rename:{number}:final")
        assert died.returncode != 0
        for path in shared.glob(f"{NAME}*"):
            assert path.read_bytes() == jobs.expected(TEXT)[path.name]
        done = jobs.run(TEXT, shared, more=["--token-type", "i32"])
        assert (done.returncode, "already exist" in done.stderr) == (7, True)
        assert published(TEXT, shared) == jobs.expected(TEXT)
        assert outcome_of(jobs.run(TEXT, shared, more=["--json"]))["reused"]
        for path in shared.iterdir():
            path.unlink()


def test_builds_that_race(jobs: Runner, shared: Path) -> None:
    """One publishes, and the others reuse it."""
    racing = [start_job(jobs, BUILD, shared, ranks) for ranks in (1, 2, 2)]
    found = []
    for job in racing:
        output, errors = job.communicate(timeout=LIMIT)
        assert job.returncode == 0, errors
        found.append(json.loads(output)["reused"])
    assert found.count(False) == 1
    assert published(BUILD, shared) == jobs.expected(BUILD)


@pytest.mark.parametrize("victim", [0, 1])
def test_one_of_two_racing_builds_dies(victim: int, jobs: Runner, shared: Path) -> None:
    """Whether it is the one that builds or the one that waits, the other has the cache."""
    first = start_job(jobs, BUILD, shared, 2, "pause:rename:1:final")
    wait_until(lambda: bool(list(shared.glob(".*/journal.*"))), "a build that has begun", LIMIT)
    second = start_job(jobs, BUILD, shared, 2)
    time.sleep(0.5)  # until it waits
    both = (first, second)
    os.killpg(both[victim].pid, signal.SIGKILL)
    output, errors = both[1 - victim].communicate(timeout=LIMIT)
    assert both[1 - victim].returncode == 0, errors
    verify_cache(open_cache(json.loads(output)["path"]))
    assert published(BUILD, shared) == jobs.expected(BUILD)
    both[victim].communicate(timeout=LIMIT)


@pytest.mark.few(2)
@pytest.mark.parametrize("delay", [0.1, 0.2, 0.3, 0.4, 0.5])
def test_a_signal_while_ranks_join(delay: float, jobs: Runner, shared: Path) -> None:
    """Ctrl-C at the start of a job ends all of it, also in the middle of joining."""
    # On a fast machine a build ends within half a second.
    job = start_job(jobs, BUILD, shared, 2, "pause:rename:1:final")
    time.sleep(delay)
    job.send_signal(signal.SIGINT)
    job.communicate(timeout=LIMIT)
    assert job.returncode != 0
    assert published(BUILD, shared) == {}


def test_who_waits_for_a_killed_builder(jobs: Runner, shared: Path) -> None:
    """Learns it in seconds; a builder that resumes is waited for."""
    final = shared / f"{NAME}.h5"
    seen: list[Readiness] = []
    outcome: list[BaseException] = []

    def wait() -> None:
        try:
            distcache.wait(final, 60, seen.append)
        except BuildInterrupted as error:
            outcome.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    killed = jobs.run(BUILD, shared, strike="kill:rename:1:final")
    assert killed.returncode == -signal.SIGKILL
    begin = time.monotonic()
    waiter.join(30)
    assert time.monotonic() - begin < 15
    assert "the builder has died" in str(outcome[0])
    assert any(found.state is State.building and found.phase for found in seen)
    done = start(["ready", final])
    assert done.returncode == 8
    assert "has died" in done.stderr
    assert jobs.run(BUILD, shared).returncode == 0
    assert distcache.wait(final, 1).state is State.ready


@pytest.mark.few(1)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_hangs(rank: int, jobs: Runner, shared: Path) -> None:
    """The others wait for it in a bound, and end the job; the next one resumes."""
    limit = {"DISTCACHE_TIMEOUT_SCALE": "0.002"}
    ended = jobs.run(BUILD, shared, 2, strike="hang:write:7", rank=rank, environment=limit)
    assert ended.returncode != 0
    assert "for the other ranks" in ended.stderr
    assert jobs.run(BUILD, shared).returncode == 0
    assert published(BUILD, shared) == jobs.expected(BUILD)


@pytest.mark.few(2)
@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("what", ["build", "localize"])
def test_an_error_in_a_program_that_calls_distcache(
    what: str, rank: int, blend_config: dict[str, Any], tmp_path: Path
) -> None:
    """Ends all ranks at once as from the command line, with the rank, its host and what to do."""
    given = tmp_path / "c.json"
    given.write_text(json.dumps(blend_config))
    if what == "localize":
        given = Path(here.build(blend_config, tmp_path, "before").path)
    words = [what, rank, given, tmp_path / "out"]
    begin = time.monotonic()
    done = start(words, 3, program=(sys.executable, "-m", "tests.jobs.library"))
    assert time.monotonic() - begin < 60
    assert done.returncode != 0
    assert f"distcache: rank {rank} on {socket.gethostname()}: not enough memory" in done.stderr
    assert "run again" in done.stderr


@pytest.mark.parametrize("name", ["merge", TEXT])
def test_anothers_file_is_kept(name: str, jobs: Runner, shared: Path) -> None:
    """A name that is taken is refused, whatever has it."""
    taken = shared / sorted(jobs.expected(name))[0]
    taken.write_bytes(b"mine")
    done = jobs.run(name, shared, 2)
    assert done.returncode == 7, done.stderr
    assert taken.read_bytes() == b"mine"
    assert len(published(name, shared)) == 1


@pytest.mark.few(3)
@pytest.mark.parametrize("suffix", [".idx", ".bin"])
@pytest.mark.parametrize(
    ("command", "call"), [("build", "map:1"), ("check", "map:1"), ("localize", "read:1")]
)
def test_a_corpus_that_shrinks(
    command: str,
    call: str,
    suffix: str,
    own_corpora: dict[str, Any],
    library: Path,
    tmp_path: Path,
    shared: Path,
) -> None:
    """While it is read: exit code 3 and the file's name, and no SIGBUS."""
    fields = {**own_corpora, "blend": own_corpora["blend"][1:2]}
    prefix = fields["blend"][0]["path"]
    config = tmp_path / "c.json"
    config.write_text(json.dumps(fields))
    cache = here.build(fields, tmp_path / "before", "c").path
    words = {
        "build": ["build", config, "-o", shared],
        "check": ["check", "--json", prefix],
        "localize": ["localize", cache, "--store", shared / "local", "--bin", "copy"],
    }[command]
    strike = odd(library, f"strike=cut:{call}:{prefix}.idx cut={prefix}{suffix}")
    done = start(words, environment=strike)
    assert done.returncode == 3, (done.returncode, done.stderr)
    assert f"{prefix}{suffix}" in done.stderr + done.stdout
    assert "EIO" not in done.stderr
