"""What is left of the corpora of a cache after some samples, as views and a blend of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.cache.split_members import dataset_count
from distcache.corpus.ancestry import root_of_view
from distcache.corpus.corpus import CorpusFacts, open_examined
from distcache.corpus.examine import require_sound
from distcache.corpus.idx import Idx, unused_name
from distcache.corpus.loss import loss_path
from distcache.corpus.receipt import Receipt, tokenizers_of
from distcache.corpus.same_documents import Part, same_documents
from distcache.corpus.source_rows import grouped
from distcache.edit.view_writer import Kept, View, find_tokens, origin_of_view
from distcache.errors import ConfigError
from distcache.ingest.document_buffer import Counts
from distcache.ingest.output import Links, Output
from distcache.kernels import Section
from distcache.ledger.consumed import Consumed
from distcache.ledger.megatron_files import MegatronFiles
from distcache.ledger.rest_pieces import Cover, Pieces, Visits, added, visits_in_root, visits_of
from distcache.ledger.steps import Sampling
from distcache.ledger.trace import Trace
from distcache.plan.config import SPLITS
from distcache.ranks.communicator import SerialCommunicator
from distcache.ranks.progress import NullProgress, Stopwatch
from distcache.storage.files import atomic_write, make_directories, may_write

Left = Callable[[Idx], Iterator[Pieces]]
"""Yields the pieces of a corpus that are left, the same ones each time."""


def write_view(
    facts: CorpusFacts,
    out: str,
    left: Left,
    options: dict[str, Any],
    counts: Counts | None = None,
) -> Receipt:
    """Write a view of what is left of a corpus, or find the one that was written before.

    Parameters
    ----------
    facts : CorpusFacts
        Facts of the corpus, which was examined.
    out : str
        Prefix of the view.
    left : callable
        Yields the pieces.
    options : dict
        Everything that they depend on beside the corpus, for the receipt.
    counts : Counts or None
        Numbers of them, if they are known.

    Raises
    ------
    CorpusError
        If the corpus is not the one any more that was examined.
    KeyMismatch
        If another corpus has the name of the view.
    NoSpace
        If the disk is full.
    """
    tokens = find_tokens(facts, out)
    tokenizer = tokenizers_of({facts.prefix: facts})[facts.prefix]
    origin = origin_of_view("rest", facts, tokenizer, tokens, options)
    output, alone = Output(out), SerialCommunicator()
    watch = Stopwatch(NullProgress(), lambda: 0.0)

    def kept(idx: Idx, _piece: int) -> Iterator[Kept]:
        for pieces in left(idx):
            one_each = np.ones(len(pieces.sequences), np.int64)
            lengths = (pieces.ends - pieces.begins).astype(np.int32)
            offsets = idx.offsets[pieces.sequences] + pieces.begins * idx.item_size
            modes = None if idx.modes is None else idx.modes[pieces.sequences]
            yield Kept(one_each, lengths, offsets, modes)

    def make() -> tuple[list[Receipt], dict[int, Links]]:
        view = View(alone, facts, output, 1, 1, watch)
        known = None if counts is None else [counts]
        return view.finish(kept, tokens, origin, f"{facts.prefix}: nothing is left", known)

    receipts, _ = output.produce(alone, origin, watch, make)
    return receipts[0]


BLOCK_POSITIONS = 1 << 22  # positions
EVAL_SPLITS = ("valid", "test")
MAX_VISITS = 65_535
TOO_OFTEN = f"tokens were inputs more than {MAX_VISITS} times, which is more than is counted"


class Trained(NamedTuple):
    """The train split of a cache, and what was consumed of it."""

    split: Trace
    consumed: Consumed


class _Corpus(NamedTuple):
    """A corpus of all caches, which is known by its place."""

    name: str  # path of the corpus, as the first cache has it
    sequences: tuple[int, int]  # range of the split
    weights: list[float]  # of the first cache
    sections: list[tuple[Section, NDArray[np.uint16]]]  # with the visits of their rows


class RestOfCorpus(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a corpus."""

    corpus: str  # path of the corpus, as the cache has it
    view: str | None  # path of the view; None if nothing is left
    weight: float | None  # weight in the cache
    times: int  # how often each of its tokens is an input, by then and from then on together
    trained_tokens: int  # tokens that were inputs, over all visits
    left_tokens: int  # tokens of the view, over all visits
    sequences: int  # sequences of the view
    fragments: int  # those of them that are parts of sequences
    dropped_tokens: int  # tokens of fragments that were left out


