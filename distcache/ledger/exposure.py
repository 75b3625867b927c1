"""What training sees of the documents of one corpus, summed up in one pass over its section."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distcache.corpus.ancestry import find_sorted
from distcache.corpus.idx import Idx
from distcache.kernels import Section, count_visits, sum_section, trace_parts
from distcache.ledger.report_document import LENGTHS, VISITS
from distcache.ledger.rest_pieces import Cover, visits_of
from distcache.ledger.trace import Trace
from distcache.plan.orders import ORDERS

DRAWN: Final = 1 << 16  # documents, or samples, of which correlations are computed
SMALL: Final = 100  # of which correlations say nothing


class SectionRows(NamedTuple):
    """The samples of a section before they are shuffled."""

    section: Section
    documents: NDArray[np.uint16]  # parts of documents in each; 65,535 stands for more
    squares: NDArray[np.float32]  # sums of the squares of their lengths
    tokens: NDArray[np.int32]  # sums of their lengths; empty if all are as long as a sample


class Exposure(NamedTuple):
    """What training sees of a corpus, as `CorpusReport` has it."""

    documents: int
    tokens: int
    trained: int
    most: float
    never: int
    visits: tuple[int, ...]
    lengths: tuple[int, ...]
    whole: int
    cut_once: int
    cut_more: int
    continued: float
    order_of_lengths: float | None
    place_of_never: float | None


def sum_member(split: Trace, member: int, taken: int) -> tuple[Exposure, SectionRows]:
    """Sum up a member of a split, whose first samples are trained on.

    Parameters
    ----------
    split : Trace
        The open split.
    member : int
        Number of the member.
    taken : int
        Number of its samples.

    Raises
    ------
    CacheCorrupt, CorpusError, NotReady
        If the arrays lead outside of one another, or the index is missing.
    """
    row, source = split.pair(member)
    entry = split.cache.table("sections")[row]
    begin, end = int(entry["begin"]), int(entry["end"])
    section, idx = split.section(member), split.idx(source)
    rows = max(split.cache.arrays("sections", row)["sample_index"].shape[0] - 1, 0)
    padded = entry["order"] == b"packed" or split.keeps_partial
    of_rows = SectionRows(
        section,
        np.empty(rows, np.uint16),
        np.empty(rows, np.float32),
        np.empty(rows if padded else 0, np.int32),
    )
    seen = np.zeros(end - begin, np.int64)
    with split.checked():
        trained, continued, whole, cut_once, cut_more = sum_section(
            section, taken, begin, seen, *of_rows[1:]
        )
    lengths = idx.lengths[begin:end].astype(np.int64)
    if not split.is_plain(source):
        seen, lengths = by_documents(idx, begin, end, seen, lengths)
    visits, classes = np.zeros(VISITS, np.int64), np.zeros(LENGTHS, np.int64)
    tokens, never, most = count_visits(seen, lengths, visits, classes)
    if not ORDERS[entry["order"].decode()].whole_passes and entry["epochs"] > 1:
        never = _never_inputs(split, member, taken, idx.lengths[begin:end])
    exposure = Exposure(
        documents=len(lengths),
        tokens=tokens,
        trained=trained,
        most=most,
        never=never,
        visits=tuple(visits.tolist()),
        lengths=tuple(classes.tolist()),
        whole=whole,
        cut_once=cut_once,
        cut_more=cut_more,
        continued=continued / trained if trained else 0.0,
        order_of_lengths=correlation(*drawn(lengths)),
        place_of_never=_mean_place((seen == 0) & (lengths > 0)) if visits[0] else None,
    )
    return exposure, of_rows


def _never_inputs(split: Trace, member: int, taken: int, lengths: NDArray[np.int32]) -> int:
    """Return how many tokens of sequences were never inputs, though parts of them may be twice.

    Only an order that mixes passes sees a part of a document twice before another one once.
    """
    row, _ = split.pair(member)
    views = split.cache.arrays("sections", row)
    rows = np.zeros(views["sample_index"].shape[0] - 1, np.uint16)
    with split.checked():
        rows[split.cache.read(views["shuffle_index"])[:taken]] = 1
        begin = int(split.cache.table("sections")[row]["begin"])
        visits = visits_of([(split.section(member), rows)], begin, len(lengths))
    return sum(
        int((piece.ends - piece.begins)[piece.times == 0].sum())
        for piece in Cover(visits, lengths).pieces()
    )


def by_documents(
    idx: Idx, begin: int, end: int, *values: NDArray[np.int64]
) -> tuple[NDArray[np.int64], ...]:
    """Return numbers of sequences [begin, end), summed up by their documents.

    Those without sequences count, too: the last ones of a corpus, and those before others.
    """
    low, high = find_sorted(idx.bounds, np.array([begin - 1, end - 1])).tolist()
    if low and idx.bounds[low] > begin:
        low -= 1  # a document of which an earlier split has a part
    if end == len(idx.lengths):
        high = len(idx.bounds) - 1
    bounds = np.clip(np.array(idx.bounds[low : high + 1]), begin, end) - begin
    sums = (np.concatenate([[0], np.cumsum(own, dtype=np.int64)]) for own in values)
    return tuple(np.diff(own[bounds]) for own in sums)


def drawn(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the places of some values, evenly spread, and these."""
    places = np.linspace(0, max(len(values) - 1, 0), min(len(values), DRAWN)).astype(np.int64)
    return places, values[places]


def correlation(one: NDArray[Any], other: NDArray[Any]) -> float | None:
    """Return the correlation of ranks, Spearman's; None of few, or of values that are all equal."""
    if len(one) < SMALL or one.min() == one.max() or other.min() == other.max():
        return None
    ranks = [np.argsort(np.argsort(values, kind="stable")) for values in (one, other)]
    found: NDArray[np.float64] = np.corrcoef(np.stack(ranks))
    return float(found[0, 1])


def _mean_place(chosen: NDArray[np.bool_]) -> float | None:
    """Return where chosen documents are in the mean, from 0 to 1; None if they are few."""
    places = np.flatnonzero(chosen)
    return None if len(places) < SMALL else float(places.mean() / (len(chosen) - 1))


def order_of_training(split: Trace, member: int, taken: int) -> tuple[float | None, float | None]:
    """Return how much samples follow the order of the corpus.

    Parameters
    ----------
    split : Trace
        The open split.
    member : int
        Number of the member.
    taken : int
        Number of its samples that are trained on.

    Returns
    -------
    correlation : float or None
        Correlation of the number of a sample, within the first pass, with that of its first
        sequence; None of few samples.
    neighbours : float or None
        Mean distance of the sequences of samples that follow one another, where 1 is what random
        ones have.
    """
    entry = split.cache.table("sections")[split.pair(member)[0]]
    passes = max(int(entry["epochs"]), 1)
    first_pass = min(taken, max(int(entry["samples"]) // passes, 1))
    if first_pass < SMALL:
        return None, None
    samples = np.unique(np.linspace(0, first_pass - 2, DRAWN // 2).astype(np.int64))
    pairs = np.stack([samples, samples + 1], axis=1).ravel()
    with split.checked():
        bounds, sequences, _, _ = trace_parts(
            [split.section(member)], np.zeros(len(pairs), np.int16), pairs
        )
    firsts = sequences[np.minimum(bounds[:-1], len(sequences) - 1)].astype(np.int64)
    distance = float(np.abs(np.diff(firsts.reshape(-1, 2), axis=1)).mean())
    count = int(entry["end"]) - int(entry["begin"])
    return correlation(samples, firsts[::2]), distance / (count / 3)
