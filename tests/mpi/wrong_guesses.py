"""Run distcache's command line, with guesses at blends from which they do not become true.

mpiexec -n 3 python -m tests.mpi.wrong_guesses WORDS...
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distcache.build import split_blend, work
from distcache.cli.main import main


def guess_badly(weights: Any, sizes: NDArray[np.int64], step: int) -> NDArray[np.int64]:
    """Return counts of which one is far too large."""
    del weights
    taken = np.zeros(len(sizes), np.int64)
    for place in np.argsort(sizes, kind="stable")[::-1]:
        taken[place] = min(step, sizes[place])
        step -= int(taken[place])
    return taken


class Redrawn(split_blend.SplitBlend):
    """Says when a slice is drawn again."""

    def _draw_again(self) -> None:
        sys.stderr.write("drawn again\n")
        super()._draw_again()


if __name__ == "__main__":
    split_blend.RUN_UP = 1  # type: ignore[misc]
    split_blend.likely_taken = guess_badly
    work.SplitBlend = Redrawn  # type: ignore[misc]
    main()