class Rest(msgspec.Struct, frozen=True, kw_only=True):
    """What is left after training: the content of ``rest.json``."""

    format: int = 1
    after: tuple[dict[str, Any], ...]  # caches: path, key and number of samples
    partial: str  # whether fragments are kept or dropped
    corpora: tuple[RestOfCorpus, ...]
    # blends of what is left, and of the corpora of the other splits, as a configuration has them
    blend_per_split: dict[str, list[dict[str, Any]]]
    megatron: str  # path of the same for Megatron's ``--per-split-data-args-path``


def _require_masks(trained: Sequence[Trained], facts: Mapping[str, CorpusFacts]) -> None:
    """Refuse corpora whose loss masks are not those of the caches: views would have others.

    Raises
    ------
    ConfigError
        Naming the corpus.
    """
    for split, _ in trained:
        if isinstance(split.cache, MegatronFiles):
            continue
        for source in range(len(split.corpora)):
            found = facts.get(split.place(source))
            digest = split.cache.loss_digest(source)
            if found is not None and (found.loss.digest if found.loss else None) != digest:
                raise ConfigError(
                    f"{loss_path(found.prefix)}: is missing, or another loss mask than "
                    f"{split.cache.path} was built with; put it back"
                )


class RestOptions(msgspec.Struct, frozen=True):
    """What to make of what is left."""

    times: int | None = None  # of each token in the end; by default the most so far, at least 1
    partial: Literal["keep", "drop"] = "keep"
    sampling: Sampling = Sampling()


def write_rest(
    trained: Sequence[Trained],
    directory: str,
    options: RestOptions,
    threads: int = 1,
    advance: Callable[[float], None] = lambda _: None,
) -> Rest:
    """Write what is left of the corpora of caches as views.

    Each token of the train split was an input, and is in the view, `times` times in all. The
    sequences of the other splits become views unchanged.

    Parameters
    ----------
    trained : sequence of Trained
        Caches of the same corpora, in the order of training.
    directory : str
        Directory of the views and of ``rest.json``.
    options : RestOptions
        Times, fragments and order of training.
    threads : int
        Threads that examine corpora.
    advance : callable
        Receives the corpora that are done.

    Raises
    ------
    ConfigError
        If a number is not possible, caches have other ranges of a corpus, or nothing is left.
    CorpusError, NotReady
        If a corpus is not sound, or missing.
    """
    first = trained[0].split
    known = _corpora(trained, options.sampling)
    facts = require_sound(SerialCommunicator(), list(known), threads)
    _require_masks(trained, facts)
    views = _views_of_others(known, facts)
    with may_write(Path(directory), "choose another --out"):
        make_directories(Path(directory))
    used: set[str] = set()
    after = tuple(
        {"cache": str(one.split.cache.path), "key": one.split.cache.key}
        | {"samples": one.consumed.samples, **_without_skipped(one.consumed)}
        for one in trained
    )
    described = {
        "after": [{name: one[name] for name in one if name != "cache"} for one in after],
        "order": msgspec.to_builtins(options.sampling),
        "partial": options.partial,
    }
    corpora = []
    blends: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    for place, corpus in known.items():
        if place in views:
            advance(1)
            continue
        out = os.path.join(directory, unused_name(corpus.name, used))
        own = [view for view, root in views.items() if root == place]
        try:
            with first.checked():
                visits = _visits(place, known, facts, own)
        except OverflowError as error:
            raise ConfigError(f"{place}: {TOO_OFTEN}") from error
        weights = [weight for name in (place, *own) for weight in known[name].weights]
        together = corpus._replace(weights=weights)
        made = _write_one(facts[place], out, visits, together, options, described)
        corpora.append(made)
        if made.view is not None:
            weight = {} if made.weight is None else {"weight": made.weight}
            blends["train"].append({"path": made.view} | weight)
        advance(1)
    _require_left(corpora)
    for split in EVAL_SPLITS:
        blends[split] = _write_others(first, split, used, facts, directory)
    path = os.path.join(directory, "megatron.json")
    rest = Rest(
        after=after,
        partial=options.partial,
        corpora=tuple(corpora),
        blend_per_split={split: blend for split, blend in blends.items() if blend},
        megatron=path,
    )
    with atomic_write(path) as stream:
        stream.write(json.dumps(_for_megatron(blends), indent=1).encode())
    with atomic_write(os.path.join(directory, "rest.json")) as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(rest), indent=1))
    return rest


