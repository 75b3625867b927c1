"""A report as one HTML page: warnings, tables and figures, with all that they need in it."""

from __future__ import annotations

import html
import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from distcache.extras import needing
from distcache.ledger.report_document import LENGTHS, VISITS, CorpusReport, RepeatsReport, Report
from distcache.storage.units import counted

MAX_LINES: Final = 20  # corpora that a figure tells apart; the others are one
PALETTE: Final = (
    "#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#eeca3b", "#9d755d",
    "#ff9da6", "#79706e", "#83bcb6", "#d67195", "#439894", "#d8b5a5", "#88d27a", "#fcbfd2",
    "#b79a20", "#9ecae9", "#ffbf79", "#bab0ac",
)  # fmt: skip
FEW: Final = 6  # corpora whose names fit side by side
FAR: Final = 30  # ratio of numbers from which an axis is logarithmic
LETTERS: Final = " KMGT"
STYLE: Final = """
:root { color-scheme: light dark; --text: #1b1b1b; --soft: #666; --line: #ddd; --back: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e6e6; --soft: #a5a5a5; --line: #3a3a3a; --back: #161616; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
       max-width: 1240px; margin: 0 auto; padding: 16px; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.soft { color: var(--soft); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 8px; border-bottom: 1px solid var(--line); text-align: right;
         white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
li { overflow-wrap: anywhere; } .kind { font-weight: 600; }
@media (max-width: 800px) {
  table { width: 100%; } th { display: none; }
  tr { display: block; padding: 6px 0; border-bottom: 1px solid var(--line); }
  td { display: flex; justify-content: space-between; border: 0; white-space: normal; }
  td::before { content: attr(data-name); color: var(--soft); }
  td:first-child { font-weight: 600; overflow-wrap: anywhere; }
}
.figure svg { width: 100%; max-width: 900px; height: auto; }
.figure text { fill: var(--text); }
"""
GREY: Final = "#8a8a8a"  # seen on a light and on a dark page
OTHERS: Final = "#bbbbbb"
DRAWN: Final[dict[Any, Any]] = {
    "svg.fonttype": "none", "text.parse_math": False, "font.size": 9, "axes.edgecolor": GREY,
    "xtick.color": GREY, "ytick.color": GREY, "xtick.labelcolor": "black",
    "ytick.labelcolor": "black", "grid.color": GREY, "grid.alpha": 0.3, "axes.grid": True,
    "axes.grid.axis": "y", "axes.axisbelow": True, "legend.frameon": False,
    "axes.spines.top": False, "axes.xmargin": 0.01, "lines.linewidth": 1.2,
}  # fmt: skip
SIZE: Final = (7.2, 3.0)  # inches, of which a browser makes the width of the page
LEGEND_LETTERS: Final = 100  # in a row of a legend
LEGEND_ROW: Final = 0.19  # inches
MAX_NAME: Final = 28  # letters of a name in a figure; the table has it whole


class Figure(NamedTuple):
    """A figure, its title, and a sentence about it."""

    title: str
    note: str
    draw: Callable[[Any], None]  # into axes of matplotlib


def page_of(report: Report) -> str:
    """Return a report as a page, which needs no network.

    Raises
    ------
    ConfigError
        If matplotlib is not installed.
    """
    names = _short([one.corpus for one in report.corpora])
    title = html.escape(f"{report.cache}: {report.split}")
    parts = [
        f"<h1>{title}</h1>",
        f'<p class="soft">{html.escape(_summary(report))}</p>',
        *_warnings(report),
        "<h2>Corpora</h2>",
        _corpora(report, names),
    ]
    for number, figure in enumerate(_figures(report, names)):
        parts += [
            f"<h2>{html.escape(figure.title)}</h2>",
            f'<p class="soft">{html.escape(figure.note)}</p>',
            f'<div class="figure">{_svg(figure, number)}</div>',
        ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "</body></html>\n"
    )


