"""Select documents of a corpus as a view: a new `.idx` over the same `.bin`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from distcache import __version__
from distcache.corpus.corpus import CorpusFacts, open_examined, require_bin
from distcache.corpus.examine import require_sound, require_unchanged
from distcache.corpus.idx import Idx, bin_path, idx_path
from distcache.corpus.idx_writer import IdxPlan, lay_out_idx, write_bounds, write_sequences
from distcache.corpus.receipt import (
    InputReceipt,
    Origin,
    PieceReceipt,
    Receipt,
    TokenizerFacts,
    receipt_of,
    tokenizers_of,
)
from distcache.edit.selection import (
    Kept,
    Selection,
    numbers_in,
    select_documents,
)
from distcache.errors import ConfigError
from distcache.ingest.document_buffer import Counts
from distcache.ingest.output import Output
from distcache.option import Option
from distcache.ranks.agreement import aborting_on_error, on_all_ranks, on_rank_0
from distcache.ranks.communicator import Communicator
from distcache.ranks.partition import slice_bounds
from distcache.ranks.progress import NullProgress, Progress, Stopwatch
from distcache.storage.files import (
    atomic_write,
    closing_fd,
    no_space_as_error,
    open_to_write,
    require_text,
    write_range,
)
from distcache.storage.threads import map_in_threads

Result = TypeVar("Result")

PIECE: Final = 1 << 16  # documents of the parent that a thread selects from at a time
LISTS: Final = ("rows", "drop")


class SelectOptions(msgspec.Struct, frozen=True):
    """What to select, and how the view finds its tokens.

    Attributes
    ----------
    selection : Selection
        Conditions that all hold.
    """

    selection: Selection = Selection()
    rows: Annotated[
        str | None,
        Option(
            "File with the numbers of the documents, text or .npy.",
            "--row-numbers",
            metavar="FILE",
        ),
    ] = None
    drop: Annotated[
        str | None,
        Option("Not the documents of these numbers, text or .npy.", metavar="FILE"),
    ] = None
    absolute: Annotated[bool, Option("Link the .bin by its absolute path.")] = False


class _ParentFacts(msgspec.Struct, frozen=True):
    """What rank 0 finds out: the tokenizer, the digests of lists, and where the tokens are."""

    tokenizer: TokenizerFacts | None
    digests: dict[str, str]
    tokens: str
    link: str


def select(
    communicator: Communicator,
    prefix: str,
    out: str,
    options: SelectOptions,
    threads: int = 1,
    progress: Progress | None = None,
) -> Receipt:
    """Select documents of a corpus as a view. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks, which divide the documents. Their number changes no byte.
    prefix : str
        Prefix of the corpus, which may be a view.
    out : str
        Prefix of the view.
    options : SelectOptions
        Documents to select, and how the view refers to the tokens.
    threads : int
        Threads of each rank.
    progress : Progress or None
        Receives the progress of rank 0.

    Returns
    -------
    Receipt
        Receipt of the view; it names the corpus.

    Raises
    ------
    CorpusError
        If the corpus is not sound.
    ConfigError
        If nothing is kept, or a list cannot be read.
    """
    watch = Stopwatch(progress or NullProgress(), lambda: communicator.waited)
    with aborting_on_error(communicator):
        on_rank_0(communicator, lambda: _require_options(prefix, options), None, "options")
        watch.phase("examining the corpus")
        facts = require_sound(communicator, [prefix], threads)[prefix]
        known = on_rank_0(
            communicator, lambda: _look(facts, out, options), _ParentFacts, "looking at the corpus"
        )
        origin = _origin(facts, known, options)
        output = Output(out)

        def make() -> tuple[list[Receipt], dict[int, str]]:
            made = _View(communicator, facts, known, output, options, threads, watch)
            counts = made.write()
            view = require_sound(communicator, [output.unfinished(0)], threads)
            require_unchanged(communicator, [facts])

            def describe() -> Receipt:
                made_facts = view[output.unfinished(0)]
                entry = _input_receipt(facts, open_examined(made_facts), counts)
                return receipt_of(made_facts, output.name(0), origin, [entry])

            receipt = on_rank_0(communicator, describe, Receipt, "the receipt")
            return [receipt], {0: known.link}

        receipts, _ = output.produce(communicator, origin, watch, make)
        return receipts[0]


def _require_options(prefix: str, options: SelectOptions) -> None:
    require_text(prefix)
    if problems := options.selection.problems():
        raise ConfigError(*problems)


def _look(facts: CorpusFacts, out: str, options: SelectOptions) -> _ParentFacts:
    require_bin(facts)
    tokens = os.path.realpath(bin_path(facts.prefix))
    directory = os.path.realpath(Path(out).absolute().parent)
    digests = {}
    for name in LISTS:
        path = getattr(options, name)
        if path is not None:
            numbers = _numbers(path, facts)
            digests[name] = xxhash.xxh3_128(numbers.tobytes()).hexdigest()
    return _ParentFacts(
        tokenizers_of({facts.prefix: facts})[facts.prefix],
        digests,
        tokens,
        tokens if options.absolute else os.path.relpath(tokens, directory),
    )


def _numbers(path: str, facts: CorpusFacts) -> NDArray[np.int64]:
    numbers = numbers_in(path)
    if len(numbers) and numbers[-1] >= facts.documents:
        raise ConfigError(
            f"{path}: names document {numbers[-1]}, but {facts.prefix} has {facts.documents}"
        )
    return numbers


def _origin(facts: CorpusFacts, known: _ParentFacts, options: SelectOptions) -> Origin:
    chosen: dict[str, Any] = msgspec.to_builtins(options.selection)
    chosen |= known.digests
    identity = msgspec.json.encode(
        ["select", facts.prefix, facts.identity, sorted(chosen.items()), known.link],
        order="sorted",
    )
    return Origin(
        kind="select",
        made_from=xxhash.xxh3_128(identity).hexdigest(),
        tokenizer=known.tokenizer,
        options={name: value for name, value in chosen.items() if value is not None},
        versions={"distcache": __version__},
    )


class _View:
    """Writes the index of a view, each rank that of an equal share of the documents."""

    def __init__(
        self,
        communicator: Communicator,
        facts: CorpusFacts,
        known: _ParentFacts,
        output: Output,
        options: SelectOptions,
        threads: int,
        progress: Progress,
    ) -> None:
        self._communicator = communicator
        self._facts = facts
        self._known = known
        self._output = output
        self._selection = options.selection
        self._lists = {name: getattr(options, name) for name in LISTS}
        self._threads = threads
        self._progress = progress

    def write(self) -> list[Counts]:
        """Write the unfinished view; return what is kept of each piece. Collective."""
        communicator = self._communicator
        on_rank_0(communicator, self._save_lists, None, "reading lists")
        pieces = range(-(-self._facts.documents // PIECE))
        bounds = slice_bounds(len(pieces), communicator.size, 1)
        own = pieces[bounds[communicator.rank] : bounds[communicator.rank + 1]]
        idx = on_all_ranks(communicator, lambda: open_examined(self._facts), "opening the corpus")
        if self._selection.tokens is not None:
            self._progress.phase("counting tokens", len(own))
            sample = self._probability(idx, own, self._selection.tokens)
            self._selection = msgspec.structs.replace(self._selection, sample=sample)
        self._progress.phase("selecting", 2 * len(own))
        mine = on_all_ranks(
            communicator, lambda: self._each(partial(self._count, idx), own), "selecting"
        )
        shares = communicator.allgather(mine, list[Counts], "what is kept")
        counts = list(itertools.chain(*shares))
        sequences = list(itertools.accumulate((piece.sequences for piece in counts), initial=0))
        documents = list(itertools.accumulate((piece.documents for piece in counts), initial=0))
        modes = idx.modes is not None
        plan = IdxPlan(self._facts.type_code, sequences[-1], documents[-1], modes)
        on_rank_0(communicator, lambda: self._lay_out(plan), None, "laying out")

        def write() -> None:
            path = idx_path(self._output.unfinished(0))
            with no_space_as_error(path), closing_fd(open_to_write(path)) as descriptor:

                def write_piece(piece: int) -> None:
                    places = sequences[piece], documents[piece]
                    self._write(idx, piece, descriptor, plan, *places)

                self._each(write_piece, own)
                os.fsync(descriptor)

        on_all_ranks(communicator, write, "writing the index")
        return counts

    def _probability(self, idx: Idx, own: Sequence[int], wanted: int) -> float:
        """Return the probability with which documents have about the wanted tokens. Collective.

        Raises
        ------
        ConfigError
            If the corpus has fewer.
        """
        mine = on_all_ranks(
            self._communicator,
            lambda: sum(piece.tokens for piece in self._each(partial(self._count, idx), own)),
            "counting tokens",
        )
        found = sum(self._communicator.allgather(mine, int, "tokens"))
        if found < wanted:
            raise ConfigError(
                f"--tokens {wanted}: {self._facts.prefix} has {found} that can be selected"
            ).of_all_ranks()  # all ranks have the sum
        chosen = self._selection.sample
        return (1.0 if chosen is None else chosen) * wanted / found

    def _each(self, work: Callable[[int], Result], own: Sequence[int]) -> list[Result]:
        """Do a piece of work for each of this rank's pieces."""

        def run(piece: int) -> Result:
            done = work(piece)
            self._progress.advance(1)
            return done

        return list(map_in_threads(run, own, self._threads))

    def _save_lists(self) -> None:
        """Write the lists in a form that all ranks map."""
        for name, path in self._lists.items():
            if path is not None:
                numbers = _numbers(path, self._facts)
                if xxhash.xxh3_128(numbers.tobytes()).hexdigest() != self._known.digests[name]:
                    raise ConfigError(f"{path}: has changed while it was read; run again")
                with atomic_write(self._output.part(0, name)) as stream:
                    np.save(stream, numbers)

    def _list(self, name: str) -> NDArray[np.int64] | None:
        if self._lists[name] is None:
            return None
        path = self._output.part(0, name)
        numbers: NDArray[np.int64] = np.load(path, mmap_mode="r", allow_pickle=False)
        return numbers

    def _lay_out(self, plan: IdxPlan) -> None:
        if not plan.sequences:
            few = ""
            if self._selection.tokens is not None:
                few = f"; --tokens {self._selection.tokens} is few beside a document: give more"
            raise ConfigError(f"{self._facts.prefix}: no document with a sequence is selected{few}")
        lay_out_idx(self._output.unfinished(0), plan)
        self._output.link_tokens(0, self._known.tokens)

    def _kept(self, idx: Idx, piece: int) -> Iterator[Kept]:
        begin = piece * PIECE
        end = min(begin + PIECE, self._facts.documents)
        rows, drop = map(self._list, LISTS)
        yield from select_documents(idx, begin, end, self._selection, rows, drop)
        idx.require_intact()

    def _count(self, idx: Idx, piece: int) -> Counts:
        documents = sequences = tokens = 0
        for kept in self._kept(idx, piece):
            documents += len(kept.documents)
            sequences += len(kept.lengths)
            tokens += kept.tokens
        return Counts(documents, sequences, tokens)

    def _write(
        self, idx: Idx, piece: int, descriptor: int, plan: IdxPlan, sequence: int, document: int
    ) -> None:
        """Write what is kept of a piece, from a sequence and a document of the view on."""
        for kept in self._kept(idx, piece):
            write_sequences(descriptor, plan, sequence, kept.lengths, kept.offsets)
            if kept.modes is not None:
                write_range(descriptor, plan.modes_begin + sequence, kept.modes)
            bounds = sequence + np.cumsum(kept.counts) - kept.counts
            write_bounds(descriptor, plan, document, bounds)
            sequence += len(kept.lengths)
            document += len(kept.documents)


def _input_receipt(facts: CorpusFacts, view: Idx, counts: Sequence[Counts]) -> InputReceipt:
    """Return what a view has of its parent."""
    documents = sum(piece.documents for piece in counts)
    sequences = sum(piece.sequences for piece in counts)
    tokens = sum(piece.tokens for piece in counts)
    last = int(view.offsets[-1]) + int(view.lengths[-1]) * view.item_size
    rows = facts.documents
    return InputReceipt(
        path=facts.prefix,
        size=facts.bin_size,
        digest=facts.idx_digest,
        rows=rows,
        documents=documents,
        sequences=sequences,
        tokens=tokens,
        first_offset=int(view.offsets[0]),
        last_offset=last,
        pieces=(PieceReceipt(0, rows, rows, documents, sequences, tokens),),
    )
