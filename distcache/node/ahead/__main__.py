"""``python -m distcache.node.ahead DIRECTORY``: the fetcher of a node; clients start it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from distcache.node.ahead.server import serve
from distcache.storage.files import raise_descriptor_limit


def main() -> None:
    """Serve; a Ctrl-C on the terminal of training is for training, which then ends this, too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise_descriptor_limit()
    serve(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # threads may still wait for a store that is away


if __name__ == "__main__":
    main()
