"""Reports: numbers as counted one by one, faults that are planted, and a page without network."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from distcache.corpus import open_idx
from distcache.errors import ConfigError
from distcache.ledger.exposure import by_documents
from distcache.ledger.report import make_report
from distcache.ledger.report_document import RepeatsReport, Report, ReportWarning
from distcache.ledger.report_page import page_of
from distcache.ledger.report_warnings import warnings_of
from distcache.ledger.trace import trace
from tests.orders.orders import LENGTH, ORDERS, Tokens, build_numbered
from tests.support import here
from tests.support.corpora import write_corpus, write_idx


def parts_of(truth: Tokens, position: int) -> tuple[int, list[tuple[int, int, int]]]:
    """Return the corpus of a sample, and sequence, begin and end of its inputs, from its tokens."""
    corpus, tokens = truth.of(position)
    inputs = tokens[: len(tokens) - truth.has_extra(tokens)]
    starts = truth.starts[corpus]
    sequences = np.searchsorted(starts, inputs, "right") - 1
    # A sequence may stand twice in a row, where one pass ends and the next begins.
    cuts = np.flatnonzero((np.diff(inputs) != 1) | (np.diff(sequences) != 0)) + 1
    parts = []
    for own, number in zip(np.split(inputs, cuts), np.split(sequences, cuts), strict=True):
        start = int(starts[number[0]])
        parts.append((int(number[0]), int(own[0]) - start, int(own[-1]) + 1 - start))
    return corpus, parts


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("case", ORDERS)
def test_numbers_are_those_that_counting_gives(case: str, threads: int, tmp_path: Path) -> None:
    """Shares, passes, visits, cuts, windows and steps, against the tokens of each sample."""
    path = build_numbered(tmp_path, case)
    found = trace(path)
    total = 200
    report = make_report(found, samples=total, window=40, batch=20, threads=threads)
    truth = Tokens(path)
    counts = [np.zeros(int(starts[-1]), np.int64) for starts in truth.starts]
    samples = [parts_of(truth, position) for position in range(total)]
    for corpus, parts in samples:
        for sequence, begin, end in parts:
            start = truth.starts[corpus][sequence]
            counts[corpus][start + begin : start + end] += 1
    assert report.samples == total
    tokens_of = [sum(end - begin for _, begin, end in parts) for _, parts in samples]
    assert report.padding == pytest.approx(1 - sum(tokens_of) / (total * LENGTH))
    for number, one in enumerate(report.corpora):
        row = truth.cache.table("sections")[truth.members.pairs[number][0]]
        lengths = truth.idx[number].lengths[int(row["begin"]) : int(row["end"])].astype(np.int64)
        starts = truth.starts[number][int(row["begin"]) : int(row["end"]) + 1]
        own = counts[number]
        seen = np.array([own[a:b].sum() for a, b in itertools.pairwise(starts)])
        mine = [parts for corpus, parts in samples if corpus == number]
        assert (one.samples, one.share) == (len(mine), len(mine) / total)
        assert one.samples_left == int(row["samples"]) - len(mine)
        assert (one.documents, one.tokens) == (len(lengths), int(lengths.sum()))
        assert one.trained_tokens == own.sum()
        assert one.passes == pytest.approx(own.sum() / lengths.sum())
        filled = lengths > 0
        assert one.most_passes == pytest.approx((seen[filled] / lengths[filled]).max())
        assert one.tokens_never == (own[starts[0] : starts[-1]] == 0).sum()
        assert one.visits is not None
        classes = Counter(
            0 if s == 0 else int(s // n) + 1
            for s, n in zip(seen[filled], lengths[filled], strict=True)
        )
        assert one.visits == tuple(classes[n] for n in range(len(one.visits)))
        assert one.lengths == tuple(
            Counter(int(n).bit_length() for n in lengths)[bits] for bits in range(33)
        )
        late = sum(end - begin for parts in mine for _, begin, end in parts if begin)
        assert one.continued == pytest.approx(late / own.sum())
    require_windows(report, samples, tokens_of)


def require_windows(
    report: Report, samples: list[tuple[int, list[tuple[int, int, int]]]], tokens: list[int]
) -> None:
    """Compare windows, steps and the succession of corpora with the samples."""
    squares = [sum((end - begin) ** 2 for _, begin, end in parts) for _, parts in samples]
    windows = report.windows
    assert windows.count == 5
    assert windows.documents is not None
    assert windows.squares is not None
    assert windows.most_squares is not None
    assert windows.padding is not None
    for window in range(5):
        own = slice(40 * window, 40 * window + 40)
        corpora = Counter(corpus for corpus, _ in samples[own])
        for corpus, shares in enumerate(windows.shares):
            assert shares[window] == pytest.approx(corpora[corpus] / 40)
        documents = sum(len(parts) for _, parts in samples[own])
        assert windows.documents[window] == pytest.approx(documents / 40, abs=1e-4)
        assert windows.squares[window] == pytest.approx(
            sum(squares[own]) / 40 / LENGTH**2, abs=1e-5
        )
        assert windows.most_squares[window] == pytest.approx(
            max(squares[own]) / LENGTH**2, abs=1e-5
        )
        padding = 1 - sum(tokens[own]) / (40 * LENGTH)
        assert windows.padding[window] == pytest.approx(padding, abs=1e-5)
    of_steps = [sum(squares[n : n + 20]) / 20 / LENGTH**2 for n in range(0, 200, 20)]
    assert report.steps is not None
    assert report.steps.median_squares == pytest.approx(np.median(of_steps))
    assert report.steps.most_step == int(np.argmax(of_steps)) + 1
    order = [corpus for corpus, _ in samples]
    same = sum(a == b for a, b in itertools.pairwise(order))
    assert report.succession.same == pytest.approx(same / 199)
    runs = re.findall("0+|1+|2+", "".join(map(str, order)))
    assert report.succession.longest == max(map(len, runs))


def test_repeats_are_as_far_apart_as_they_are(tmp_path: Path) -> None:
    """The distances between visits of documents, one by one."""
    path = build_numbered(tmp_path)
    report = make_report(trace(path))
    truth = Tokens(path)
    visits: dict[tuple[int, int], list[int]] = {}
    for position in range(truth.members.size):
        corpus, parts = parts_of(truth, position)
        for sequence, begin, _ in parts:
            if begin == 0:
                visits.setdefault((corpus, sequence), []).append(position)
    assert report.repeats
    for one in report.repeats:
        gaps = [
            b - a
            for (corpus, _), places in visits.items()
            if corpus == one.corpus
            for a, b in itertools.pairwise(places)
        ]
        assert one.repeats == len(gaps) == sum(one.histogram)
        assert (one.least, one.most) == (min(gaps), max(gaps))
        assert one.quartiles[1] == int(np.median(gaps))


def kinds_of(report: Report) -> set[str]:
    """Return the kinds of a report's warnings."""
    return {warning.kind for warning in report.warnings}


