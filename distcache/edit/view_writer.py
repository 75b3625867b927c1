"""Write a view: a new `.idx` of some sequences, or parts of them, over the `.bin` of a corpus."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from distcache import __version__
from distcache.corpus.corpus import CorpusFacts, open_examined, require_bin
from distcache.corpus.examine import require_sound, require_unchanged
from distcache.corpus.idx import Idx, bin_path, idx_path
from distcache.corpus.idx_writer import IdxPlan, lay_out_idx, write_bounds, write_sequences
from distcache.corpus.loss import loss_path
from distcache.corpus.receipt import (
    InputReceipt,
    Origin,
    PieceReceipt,
    Receipt,
    TokenizerFacts,
    receipt_of,
)
from distcache.errors import ConfigError
from distcache.ingest.document_buffer import Counts
from distcache.ingest.output import Links, Output
from distcache.ranks.agreement import on_all_ranks, on_rank_0
from distcache.ranks.communicator import Communicator
from distcache.ranks.partition import slice_bounds
from distcache.ranks.progress import Progress
from distcache.storage.files import closing_fd, no_space_as_error, open_to_write, write_range
from distcache.storage.threads import map_in_threads

Result = TypeVar("Result")


class Kept(NamedTuple):
    """Successive documents of a view."""

    counts: NDArray[np.int64]  # sequences of each
    lengths: NDArray[np.int32]  # tokens, and offset in the `.bin`, of each of their sequences
    offsets: NDArray[np.int64]
    modes: NDArray[np.int8] | None = None  # modes of multimodal sequences

    @property
    def size(self) -> Counts:
        """Number of the documents, of their sequences and of their tokens."""
        tokens = int(self.lengths.sum(dtype=np.int64))
        return Counts(len(self.counts), len(self.lengths), tokens)


KeptOf = Callable[[Idx, int], Iterator[Kept]]
"""Yields what is kept of a piece of a corpus, the same each time."""


class Tokens(NamedTuple):
    """Where the tokens of a view are."""

    paths: Links
    links: Links  # targets of the links that the view has


def find_tokens(facts: CorpusFacts, out: str, *, absolute: bool = False) -> Tokens:
    """Return where the tokens of a view are.

    Parameters
    ----------
    facts : CorpusFacts
        Facts of the corpus, which was examined.
    out : str
        Prefix of the view.
    absolute : bool
        Whether the view's `.bin` is an absolute link, and not one from its directory.

    Raises
    ------
    CorpusError
        If the corpus has no `.bin`.
    """
    require_bin(facts)
    tokens, loss = map(os.path.realpath, (bin_path(facts.prefix), loss_path(facts.prefix)))
    paths = Links(tokens, None if facts.loss is None else loss)
    directory = os.path.realpath(Path(out).absolute().parent)
    relative = Links(
        os.path.relpath(paths.tokens, directory),
        paths.loss and os.path.relpath(paths.loss, directory),
    )
    return Tokens(paths, paths if absolute else relative)


def origin_of_view(
    kind: Literal["select", "rest"],
    facts: CorpusFacts,
    tokenizer: TokenizerFacts | None,
    tokens: Tokens,
    options: dict[str, Any],
) -> Origin:
    """Return what a view is made from.

    Parameters
    ----------
    kind : str
        "select" or "rest".
    facts : CorpusFacts
        Facts of the corpus, which was examined.
    tokenizer : TokenizerFacts or None
        Tokenizer of the corpus.
    tokens : Tokens
        Place of its tokens.
    options : dict
        Everything else that it depends on; None stands for what was not given.
    """
    given = {name: value for name, value in options.items() if value is not None}
    identity = msgspec.json.encode(
        [kind, facts.prefix, facts.identity, given, tokens.links, facts.loss and facts.loss.digest],
        order="sorted",
    )
    digest = xxhash.xxh3_128(identity).hexdigest()
    return Origin(kind, digest, tokenizer, given, {"distcache": __version__})


class View:
    """An unfinished view; each rank writes the index of an equal share of the pieces. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks. Their number changes no byte.
    facts : CorpusFacts
        Facts of the corpus, which was examined.
    output : Output
        Claimed by rank 0.
    pieces : int
        Number of pieces of the corpus.
    threads : int
        Threads of each rank.
    progress : Progress
        Progress of this rank.
    """

    def __init__(
        self,
        communicator: Communicator,
        facts: CorpusFacts,
        output: Output,
        pieces: int,
        threads: int,
        progress: Progress,
    ) -> None:
        self._communicator = communicator
        self._facts = facts
        self._output = output
        self._threads = threads
        self._progress = progress
        bounds = slice_bounds(pieces, communicator.size, 1)
        self._own = range(bounds[communicator.rank], bounds[communicator.rank + 1])
        self._idx = on_all_ranks(communicator, lambda: open_examined(facts), "opening the corpus")

    def count(self, kept: KeptOf) -> list[Counts]:
        """Return what is kept of each piece. Collective."""
        self._progress.phase("counting", len(self._own))

        def count_own() -> list[Counts]:
            return self._each(partial(self._count, kept))

        mine = on_all_ranks(self._communicator, count_own, "counting what is kept")
        return list(
            itertools.chain(*self._communicator.allgather(mine, list[Counts], "what is kept"))
        )

    def finish(
        self,
        kept: KeptOf,
        tokens: Tokens,
        origin: Origin,
        nothing: str,
        counts: Sequence[Counts] | None = None,
    ) -> tuple[list[Receipt], dict[int, Links]]:
        """Write the view and examine it. Collective.

        Parameters
        ----------
        kept : callable
            Yields what is kept of a piece.
        tokens : Tokens
            Place of the tokens.
        origin : Origin
            Everything that the view depends on.
        nothing : str
            Message if that is nothing.
        counts : sequence of Counts or None
            Sizes of what is kept of each piece, if they are known.

        Returns
        -------
        list of Receipt
            The receipt of the view.
        dict of int to Links
            The targets of its links, of number 0; as `Output.produce` expects them.

        Raises
        ------
        ConfigError
            If nothing is kept.
        CorpusError
            If the corpus is not the one any more that was examined.
        NoSpace
            If the disk is full.
        """
        communicator, facts, output = self._communicator, self._facts, self._output
        counts = self.count(kept) if counts is None else counts
        ends = list(itertools.accumulate(counts, initial=Counts()))
        total = ends[-1]
        if not total.sequences:
            raise ConfigError(nothing).of_all_ranks()  # all ranks have the counts
        modes = self._idx.modes is not None
        plan = IdxPlan(facts.type_code, total.sequences, total.documents, modes)

        def lay_out() -> None:
            lay_out_idx(output.unfinished(0), plan)
            output.link_tokens(0, tokens.paths)

        def write() -> None:
            path = idx_path(output.unfinished(0))
            with no_space_as_error(path), closing_fd(open_to_write(path)) as descriptor:
                self._each(lambda piece: self._write(kept, piece, descriptor, plan, ends[piece]))
                os.fsync(descriptor)

        on_rank_0(communicator, lay_out, None, "laying out")
        self._progress.phase("writing", len(self._own))
        on_all_ranks(communicator, write, "writing the index")
        made = require_sound(communicator, [output.unfinished(0)], self._threads)
        require_unchanged(communicator, [facts])

        def describe() -> Receipt:
            of_view = made[output.unfinished(0)]
            first = int(open_examined(of_view).offsets[0])
            return receipt_of(of_view, output.name(0), origin, [_input(facts, total, first)])

        return [on_rank_0(communicator, describe, Receipt, "the receipt")], {0: tokens.links}

    def _each(self, work: Callable[[int], Result]) -> list[Result]:
        """Do a piece of work for each of this rank's pieces."""

        def run(piece: int) -> Result:
            done = work(piece)
            self._progress.advance(1)
            return done

        return list(map_in_threads(run, self._own, self._threads))

    def _count(self, kept: KeptOf, piece: int) -> Counts:
        found = sum((some.size for some in kept(self._idx, piece)), Counts())
        self._idx.require_intact()
        return found

    def _write(
        self, kept: KeptOf, piece: int, descriptor: int, plan: IdxPlan, begin: Counts
    ) -> None:
        """Write what is kept of a piece; `begin` is what precedes it."""
        for some in kept(self._idx, piece):
            write_sequences(descriptor, plan, begin.sequences, some.lengths, some.offsets)
            if some.modes is not None:
                write_range(descriptor, plan.modes_begin + begin.sequences, some.modes)
            bounds = begin.sequences + np.cumsum(some.counts) - some.counts
            write_bounds(descriptor, plan, begin.documents, bounds)
            begin += some.size
        self._idx.require_intact()


def _input(facts: CorpusFacts, size: Counts, first: int) -> InputReceipt:
    """Return what a view has of its corpus, all of it in one piece."""
    rows = facts.documents
    return InputReceipt(
        path=facts.prefix,
        size=facts.bin_size,
        digest=facts.idx_digest,
        rows=rows,
        documents=size.documents,
        sequences=size.sequences,
        tokens=size.tokens,
        first_offset=first,
        pieces=(PieceReceipt(0, rows, rows, size.documents, size.sequences, size.tokens),),
    )
