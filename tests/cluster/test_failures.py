"""Jobs that fail, are killed, preempted, or run at once: all is said, nothing is lost."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from distcache.corpus import bin_path
from tests.cluster.cluster import Cluster
from tests.cluster.daemons import run
from tests.cluster.jobs import (
    LIMIT,
    Story,
    background,
    command,
    environment,
    field_of,
    recorded,
    wait_for,
)
from tests.cluster.node import STORAGE
from tests.support.terminal import interrupt, require_sane
from tests.support.waiting import wait_until

# Seconds until Slurm takes a node for dead: its timeout, more for the job to notice, and some.
DEAD_WITHIN = 150.0


def set_nodes(state: str) -> None:
    """Let the nodes take new jobs, or not."""
    run("scontrol", "update", "nodename=node[1-3]", f"state={state}", "reason=test")


def newest_job(name: str) -> str:
    """Return the number of the job of a name that was submitted last."""
    return run("squeue", "-h", "-n", name, "-o", "%i", "--sort=-i").split()[0]


def test_ctrl_c_while_a_prejob_is_followed(cluster: Cluster, shared: Path) -> None:
    """The job continues, and what to do if it should not is said."""
    story = Story.small(shared)
    set_nodes("drain")
    try:
        code, shown = interrupt(story.words("--wait"), b"pending", environment())
        job = newest_job("distcache")
    finally:
        set_nodes("resume")
    assert code == 8
    assert f"pre-job {job} continues; scancel {job} ends it".encode() in shown
    require_sane(shown)
    assert wait_for(job, "COMPLETED", "FAILED") == "COMPLETED"
    assert story.cache.exists()


def test_a_prejob_that_fails(cluster: Cluster, shared: Path) -> None:
    """Training never starts, and who waits learns why in the words of the rank."""
    story = Story.small(shared)
    script = shared / "train.sbatch"
    script.write_text(f"#!/bin/bash\ntouch {shared}/started\n")
    set_nodes("drain")
    try:
        waiting = background(*story.words("--wait", "--log-format", "none", "--", script))
        wait_until(lambda: "c-train.sh" in run("squeue", "-h", "-o", "%j"), "the jobs")
        training = newest_job("c-train.sh")
        os.truncate(bin_path(story.fields["blend"][0]["path"]), 10)
    finally:
        set_nodes("resume")
    _, errors = waiting.communicate(timeout=LIMIT)
    assert waiting.returncode == 3, errors
    assert errors.count("plain.bin: has 10 bytes, expected") == 1
    assert f"training job {training} never starts" in errors
    assert wait_for(training, "CANCELLED") == "CANCELLED"
    assert not (shared / "started").exists()
    assert not story.cache.exists()


@pytest.mark.more
def test_a_corpus_that_changes_before_the_job_starts(cluster: Cluster, shared: Path) -> None:
    """What is built is what was submitted, or nothing."""
    story = Story.small(shared)
    set_nodes("drain")
    try:
        waiting = background(*story.words("--wait", "--log-format", "none"))
        wait_until(lambda: "distcache" in run("squeue", "-h", "-o", "%j"), "the job")
        story.config.write_text(json.dumps({**story.fields, "seed": 4321}))
    finally:
        set_nodes("resume")
    _, errors = waiting.communicate(timeout=LIMIT)
    assert waiting.returncode == 7, errors
    assert "has changed: the key is" in errors
    assert not story.cache.exists()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("plugin", "code", "words"),
    [
        ("none", 2, "6 processes were started, but MPI joins 1"),
        ("pmix", 1, "unsupported PMI version PMIx"),
    ],
)
def test_a_wrong_mpi_plugin(
    cluster: Cluster, shared: Path, plugin: str, code: int, words: str
) -> None:
    """Starts as many worlds as ranks, of which none builds anything, or MPI says what is wrong."""
    story = Story.small(shared)
    done = command(*story.words("--wait", "--log-format", "none", "--mpi", plugin))
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert not story.cache.exists()


def test_a_node_dies_while_localizing(cluster: Cluster, shared: Path) -> None:
    """The job ends in bounded time; no copy is declared ready that is not, and the next heals."""
    story = Story.long(shared, corpora=4)
    assert command(*story.words("--wait")).returncode == 0
    store = f"/local/distcache-{os.geteuid()}"
    script = shared / "localize.sh"
    script.write_text(
        "#!/bin/bash\nsrun --mpi=pmi2 --ntasks-per-node=1 --kill-on-bad-exit=1 distcache localize "
        f"{story.cache} --store {store}\n"
    )
    options = ("--no-requeue", "--nodes=3")
    victim = cluster.node("node2")
    for node in cluster.nodes:
        cluster.shared.forget_on(node)
        node.slow_down(STORAGE, "100mbit")
    job = story.sbatch(script, options=options)
    try:
        node = cluster.node("node1")
        wait_until(lambda: ".part" in node.run("find", "/local", "-name", ".*.part"), "a copy")
        before = node.received()
        wait_until(lambda: node.received() > before + (8 << 20), "more of the copy")
        victim.kill()
        wait_for(job, "NODE_FAIL", "FAILED", limit=DEAD_WITHIN)
        assert "node2" in story.log(job)
        for survivor in (node, cluster.node("node3")):
            assert ".json" not in survivor.run("ls", f"{store}/caches")
    finally:
        for node in cluster.nodes:
            node.slow_down(STORAGE, "")
        cluster.restart(victim)
    again = story.sbatch(script, options=options)
    assert wait_for(again, "COMPLETED", "FAILED") == "COMPLETED"
    run("srun", "-N3", "distcache", "local", "verify", "--store", store)


@pytest.mark.few(1)
@pytest.mark.parametrize("how", ["requeue", "USR1"])
def test_preemption(cluster: Cluster, shared: Path, tmp_path: Path, how: str) -> None:
    """The same job continues where it was; nothing that was recorded as done is done again."""
    story = Story.long(shared)
    waiting = background(*story.words("--wait", "--log-format", "plain"))
    story.wait_for_records()
    job = newest_job("distcache")
    if how == "requeue":
        run("scontrol", "requeue", job)
    else:
        run("scancel", f"--signal={how}", job)
    wait_until(lambda: field_of(job, "Restarts") == "1", "the job to be requeued")
    cluster.wait_for_nodes()  # all ranks have ended
    done = recorded(story.caches, "c")
    assert not story.cache.exists()
    output, errors = waiting.communicate(timeout=LIMIT)
    assert waiting.returncode == 0, errors
    if how == "USR1":
        assert "interrupted by SIGUSR1; run again to resume" in errors
        assert "Exited with exit code 8" in errors
    record = story.record()
    assert len(done) > 0
    assert record.resumed == len(done)
    assert story.difference(tmp_path) == ""
    assert field_of(job, "JobState") == "COMPLETED", output


@pytest.mark.more
def test_a_cancelled_prejob(cluster: Cluster, shared: Path) -> None:
    """A cancelled prejob is not requeued; submitting again resumes."""
    story = Story.long(shared)
    waiting = background(*story.words("--wait", "--log-format", "none"))
    story.wait_for_records()
    job = newest_job("distcache")
    run("scancel", job)
    _, errors = waiting.communicate(timeout=LIMIT)
    assert waiting.returncode in (1, 8), errors
    assert f"pre-job {job}: CANCELLED" in errors
    done = recorded(story.caches, "c")
    again = command(*story.words("--wait"))
    logs = "".join(path.read_text() for path in story.caches.glob("c.jobs/*.log"))
    assert again.returncode == 0, again.stderr + logs
    assert story.record().resumed == len(done)


@pytest.mark.more
def test_eight_prejobs_at_once(cluster: Cluster, shared: Path, tmp_path: Path) -> None:
    """One builds, the others wait for it; all succeed, and there is one cache."""
    story = Story.long(shared, corpora=4)
    words = ["submit", story.config, "-o", story.caches, "--name", "c", "--ntasks-per-node", "2"]
    jobs = [background(*words, "--mem", "1G", "--wait", "--json") for _ in range(8)]
    numbers = set()
    for job in jobs:
        output, errors = job.communicate(timeout=LIMIT)
        assert job.returncode == 0, errors
        numbers.add((json.loads(output)["prejob"] or {}).get("job"))
    logs = "".join(path.read_text() for path in story.caches.glob("c.jobs/*.log"))
    assert logs.count(f"] built {story.cache}") == 1
    assert logs.count(f"] found {story.cache}") == len(numbers - {None}) - 1
    names = sorted(path.name for path in story.caches.iterdir())
    assert names == ["c.h5", "c.h5.build.json", "c.jobs"]
    assert story.difference(tmp_path) == ""