def overwrite(path: Path, section: int, name: str, make: Callable[[int], NDArray[Any]]) -> None:
    """Overwrite an array of a cache."""
    cache = Tokens(path).cache
    view = cache.arrays("sections", section)[name]
    path.chmod(0o600)
    with path.open("r+b") as stream:
        stream.seek(view.offset)
        stream.write(make(view.shape[0]).astype(view.dtype).tobytes())


@pytest.fixture
def large(tmp_path: Path) -> Callable[..., Path]:
    """Return what builds a cache of two corpora of some thousand documents."""

    def make(lengths: NDArray[np.int64] | None = None, **fields: Any) -> Path:
        chosen = np.random.default_rng(1)
        prefixes = []
        for name in ("one", "two"):
            sizes = chosen.integers(2, 40, 3000) if lengths is None or name == "two" else lengths
            write_corpus(str(tmp_path / name), [np.zeros(n, "u2") for n in sizes], "u2")
            prefixes.append(str(tmp_path / name))
        weights = fields.pop("weights", [1.0, 1.0])
        blend = [{"path": p, "weight": w} for p, w in zip(prefixes, weights, strict=True)]
        default = {
            "sequence_length": 32,
            "seed": 1,
            "samples": {"train": 2400, "valid": 0, "test": 0},
            "split": "100,0,0",
            "blend": blend,
        }
        name = f"c{len(list(tmp_path.glob('caches/*.h5')))}"
        return Path(here.build(default | fields, tmp_path / "caches", name).path)

    return make


