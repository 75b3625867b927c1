"""The whole story on three nodes, what sites have besides, and the cluster itself."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import distcache
from distcache.corpus import idx_path
from tests.cluster.cluster import Cluster
from tests.cluster.daemons import run
from tests.cluster.epoch import digest
from tests.cluster.jobs import Story, command, environment, wait_for
from tests.cluster.settings import LOCAL, SCRIPTS
from tests.support.processes import LAUNCHERS


def test_nodes_have_private_disks(cluster: Cluster) -> None:
    """What one writes to its own disk, no other sees, and the head neither."""
    names = cluster.settings.names
    assert sorted(run("srun", "-N3", "hostname").split()) == names
    run("srun", "-N3", "sh", "-c", "hostname > /local/who")
    assert sorted(run("srun", "-N3", "cat", "/local/who").split()) == names
    assert not Path("/local/who").exists()


def test_the_network_filesystem_is_shared(cluster: Cluster, shared: Path) -> None:
    """And what a node reads of it comes through its own network card."""
    (shared / "bytes").write_bytes(bytes(8 << 20))
    before = [node.received() for node in cluster.nodes]
    run("srun", "-N3", "md5sum", shared / "bytes")
    after = [node.received() for node in cluster.nodes]
    assert all(b - a > 8 << 20 for a, b in zip(before, after, strict=True))


@pytest.fixture
def clean(cluster: Cluster) -> None:
    """Disks without copies of other tests."""
    run("srun", "-N3", "sh", "-c", f"rm -rf {LOCAL}/distcache-*")


def lines(directory: Path) -> list[dict[str, Any]]:
    """Return what every rank wrote."""
    return [json.loads(path.read_text()) for path in sorted(directory.iterdir())]


@pytest.mark.few(1)
@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_commands_from_a_configuration_to_samples(
    launcher: str, shared: Path, tmp_path: Path
) -> None:
    """Every sample of an epoch is read exactly once, from local copies, `.bin` from the network."""
    story = Story.small(shared)
    out = shared / "out"
    out.mkdir()
    prefixes = [source["path"] for source in story.fields["blend"]]
    hidden = [str(story.cache), *map(idx_path, prefixes)]
    elsewhere = story.undisturbed(tmp_path)
    reference = distcache.open(elsewhere).dataset("train")
    expected = [[i, digest(reference[i]["tokens"])] for i in range(len(reference))]

    train = [SCRIPTS / "train.sbatch", "-m", "tests.cluster.epoch", out, *hidden]
    log = shared / "train.log"
    env = environment(launcher, RANKS_PER_NODE="2", SBATCH_OUTPUT=str(log))
    done = command(*story.words("--wait", "--json", "--", *train), env=env)
    assert done.returncode == 0, done.stderr
    submitted = json.loads(done.stdout)
    assert submitted["prejob"]["options"]["mpi"] == {"mpich": "pmi2", "openmpi": "pmix"}[launcher]
    assert wait_for(submitted["training"], "COMPLETED", "FAILED", "CANCELLED") == "COMPLETED", (
        log.read_text()
    )

    ranks = lines(out)
    assert sorted(rank["host"] for rank in ranks) == sorted(2 * ["node1", "node2", "node3"])
    assert {rank["key"] for rank in ranks} == {submitted["key"]}
    assert all(rank["local"] for rank in ranks)
    assert sorted(sample for rank in ranks for sample in rank["samples"]) == expected
    files = "".join(rank["files"] for rank in ranks)
    assert str(shared / "plain.bin") in files
    assert f"{LOCAL}/distcache-0/caches/" in files
    assert ".hidden" not in files
    moved = Path(f"{story.cache}.hidden")
    assert moved.read_bytes() == elsewhere.read_bytes()


def test_a_cache_that_is_there_needs_no_prejob(cluster: Cluster, shared: Path) -> None:
    """Training starts at once and finds it, whatever variables it wants, if it is a script."""
    story = Story.small(shared)
    first = json.loads(command(*story.words("--wait", "--json")).stdout)
    script = shared / "train.sbatch"
    script.write_text(f'#!/bin/bash\n#SBATCH --output={shared}/out\necho "$DISTCACHE_CACHE $@"\n')
    done = command(*story.words("--json", "--", script, "a b", "--c"))
    second = json.loads(done.stdout)
    assert first["prejob"] is not None
    assert second["prejob"] is None
    assert wait_for(second["training"], "COMPLETED") == "COMPLETED"
    assert (shared / "out").read_text() == f"{story.cache} a b --c\n"
    for variables in ("NONE", "NIL", "HOME,USER"):
        out = shared / f"out-{variables}"  # clients may keep what a file of one name had
        script.write_text(
            f"#!/bin/bash\n#SBATCH --output={out} --export={variables}\necho $DISTCACHE_CACHE\n"
        )
        found = json.loads(command(*story.words("--json", "--", script)).stdout)
        assert wait_for(found["training"], "COMPLETED") == "COMPLETED"
        assert out.read_text() == f"{story.cache}\n"
    script.write_text("#!/bin/bash\n#SBATCH --partition=none\n")
    refused = command(*story.words("--", script))
    assert refused.returncode == 1
    assert "invalid partition" in refused.stderr
    script.write_text("echo no script")
    assert command(*story.words("--", script)).returncode == 2
    assert command(*story.words("--", shared / "none.sbatch")).returncode == 5


def test_the_scripts_of_a_site(cluster: Cluster, shared: Path, tmp_path: Path) -> None:
    """build.sbatch runs as it is."""
    story = Story.small(shared)
    job = story.sbatch(SCRIPTS / "build.sbatch", story.config, story.caches, "c")
    state = wait_for(job, "COMPLETED", "FAILED")
    assert state == "COMPLETED", story.log(job)
    assert story.difference(tmp_path) == ""


PLUGIN = Path(__file__).with_name("stand_in.c")
CORES = 2
SHAPE = ("--nodes", "3", "--ntasks-per-node", "1", "--cpus-per-task", str(CORES))


@pytest.fixture(scope="module")
def site(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with tasks bound to their cores, and a plugin of the site."""
    before = cluster.settings
    library = before.base / "stand_in.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, PLUGIN], check=True)
    before.plugins.write_text(f"required {library}\n")
    try:
        cluster.reconfigure(replace(before, bound=True, cpus=CORES))
        yield cluster
    finally:
        before.plugins.unlink()
        cluster.reconfigure(before)


