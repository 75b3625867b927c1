"""Call distcache from Python on every rank; one of them has an error that nothing estimates.

python -m tests.jobs.library build|localize RANK INPUT OUTPUT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from distcache.builder.configuration import config_from_mapping
from distcache.builder.run import build
from distcache.node.localize import localize
from distcache.node.records import LocalizeOptions
from distcache.ranks.connect import connect
from distcache.ranks.progress import NullProgress

WHAT, RANK, INPUT, OUTPUT = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
communicator = connect()


class Failing(NullProgress):
    """A user's own progress, which fails on one rank."""

    def phase(self, name: str, total: float = 0) -> None:
        """Raise."""
        if communicator.rank == RANK:
            raise MemoryError("a rank has no more memory")


def main() -> None:
    """Do it; the error is not caught."""
    progress: Any = Failing()
    if WHAT == "build":
        fields = json.loads(Path(INPUT).read_text())
        build(communicator, config_from_mapping(fields), Path(OUTPUT), "c", progress=progress)
    else:
        options = LocalizeOptions(directory=f"{OUTPUT}{communicator.rank}")
        node = {"DISTCACHE_NODE_NAME": f"node{communicator.rank}"}
        localize(communicator, INPUT, options, progress, node)


main()