def test_a_sound_cache_has_no_warning(large: Callable[..., Path]) -> None:
    """Nothing is said of a blend of shuffled corpora, each of which is seen about once."""
    assert kinds_of(make_report(trace(large()), batch=8)) == set()


def test_a_wrong_weight_is_named(large: Callable[..., Path]) -> None:
    """A corpus that is seen many times beside one that is seen in part; one that gives nothing."""
    report = make_report(
        trace(large(weights=[50.0, 1.0], samples={"train": 9000, "valid": 0, "test": 0}))
    )
    assert "many passes" in kinds_of(report)
    (warning,) = [one for one in report.warnings if one.kind == "many passes"]
    assert warning.corpus == 0
    assert "lower the weight" in warning.message


def test_a_weight_below_a_sample_is_named(large: Callable[..., Path]) -> None:
    """A corpus whose weight asks for less than one sample."""
    report = make_report(trace(large(weights=[1.0, 1e-9])), samples=2000)
    assert kinds_of(report) == {"tiny weight"}


def test_an_order_that_is_none_is_named(large: Callable[..., Path]) -> None:
    """Samples in the order of the corpus, of which the tail is then never seen."""
    path = large()
    overwrite(path, 0, "document_index", lambda n: np.arange(n) % 3000)
    cache = Tokens(path).cache
    view = cache.arrays("sections", 0)
    lengths = Tokens(path).idx[0].lengths.astype(np.int64)
    ends = np.cumsum(lengths[cache.read(view["document_index"])])
    rows = view["sample_index"].shape[0]
    tokens = np.minimum(np.arange(rows) * 32, ends[-1] - 1)
    places = np.searchsorted(ends, tokens, "right")
    offsets = tokens - (ends[places] - lengths[cache.read(view["document_index"])][places])
    overwrite(path, 0, "sample_index", lambda _: np.stack([places, offsets], axis=1))
    overwrite(path, 0, "shuffle_index", np.arange)
    report = make_report(trace(path), samples=1500)
    assert {"not shuffled", "part never seen"} <= kinds_of(report)
    assert {one.corpus for one in report.warnings} == {0}
    assert "at its end" in " ".join(one.message for one in report.warnings)


def test_a_sorted_corpus_is_named(large: Callable[..., Path]) -> None:
    """Documents by length: validation would see other lengths than training."""
    report = make_report(trace(large(np.sort(np.random.default_rng(2).integers(2, 60, 3000)))))
    assert kinds_of(report) == {"sorted"}


