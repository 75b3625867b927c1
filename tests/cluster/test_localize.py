"""Localizing onto the private disks of real nodes: what it reads."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from distcache.corpus import idx_path
from tests.cluster.cluster import Cluster
from tests.cluster.daemons import run
from tests.cluster.jobs import Story, command, environment
from tests.cluster.settings import LOCAL, SCRIPTS

STORE = LOCAL / "distcache-0"
NOBODY = 65534


@pytest.fixture(scope="module")
def story(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """A cache of several blocks on the network filesystem."""
    directory = cluster.settings.shared / "localize"
    directory.mkdir()
    made = Story.long(directory, corpora=3)
    assert command(*made.words("--wait")).returncode == 0
    return made


@pytest.fixture(autouse=True)
def _empty(cluster: Cluster) -> None:
    """No node has anything: neither on its disk nor in memory."""
    run("srun", "-N3", "sh", "-c", f"rm -rf {STORE}/* {STORE}/.??*")
    for node in cluster.nodes:
        cluster.shared.forget_on(node)


def localize(story: Story, *more: str) -> subprocess.CompletedProcess[str]:
    """Localize on all nodes."""
    words = ["srun", "-N3", "--mpi=pmi2", "--ntasks-per-node=1", "--kill-on-bad-exit=1"]
    words += ["distcache", "localize", str(story.cache), "--store", str(STORE), "--json"]
    words += ["--log-format", "plain", *more]
    return subprocess.run(
        words, env=environment(), capture_output=True, text=True, timeout=180, check=False
    )


def verify() -> None:
    """Compare every byte on every node with its digest."""
    said = run("srun", "-N3", "distcache", "local", "verify", "--store", STORE)
    assert said.count("all copies are right") == 3


def size_of(story: Story) -> int:
    """Return the bytes of the cache and of all indices."""
    indices = [idx_path(source["path"]) for source in story.fields["blend"]]
    return sum(os.stat(path).st_size for path in [story.cache, *indices])


def test_what_is_read_over_the_network(cluster: Cluster, story: Story) -> None:
    """All bytes once for all nodes, by the counters of their network cards."""
    before = [node.received() for node in cluster.nodes]
    done = localize(story)
    assert done.returncode == 0, done.stderr
    after = [node.received() for node in cluster.nodes]
    assert 1.0 <= (sum(after) - sum(before)) / size_of(story) <= 1.3
    verify()


def node_script(name: str, **variables: object) -> str:
    """Return the text of one of the site's scripts, with other settings at its top."""
    text = (SCRIPTS / name).read_text()
    for variable, value in variables.items():
        text, count = re.subn(rf"(?m)^{variable}=.*$", f"{variable}={value}", text)
        assert count == 1
    return text


@pytest.mark.more
def test_the_prolog_makes_a_directory_for_the_user(cluster: Cluster) -> None:
    """Before the first job of a user; a link in its place is left alone, and so is its target."""
    theirs = LOCAL / f"distcache-{NOBODY}"
    to_user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    job = ["srun", "-N1", "-w", "node1", "--chdir=/", "stat", "-c", "%u %a", str(theirs)]
    assert run("setpriv", *to_user, *job).split() == [str(NOBODY), "700"]
    node = cluster.node("node1")
    node.run("rm", "-r", theirs)
    node.run("mkdir", LOCAL / "precious")
    node.run("ln", "-s", LOCAL / "precious", theirs)
    for script in ("prolog.sh", "epilog.sh"):
        node.run("env", "-i", f"SLURM_JOB_UID={NOBODY}", "/bin/sh", SCRIPTS / script)
    assert node.run("stat", "-c", "%u", LOCAL / "precious").strip() == "0"
    node.run("rm", "-r", theirs, LOCAL / "precious")


def test_the_epilog_keeps_to_its_budget(cluster: Cluster, story: Story) -> None:
    """With room it removes nothing; and it never touches a user's files as root."""
    assert localize(story).returncode == 0
    node = cluster.node("node1")
    copies = ["find", STORE / "caches", "-name", "*.h5"]
    assert node.run(*copies).strip()
    node.run("env", "-i", "SLURM_JOB_UID=0", "/bin/sh", SCRIPTS / "epilog.sh")
    assert node.run(*copies).strip()
    emptied = node_script("epilog.sh", budget=0)
    node.run("env", "-i", "SLURM_JOB_UID=0", "/bin/sh", "-c", emptied)
    assert not node.run(*copies).strip()

    theirs, program = LOCAL / f"distcache-{NOBODY}", LOCAL / "distcache"
    said = 'id -u >>"$4/said"; echo "$@" >>"$4/said"'
    node.run("sh", "-c", f"printf '#!/bin/sh\n%s\n' '{said}' >{program}; chmod 755 {program}")
    node.run("env", "-i", f"SLURM_JOB_UID={NOBODY}", "/bin/sh", SCRIPTS / "prolog.sh")
    node.run("touch", theirs / ".distcache-store")
    as_user = node_script("epilog.sh", distcache=program)
    node.run("env", "-i", f"SLURM_JOB_UID={NOBODY}", "/bin/sh", "-c", as_user)
    words = f"local gc --store {theirs} --budget 200G"
    assert node.run("cat", theirs / "said").splitlines() == [str(NOBODY), words]
    node.run("rm", "-r", theirs, program)