def _views_of_others(known: dict[str, _Corpus], facts: dict[str, CorpusFacts]) -> dict[str, str]:
    """Return the corpora that are views of others of the same caches, with these.

    Raises
    ------
    ConfigError
        If others have documents in common, which would be left twice.
    """
    roots = {os.path.realpath(place): place for place in known if not facts[place].view}
    found = {
        place: roots[root]
        for place in known
        if facts[place].view
        for root in [os.path.realpath(root_of_view(place))]
        if root in roots
    }
    others = [place for place in known if place not in found]
    parts = [Part(facts[place], *known[place].sequences) for place in others]
    if (shared := next(same_documents(parts, None), None)) is not None:
        raise ConfigError(
            f"{others[shared.other]}: {shared.documents:,} of its documents are the same as in "
            f"{others[shared.one]}, and what is left of these would be left twice; train on one "
            "of the two"
        )
    return found


def _visits(
    place: str,
    known: dict[str, _Corpus],
    facts: dict[str, CorpusFacts],
    views: Sequence[str],
) -> Visits:
    """Return how often the sequences of a corpus were visited, also as those of views of it."""
    begin, end = known[place].sequences
    visits = visits_of(known[place].sections, begin, end - begin)
    for view in views:
        first, last = known[view].sequences
        of_view = visits_of(known[view].sections, first, last - first)
        idx, root = open_examined(facts[view]), open_examined(facts[place])
        there = visits_in_root(of_view, idx, first, root)
        outside = len(there.sequences) and (
            there.sequences[0] < begin or there.sequences[-1] >= end
        )
        if outside:
            raise ConfigError(
                f"{view}: has documents of {place} that are not in its train split, so that what "
                "is left of them is not known; train on views that have documents of it alone"
            )
        visits = added(visits, there.between(begin, end))
    return visits


def _require_left(corpora: Sequence[RestOfCorpus]) -> None:
    """Refuse that nothing is left of any corpus."""
    if any(one.view is not None for one in corpora):
        return
    if any(one.dropped_tokens for one in corpora):
        raise ConfigError(
            "nothing is left of any corpus but parts of sequences, which --partial drop leaves out"
        )
    raise ConfigError(
        "nothing is left of any corpus: all tokens have been inputs equally often; give a "
        "larger --times to use them again"
    )


def _without_skipped(consumed: Consumed) -> dict[str, Any]:
    """Return the ranges of samples that training has learned from, if it skipped others."""
    learned = list(consumed.learned())
    return {"learned": learned} if len(learned) != 1 or learned[0][0] else {}


def _visited(split: Trace, consumed: Consumed, sampling: Sampling) -> list[NDArray[np.uint16]]:
    """Return how often each row of each member was visited."""
    order, samples = sampling.order(split.size), consumed.samples
    if samples < 0 or (not order.repeats and samples > split.size):
        raise ConfigError(
            f"{samples} samples: {split.cache.path} has {split.size} in its train split"
        )
    counts = [
        np.zeros(int(split.cache.table("sections")["samples"][row]), np.uint32)
        for row, _ in split.pairs
    ]
    blocks = (
        (begin, min(begin + BLOCK_POSITIONS, high))
        for low, high in consumed.learned()
        for begin in range(low, high, BLOCK_POSITIONS)
    )
    for begin, end in blocks:
        positions = order.ids(begin, end)
        members, numbers = split.look_up(positions)
        with split.checked():
            if min(members.min(), numbers.min()) < 0:
                raise IndexError("a dataset index has negative numbers")
            for member, here in grouped(members):
                np.add.at(counts[member], numbers[here], 1)
    found = []
    for (row, _), of_samples in zip(split.pairs, counts, strict=True):
        views = split.cache.arrays("sections", row)
        if "sample_index" not in views:
            raise ConfigError(f"{split.cache.path}: consists of rows, which views cannot be of")
        if int(of_samples.max(initial=0)) > MAX_VISITS:
            raise ConfigError(f"{split.cache.path}: {TOO_OFTEN}")
        rows = np.zeros(views["sample_index"].shape[0] - 1, np.uint16)
        shuffle = split.cache.read(views["shuffle_index"])[: len(of_samples)]
        with split.checked():
            if len(shuffle) < len(of_samples) or shuffle.min(initial=0) < 0:
                raise IndexError("a shuffle index is no order of its samples")
            rows[shuffle] = of_samples
        found.append(rows)
    return found


