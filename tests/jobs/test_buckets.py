"""Faults of whole jobs: agents and ranks that are killed, full disks, a store that is away."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import distcache
from distcache.node.ahead.client import fetcher_status
from distcache.node.records import read_records
from distcache.node.store import Store
from distcache.node.upkeep import verify_store
from tests.jobs.test_localize import fail_alike, on_nodes
from tests.jobs.train_from_bucket import train
from tests.support import here
from tests.support.buckets import config_of, name_of, put_cache
from tests.support.processes import DISTCACHE, LIMIT, clean_environment, launch, start
from tests.support.scripted_s3 import Request, ScriptedS3
from tests.support.waiting import wait_until

URL = "s3://lake/run/c.h5"
SUFFIXES = (".h5", ".idx", ".bin")


@pytest.fixture
def cache(blend_config: dict[str, Any], shared: Path) -> Path:
    """A cache."""
    return Path(here.build(blend_config, shared, "c").path)


@pytest.fixture
def server(cache: Path) -> Iterator[ScriptedS3]:
    """A bucket with the cache."""
    with ScriptedS3() as s3:
        put_cache(s3, cache)
        yield s3


def streams_of(store: Path) -> int:
    """Return how many ranks have told a node's fetcher what they will read."""
    found = fetcher_status(store / "ahead")
    return 0 if found is None else found.streams


def size_of(server: ScriptedS3, suffix: str) -> int:
    """Return the bytes of all objects with a suffix."""
    return sum(len(data) for name, data in server.objects.items() if name.endswith(suffix))


@pytest.mark.parametrize("launcher", ["mpich", "openmpi"])
def test_each_byte_once_per_job(launcher: str, server: ScriptedS3, tmp_path: Path) -> None:
    """By three agents with disks of their own, of indices and whole tokens; all have them then."""
    disk, logs = tmp_path / "disk", tmp_path / "logs"
    disk.mkdir()
    words = ["localize", URL, "--store", f"{disk}/store", "--bin", "copy"]
    mount = ["--mount", str(disk)]
    environment = server.environment
    done = on_nodes(tmp_path, logs, words, 3, 1, launcher, before=mount, environment=environment)
    assert done.returncode == 0, done.stderr
    for suffix in SUFFIXES:
        assert server.bytes_of(suffix) == size_of(server, suffix)
    for node in range(3):
        assert verify_store(Store(logs / f"disk-{node}" / "store")) == []


