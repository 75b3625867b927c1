"""Whether the files of a corpus are still those that were examined."""

from __future__ import annotations

import os
from collections.abc import Sequence

from distcache.corpus.corpus import CorpusFacts
from distcache.corpus.idx import bin_path, idx_path
from distcache.errors import CorpusError
from distcache.files import digest_range, stamp_of
from distcache.ranks.agreement import together
from distcache.ranks.communicator import Communicator

__all__ = ["changes_of", "require_unchanged"]


def require_unchanged(
    communicator: Communicator, corpora: Sequence[CorpusFacts], *, tokens: bool = False
) -> None:
    """Refuse corpora that were written to since they were examined. Collective.

    Sizes, inodes and times are compared. An index that is another file, or a later one, is digested
    once more: if it has the same content, nothing has changed. The content of a `.bin` enters no
    array of a cache: only its size is compared, unless its tokens were read.

    Parameters
    ----------
    communicator : Communicator
        Of all ranks.
    corpora : sequence of CorpusFacts
        As they were examined.
    tokens : bool
        Whether the tokens were read, too.

    Raises
    ------
    CorpusError
        With all of them, on all ranks.
    """
    own = corpora[communicator.rank :: communicator.size]

    def compare() -> None:
        problems = [problem for facts in own for problem in changes_of(facts, tokens=tokens)]
        if problems:
            raise CorpusError(*problems)

    together(communicator, compare, "comparing corpora with what was examined")


def changes_of(facts: CorpusFacts, *, tokens: bool = False) -> list[str]:
    """Return what is no longer as it was examined of one corpus, each with its path first."""
    problems = []
    paths = (idx_path(facts.prefix), bin_path(facts.prefix))
    for path, known in zip(paths, facts.stamps, strict=False):
        try:
            found = stamp_of(os.stat(path))
        except OSError as error:
            problems.append(f"{path}: cannot be read any more: {error.strerror}")
            continue
        if found == known:
            continue
        if path == paths[0]:
            same = (  # to one byte more: it may be growing
                found.size == known.size
                and digest_range(path, 0, found.size + 1) == facts.idx_digest
            )
        else:
            same = found.size == known.size and not tokens
        if not same:
            problems.append(
                f"{path}: has been written to since it was examined; do not write to a corpus "
                "while it is built from, and build again"
            )
    return problems
