"""Select documents of a corpus as a view: a new `.idx` over the same `.bin`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Final

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from distcache.corpus.corpus import CorpusFacts
from distcache.corpus.examine import require_sound
from distcache.corpus.idx import Idx
from distcache.corpus.receipt import Receipt, TokenizerFacts, tokenizers_of
from distcache.edit.selection import Selection, numbers_in, select_documents
from distcache.edit.view_writer import Kept, KeptOf, Tokens, View, find_tokens, origin_of_view
from distcache.errors import ConfigError
from distcache.ingest.output import Links, Output
from distcache.option import Option
from distcache.ranks.agreement import aborting_on_error, on_rank_0
from distcache.ranks.communicator import Communicator
from distcache.ranks.progress import NullProgress, Progress, Stopwatch
from distcache.storage.files import atomic_write, require_text

PIECE_DOCUMENTS: Final = 1 << 16  # documents of the parent that a thread selects from at a time
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
    tokens: Tokens


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
            communicator,
            lambda: _inspect_parent(facts, out, options),
            _ParentFacts,
            "inspecting the corpus",
        )
        chosen = msgspec.to_builtins(options.selection) | known.digests
        origin = origin_of_view("select", facts, known.tokenizer, known.tokens, chosen)
        output = Output(out)

        def make() -> tuple[list[Receipt], dict[int, Links]]:
            lists = {name: output.part(0, name) for name in known.digests}
            on_rank_0(
                communicator,
                lambda: _save_lists(facts, known, options, lists),
                None,
                "reading lists",
            )
            view = View(
                communicator, facts, output, -(-facts.documents // PIECE_DOCUMENTS), threads, watch
            )
            selection, few = options.selection, ""
            if (wanted := selection.tokens) is not None:
                counts = view.count(_kept_of(facts, selection, lists))
                found = sum(piece.tokens for piece in counts)
                selection = _sampled(facts.prefix, selection, wanted, found)
                few = f"; --sample-tokens {wanted} is few beside a document: give more"
            nothing = f"{prefix}: no document with a sequence is selected{few}"
            return view.finish(_kept_of(facts, selection, lists), known.tokens, origin, nothing)

        receipts, _ = output.produce(communicator, origin, watch, make)
        return receipts[0]


def _require_options(prefix: str, options: SelectOptions) -> None:
    require_text(prefix)
    if problems := options.selection.problems():
        raise ConfigError(*problems)


def _inspect_parent(facts: CorpusFacts, out: str, options: SelectOptions) -> _ParentFacts:
    tokens = find_tokens(facts, out, absolute=options.absolute)
    digests = {
        name: xxhash.xxh3_128(_numbers(path, facts).tobytes()).hexdigest()
        for name in LISTS
        if (path := getattr(options, name)) is not None
    }
    return _ParentFacts(tokenizers_of({facts.prefix: facts})[facts.prefix], digests, tokens)


def _numbers(path: str, facts: CorpusFacts) -> NDArray[np.int64]:
    numbers = numbers_in(path)
    if len(numbers) and numbers[-1] >= facts.documents:
        raise ConfigError(
            f"{path}: names document {numbers[-1]}, but {facts.prefix} has {facts.documents}"
        )
    return numbers


def _save_lists(
    facts: CorpusFacts, known: _ParentFacts, options: SelectOptions, lists: Mapping[str, str]
) -> None:
    """Write the lists in a form that all ranks map."""
    for name, saved in lists.items():
        path = getattr(options, name)
        numbers = _numbers(path, facts)
        if xxhash.xxh3_128(numbers.tobytes()).hexdigest() != known.digests[name]:
            raise ConfigError(f"{path}: has changed while it was read; run again")
        with atomic_write(saved) as stream:
            np.save(stream, numbers)


def _kept_of(facts: CorpusFacts, selection: Selection, lists: Mapping[str, str]) -> KeptOf:
    """Return what yields the documents that are kept of a piece."""

    def kept_of(idx: Idx, piece: int) -> Iterator[Kept]:
        begin = piece * PIECE_DOCUMENTS
        end = min(begin + PIECE_DOCUMENTS, facts.documents)
        rows, drop = (
            np.load(lists[name], mmap_mode="r", allow_pickle=False) if name in lists else None
            for name in LISTS
        )
        return select_documents(idx, begin, end, selection, rows, drop)

    return kept_of


def _sampled(prefix: str, selection: Selection, wanted: int, found: int) -> Selection:
    """Return a selection that has about so many of the tokens that were found.

    Raises
    ------
    ConfigError
        If there are fewer.
    """
    if found < wanted:
        raise ConfigError(
            f"--sample-tokens {wanted}: {prefix} has {found} that can be selected"
        ).of_all_ranks()  # all ranks have the sum
    chosen = 1.0 if selection.sample is None else selection.sample
    return msgspec.structs.replace(selection, sample=chosen * wanted / found)
