"""A report as one HTML page: warnings, tables and figures, with all that they need in it."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import Any, Final

from distcache.extras import needing
from distcache.ledger.report_document import LENGTHS, VISITS, CorpusReport, Report
from distcache.storage.units import counted

MAX_LINES: Final = 20  # corpora that a figure tells apart; the others are one
PALETTE: Final = (
    "#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#eeca3b", "#9d755d",
    "#ff9da6", "#79706e", "#83bcb6", "#d67195", "#439894", "#d8b5a5", "#88d27a", "#fcbfd2",
    "#b79a20", "#9ecae9", "#ffbf79", "#bab0ac",
)  # fmt: skip
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
.soft { color: var(--soft); } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 8px; border-bottom: 1px solid var(--line); text-align: right;
         white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
li { overflow-wrap: anywhere; } .kind { font-weight: 600; }
.figure { width: 100%; }
.main-svg text { fill: var(--text) !important; }
.gridlayer path, .zerolinelayer path { stroke: var(--line) !important; }
"""
LAYOUT: Final = {
    "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
    "margin": {"l": 60, "r": 60, "t": 10, "b": 120}, "legend": {"orientation": "h", "y": -0.25},
}  # fmt: skip
Figure = dict[str, Any]


def page_of(report: Report) -> str:
    """Return a report as a page, which needs no network.

    Raises
    ------
    ConfigError
        If plotly is not installed.
    """
    with needing("a page"):
        from plotly.io import to_html  # noqa: PLC0415  of an extra
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
        drawn = to_html(
            {"data": figure["data"], "layout": LAYOUT | figure["layout"]},
            config={"responsive": True, "displaylogo": False},
            include_plotlyjs=number == 0,
            full_html=False,
            default_height=440,
            validate=False,
        )
        parts += [
            f"<h2>{html.escape(figure['title'])}</h2>",
            f'<p class="soft">{html.escape(figure["note"])}</p>',
            f'<div class="figure">{drawn}</div>',
        ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "</body></html>\n"
    )


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
    return (
        f"{report.samples:,}{of} samples of {report.sequence_length:,} tokens, "
        f"{_count(tokens)} tokens{padding}; {counted(len(report.corpora), 'corpus', 'corpora')}, "
        f"order {report.order}{phases}; key {report.key[:16]}"
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


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["<tr>" + "".join(f"<th>{html.escape(cell)}</th>" for cell in head) + "</tr>"]
    lines += [
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    ]
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def _corpora(report: Report, names: Sequence[str]) -> str:
    head = [
        "corpus", "weight", "share", "samples", "left", "documents", "tokens", "passes", "most",
        "never seen", "in one sample", "continued",
    ]  # fmt: skip
    rows = []
    for name, one in zip(names, report.corpora, strict=True):
        visits = one.whole + one.cut_once + one.cut_more
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
                _percent(one.whole / visits) if visits else "",
                _percent(one.continued),
            ]
        )
    return _table(head, rows)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.3%}"


def _figures(report: Report, names: Sequence[str]) -> Iterator[Figure]:
    """Yield the figures, each with its title and a note."""
    largest = sorted(range(len(names)), key=lambda n: -report.corpora[n].share)[:MAX_LINES]
    chosen = sorted(largest)
    colour = {number: PALETTE[place % len(PALETTE)] for place, number in enumerate(chosen)}
    yield _shares(report, names, chosen, colour)
    yield _exposure(report, names, chosen)
    corpora = [(names[number], report.corpora[number], colour[number]) for number in chosen]
    yield _visits(corpora)
    yield _windows(report)
    if report.repeats:
        yield _repeats(report, names, colour)
    yield _lengths(corpora)


def _figure(title: str, note: str, data: list[Any], **layout: Any) -> Figure:
    return {"title": title, "note": note, "data": data, "layout": layout}


def _shares(
    report: Report, names: Sequence[str], chosen: Sequence[int], colour: dict[int, str]
) -> Figure:
    windows = report.windows
    begins = [number * windows.samples for number in range(windows.count)]
    lines = [(names[n], windows.shares[n], colour[n]) for n in chosen]
    if len(chosen) < len(names):
        sums = [
            sum(of_window) for of_window in zip(*(shares for _, shares, _ in lines), strict=True)
        ]
        rest = tuple(round(1 - share, 6) for share in sums)
        lines.append((f"{len(names) - len(chosen)} others", rest, "#bbbbbb"))
    return _figure(
        "Shares of corpora over training",
        f"Share of the samples of each corpus, in windows of {windows.samples:,} samples. The "
        f"greatest difference from the share of all is {windows.difference:.3%}, of "
        f"{names[windows.difference_corpus]}.",
        [
            {
                "x": begins, "y": shares, "name": name, "stackgroup": "all", "mode": "lines",
                "line": {"width": 0.5, "color": shade}, "hovertemplate": "%{y:.3%}",
            }
            for name, shares, shade in lines
        ],
        xaxis={"title": {"text": "position"}},
        yaxis={"title": {"text": "share"}, "tickformat": ".0%"},
        hovermode="x unified",
    )  # fmt: skip