def test_several_jobs_at_once(server: ScriptedS3, tmp_path: Path) -> None:
    """That localize the same cache on one node: each byte once for all of them."""
    server.latency = 0.01
    words = [DISTCACHE, "localize", URL, "--store", str(tmp_path / "store"), "--bin", "copy"]
    environment = clean_environment(server.environment)
    jobs = [
        subprocess.Popen([*words, "--json"], stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(4)
    ]
    told = [job.communicate(timeout=LIMIT)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0] * 4
    read = [json.loads(out)["nodes"][0]["read"] for out in told]
    assert sum(count > 0 for count in read) == 1
    for suffix in (".idx", ".bin"):
        assert server.bytes_of(suffix) == size_of(server, suffix)
    assert server.bytes_of(".h5") < 2 * size_of(server, ".h5")  # each reads what the cache is of
    assert verify_store(Store(tmp_path / "store")) == []


def test_after_a_killed_agent(server: ScriptedS3, tmp_path: Path) -> None:
    """The next run fetches what had not arrived: the rounds before it once, for all nodes."""
    words = ["localize", URL, "--store", f"{tmp_path}/local{{node}}", "--bin", "copy"]
    names = [name for name in server.objects if name.endswith(".bin")]

    def hang(request: Request) -> None:
        if request.name == names[-1] and request.method == "GET":
            time.sleep(30)

    server.on_request = hang
    before, needed = launch("mpich", 3)
    logs = tmp_path / "logs"
    logs.mkdir()
    program = [sys.executable, "-m", "tests.jobs.on_node", "1", str(tmp_path), str(logs), "--"]
    job = subprocess.Popen(
        [*before, *program, *map(str, words)],
        env=clean_environment({**needed, **server.environment, "ROUND_BYTES": "1"}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_until(
        lambda: any(r.name == names[-1] and r.method == "GET" for r in server.requests),
        "a request for the last object",
        LIMIT,
    )
    time.sleep(3.0)  # what has arrived is being written
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    server.on_request = None
    done = on_nodes(tmp_path, logs, words, 3, 1, environment=server.environment)
    assert done.returncode == 0, done.stderr
    for name, data in server.objects.items():
        if name == names[-1]:
            assert server.bytes_of(name) == 2 * len(data)  # it was on its way
        elif name.endswith(".h5"):
            assert len(data) <= server.bytes_of(name) < 1.1 * len(data)  # what it is of, again
        else:
            assert server.bytes_of(name) == len(data)
    for node in range(3):
        assert verify_store(Store(tmp_path / f"local{node}")) == []


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("always", "exit_code", "message"),
    [
        ("403", 1, "access is denied"),
        ("400", 1, "the credentials have expired"),
        ("404", 5, "no such cache"),
        ("403:RequestTimeTooSkewed", 1, "clock"),
        ("412", 3, "is another object"),
        ("whole", 1, "non-partial"),
        ("short:10", 1, "Requested"),
        ("other:10", 1, "Requested"),
        ("truncate:10", 1, "no answer in"),
        ("reset:10", 1, "no answer in"),
        ("stall:10:30", 1, "no answer in"),
        ("301", 1, "is in another region"),
        ("503", 1, "status 503"),
        ("refuse", 1, "no answer in"),
    ],
)
def test_one_clear_error_on_all_ranks(
    always: str, exit_code: int, message: str, server: ScriptedS3, tmp_path: Path
) -> None:
    """From the first answer that is wrong, and by few requests."""
    server.script(always=always)
    environment = {**server.environment, "DISTCACHE_TIMEOUT_SCALE": "0.02"}
    words = ["localize", URL, "--store", f"{tmp_path}/local{{node}}"]
    done = on_nodes(tmp_path, tmp_path / "logs", words, 3, 1, environment=environment)
    fail_alike(done, exit_code, message)
    assert len(server.requests) <= 60
    for node in range(3):
        assert not list(read_records(Store(tmp_path / f"local{node}")))


@pytest.mark.parametrize(
    ("command", "suffix"), [("build", ".idx"), *(("localize", suffix) for suffix in SUFFIXES)]
)
def test_a_change_is_one_error_on_all_ranks(
    command: str, suffix: str, server: ScriptedS3, blend_config: dict[str, Any], tmp_path: Path
) -> None:
    """An object that is replaced while three nodes read it: nothing is kept of it."""
    changed: list[str] = []

    def replace(request: Request) -> None:
        if request.method == "GET" and request.name.endswith(suffix) and not changed:
            changed.append(request.name)
            server.put(request.name, server.objects[request.name][::-1])

    server.on_request = replace
    words: list[str | Path] = ["localize", URL, "--store", f"{tmp_path}/local{{node}}"]
    words += ["--bin", "copy"]
    if command == "build":
        words = ["build", config_of(server, blend_config, tmp_path), "-o", tmp_path / "built"]
    done = on_nodes(tmp_path, tmp_path / "logs", words, 3, 1, environment=server.environment)
    fail_alike(done, 3, "is another object")
    assert f"s3://{changed[0]}" in done.stderr
    for node in range(3):
        assert not list(read_records(Store(tmp_path / f"local{node}")))
    assert not list(tmp_path.glob("built/*.h5"))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_fault_in_the_middle(suffix: str, server: ScriptedS3, tmp_path: Path) -> None:
    """Of any kind of file: healed, when it passes, by a request for each fault."""
    words = ["localize", URL, "--bin", "copy", "--store"]
    logs = tmp_path / "logs"
    clean = f"{tmp_path}/clean{{node}}"
    done = on_nodes(tmp_path, logs, [*words, clean], 3, 1, environment=server.environment)
    assert done.returncode == 0, done.stderr
    usual = len(server.requests)
    server.script()
    faults = iter(["503", "reset:100", "refuse", "truncate:50"])
    made: list[str] = []

    def fail(request: Request) -> str | None:
        fault = None
        if request.method == "GET" and request.name.endswith(suffix):
            fault = next(faults, None)
            made.extend([fault] if fault else [])
        return fault

    server.on_request = fail
    local = f"{tmp_path}/local{{node}}"
    done = on_nodes(tmp_path, logs, [*words, local], 3, 1, environment=server.environment)
    assert done.returncode == 0, done.stderr
    assert len(made) == 4
    assert len(server.requests) <= usual + len(made)
    for node in range(3):
        assert verify_store(Store(tmp_path / f"local{node}")) == []


@pytest.mark.few(1)
@pytest.mark.parametrize("command", ["build", "localize", "train"])
def test_a_store_that_is_away_for_seconds(
    command: str, server: ScriptedS3, blend_config: dict[str, Any], cache: Path, tmp_path: Path
) -> None:
    """A store that is away for twenty seconds is waited for: nothing is wrong in the end."""
    config, store = config_of(server, blend_config, tmp_path), tmp_path / "local0"
    words: list[str | Path] = ["localize", URL, "--store", f"{tmp_path}/local{{node}}"]
    if command == "train":
        assert start(["localize", URL, "--store", store], environment=server.environment).stdout
    elif command == "build":
        words = ["build", config, "-o", tmp_path / "built"]
    begin = time.monotonic()
    refused: list[str] = []

    def away(request: Request) -> str | None:
        if time.monotonic() - begin > 20:
            return None
        refused.append(request.name)
        return "refuse"

    server.on_request = away
    if command == "train":
        digests = [train(URL, store, 50, server.environment), train(str(cache), None, 50)]
        assert digests[0]["digest"] == digests[1]["digest"]
    else:
        done = on_nodes(tmp_path, tmp_path / "logs", words, 2, 1, environment=server.environment)
        assert done.returncode == 0, done.stderr
    assert time.monotonic() - begin > 20
    assert len(refused) < 1500  # of 48 threads that read ahead, with growing pauses


def test_a_node_fetches_what_its_own_ranks_read(
    server: ScriptedS3, cache: Path, tmp_path: Path
) -> None:
    """Of two nodes with a rank each: of each small object, each byte once."""
    samples = distcache.open(cache).dataset("train")
    steps = len(samples) // 8
    for rank in range(2):
        store = tmp_path / f"local{rank}"
        localized = start(["localize", URL, "--store", store], environment=server.environment)
        assert localized.returncode == 0, localized.stderr
        server.script()
        found = train(URL, store, steps, server.environment, rank, 2)
        assert found["digest"] == train(str(cache), None, steps, {}, rank, 2)["digest"]
        dataset = distcache.open(URL, store).dataset("train")
        batches = list(distcache.ResumableSampler(dataset, 4, rank, 2))
        wanted = [dataset.fetched_ranges(batch) for batch in batches]  # type: ignore[arg-type]
        assert found["used"] == sum(int(own.ranges[:, 2].sum()) for own in wanted)
        sources = {source for own in wanted for source in own.sources}
        assert {request.name for request in server.requests} == {
            name_of(source.path) for source in sources
        }
        assert server.bytes_of(".bin") == sum(source.version.size for source in sources)


def test_a_killed_rank(server: ScriptedS3, cache: Path, tmp_path: Path) -> None:
    """It gives its share of the budget back; the other ranks go on, by the same fetcher."""
    store = tmp_path / "store"
    assert (
        start(["localize", URL, "--store", store], environment=server.environment).returncode == 0
    )
    server.latency = 0.01
    words = [sys.executable, "-m", "tests.jobs.bucket_trainer", URL, str(store)]
    together = ["--beside", "2", "--pause", "0.02"]
    ranks = [
        subprocess.Popen(
            [*words, str(rank), "2", "200", *together],
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(server.environment),
        )
        for rank in range(2)
    ]
    wait_until(lambda: streams_of(store) == 2, "two ranks that read", LIMIT)
    found = fetcher_status(store / "ahead")
    assert found is not None
    ranks[1].kill()
    ranks[1].wait()
    wait_until(lambda: streams_of(store) < 2, "the end of a stream", LIMIT)
    after = fetcher_status(store / "ahead")
    assert after is None or after.process == found.process  # it may have ended without clients
    out, _ = ranks[0].communicate(timeout=LIMIT)
    assert ranks[1].stdout is not None
    ranks[1].stdout.close()
    wanted = train(str(cache), None, 200, {}, 0, 2)
    assert json.loads(out)["digest"] == wanted["digest"]
    with contextlib.suppress(ProcessLookupError):  # it has ended without clients
        os.kill(found.process, signal.SIGKILL)