@pytest.mark.more
def test_steps_have_the_cores_of_their_job(site: Cluster, shared: Path, tmp_path: Path) -> None:
    """A step gets one core unless it asks: the threads of a build say what it has."""
    story = Story.small(shared)
    job = story.sbatch(SCRIPTS / "build.sbatch", story.config, story.caches, "c", options=SHAPE)
    assert wait_for(job, "COMPLETED", "FAILED") == "COMPLETED", story.log(job)
    assert story.record().threads == CORES
    assert len(story.record().ranks) == 3
    assert story.difference(tmp_path) == ""


@pytest.mark.more
def test_containers(site: Cluster, shared: Path, tmp_path: Path) -> None:
    """Options of a site's plugin reach the step, from a command line or a configuration."""
    noted = shared / "tasks"
    expected = [f"node{number} {number - 1} {CORES}" for number in (1, 2, 3)]
    story = Story.small(shared)
    words = ["submit", story.config, "-o", story.caches, *SHAPE, "--wait", "--json"]
    given = command(*words, "--name", "c", f"--srun=--container-image={noted}")
    assert given.returncode == 0, given.stderr
    assert sorted(noted.read_text().splitlines()) == expected
    assert story.difference(tmp_path) == ""

    noted.unlink()
    fields = story.fields | {"slurm": {"srun": [f"--container-image={noted}"]}}
    story.config.write_text(json.dumps(fields))
    configured = command(*words, "--name", "d")
    assert configured.returncode == 0, configured.stderr
    assert sorted(noted.read_text().splitlines()) == expected