def _corpora(trained: Sequence[Trained], sampling: Sampling) -> dict[str, _Corpus]:
    """Return the corpora of caches, by their places; the first cache has all of them."""
    found: dict[str, _Corpus] = {}
    for number, (split, consumed) in enumerate(trained):
        rows = _visited(split, consumed, sampling)
        for member, (row, source) in enumerate(split.pairs):
            place, entry = split.place(source), split.cache.table("sections")[row]
            here = int(entry["begin"]), int(entry["end"])
            if number == 0:
                found.setdefault(place, _Corpus(split.corpora[source], here, [], []))
                if np.isfinite(split.weights[member]):
                    found[place].weights.append(float(split.weights[member]))
            if place not in found:
                raise ConfigError(
                    f"{split.cache.path}: has corpus {place}, which "
                    f"{trained[0].split.cache.path} has not"
                )
            if found[place].sequences != here:
                raise ConfigError(f"{place}: is split otherwise in {split.cache.path}")
            found[place].sections.append((split.section(member), rows[member]))
    return found


def _write_one(
    facts: CorpusFacts,
    out: str,
    visits: Visits,
    corpus: _Corpus,
    options: RestOptions,
    described: dict[str, Any],
) -> RestOfCorpus:
    """Write what is left of a corpus."""
    begin, end = corpus.sequences
    idx = open_examined(facts)
    lengths = np.array(idx.lengths[begin:end])
    cover = Cover(visits, lengths)
    times = options.times or max(cover.most, 1)
    if times < cover.most:
        raise ConfigError(
            f"--times {times}: {facts.prefix} has tokens that were inputs {cover.most} times "
            "already"
        )
    total = int(lengths.sum(dtype=np.int64))

    left, keeps = cover.count_left(times), options.partial == "keep"
    kept, tokens = (left.pieces, left.tokens) if keeps else (left.whole, left.whole_tokens)

    def pieces(_: Idx) -> Iterator[Pieces]:
        for some in cover.left(times, fragments=keeps):
            yield some._replace(sequences=some.sequences + begin)

    if kept:
        named = described | {"times": times, "sequences": [begin, end]}
        write_view(facts, out, pieces, named, Counts(kept, kept, tokens))
    return RestOfCorpus(
        corpus=corpus.name,
        view=out if kept else None,
        weight=sum(corpus.weights) if corpus.weights else None,
        times=times,
        trained_tokens=times * total - left.tokens,
        left_tokens=tokens,
        sequences=kept,
        fragments=kept - left.whole,
        dropped_tokens=left.tokens - tokens,
    )


def _write_others(
    first: Trace, split: str, used: set[str], facts: dict[str, CorpusFacts], out: str
) -> list[dict[str, Any]]:
    """Write the sequences of another split of the corpora as they were, and return their blend."""
    cache = first.cache
    if split not in cache.splits:
        return []
    cache = cache.of_split(split) if isinstance(cache, MegatronFiles) else cache
    blend: list[dict[str, Any]] = []
    written: dict[str, str] = {}
    for number in range(dataset_count(cache, split)):
        members = Trace(cache, split, number)
        for (row, source), weight in zip(members.pairs, members.weights.tolist(), strict=True):
            place = members.place(source)
            if place not in written:
                entry = cache.table("sections")[row]
                sequences = int(entry["begin"]), int(entry["end"])
                name = unused_name(cache.prefixes[source], used, f"-{split}")
                written[place] = os.path.join(out, name)
                _write_range(facts, place, written[place], split, sequences)
            more = {"weight": weight} if np.isfinite(weight) else {}
            blend.append({"path": written[place]} | more)
    return blend


def _write_range(
    facts: dict[str, CorpusFacts], place: str, out: str, split: str, sequences: tuple[int, int]
) -> None:
    """Write a range of the sequences of a corpus as a view."""
    if place not in facts:
        facts |= require_sound(SerialCommunicator(), [place], 1)
    numbers = np.arange(*sequences, dtype=np.int64)

    def all_of(idx: Idx) -> Iterator[Pieces]:
        lengths = idx.lengths[numbers].astype(np.int64)
        zero = np.zeros(len(numbers), np.int64)
        yield Pieces(numbers, zero, lengths, zero)

    write_view(facts[place], out, all_of, {"split": split, "sequences": list(sequences)})


def _for_megatron(blends: dict[str, list[dict[str, Any]]]) -> dict[str, list[str] | None]:
    """Return blends as ``--per-split-data-args-path`` reads them."""
    return {
        split: [
            word
            for entry in blend
            for word in ([repr(entry["weight"])] if "weight" in entry else []) + [entry["path"]]
        ]
        or None
        for split, blend in blends.items()
    }
