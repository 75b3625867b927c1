"""The command, ``distcache`` or ``python -m distcache``: with this very interpreter."""

from __future__ import annotations

import signal


def run() -> None:
    """Run the command line. A Ctrl-C while it is imported ends it without a word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from distcache.cli.main import main  # noqa: PLC0415

    main()


if __name__ == "__main__":
    run()
