"""Ranks of unlike nodes: what depends on the machine is decided once, and all ranks do the same."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import here
from tests.support.large import write_large
from tests.support.processes import DISTCACHE, LIMIT, clean_environment, launch

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
