"""Nodes of which only some see the cache, the output, or the corpora; and children of ranks."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support import here
from tests.support.corpora import write_lengths
from tests.support.processes import DISTCACHE, LAUNCHERS, LIMIT, clean_environment, launch


def on_two_nodes(
    hidden: Path, words: list[list[str]], blind: int = 1
) -> subprocess.CompletedProcess[str]:
    """Run a command on two made-up nodes, one of which has another directory at a path."""
    parts = []
    for node, own in enumerate(words):
        here = ["env", f"DISTCACHE_NODE_NAME=node{node}", *own]
        if node == blind:
            hide = f"mount -t tmpfs none {shlex.quote(str(hidden))} && exec {shlex.join(here)}"
            here = ["unshare", "-m", "sh", "-c", hide]
        parts += [*([":"] if parts else []), "-n", "1", *here]
    return subprocess.run(
        [launch("mpich", 2)[0][0], *parts],
        env=clean_environment({"DISTCACHE_TIMEOUT_SCALE": "0.1"}),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


@pytest.fixture
def config(shared: Path) -> Path:
    """A configuration of several corpora in one directory."""
    (shared / "parts").mkdir()
    lengths = np.full(50, 20)
    parts = [write_lengths(shared / "parts" / f"c{number}", lengths) for number in range(6)]
    fields = {"sequence_length": 16, "split": "100,0,0", "samples": {"train": 200}, "blend": parts}
    path = shared / "c.json"
    path.write_text(json.dumps(fields))
    return path


@pytest.mark.few(2)
@pytest.mark.parametrize(("blind", "hidden"), [(0, "only"), (1, ""), (1, "only"), (0, "")])
def test_the_nodes_that_see_a_cache_read_it_for_the_others(
    config: Path, shared: Path, tmp_path: Path, blind: int, hidden: str
) -> None:
    """Whichever node it is, and its copy is the same; and where it sees no corpus, either."""
    fields = json.loads(config.read_text())
    cache = Path(here.build(fields, shared / "only", "c").path)
    words = [
        [DISTCACHE, "localize", str(cache), "--store", str(tmp_path / f"store{node}")]
        + (["--bin", "copy"] if not hidden else [])
        for node in range(2)
    ]
    done = on_two_nodes(shared / hidden, words, blind)
    assert done.returncode == 0, done.stderr
    assert f"1 of 2 nodes (node{blind}) do not see {cache}" in done.stderr
    copies = [list((tmp_path / f"store{node}" / "caches").glob("*.h5")) for node in range(2)]
    assert [len(found) for found in copies] == [1, 1]
    assert {found[0].read_bytes() for found in copies} == {cache.read_bytes()}


def test_an_output_that_only_one_node_sees(config: Path, shared: Path) -> None:
    """It is refused with the name of the node that does not."""
    output = shared / "out"
    output.mkdir()
    words = [DISTCACHE, "build", str(config), "-o", str(output), "--name", "c"]
    done = on_two_nodes(output, [words, words])
    assert done.returncode == 2, done.stderr
    assert "rank 1 on node1" in done.stderr
    assert "every node shares" in done.stderr


def test_corpora_that_only_one_node_sees(config: Path, shared: Path) -> None:
    """The error names the node, before anything is read."""
    words = [DISTCACHE, "build", str(config), "-o", str(shared / "out"), "--name", "c"]
    done = on_two_nodes(shared / "parts", [words, words])
    assert done.returncode != 0
    assert "rank 1 on node1" in done.stderr
    assert "rank 0 on" not in done.stderr
    assert "does not see it (1 of 2 nodes); every node must see the same corpora" in done.stderr
    assert done.stderr.count("distcache: ") == 1


@pytest.mark.few(1)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_child_of_a_rank(launcher: str, config: Path) -> None:
    """It works alone if it is told to; without that, it says how, or joins nobody by mistake."""
    program = (
        "import os, subprocess, sys\n"
        "if os.environ.get('PMI_RANK', os.environ.get('OMPI_COMM_WORLD_RANK')) == '0':\n"
        "    done = subprocess.run(sys.argv[1:], capture_output=True, text=True)\n"
        "    print(done.returncode, done.stderr)\n"
    )
    corpus = json.loads(config.read_text())["blend"][0]
    before, needed = launch(launcher, 2)

    def run(alone: dict[str, str]) -> str:
        done = subprocess.run(
            [*before, sys.executable, "-c", program, DISTCACHE, "check", corpus],
            env=clean_environment({**needed, **alone}),
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        return done.stdout + done.stderr

    assert run({"DISTCACHE_ALONE": "1"}).startswith("0 ")
    if launcher == "mpich":
        found = run({})
        assert "set DISTCACHE_ALONE=1" in found
        assert "Abort(" not in found


OPENED = """
import sys, warnings
import distcache
warnings.simplefilter("error")
cache = distcache.open(sys.argv[1], local=sys.argv[2])
print(cache.is_local, len(cache.numpy_dataset("train")[0]["tokens"]))
"""


def test_a_store_that_may_only_be_read(config: Path, shared: Path, tmp_path: Path) -> None:
    """As that of an image: a copy that is complete is read, without a word."""
    cache = here.build(json.loads(config.read_text()), shared, "c").path
    store = tmp_path / "store"
    here.localize(cache, store, tokens="copy")
    script = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'
    words = ["unshare", "-m", "sh", "-c", script, "sh", str(store)]
    done = subprocess.run(
        [*words, sys.executable, "-c", OPENED, cache, str(store)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "True 16\n"), done.stderr
