"""Run distcache's command line on a node that a test has made up.

    mpiexec -n 8 python -m tests.jobs.on_node RANKS_PER_NODE SHARED LOGS [--mount DIR] -- WORDS...

``{node}`` in the words becomes the node's number. Every read from files under SHARED is logged in a
file of LOGS for each rank: path, first byte, bytes. With ``--mount`` the node has a directory of
its own under that path, as real nodes have. ROUND_BYTES in the environment makes rounds small.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

RANK = next(
    int(os.environ[name])
    for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "NONE")
    if name in os.environ
)
PER_NODE, SHARED, LOGS = int(sys.argv[1]), os.path.realpath(sys.argv[2]), Path(sys.argv[3])
NODE = RANK // PER_NODE


def read_log(original: Any) -> Any:
    """Return a function that reads as another does, and logs it."""

    def read(descriptor: int, what: Any, offset: int, *rest: Any) -> Any:
        found = original(descriptor, what, offset, *rest)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.startswith(SHARED + "/"):
            count = found if isinstance(found, int) else len(found)
            with open(LOGS / f"{RANK}.jsonl", "a", encoding="utf-8") as log:
                log.write(json.dumps([path, offset, count]) + "\n")
        return found

    return read


def mount(directory: str, words: list[str]) -> None:
    """Go on in a world in which this node's own directory is at a path."""
    own = LOGS / f"disk-{NODE}"
    own.mkdir(exist_ok=True)
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    rest = [sys.executable, "-m", "tests.jobs.on_node", *sys.argv[1:4], "--", *words]
    command = ["unshare", "-m", "sh", "-c", script, "sh", str(own), directory, *rest]
    os.execvp(command[0], command)


def main() -> None:
    """Do it."""
    words = sys.argv[sys.argv.index("--") + 1 :]
    if sys.argv[4] == "--mount":
        mount(sys.argv[5], words)
    os.environ["DISTCACHE_NODE_NAME"] = f"node{NODE}"
    os.preadv = read_log(os.preadv)
    os.pread = read_log(os.pread)
    sys.argv = ["distcache", *(word.replace("{node}", str(NODE)) for word in words)]
    from distcache.cli.main import main as run  # noqa: PLC0415
    from distcache.ranks import gather_rounds  # noqa: PLC0415

    gather_rounds.ROUND_BYTES = int(os.environ.get("ROUND_BYTES", gather_rounds.ROUND_BYTES))  # type: ignore[misc]
    run()


main()