def test_faults_of_shares_are_named(large: Callable[..., Path]) -> None:
    """A share off its weight, another mix in a window, a long run, close repeats, and holes."""
    report = make_report(trace(large()))
    one, two = report.corpora

    def kinds(**changes: Any) -> set[str]:
        return {warning.kind for warning in warnings_of(msgspec.structs.replace(report, **changes))}

    assert report.repeats is not None
    off = msgspec.structs.replace(one, weight=0.3)
    assert kinds(corpora=(off, two)) == {"off its weight"}
    assert kinds(corpora=(off, two), phases=2) == set()
    unseen = msgspec.structs.replace(one, passes=1.5, tokens_never=one.tokens // 10)
    assert kinds(corpora=(unseen, two)) == {"never seen"}
    windows = msgspec.structs.replace(report.windows, samples=100, difference=0.2)
    assert kinds(windows=windows) == {"uneven"}
    run = msgspec.structs.replace(report.succession, longest=500, longest_corpus=0)
    less = msgspec.structs.replace(one, share=0.499, weight=0.499)
    assert kinds(succession=run, corpora=(less, two)) == {"long run"}
    close = RepeatsReport(
        corpus=1,
        documents=9,
        repeats=9,
        least=1,
        quartiles=(1, 2, 3),
        most=9,
        pass_samples=100,
        histogram=(9,),
    )
    assert kinds(repeats=(close,)) == {"close repeats"}


def test_padding_and_heavy_steps_are_named(large: Callable[..., Path]) -> None:
    """Rows that are mostly padding, and a step whose documents are much longer than others'."""
    path = large(pack={"documents": 1})
    assert "padding" in kinds_of(make_report(trace(path)))
    lengths = np.full(3000, 3)
    lengths[1000:1010] = 32 * 8
    report = make_report(
        trace(large(lengths, weights=[1.0, 1e-9], shuffle="megatron")), samples=300, batch=1
    )
    assert "heavy step" in kinds_of(report)


def test_what_cannot_be_reported_is_refused(tmp_path: Path) -> None:
    """More samples than there are, steps that are too large, and windows that are too many."""
    found = trace(build_numbered(tmp_path))
    for fields in ({"samples": 10_000}, {"batch": 10_000}, {"batch": 0}):
        with pytest.raises(ConfigError, match="samples"):
            make_report(found, **fields)  # type: ignore[arg-type]


def test_json_is_the_contract(tmp_path: Path) -> None:
    """A report survives JSON, with every field."""
    report = make_report(trace(build_numbered(tmp_path)), batch=10)
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


class _Text(HTMLParser):
    """Collects what a page loads, and its text outside of scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.text = ""
        self._skips = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]
        self._skips = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        del tag
        self._skips = False

    def handle_data(self, data: str) -> None:
        self.text += "" if self._skips else data


def test_a_page_has_all_in_it(tmp_path: Path) -> None:
    """Warnings, corpora and figures; nothing is loaded, and paths are text."""
    found = trace(build_numbered(tmp_path))
    report = make_report(found, batch=10)
    hostile = msgspec.structs.replace(
        report.corpora[0], corpus="/x/<!--<script><img src=here onerror=alert(1)>"
    )
    planted = (ReportWarning("planted", "a fault"),)
    report = msgspec.structs.replace(
        report, corpora=(hostile, *report.corpora[1:]), warnings=planted
    )
    page = page_of(report)
    parsed = _Text()
    parsed.feed(page)
    assert parsed.loads == []
    for words in ("Corpora", "Shares of corpora", "Distance of repeats", "alert(1)"):
        assert words in parsed.text
    assert "<img" not in page
    assert "1 warning" in parsed.text
    assert "planted: a fault" in parsed.text


@given(
    counts=st.lists(st.integers(0, 3), max_size=12),
    cuts=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    plain=st.booleans(),
)
def test_documents_are_summed_up_one_by_one(
    counts: list[int], cuts: tuple[int, int], plain: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Those without sequences have a place, too; all splits together have each of these once."""
    counts = [1] * len(counts) if plain else counts
    path = str(tmp_path_factory.mktemp("corpus") / "a")
    bounds = np.cumsum([0, *counts])
    lengths = np.arange(1, bounds[-1] + 1)
    write_idx(path, lengths.astype("<i4"), "i4", bounds)
    Path(f"{path}.bin").write_bytes(bytes(int(lengths.sum()) * 4))
    idx = open_idx(path)
    begin, end = sorted(min(cut, len(lengths)) for cut in cuts)
    (found,) = by_documents(idx, begin, end, lengths[begin:end].astype(np.int64))
    truth = []
    for low, high in itertools.pairwise(bounds.tolist()):
        own = range(max(low, begin), min(high, end))
        if own or (low == high and begin <= low < end):
            truth.append(int(sum(lengths[n] for n in own)))
        elif low == high == end == len(lengths) and begin < end:
            truth.append(0)
    if begin < end:
        assert found.tolist() == truth