def _svg(figure: Figure, number: int) -> str:
    """Return a figure as an element of a page that has others: its names begin with a number."""
    with needing("a page"):
        import matplotlib as mpl  # noqa: PLC0415  of an extra
        from matplotlib.figure import Figure as Canvas  # noqa: PLC0415
    text = io.StringIO()
    with mpl.rc_context({**DRAWN, "svg.hashsalt": "distcache"}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters that the font lacks: the reader's font has them
        canvas = Canvas(layout="constrained")
        axes = canvas.subplots()
        figure.draw(axes)
        lines = [line for part in canvas.axes for line in part.get_legend_handles_labels()[0]]
        labels = [str(line.get_label()) for line in lines]
        columns = min(max(LEGEND_LETTERS // (max(map(len, labels), default=0) + 6), 1), 5)
        rows = -(-len(lines) // columns) if len(lines) > 1 else 0
        if rows:
            canvas.legend(lines, labels, loc="outside lower center", ncols=columns)
        canvas.set_size_inches(SIZE[0], SIZE[1] + LEGEND_ROW * rows)
        kept = {"Date": None, "Creator": None, "Format": None, "Type": None}
        canvas.savefig(text, format="svg", transparent=True, metadata=kept)
    drawn = text.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    for mark in ('id="', "url(#", 'href="#'):
        drawn = drawn.replace(mark, f"{mark}f{number}-")
    return drawn


def _short(paths: Sequence[str]) -> list[str]:
    """Return the last components of paths, as many as tell all apart."""
    parts = [path.rstrip("/").split("/") for path in paths]
    for count in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(set(paths)):
            return names
    return list(paths)


def _summary(report: Report) -> str:
    tokens = report.samples * report.sequence_length
    of = f" of {report.of_samples:,}" if report.samples < report.of_samples else ""
    phases = f", {report.phases} phases" if report.phases > 1 else ""
    padding = f", {report.padding:.2%} padding" if report.padding else ""
    waits = ""
    if (own := report.waits) is not None:
        waits = f"; ranks wait {own.in_order:.1%} of a step, {own.dealt:.1%} with a deal"
    return (
        f"{report.samples:,}{of} samples of {report.sequence_length:,} tokens, "
        f"{_count(tokens)} tokens{padding}; {counted(len(report.corpora), 'corpus', 'corpora')}, "
        f"order {report.order}{phases}{waits}; key {report.key[:16]}"
    )


def _count(number: float | None) -> str:
    """Return a number with a letter for its thousands."""
    if number is None:
        return ""
    place = min(max(len(f"{abs(number):.0f}") - 1, 0) // 3, len(LETTERS) - 1)
    return f"{number / 1000**place:.3g} {LETTERS[place]}".strip() if place else f"{number:,.0f}"


def _warnings(report: Report) -> Iterator[str]:
    if not report.warnings:
        yield "<p>Nothing stands out.</p>"
        return
    items = [
        f'<li><span class="kind">{html.escape(one.kind)}</span>: {html.escape(one.message)}</li>'
        for one in report.warnings
    ]
    yield f"<h2>{counted(len(items), 'warning')}</h2><ul>{''.join(items)}</ul>"


def _corpora(report: Report, names: Sequence[str]) -> str:
    """Return the table of corpora; a column says what it is where the mouse rests."""
    head = {
        "corpus": "path, as far as it is needed",
        "weight": "share that the configuration asks for",
        "share": "share of the samples",
        "samples": "samples of the corpus",
        "left": "further samples that the corpus's section has",
        "documents": "documents of the split",
        "tokens": "tokens of the split",
        "passes": "tokens that are trained on, over tokens",
        "most passes": "passes of the document that was seen most often",
        "never seen": "share of the tokens that training never sees",
        "whole": "share of the sequences that are in one sample",
        "continued": "share of the tokens that are in a later sample than their document's first",
    }
    rows = []
    for name, one in zip(names, report.corpora, strict=True):
        sequences = one.whole + one.cut_once + one.cut_more
        rows.append(
            [
                name,
                _percent(one.weight),
                _percent(one.share),
                f"{one.samples:,}",
                f"{one.samples_left:,}",
                f"{one.documents:,}",
                _count(one.tokens),
                f"{one.passes:,.3f}",
                "" if one.most_passes is None else f"{one.most_passes:,.1f}",
                _percent(one.tokens_never / max(one.tokens, 1)),
                _percent(one.whole / sequences) if sequences else "",
                _percent(one.continued),
            ]
        )
    titles = [f'<th title="{title}">{name}</th>' for name, title in head.items()]
    cells = [
        [
            f'<td data-name="{name}">{html.escape(cell)}</td>'
            for name, cell in zip(head, row, strict=True)
        ]
        for row in rows
    ]
    lines = ["".join(row) for row in [titles, *cells]]
    return f"<table><tr>{'</tr><tr>'.join(lines)}</tr></table>"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.3%}"


def _figures(report: Report, names: Sequence[str]) -> Iterator[Figure]:
    """Yield the figures, each with its title and a note."""
    largest = sorted(range(len(names)), key=lambda n: -report.corpora[n].share)[:MAX_LINES]
    chosen = sorted(largest)
    colour = {number: PALETTE[place % len(PALETTE)] for place, number in enumerate(chosen)}
    labels = list(map(_label, names))
    corpora = [(labels[number], report.corpora[number], colour[number]) for number in chosen]
    yield _shares(report, labels, chosen, colour)
    yield _exposure(corpora)
    yield _visits(corpora)
    yield _windows(report)
    if report.repeats:
        yield _repeats([one for one in report.repeats if one.corpus in colour], labels, colour)
    yield _lengths(corpora)


def _label(name: str) -> str:
    """Return a name for a figure; matplotlib would leave out one that begins with a low line."""
    half = MAX_NAME // 2
    return f"\u200b{name if len(name) <= MAX_NAME else f'{name[:half]}…{name[-half:]}'}"


def _as_percent(axis: Any, decimals: int | None = None) -> None:
    from matplotlib.ticker import PercentFormatter  # noqa: PLC0415  of an extra

    axis.set_major_formatter(PercentFormatter(1, decimals=decimals))


def _as_counts(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415  of an extra

    axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(lambda number, _: _count(number))


def _shares(
    report: Report, names: Sequence[str], chosen: Sequence[int], colour: dict[int, str]
) -> Figure:
    windows = report.windows
    lines = {names[n]: (windows.shares[n], colour[n]) for n in chosen}
    if len(chosen) < len(names):
        sums = map(sum, zip(*(shares for shares, _ in lines.values()), strict=True))
        rest = tuple(max(0.0, round(1 - share, 6)) for share in sums)
        lines[f"{len(names) - len(chosen)} others"] = rest, OTHERS

    def draw(axes: Any) -> None:
        # each window is a step, and the last one has an end
        begins = [number * windows.samples for number in range(windows.count)]
        begins.append(report.samples)
        shares = [[*of, of[-1]] for of, _ in lines.values()]
        shades = [shade for _, shade in lines.values()]
        axes.stackplot(begins, shares, labels=list(lines), colors=shades, step="post")
        axes.set(xlabel="sample", ylabel="share", ylim=(0, 1), xlim=(0, report.samples))
        _as_percent(axes.yaxis)
        _as_counts(axes.xaxis)

    return Figure(
        "Shares of corpora over training",
        f"Share of the samples of each corpus, in windows of {windows.samples:,} samples. The "
        f"greatest difference from a corpus's share of the whole is {windows.difference:.3%}, for "
        f"{names[windows.difference_corpus][1:]}.",
        draw,
    )


def _exposure(corpora: Sequence[tuple[str, CorpusReport, str]]) -> Figure:
    places = range(len(corpora))

    def draw(axes: Any) -> None:
        beside = 0.0
        if any(one.weight is not None for _, one, _ in corpora):
            beside = 0.2
            weights = [one.weight or 0 for _, one, _ in corpora]
            axes.bar([place - 0.2 for place in places], weights, 0.4, label="weight", color=OTHERS)
        shares = [one.share for _, one, _ in corpora]
        own = [place + beside for place in places]
        axes.bar(own, shares, 0.4, label="share", color=PALETTE[0])
        turned = {"rotation": 30, "ha": "right"} if len(corpora) > FEW else {}
        axes.set_xticks(places, [name for name, _, _ in corpora], **turned)
        axes.set(ylabel="share of the samples")
        _as_percent(axes.yaxis)
        passes = [one.passes for _, one, _ in corpora]
        right = axes.twinx()
        right.plot(places, passes, "D", label="passes", color=PALETTE[3])
        right.grid(visible=False)
        right.set(ylabel="passes")
        if 0 < FAR * min(passes) < max(passes):
            right.set_yscale("log")
            right.yaxis.set_major_formatter(lambda number, _: f"{number:g}")
            right.yaxis.set_minor_formatter(lambda _number, _place: "")
        else:
            right.set_ylim(0, 1.1 * max(passes) or 1)

    return Figure(
        "Exposure against weight",
        "Each corpus's share of the samples beside its weight, and how often training goes "
        "through it.",
        draw,
    )


def _visits(corpora: Sequence[tuple[str, CorpusReport, str]]) -> Figure:
    classes = ["never", "part", *map(str, range(1, VISITS - 2)), f"{VISITS - 2}+"]
    last = max(n for _, one, _ in corpora for n, count in enumerate(one.visits) if count)

    def draw(axes: Any) -> None:
        width = 0.8 / len(corpora)
        for number, (name, one, shade) in enumerate(corpora):
            total = max(sum(one.visits), 1)
            places = [n - 0.4 + (number + 0.5) * width for n in range(last + 1)]
            shares = [count / total for count in one.visits[: last + 1]]
            axes.bar(places, shares, width, label=name, color=shade)
        axes.set_xticks(range(last + 1), classes[: last + 1])
        axes.set(xlabel="times seen", ylabel="documents")
        _as_percent(axes.yaxis)

    return Figure(
        "How often documents are seen",
        "Share of each corpus's documents by the number of times that training sees them.",
        draw,
    )


def _windows(report: Report) -> Figure:
    windows = report.windows
    begins = [*(number * windows.samples for number in range(windows.count)), report.samples]

    def line(axes: Any, values: Sequence[float], style: str, label: str, colour: str) -> None:
        """Draw the windows as steps; the last one has an end."""
        steps = {"drawstyle": "steps-post", "label": label, "color": colour}
        axes.plot(begins, [*values, values[-1]], style, **steps)

    def draw(axes: Any) -> None:
        line(axes, windows.documents, "-", "documents", PALETTE[0])
        axes.set(xlabel="sample", ylabel="documents of a sample")
        axes.set_ylim(bottom=0)
        _as_counts(axes.xaxis)
        right = axes.twinx()
        line(right, windows.squares, "-", "attention", PALETTE[3])
        line(right, windows.most_squares, ":", "most of a sample", PALETTE[3])
        right.grid(visible=False)
        right.set(ylabel="attention", ylim=(0, 1.05))

    return Figure(
        "Documents of a sample, and attention",
        "Mean number of documents of a sample. Attention is the sum of the squared document "
        "lengths, as a share of the squared sample length.",
        draw,
    )


def _repeats(
    repeats: Sequence[RepeatsReport], names: Sequence[str], colour: dict[int, str]
) -> Figure:
    def draw(axes: Any) -> None:
        for one in repeats:
            places = [(place + 0.5) / 10 for place in range(len(one.histogram))]
            shares = [count / max(one.repeats, 1) for count in one.histogram]
            name, shade = names[one.corpus], colour[one.corpus]
            axes.step(places, shares, where="mid", label=name, color=shade)
        axes.set(xlabel="passes between two visits", ylabel="repeats")
        _as_percent(axes.yaxis)

    return Figure(
        "Distance of repeats",
        "How far apart two visits of a document are, in passes of its corpus. The last class has "
        "all distances above two passes. The documents are a sample.",
        draw,
    )


def _lengths(corpora: Sequence[tuple[str, CorpusReport, str]]) -> Figure:
    last = max((n for _, one, _ in corpora for n in range(LENGTHS) if one.lengths[n]), default=0)

    def draw(axes: Any) -> None:
        for name, one, shade in corpora:
            shares = [count / max(one.documents, 1) for count in one.lengths[: last + 1]]
            axes.plot(range(last + 1), shares, label=name, color=shade)
        labels = ["0", *(_count(1 << (bits - 1)) for bits in range(1, last + 1))]
        axes.set_xticks(range(last + 1), labels)
        axes.set(xlabel="tokens", ylabel="documents")
        _as_percent(axes.yaxis)

    return Figure(
        "Lengths of documents",
        "Share of each corpus's documents by length: from the number below up to the next.",
        draw,
    )