def _exposure(report: Report, names: Sequence[str], chosen: Sequence[int]) -> Figure:
    own = [report.corpora[number] for number in chosen]
    x = [names[number] for number in chosen]
    bars = [("share", [one.share for one in own], PALETTE[0])]
    if any(one.weight is not None for one in own):
        bars.insert(0, ("weight", [one.weight or 0 for one in own], "#bbbbbb"))
    data: list[Any] = [
        {"x": x, "y": y, "name": name, "type": "bar", "marker": {"color": shade}}
        for name, y, shade in bars
    ]
    passes = [one.passes for one in own]
    ratio = max(passes) / max(min(passes), 1e-9)
    data.append(
        {
            "x": x, "y": passes, "name": "passes", "mode": "markers", "yaxis": "y2",
            "marker": {"color": PALETTE[3], "size": 9, "symbol": "diamond"},
        }
    )  # fmt: skip
    return _figure(
        "Exposure against weight",
        "Share of the samples beside the weight, and how often each corpus is gone through.",
        data,
        barmode="group",
        yaxis={"title": {"text": "share"}, "tickformat": ".0%"},
        yaxis2={
            "title": {"text": "passes"}, "overlaying": "y", "side": "right",
            "type": "log" if ratio > FAR else "linear", "rangemode": "tozero", "showgrid": False,
            "tickmode": "auto",
        },
    )  # fmt: skip


def _visits(corpora: Sequence[tuple[str, CorpusReport, str]]) -> Figure:
    classes = ["never", "in part", *map(str, range(1, VISITS - 2)), f"{VISITS - 2} or more"]
    last = max(n for _, one, _ in corpora for n, count in enumerate(one.visits) if count)
    data = []
    for name, one, shade in corpora:
        total = max(sum(one.visits), 1)
        shares = [count / total for count in one.visits[: last + 1]]
        data.append(
            {
                "x": classes[: last + 1], "y": shares, "name": name, "type": "bar",
                "marker": {"color": shade}, "hovertemplate": "%{y:.3%}",
            }
        )  # fmt: skip
    return _figure(
        "How often documents are seen",
        "Documents of each corpus by their inputs for each of their tokens.",
        data,
        barmode="group",
        xaxis={"title": {"text": "times"}, "type": "category"},
        yaxis={"title": {"text": "documents"}, "tickformat": ".0%"},
    )


def _windows(report: Report) -> Figure:
    windows = report.windows
    begins = [number * windows.samples for number in range(windows.count)]
    squares = {"dash": "dot", "color": PALETTE[3], "width": 1}
    return _figure(
        "Documents of a sample, and attention",
        "Mean number of documents of a sample; and the sum of the squares of their lengths, as a "
        "share of the square of the sample's length: the attention within documents.",
        [
            {
                "x": begins, "y": windows.documents, "name": "documents",
                "line": {"color": PALETTE[0]},
            },
            {
                "x": begins, "y": windows.squares, "name": "attention", "yaxis": "y2",
                "line": {"color": PALETTE[3]},
            },
            {
                "x": begins, "y": windows.most_squares, "name": "most of a sample", "yaxis": "y2",
                "line": squares,
            },
        ],
        xaxis={"title": {"text": "position"}},
        yaxis={"title": {"text": "documents"}, "rangemode": "tozero"},
        yaxis2={
            "title": {"text": "attention"}, "overlaying": "y", "side": "right",
            "rangemode": "tozero", "showgrid": False, "tickmode": "auto",
        },
        hovermode="x unified",
    )  # fmt: skip


def _repeats(report: Report, names: Sequence[str], colour: dict[int, str]) -> Figure:
    data = []
    for one in report.repeats or ():
        places = [(place + 0.5) / 10 for place in range(len(one.histogram))]
        shares = [count / max(one.repeats, 1) for count in one.histogram]
        data.append(
            {
                "x": places, "y": shares, "name": names[one.corpus],
                "line": {"color": colour.get(one.corpus, "#bbbbbb"), "shape": "hvh"},
                "hovertemplate": "%{y:.2%}",
            }
        )  # fmt: skip
    return _figure(
        "Distance of repeats",
        "How far apart two visits of a document are, in passes of its corpus; the last class is of "
        "all that are more than two. The documents are drawn by a hash.",
        data,
        xaxis={"title": {"text": "passes"}},
        yaxis={"title": {"text": "repeats"}, "tickformat": ".0%"},
    )


def _lengths(corpora: Sequence[tuple[str, CorpusReport, str]]) -> Figure:
    last = max((n for _, one, _ in corpora for n in range(LENGTHS) if one.lengths[n]), default=0)
    classes = ["0", *(f"{1 << (bits - 1):,}" for bits in range(1, last + 1))]
    data = [
        {
            "x": classes, "y": [count / max(one.documents, 1) for count in one.lengths[: last + 1]],
            "name": name, "line": {"color": shade}, "hovertemplate": "%{y:.3%}",
        }
        for name, one, shade in corpora
    ]  # fmt: skip
    return _figure(
        "Lengths of documents",
        "Documents of each corpus by their tokens, from the number below it up to the next.",
        data,
        xaxis={"title": {"text": "tokens"}, "type": "category"},
        yaxis={"title": {"text": "documents"}, "tickformat": ".0%"},
    )
