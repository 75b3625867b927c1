"""Epochs become numbers of samples and weights, and a limit says how it can be kept."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distcache.cache import open_cache
from tests.plan.test_make import plan_of, problems_of
from tests.support import here
from tests.support.corpora import write_lengths
from tests.support.processes import start

LENGTH = 16
SPLIT: dict[str, Any] = {"sequence_length": LENGTH, "split": "1"}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two corpora of 9,000 and 2,400 tokens."""
    directory = tmp_path_factory.mktemp("two")
    return [
        write_lengths(directory / "web", np.full(300, 30)),
        write_lengths(directory / "math", np.full(120, 20)),
    ]


@pytest.mark.parametrize("text", ["3 epochs", "3epochs", "3.0 Epochs", "1 epoch", "0.5 epochs"])
@pytest.mark.parametrize("shuffle", ["megatron", "passes", "none"])
def test_epochs_of_one_corpus(text: str, shuffle: str, two: list[str]) -> None:
    """As many samples as its tokens give in so many passes."""
    count = float(text.lower().partition("e")[0])
    plan = plan_of(SPLIT | {"shuffle": shuffle, "samples": {"train": text}, "blend": two[:1]})
    assert plan.identity["samples"]["train"] == (int(count * 9000) - 1) // LENGTH
    assert plan.sections[0].size.passes == max(int(count), 1)
    assert plan.epochs[0].epochs == pytest.approx(count, abs=0.01)


def test_epochs_are_what_their_numbers_are(two: list[str]) -> None:
    """A cache by epochs is the one by samples and weights."""
    first, second = two
    fields = SPLIT | {"blend": [{"path": first, "epochs": 1}, {"path": second, "epochs": 4}]}
    samples = [(9000 - 1) // LENGTH, (4 * 2400 - 1) // LENGTH]
    blend = [{"path": path, "weight": n} for path, n in zip(two, samples, strict=True)]
    by_hand = plan_of(SPLIT | {"samples": {"train": sum(samples)}, "blend": blend})
    found = plan_of(fields)
    assert found.key == by_hand.key
    assert by_hand.epochs == ()
    assert [round(one.epochs, 1) for one in found.epochs] == [1.0, 4.0]
    of_all = plan_of(SPLIT | {"samples": {"train": "2 epochs"}, "blend": two})
    assert [round(one.epochs, 1) for one in of_all.epochs] == [2.0, 2.0]


@settings(max_examples=40, deadline=None)
@given(
    epochs=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    shuffle=st.sampled_from(["megatron", "passes", "none"]),
    data=st.data(),
)
def test_each_token_is_seen_so_often(
    epochs: list[int], shuffle: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """But for those of the last samples, of which one is not whole and one may be too many.

    Corpora of one or two samples are others: Megatron's surplus is a whole pass of them.
    """
    directory = tmp_path_factory.mktemp("epochs")
    blend = []
    lengths = []
    for number, count in enumerate(epochs):
        own = np.array(data.draw(st.lists(st.integers(4, 60), min_size=20, max_size=40)))
        lengths.append(own)
        blend.append({"path": write_lengths(directory / f"{number}", own), "epochs": count})
    cache = open_cache(here.build(SPLIT | {"blend": blend, "shuffle": shuffle}, directory).path)
    total = cache.identity["samples"]["train"]
    drawn = np.zeros(len(blend), np.int64)
    if len(blend) == 1:
        drawn[0] = total
    else:
        index = cache.read(cache.arrays("blends", 0)["dataset_index"])
        drawn[:] = np.bincount(index[:total], minlength=len(blend))
    sections = cache.table("members")["section"]
    for number, (own, count) in enumerate(zip(lengths, epochs, strict=True)):
        wanted = (count * int(own.sum()) - 1) // LENGTH
        assert abs(int(drawn[number]) - wanted) <= 1
        views = cache.arrays("sections", int(sections[number]))  # equal corpora have one
        found = {name: cache.read(view) for name, view in views.items()}
        starts = np.concatenate([[0], np.cumsum(own[found["document_index"]])])
        seen = np.zeros(len(found["document_index"]), np.int64)
        for sample in found["shuffle_index"][:wanted].tolist():
            begin = int(starts[found["sample_index"][sample][0]] + found["sample_index"][sample][1])
            ends = np.minimum(starts[1:], begin + LENGTH)
            seen += np.maximum(ends - np.maximum(starts[:-1], begin), 0)
        per_document = np.bincount(found["document_index"], weights=seen, minlength=len(own))
        assert (per_document <= count * own).all()
        assert count * int(own.sum()) - int(per_document.sum()) <= LENGTH


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"samples": {"train": "0 epochs"}}, "expected more than 0 epochs"),
        ({"samples": {"train": "3 epochs"}, "w": "weight"}, "contradict weights or epochs of each"),
        ({"samples": {"train": "3 epochs"}, "w": "epochs"}, "contradict weights or epochs of each"),
        ({"samples": {"train": 100}, "w": "epochs"}, "the epochs of the corpora say how many"),
        ({"samples": {"train": "0.0001 epochs"}}, "0.0001 epochs give no sample"),
        ({"w": "some"}, "no epochs for .*math; give every corpus epochs, or none"),
        ({"w": "mixed"}, "corpora have weights, and epochs"),
        ({"w": "epochs", "phases": [{"samples": 3, "weights": [1, 1]}]}, "weights or epochs, too"),
        ({"samples": {"valid": "2 epochs"}}, r"samples.valid: Expected `int"),
        ({"samples": {"train": "3 epoches"}}, r"samples.train: expected a number, tokens \("),
        ({"max_epochs": 0}, "max_epochs: Expected `float` > 0"),
    ],
)
def test_what_contradicts_epochs(fields: dict[str, Any], problem: str, two: list[str]) -> None:
    """It is refused, and the error says what to give."""
    first, second = ({"path": path} for path in two)
    kinds: dict[str, list[Any]] = {
        "": two,
        "weight": [first | {"weight": 1}, second | {"weight": 1}],
        "epochs": [first | {"epochs": 1}, second | {"epochs": 2}],
        "some": [first | {"epochs": 1}, second],
        "mixed": [first | {"epochs": 1}, second | {"weight": 1}],
    }
    more = {name: value for name, value in fields.items() if name != "w"}
    found = problems_of(SPLIT | {"blend": kinds[fields.get("w", "")]} | more)
    assert any(re.search(problem, one) for one in found), found


