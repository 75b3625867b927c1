"""Sum up what training sees of a split: exposures, windows, order, and repeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from distcache.cache.deal import Deal
from distcache.edit.selection import hash_numbers
from distcache.errors import ConfigError
from distcache.kernels import count_members, sum_windows
from distcache.ledger.exposure import Exposure, SectionRows, order_of_training, sum_member
from distcache.ledger.report_document import (
    CorpusReport,
    OrderReport,
    RepeatsReport,
    Report,
    ReportWarning,
    StepsReport,
    WindowsReport,
)
from distcache.ledger.report_warnings import warnings_of
from distcache.ledger.shared_corpora import MAX_SAID, shared_corpora
from distcache.ledger.trace import Trace
from distcache.ledger.waits import waits_of
from distcache.storage.threads import map_in_threads

DEFAULT_WINDOWS: Final = 200
MAX_WINDOWS: Final = 2000  # that a page can show
MAX_STEPS: Final = 1 << 24  # whose sums fit in memory
FOLLOWED: Final = 1 << 14  # documents of a corpus whose visits are followed, roughly
CLASSES: Final = 20  # of distances, up to two passes


def make_report(
    trace: Trace,
    *,
    samples: int | None = None,
    window: int | None = None,
    batch: int | None = None,
    deal: Deal | None = None,
    model: str = "8B",
    threads: int = 1,
    advance: Callable[[float], None] = lambda _: None,
) -> Report:
    """Sum up what training sees of a split, in the order of the cache.

    Parameters
    ----------
    trace : Trace
        The split, of tokens.
    samples : int or None
        Number of the first samples that are reported on; by default all.
    window : int or None
        Samples of a window, rounded up to whole steps; by default there are 200 windows.
    batch : int or None
        Samples of a step; by default those of `deal`.
    deal : Deal or None
        Deal of steps, for how long ranks wait for the heaviest.
    model : str
        Size of the model, as `distcache.ledger.waits.balance_of` takes it.
    threads : int
        Sections that are summed up at a time; each needs 16 bytes for each of its sequences, and
        some 40 with several passes of Megatron's order.
    advance : callable
        Receives the samples of sections that have been summed up.

    Returns
    -------
    Report
        Numbers, and the warnings that follow from them.

    Raises
    ------
    ConfigError
        If a number is not possible, or the split has no tokens.
    CacheCorrupt, CorpusError, NotReady
        If the cache or the index of a corpus is damaged or missing.
    """
    split = trace
    total = _total(split, samples)
    if deal is not None:
        if batch not in (None, deal.batch):
            raise ConfigError(f"steps of {batch} samples, and a deal {deal}: give one batch size")
        batch = deal.batch
    waits = None if deal is None else waits_of(trace, deal, model, total)
    window = _window(total, window, batch)
    counts, succession = _count(split, total, window)
    taken = counts.sum(axis=0)

    def sum_one(member: int) -> tuple[Exposure, SectionRows]:
        found = sum_member(split, member, int(taken[member]))
        advance(int(taken[member]))
        return found

    for member in range(len(split.pairs)):
        split.section(member)  # which is not for several threads
    summed = list(map_in_threads(sum_one, range(len(split.pairs)), threads))
    windows, steps = _windows(split, counts, total, window, batch, [rows for _, rows in summed])
    corpora = tuple(
        _corpus(split, member, int(taken[member]), total, exposure)
        for member, (exposure, _) in enumerate(summed)
    )
    length = split.cache.sequence_length
    trained = sum(exposure.trained for exposure, _ in summed)
    phases = split.cache.identity.get("phases") if split.split == "train" else None
    report = Report(
        cache=str(split.cache.path),
        key=split.cache.key,
        split=split.split,
        order=split.cache.identity["order"],
        sequence_length=length,
        samples=total,
        of_samples=split.size,
        phases=len(phases or [None]),
        corpora=corpora,
        windows=windows,
        steps=steps,
        waits=waits,
        succession=succession,
        repeats=_repeats(trace, corpora, total),
        padding=1 - trained / (total * length),
    )
    same = [
        ReportWarning(
            "same documents",
            f"{pair.message}: passes and repeats are counted for each entry alone",
        )
        for pair in shared_corpora(trace)[:MAX_SAID]
    ]
    return structs.replace(report, warnings=(*warnings_of(report), *same))


def _total(split: Trace, samples: int | None) -> int:
    for _, source in split.pairs:
        if split.cache.columns_of(source):
            raise ConfigError(
                f"{split.cache.prefixes[source]}: consists of rows; a report is of tokens"
            )
    if not split.size:
        raise ConfigError("the split has no samples, of which a report could be")
    if samples is not None and not 0 < samples <= split.size:
        raise ConfigError(f"{samples} samples: the split has {split.size}")
    return samples or split.size


def _window(total: int, window: int | None, batch: int | None) -> int:
    """Return the samples of a window: whole steps, if there are any."""
    step = 1 if batch is None else batch
    if not 0 < step <= total or (batch is not None and total // step > MAX_STEPS):
        raise ConfigError(
            f"steps of {step} samples: expected from 1 to {total}, and at most {MAX_STEPS:,} steps"
        )
    window = -(-(window or -(-total // DEFAULT_WINDOWS)) // step) * step
    if -(-total // window) > MAX_WINDOWS:
        raise ConfigError(f"a window of {window} samples gives more than {MAX_WINDOWS} windows")
    return window


def _count(split: Trace, total: int, window: int) -> tuple[NDArray[np.int64], OrderReport]:
    """Count the samples of each member in each window, and say how they follow one another."""
    counts = np.zeros((-(-total // window), len(split.pairs)), np.int64)
    members, _ = split.between(0, total)
    with split.checked():
        same, longest, begin = count_members(members, window, counts)
    shares = counts.sum(axis=0) / total
    return counts, OrderReport(
        same=same / max(total - 1, 1),
        same_at_random=float((shares**2).sum()),
        longest=longest,
        longest_corpus=int(members[begin]),
        longest_position=begin,
    )


def _windows(
    split: Trace,
    counts: NDArray[np.int64],
    total: int,
    window: int,
    batch: int | None,
    rows: Sequence[SectionRows],
) -> tuple[WindowsReport, StepsReport | None]:
    """Sum up windows, and steps if there are any."""
    length = split.cache.sequence_length
    sizes = counts.sum(axis=1)
    step = window if batch is None else batch
    documents, tokens, squares, most = _sums(split, total, step, rows)
    steps = None if batch is None else _steps(squares, total, batch, length)
    each = window // step
    begins = np.arange(0, len(documents), each)
    documents, tokens, squares = (
        np.add.reduceat(one, begins) for one in (documents, tokens, squares)
    )
    most = np.maximum.reduceat(most, begins)
    padded = any(len(one.tokens) for one in rows)
    padding = 1 - tokens / (sizes * length) if padded else np.zeros(len(sizes))
    shares = counts / sizes[:, None]
    difference = np.abs(shares - counts.sum(axis=0) / counts.sum())
    if len(difference) > 1 and sizes[-1] < sizes[0]:
        difference[-1] = 0  # the last one has fewer samples
    place, corpus = np.unravel_index(int(difference.argmax()), difference.shape)
    return WindowsReport(
        samples=window,
        count=len(sizes),
        shares=tuple(tuple(row) for row in np.round(shares.T, 6).tolist()),
        difference=float(difference[place, corpus]),
        difference_corpus=int(corpus),
        difference_window=int(place),
        documents=tuple(np.round(documents / sizes, 4).tolist()),
        squares=tuple(np.round(squares / (sizes * length**2), 6).tolist()),
        most_squares=tuple(np.round(most / length**2, 6).tolist()),
        padding=tuple(np.round(padding, 6).tolist()),
    ), steps


def share_of_weight(weights: NDArray[np.float64], number: int) -> float | None:
    """Return the share that a weight asks for; None without weights, or of a single corpus."""
    known = len(weights) > 1 and bool(np.isfinite(weights).all())
    return float(weights[number] / weights.sum()) if known else None


def _steps(squares: NDArray[np.float64], total: int, batch: int, length: int) -> StepsReport:
    """Return how much work whole steps are."""
    of_steps = squares[: total // batch] / (batch * length**2)
    return StepsReport(
        batch=batch,
        count=len(of_steps),
        median_squares=float(np.median(of_steps)),
        most_squares=float(of_steps.max()),
        most_step=int(of_steps.argmax()) + 1,
    )


def _sums(
    split: Trace, total: int, window: int, rows: Sequence[SectionRows]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float32]]:
    members, samples = split.between(0, total)
    count = -(-total // window)
    documents, tokens = np.zeros((2, count), np.int64)
    squares, most = np.zeros(count), np.zeros(count, np.float32)
    with split.checked():
        sum_windows(
            members,
            samples,
            window,
            [(one.section, one.documents, one.squares, one.tokens) for one in rows],
            documents,
            tokens,
            squares,
            most,
        )
    return documents, tokens, squares, most


def _corpus(split: Trace, member: int, taken: int, total: int, exposure: Exposure) -> CorpusReport:
    row, source = split.pair(member)
    of_training, neighbours = order_of_training(split, member, taken)
    return CorpusReport(
        corpus=split.cache.prefixes[source],
        weight=share_of_weight(split.weights, member),
        share=taken / total,
        samples=taken,
        samples_left=int(split.cache.table("sections")["samples"][row]) - taken,
        documents=exposure.documents,
        tokens=exposure.tokens,
        trained_tokens=exposure.trained,
        passes=exposure.trained / max(exposure.tokens, 1),
        most_passes=exposure.most,
        tokens_never=exposure.never,
        visits=exposure.visits,
        lengths=exposure.lengths,
        whole=exposure.whole,
        cut_once=exposure.cut_once,
        cut_more=exposure.cut_more,
        continued=exposure.continued,
        order_of_lengths=exposure.order_of_lengths,
        order_of_training=of_training,
        neighbours=neighbours,
        place_of_never=exposure.place_of_never,
    )


def _repeats(
    trace: Trace, corpora: Sequence[CorpusReport], total: int
) -> tuple[RepeatsReport, ...]:
    """Follow documents of corpora that are repeated."""
    split = trace
    members = [m for m, one in enumerate(corpora) if (one.most_passes or 0) >= 2]
    sources = {split.pairs[member][1] for member in members}
    chosen = {source: _followed(split, source, members) for source in sources}
    if not chosen:
        return ()
    positions = split.find(chosen)
    traced = split.samples(positions[positions < total])
    parts = np.repeat(traced.positions, np.diff(traced.bounds))
    sources_of = np.repeat(traced.corpora, np.diff(traced.bounds))
    begins = (traced.begins == 0) & (traced.ends > traced.label_only)
    found = []
    for member in members:
        source = split.pairs[member][1]
        keep = begins & (sources_of == source) & np.isin(traced.sequences, chosen[source])
        order = np.lexsort((parts[keep], traced.sequences[keep]))
        sequences, places = traced.sequences[keep][order], parts[keep][order]
        gaps = np.diff(places)[np.diff(sequences) == 0]
        if len(gaps):
            one_pass = max(round(total / corpora[member].passes), 1)
            found.append(_repeats_of(member, len(chosen[source]), gaps, one_pass))
    return tuple(found)


def _followed(split: Trace, source: int, members: Sequence[int]) -> NDArray[np.int64]:
    """Draw sequences of a corpus by a hash of their number."""
    sections = [split.pairs[member][0] for member in members if split.pairs[member][1] == source]
    entry = split.cache.table("sections")[sections[0]]
    numbers = np.arange(int(entry["begin"]), int(entry["end"]), dtype=np.int64)
    step = max(len(numbers) // FOLLOWED, 1)
    found: NDArray[np.int64] = numbers[
        hash_numbers(numbers.astype(np.uint64), 0) % np.uint64(step) == 0
    ]
    return found


def _repeats_of(
    member: int, documents: int, gaps: NDArray[np.int64], one_pass: int
) -> RepeatsReport:
    least, low, median, high, most = np.percentile(gaps, [0, 25, 50, 75, 100]).astype(int).tolist()
    classes = np.minimum(gaps * (CLASSES // 2) // one_pass, CLASSES)
    return RepeatsReport(
        corpus=member,
        documents=documents,
        repeats=len(gaps),
        least=least,
        quartiles=(low, median, high),
        most=most,
        pass_samples=one_pass,
        histogram=tuple(np.bincount(classes, minlength=CLASSES + 1).tolist()),
    )
