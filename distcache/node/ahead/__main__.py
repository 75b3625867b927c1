"""``python -m distcache.node.ahead DIRECTORY``: the fetcher of a node; clients start it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Final

from distcache.node.ahead.server import serve
from distcache.storage.files import raise_descriptor_limit
from distcache.storage.space import return_large_memory

MAX_CORES: Final = 8192  # of a machine, as Linux numbers them


def _use_the_node() -> None:
    """Leave the cores and the priority of the rank that has started this: it serves all ranks."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(MAX_CORES))  # those of its cgroup remain
    with contextlib.suppress(OSError):  # without privileges, a lower priority stays
        os.setpriority(os.PRIO_PROCESS, 0, 0)


def main() -> None:
    """Serve; a Ctrl-C on the terminal of training is for training, which then ends this, too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _use_the_node()
    return_large_memory(1 << 20)  # of an answer
    raise_descriptor_limit()
    serve(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # threads may still wait for a store that is away


if __name__ == "__main__":
    main()