def test_epochs_without_training(two: list[str]) -> None:
    """There is nothing to see several times."""
    fields = {"sequence_length": LENGTH, "samples": {"train": "3 epochs", "valid": 9}}
    found = problems_of(fields | {"blend_per_split": {"valid": [two[0]]}})
    assert found == ("$.samples.train: there is no train split",)


def test_a_corpus_that_is_there_twice(two: list[str]) -> None:
    """Both entries count."""
    blend = [{"path": path, "weight": 1} for path in (two[0], two[0], two[1])]
    found = problems_of(SPLIT | {"samples": {"train": 1000}, "blend": blend, "max_epochs": 1})
    assert "training would see it 1.185 times" in found[0]
    assert sum("web" in problem for problem in found) == 1


@settings(max_examples=40, deadline=None)
@given(counts=st.lists(st.integers(1, 3), min_size=2, max_size=2), packs=st.booleans())
def test_epochs_keep_their_own_limit(counts: list[int], packs: bool, two: list[str]) -> None:
    """Whatever the rounding of shares is."""
    blend = [{"path": p, "epochs": n, "max_epochs": n} for p, n in zip(two, counts, strict=True)]
    more = {"pack": True} if packs else {"add_extra_token": False}
    assert len(plan_of(SPLIT | more | {"blend": blend}).epochs) == 2


def test_validation_has_no_epochs(two: list[str]) -> None:
    """Only training is drawn several times."""
    blends = {"train": [two[0]], "valid": [{"path": two[1], "epochs": 2}]}
    fields = {"sequence_length": LENGTH, "samples": {"train": 10}, "blend_per_split": blends}
    assert "which only training may have" in problems_of(fields)[0]


@settings(max_examples=60, deadline=None)
@given(
    weights=st.tuples(st.floats(0.01, 10), st.floats(0.01, 10)),
    samples=st.integers(200, 20_000),
    limit=st.floats(0.3, 8),
    own=st.booleans(),
)
def test_both_ways_out_of_a_limit_work(
    weights: tuple[float, float], samples: int, limit: float, own: bool, two: list[str]
) -> None:
    """The number of samples, and the weight if one corpus exceeds it, are accepted."""

    def fields(weights: tuple[float, float], samples: int) -> dict[str, Any]:
        blend: list[dict[str, Any]] = [
            {"path": path, "weight": weight} for path, weight in zip(two, weights, strict=True)
        ]
        limits = {} if own else {"max_epochs": limit}
        for entry in blend if own else ():
            entry["max_epochs"] = limit
        return SPLIT | {"samples": {"train": samples}, "blend": blend} | limits

    def epochs(weights: tuple[float, float], samples: int) -> list[float]:
        shares = np.array(weights) / sum(weights)
        return (shares * samples * LENGTH / np.array([9000, 2400])).tolist()

    if max(epochs(weights, samples)) <= limit * (1 - 1e-9):
        assert len(plan_of(fields(weights, samples)).epochs) == 2
        return
    if max(epochs(weights, samples)) <= limit * (1 + 1e-9):
        return
    found = problems_of(fields(weights, samples))
    assert len(found) == sum(one > limit for one in epochs(weights, samples))
    most = int(re.search(r"at most ([\d,]+) samples", found[0])[1].replace(",", ""))  # type: ignore[index]
    assert max(epochs(weights, most)) <= limit * (1 + 1e-9)
    assert max(epochs(weights, most + 1)) > limit * (1 - 1e-9)
    lower = re.search(r"a weight of (\S+) instead", found[0])
    if lower is not None:
        assert len(found) == 1
        own = zip(two, weights, strict=True)
        less = [float(lower[1]) if path in found[0] else weight for path, weight in own]
        assert max(epochs((less[0], less[1]), samples)) <= limit * (1 + 1e-9)


def test_the_command(two: list[str], tmp_path: Path) -> None:
    """`plan` shows what epochs became, and `build` refuses what exceeds a limit."""
    text = f"sequence_length: 16\nsplit: '1'\nblend: [{{path: {two[0]}, epochs: 2}}]\n"
    config = tmp_path / "a.yaml"
    config.write_text(text)
    done = start(["plan", config])
    assert done.returncode == 0, done.stderr
    assert "Epochs of training (1,124 samples)" in done.stdout
    config.write_text(text + "max_epochs: 1.5\n")
    done = start(["build", config, "-o", tmp_path])
    assert done.returncode == 2
    assert "training would see it 1.998 times, and max_epochs is 1.5" in done.stderr
    config.write_text(text.replace("epochs: 2", "epochs: 2, max_epochs: 2"))
    assert (
        start(
            [
                "explain",
                config,
                here.build(
                    SPLIT | {"samples": {"train": 1124}, "blend": two[:1]}, tmp_path / "c"
                ).path,
            ]
        ).returncode
        == 0
    )
