"""What a report warns of, and what to change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from distcache.ledger.report_document import Report, ReportWarning

MANY_PASSES: Final = 4.0  # more are said to be worth little (Muennighoff et al. 2023)
WEIGHT_DIFFERENCE: Final = 0.01  # difference of a share from its weight
WINDOW_DIFFERENCE: Final = 0.05  # difference of a share in a window from that of all
SAMPLES_OF_CHANCE: Final = 3  # samples by which windows differ anyway
HEAVY_STEP: Final = 3.0  # times the median
WORTH_DEALING: Final = 0.01  # of the time of a step
MUCH_PADDING: Final = 0.05
IN_ORDER: Final = 0.5  # correlation from which samples, or lengths, are in order
CLOSE_REPEAT: Final = 0.25  # of a pass, within which a repeat is close
UNSEEN_SHARE: Final = 0.01  # share of tokens
CENTRE_DIFFERENCE: Final = 0.1  # of the mean place of documents
LONG_RUN: Final = 100  # samples of one corpus, though it is less than half of all


def warnings_of(report: Report) -> Iterator[ReportWarning]:
    """Yield the warnings that follow from a report, those of the blend first."""
    yield from _of_weights(report)
    yield from _of_order(report)
    if report.steps is not None and report.steps.median_squares:
        ratio = report.steps.most_squares / report.steps.median_squares
        if ratio > HEAVY_STEP:
            yield ReportWarning(
                "heavy step",
                f"step {report.steps.most_step:,} has {ratio:.1f} times the attention of the "
                "median step: long documents fall together; use larger batches",
            )
    waits = report.waits
    if waits is not None and waits.in_order - waits.dealt > WORTH_DEALING:
        yield ReportWarning(
            "unequal ranks",
            "ranks wait for the one with the longest documents: see --deal of `distcache export`",
        )
    if (report.padding or 0) > MUCH_PADDING:
        yield ReportWarning(
            "padding",
            f"{report.padding:.1%} of all tokens are padding: with `longer: cut`, more documents "
            "in a sample, or without `pack` there is less",
        )


def _of_weights(report: Report) -> Iterator[ReportWarning]:
    """Yield what is odd about weights, passes and what is never seen."""
    least = min(report.corpora, key=lambda one: one.passes)
    for number, one in enumerate(report.corpora):
        if one.passes > MANY_PASSES and least.passes < 1:
            yield ReportWarning(
                "many passes",
                f"{one.corpus} is seen {one.passes:,.1f} times, though {least.corpus} is seen "
                f"{least.passes:.2f} times: lower the weight of the first ({one.share:.4%} of the "
                "samples)",
                number,
            )
        if one.samples == 0 or (one.weight is not None and one.weight * report.samples < 1):
            weight = "" if one.weight is None else f", of weight {one.weight:.2g}"
            yield ReportWarning(
                "tiny weight",
                f"{one.corpus}{weight}, gives {one.samples} of {report.samples:,} samples: raise "
                "it, or leave the corpus out",
                number,
            )
        elif (
            one.weight is not None
            and abs(one.share - one.weight) > WEIGHT_DIFFERENCE
            and report.phases == 1
        ):
            yield ReportWarning(
                "off its weight",
                f"{one.corpus} gives {one.share:.2%} of the samples, and its weight is "
                f"{one.weight or 0:.2%}",
                number,
            )
        never = (one.tokens_never or 0) / max(one.tokens, 1)
        if one.passes >= 1 and never > UNSEEN_SHARE:
            yield ReportWarning(
                "never seen",
                f"{one.corpus} is seen {one.passes:.2f} times, though {never:.1%} of its tokens "
                "are never: `shuffle: passes` sees each document once before any twice",
                number,
            )


def _of_order(report: Report) -> Iterator[ReportWarning]:
    """Yield what is odd about the order of samples."""
    for number, one in enumerate(report.corpora if report.order != "none" else ()):
        in_order = (one.order_of_training or 0) > IN_ORDER
        close = (
            one.neighbours is not None and one.neighbours < IN_ORDER and report.order != "windows"
        )
        if in_order or close:
            yield ReportWarning(
                "not shuffled",
                f"{one.corpus}: samples follow the order of the corpus (correlation "
                f"{one.order_of_training or 0:.2f}; samples in a row are {one.neighbours or 0:.2f} "
                "times as far apart as at random): build the cache with another `shuffle`",
                number,
            )
        if abs(one.order_of_lengths or 0) > IN_ORDER:
            yield ReportWarning(
                "sorted",
                f"{one.corpus}: its documents are sorted by length (correlation "
                f"{one.order_of_lengths:.2f}): splits are ranges of it, and validation sees other "
                "lengths than training; shuffle the sources before they are ingested",
                number,
            )
        if one.place_of_never is not None and abs(one.place_of_never - 0.5) > CENTRE_DIFFERENCE:
            where = "end" if one.place_of_never > 0.5 else "beginning"
            yield ReportWarning(
                "part never seen",
                f"{one.corpus}: documents that are never seen are at its {where} (mean place "
                f"{one.place_of_never:.2f} of 1): its samples are not drawn from all of it",
                number,
            )
    windows = report.windows
    differs = windows.difference > max(WINDOW_DIFFERENCE, SAMPLES_OF_CHANCE / windows.samples)
    if windows.count > 1 and differs and report.phases == 1:
        one = report.corpora[windows.difference_corpus]
        begin = windows.difference_window * windows.samples
        yield ReportWarning(
            "uneven",
            f"{one.corpus} has another share than {one.share:.2%} in samples {begin:,} to "
            f"{begin + windows.samples:,}: it differs by {windows.difference:.2%}",
            windows.difference_corpus,
        )
    run = report.succession
    if (
        run.longest > LONG_RUN
        and report.corpora[run.longest_corpus].share < 0.5
        and report.phases == 1
    ):
        yield ReportWarning(
            "long run",
            f"{run.longest:,} samples in a row are of {report.corpora[run.longest_corpus].corpus}, "
            f"from position {run.longest_position:,} on",
            run.longest_corpus,
        )
    for repeats in report.repeats or ():
        if repeats.quartiles[1] < CLOSE_REPEAT * repeats.pass_samples:
            yield ReportWarning(
                "close repeats",
                f"{report.corpora[repeats.corpus].corpus}: half of the repeats come within "
                f"{repeats.quartiles[1]:,} samples, though a pass has {repeats.pass_samples:,}",
                repeats.corpus,
            )
