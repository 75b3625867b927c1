"""Run distcache's command line where links cost nothing, so that large sections are built by them.

mpiexec -n 3 python -m tests.jobs.linked WORDS...
"""

from __future__ import annotations

from distcache.cli.main import main
from distcache.plan import costs


def make_links_free() -> None:
    """Let the assignment link all large sections."""
    costs.LINK_SHARE = costs.DRAW_SHARE = 0.0  # type: ignore[misc]


if __name__ == "__main__":
    make_links_free()
    main()
