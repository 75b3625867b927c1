"""Phases: Megatron's blend within each, every corpus with its next sample, for any ranks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import distcache
from distcache.builder.blends import PhasedBlender
from distcache.builder.configuration import config_from_mapping
from distcache.builder.run import build
from distcache.cache import open_cache
from distcache.errors import ConfigError, CorpusError
from distcache.kernels import Blender
from distcache.megatron.export import export
from distcache.megatron.names import Naming
from distcache.plan.assignment import assign
from distcache.plan.config import Phase
from distcache.plan.layout import BLEND_SLICE, make_layout
from distcache.plan.model import BlendPlan
from distcache.plan.phase_facts import phase_facts
from distcache.plan.phases import lay_out_phases
from distcache.plan.problems import plan_warnings
from distcache.plan.sizes import normalize
from tests.node.agents import run
from tests.plan.test_make import plan_of, problems_of
from tests.support import here
from tests.support.corpora import LENGTHS, write_lengths
from tests.support.processes import start
from tests.support.scripted_s3 import ScriptedS3
from tests.support.threads import run_ranks

ORDER: dict[str, dict[str, Any]] = {
    **{name: {"shuffle": name} for name in ("megatron", "passes", "windows", "none")},
    "packed": {"pack": True},
}
"""The fields of each order."""


def fields_of(directory: Path, phases: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return the configuration of three corpora and some phases."""
    prefixes = [write_lengths(directory / n, LENGTHS[n]) for n in ("plain", "second", "third")]
    return {
        "sequence_length": 32,
        "split": "80,20,0",
        "samples": {"valid": 100, "test": 0},
        "blend": prefixes,
        "phases": phases,
        **more,
    }


def blend_of(path: str) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Return the blend of training."""
    cache = open_cache(path)
    views = cache.arrays("blends", 0)
    return cache.read(views["dataset_index"]), cache.read(views["dataset_sample_index"])


def megatrons(weights: list[float], steps: int) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Return Megatron's blend of the corpora that have a weight."""
    drawn = np.flatnonzero(weights).astype(np.int16)
    own = normalize(normalize([weights[corpus] for corpus in drawn]))
    corpora, samples = np.empty(steps, np.int16), np.empty(steps, np.int64)
    Blender.by_weight(np.array(own), False).next(corpora, samples)
    return drawn[corpora], samples


THREE = [
    {"samples": 700, "weights": [0.7, 0.3, 0]},
    {"steps": 30, "batch_size": 10, "weights": [0, 0, 5]},
    {"tokens": 32 * 400 - 3, "weights": [1, 1, 2]},
]


def test_laws(tmp_path: Path) -> None:
    """Within a phase it is Megatron's; each corpus gives its samples from 0 on, once each."""
    built = here.build(fields_of(tmp_path, THREE), tmp_path / "caches")
    corpora, samples = blend_of(built.path)
    assert len(corpora) >= 1400
    taken = np.zeros(3, np.int64)
    for begin, end, weights in (
        (0, 700, [0.7, 0.3, 0.0]),
        (700, 1000, [0.0, 0.0, 5.0]),
        (1000, len(corpora), [1.0, 1.0, 2.0]),
    ):
        expected, own = megatrons(weights, end - begin)
        assert np.array_equal(corpora[begin:end], expected)
        assert np.array_equal(samples[begin:end], own + taken[expected])
        taken += np.bincount(expected, minlength=3)
    for corpus in range(3):
        assert samples[corpora == corpus].tolist() == list(range(taken[corpus]))


def test_everything_else_is_the_blend_by_mean_weights(tmp_path: Path) -> None:
    """Sections, validation and sizes; one phase is that blend itself, with its key."""
    fields = fields_of(tmp_path, THREE)
    weights = [700 * 0.7 + 100, 700 * 0.3 + 100, 300 + 200]
    blend = [
        {"path": path, "weight": w / 1400} for path, w in zip(fields["blend"], weights, strict=True)
    ]
    plain = fields | {"blend": blend, "samples": {"train": 1400, "valid": 100, "test": 0}}
    del plain["phases"]
    phased, mean = plan_of(fields), plan_of(plain)
    assert phased.sections == mean.sections
    assert phased.members == mean.members
    assert [b.key for b in phased.blends][1:] == [b.key for b in mean.blends][1:]
    assert phased.blends[0].key != mean.blends[0].key
    assert phased.key != mean.key
    one = fields | {"phases": [{"samples": 1400, "weights": [1, 1, 1]}]}
    equal = [{"path": path, "weight": 1} for path in fields["blend"]]
    assert plan_of(one).key == plan_of(plain | {"blend": equal}).key


@settings(max_examples=50, deadline=None)
@given(
    data=st.data(),
    corpora=st.integers(1, 5),
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=5),
)
def test_a_phased_blend_goes_on_from_any_state(
    data: st.DataObject, corpora: int, sizes: list[int]
) -> None:
    """Whatever the pieces in which it is drawn."""
    numbers = st.lists(st.integers(0, 5), min_size=corpora, max_size=corpora).filter(any)
    phases = [Phase(tuple(map(float, data.draw(numbers))), samples=size) for size in sizes]
    found = lay_out_phases(phases, 1, sum(sizes), fused=False)
    plan = BlendPlan("k", "train", (), (), sum(sizes), False, found)
    whole = (np.empty(plan.size, np.int16), np.empty(plan.size, np.int64))
    PhasedBlender(plan).next(*whole)
    assert np.bincount(whole[0], minlength=corpora).tolist() == list(found[-1].after)
    step = data.draw(st.integers(0, plan.size))
    blender = PhasedBlender(plan)
    blender.skip(step)
    again = PhasedBlender(plan)
    again.resume(np.array(blender.taken))
    count = plan.size - step
    for other in (blender, again):
        part = (np.empty(count, np.int16), np.empty(count, np.int64))
        other.next(*part)
        assert np.array_equal(part[0], whole[0][step:])
        assert np.array_equal(part[1], whole[1][step:])
        with pytest.raises(IndexError):
            other.skip(1)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_any_ranks_make_the_same_bytes(
    ranks: int, tmp_path: Path, limit: Callable[..., None]
) -> None:
    """In slices that begin anywhere within the phases."""
    phases = [
        {"samples": 7 * BLEND_SLICE // 5, "weights": [3, 2, 0]},
        {"samples": 100, "weights": [0, 0, 1]},
        {"samples": 2 * BLEND_SLICE, "weights": [1, 2, 5]},
    ]
    fields = fields_of(tmp_path, phases, sequence_length=2)
    limit("distcache.builder.blends", RUN_UP=50)  # some guesses are wrong
    expected = Path(here.build(fields, tmp_path / "one").path).read_bytes()
    config = config_from_mapping(fields)
    items = plan_of(config).items
    assert assign(items, make_layout(items), ranks).sliced
    outcomes, aborted = run_ranks(ranks, lambda c: build(c, config, tmp_path / "more").path)
    assert not aborted
    assert Path(str(outcomes[0])).read_bytes() == expected


@pytest.mark.parametrize(
    ("phases", "more", "expected"),
    [
        ([], {}, r"phases: Expected `array` of length >= 1"),
        ([{"samples": 5, "weights": [1, 2]}], {}, "2 for 3 corpora"),
        ([{"samples": 5, "tokens": 9, "weights": [1, 2, 3]}], {}, "give samples, or tokens"),
        ([{"steps": 5, "weights": [1, 2, 3]}], {}, "steps with batch_size"),
        ([{"steps": 2**60, "batch_size": 2, "weights": [1, 2, 3]}], {}, "expected at most"),
        (
            [{"samples": 2**33, "weights": [1, 2, 3]}, {"samples": 5, "weights": [1, 2, 3]}],
            {"sequence_length": 2**20},
            "passes for",
        ),
        ([{"samples": 5, "batch_size": 9, "weights": [1, 2, 3]}], {}, "give samples, or tokens"),
        ([{"samples": 5, "weights": [0, 0, 0]}], {}, "add up to nothing"),
        ([{"samples": 5, "weights": [1, 0, 2]}], {}, "second: weight 0.0 is 0"),
        ([{"samples": 5, "weights": [1, 1, 2]}], {"samples": {"train": 9}}, "leave it out"),
        ([{"sample": 5, "weights": [1, 1, 2]}], {}, "did you mean samples"),
    ],
)
def test_phases_that_are_refused(
    phases: list[dict[str, Any]], more: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    """Each says what to do."""
    fields = fields_of(tmp_path, phases) | more
    with pytest.raises(ConfigError, match=expected):
        plan_of(fields)


def test_phases_that_ask_for_more_than_there_is(tmp_path: Path) -> None:
    """A surplus is said that is enough, as for any blend."""
    prefixes = [write_lengths(tmp_path / name, np.full(10, 32)) for name in ("a", "b")]
    # Each phase begins with the first corpus, whose mean weight is a half.
    phases = [{"samples": 1, "weights": [1, 1]}] * 18
    fields = fields_of(tmp_path, phases, mid_level_dataset_surplus=0.0, split="1,0,0")
    fields |= {"blend": prefixes, "samples": {"valid": 0}}
    problems = problems_of(fields)
    assert any(
        "the blend of split train asks it for 18 samples and it has 9" in text for text in problems
    )
    (found,) = (
        re.search(r"([0-9.e-]+) is the smallest that works", text) for text in problems[-1:]
    )
    assert found is not None
    surplus = float(found[1])
    assert plan_of(fields | {"mid_level_dataset_surplus": surplus}).blends[0].size == 18
    assert problems_of(fields | {"mid_level_dataset_surplus": surplus * 0.9})


@settings(max_examples=25, deadline=None)
@given(
    samples=st.lists(st.integers(1, 60), min_size=1, max_size=3),
    data=st.data(),
    order=st.sampled_from(["passes", "packed", "windows", "none"]),
)
def test_any_sample_can_be_continued(
    samples: list[int], data: st.DataObject, order: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Wherever it is within the phases: what was consumed stays, then come the new weights."""
    directory = tmp_path_factory.mktemp("continued")
    numbers = st.lists(st.integers(0, 4), min_size=3, max_size=3)
    weights = [data.draw(numbers.filter(any)) for _ in samples]
    weights[0] = [n + 1 for n in weights[0]]
    phases = [{"samples": n, "weights": w} for n, w in zip(samples, weights, strict=True)]
    fields = fields_of(directory, phases, **ORDER[order], mid_level_dataset_surplus=3.0)
    old = here.build(fields, directory / "caches").path
    corpora, numbers_of = blend_of(old)
    consumed = data.draw(st.integers(1, len(corpora)))
    more = {"continue": {"cache": old, "samples": consumed}}
    more |= {"phases": [{"samples": 20, "weights": [1, 2, 2]}]}
    new, own = blend_of(here.build(fields | more, directory / "caches").path)
    assert np.array_equal(new[:consumed], corpora[:consumed])
    assert np.array_equal(own[:consumed], numbers_of[:consumed])
    for corpus in range(3):
        assert own[new == corpus].tolist() == list(range(int((new == corpus).sum())))


@pytest.mark.parametrize("order", ["megatron", "passes", "none"])
def test_a_cache_that_continues_another(order: str, tmp_path: Path) -> None:
    """Its blend begins with the consumed one, its sections are taken over, new ones begin anew."""
    fields = fields_of(tmp_path, THREE, **ORDER[order])
    first = fields | {"blend": fields["blend"][:2]}
    first["phases"] = [{**phase, "weights": phase["weights"][:2]} for phase in THREE[::2]]
    old = here.build(first, tmp_path / "caches")
    more = {"samples": 200, "weights": [0, 1, 3]}
    second = fields | {"continue": {"cache": old.path, "samples": 777}, "phases": [more]}
    new = here.build(second, tmp_path / "caches")
    assert new.reused_items >= (2 if order == "megatron" else 1)
    (earlier, own), (corpora, samples) = blend_of(old.path), blend_of(new.path)
    assert len(corpora) == 977
    assert np.array_equal(corpora[:777], earlier[:777])
    assert np.array_equal(samples[:777], own[:777])
    expected, numbers = megatrons([0.0, 1.0, 3.0], 200)
    taken = np.bincount(earlier[:777], minlength=3)
    assert np.array_equal(corpora[777:], expected)
    assert np.array_equal(samples[777:], numbers + taken[expected])
    keys = [open_cache(path).table("sections")["key"].tolist() for path in (old.path, new.path)]
    assert order != "megatron" or set(keys[0][:2]) <= set(keys[1])
    third = second | {"continue": {"cache": new.path, "samples": 800}, "phases": [more]}
    again = blend_of(here.build(third, tmp_path / "caches").path)[0]
    assert np.array_equal(again[:800], corpora[:800])
    moved = second | {"blend": [fields["blend"][n] for n in (1, 0, 2)]}
    with pytest.raises(ConfigError, match="not in the order of"):
        plan_of(moved)
    with pytest.raises(ConfigError, match="continues another cache"):
        export(open_cache(new.path), tmp_path / "out")
    with pytest.raises(ConfigError, match="continues another cache"):
        run(Path(new.path), tmp_path / "local", naming=Naming())


@pytest.mark.parametrize("count", [1, 2])
def test_weights_are_one_phase(count: int, tmp_path: Path) -> None:
    """Weights with `samples.train`, or one corpus, continue and are continued as a phase does."""
    fields = fields_of(tmp_path, []) | {"shuffle": "passes"}
    del fields["phases"]
    blend = fields["blend"][:count]
    weighted = blend if count == 1 else [{"path": path, "weight": 2} for path in blend]
    samples = {"train": 500, "valid": 10, "test": 0}
    old = here.build(fields | {"blend": weighted, "samples": samples}, tmp_path / "caches").path
    more = fields | {"continue": {"cache": old, "samples": 300}}
    by_weights = plan_of(more | {"blend": weighted, "samples": samples | {"train": 400}})
    phases = [{"samples": 400, "weights": [2] * count}]
    by_phases = plan_of(more | {"blend": blend, "phases": phases, "samples": {"valid": 10}})
    if count > 1:
        assert by_weights.key == by_phases.key
    begun = distcache.open(old).dataset("train")
    found = distcache.open(
        here.build(
            more | {"blend": weighted, "samples": samples | {"train": 400}}, tmp_path / "caches"
        ).path
    ).dataset("train")
    assert len(found) == 700
    for sample in (0, 1, 299):
        assert found[sample]["tokens"].equal(begun[sample]["tokens"])
    with pytest.raises(ConfigError, match=r"say what follows: weights, or one corpus, with"):
        plan_of(more | {"blend": blend, "samples": {"valid": 10}})


def test_weights_by_name(tmp_path: Path) -> None:
    """A phase names corpora by their paths, or by the ends of them; the others have none."""
    phases = [{"samples": 90, "weights": [3, 0, 1]}, {"samples": 60, "weights": [0, 1, 0]}]
    fields = fields_of(tmp_path, phases)
    plain = fields["blend"][0]
    named = [
        {"samples": 90, "weights": {"third": 1, plain: 3}},
        {"samples": 60, "weights": {"second": 1}},
    ]
    assert plan_of(fields | {"phases": named}).key == plan_of(fields).key
    for name, blend, expected in (
        (
            "fourth",
            fields["blend"],
            "no corpus of training is named so; there are ",
        ),
        ("plain", [plain, str(tmp_path / "x" / "plain")], "several corpora are named so, give the"),
    ):
        wrong = [{"samples": 9, "weights": {name: 1}}]
        with pytest.raises(ConfigError, match=expected):
            plan_of(fields | {"phases": wrong, "blend": blend})


def test_what_cannot_be_continued(tmp_path: Path) -> None:
    """Each says what is wrong."""
    fields = fields_of(tmp_path, THREE)
    old = here.build(fields, tmp_path / "caches").path
    more = [{"samples": 20, "weights": [1, 1, 3]}]
    for change, expected in (
        ({"continue": {"cache": old, "samples": 99_999}}, "99999, and .* has 14"),
        ({"seed": 5}, "seed is 5, and 1234"),
        ({"pack": True}, "packing is .* and None"),
        (
            {
                "blend": fields["blend"][:2],
                "phases": [{"samples": 9, "weights": [1, 1]}],
                "continue": {"cache": old, "samples": 1000},
            },
            "third is missing",
        ),
        ({"phases": [{"samples": 90_000, "weights": [1, 1, 3]}]}, "whose section has"),
    ):
        wrong = fields | {"continue": {"cache": old, "samples": 700}, "phases": more} | change
        with pytest.raises(ConfigError, match=expected):
            plan_of(wrong)
    write_lengths(tmp_path / "plain", LENGTHS["plain"][::-1])
    with pytest.raises(ConfigError, match="is not the corpus that"):
        plan_of(fields | {"continue": {"cache": old, "samples": 700}, "phases": more})


def test_what_a_plan_says_of_phases(tmp_path: Path) -> None:
    """Shares, samples and passes at the end of each, and what looks like a mistake."""
    phases = [
        {"samples": 105, "weights": [3, 1, 1]},
        {"steps": 50, "batch_size": 10, "weights": [0, 1, 0]},
        {"samples": 400, "weights": [1, 1, 2]},
    ]
    config = config_from_mapping(fields_of(tmp_path, phases))
    plan = plan_of(config)
    facts = phase_facts(plan)
    assert [(phase.begin, phase.samples) for phase in facts[:2]] == [(0, 105), (105, 500)]
    assert [round(own.share, 2) for own in facts[0].corpora] == [0.6, 0.2, 0.2]
    assert [own.samples for own in facts[1].corpora] == [63, 521, 21]
    section = plan.sections[plan.members[1].section]
    once = (section.tokens - 1) / 32
    assert facts[1].corpora[1].passes == pytest.approx(521 / once, rel=0.02)
    warnings = plan_warnings(config, plan)
    assert any("[1]: begins at sample 105, within a batch of 10" in text for text in warnings)
    used_up = [text for text in warnings if "is used up in it" in text]
    assert used_up
    assert all("passes at its end" in text for text in used_up)


@pytest.mark.parametrize("order", ["passes", "packed"])
def test_what_has_grown_is_compared_too(order: str, tmp_path: Path) -> None:
    """A corpus that was written anew is found, whatever is asked of it; so is another packing."""
    fields = fields_of(tmp_path, THREE, **ORDER[order])
    old = here.build(fields, tmp_path / "caches").path
    more = [{"samples": 9000, "weights": [1, 1, 3]}]
    second = fields | {"continue": {"cache": old, "samples": 700}, "phases": more}
    assert plan_of(second).sections[0].size.passes > plan_of(fields).sections[0].size.passes
    if order == "packed":
        with pytest.raises(ConfigError, match="packing is"):
            plan_of(second | {"pack": {"documents": 2}})
    write_lengths(tmp_path / "plain", LENGTHS["plain"][::-1])
    with pytest.raises(ConfigError, match="is not the corpus that"):
        plan_of(second)


def test_a_corpus_that_was_not_reached_may_go(tmp_path: Path) -> None:
    """Of a later phase, which is not continued."""
    old = here.build(fields_of(tmp_path, THREE), tmp_path / "caches").path
    fields = fields_of(tmp_path, [{"samples": 50, "weights": [1, 1]}])
    second = fields | {"blend": fields["blend"][:2], "continue": {"cache": old, "samples": 600}}
    corpora = blend_of(here.build(second, tmp_path / "caches").path)[0]
    assert np.array_equal(corpora[:600], blend_of(old)[0][:600])


@pytest.mark.parametrize("of", ["one corpus", "no sequences"])
def test_phases_without_a_blend(of: str, tmp_path: Path) -> None:
    """Of one corpus, which has no weights; of a split without sequences, which has no samples."""
    fields = fields_of(tmp_path, [{"samples": 10, "weights": [1]}, {"samples": 1, "weights": [1]}])
    if of == "one corpus":
        del fields["split"]
        fields |= {"blend_per_split": {"train": [fields.pop("blend")[0]]}, "samples": {"valid": 0}}
        config = config_from_mapping(fields)
        assert plan_of(config).sections[0].size.samples >= 11
    else:
        fields |= {"split": "0,1,0", "blend": fields["blend"][:1]}
        config = config_from_mapping(fields)
        assert {member.split for member in plan_of(config).members} == {"valid"}
    assert not any("phases" in text for text in plan_warnings(config, plan_of(config)))


@pytest.mark.parametrize("order", ["megatron", "passes"])
@pytest.mark.parametrize("left", ["idx", "bin", ""])
def test_a_corpus_that_is_drawn_no_more_may_go(order: str, left: str, tmp_path: Path) -> None:
    """The cache that follows is the same without its files; nothing that follows reads them."""
    old = here.build(fields_of(tmp_path, THREE, **ORDER[order]), tmp_path / "caches").path
    more = [{"samples": 50, "weights": [1, 0, 2]}]
    fields = fields_of(tmp_path, more, **ORDER[order])
    second = fields | {"continue": {"cache": old, "samples": 700}}
    whole = here.build(second, tmp_path / "caches", "whole")
    for suffix in {"idx", "bin"} - {left}:
        (tmp_path / f"second.{suffix}").unlink()
    found = here.build(second, tmp_path / "caches", "found")
    assert Path(found.path).read_bytes()[4096:] == Path(whole.path).read_bytes()[4096:]
    assert found.key == whole.key
    for name in ("whole", "found"):  # the one was built when all files were there
        here.localize(tmp_path / "caches" / f"{name}.h5", tmp_path / "store")
    assert not list((tmp_path / "store").rglob("second*"))
    for local in (None, tmp_path / "store"):
        cache = distcache.open(found.path, local=local)
        for split, begin in (("train", 700), ("valid", 0)):
            dataset = cache.dataset(split)
            for position in range(begin, len(dataset), 7):
                dataset[position]
    (tmp_path / "second.json").write_text(json.dumps(second))
    assert start(["explain", tmp_path / "second.json", found.path]).returncode == 0
    assert start(["verify", found.path, "--corpora"]).returncode == (3 if left == "idx" else 0)
    third = fields | {"continue": {"cache": found.path, "samples": 720}}
    assert here.build(third, tmp_path / "caches", "third").key


def test_a_corpus_that_is_drawn_no_more_stays_where_it_is(
    server: ScriptedS3, tmp_path: Path
) -> None:
    """Neither nodes nor a bucket get it, also if it is there, or another one is."""
    old = here.build(fields_of(tmp_path, THREE), tmp_path / "caches").path
    fields = fields_of(tmp_path, [{"samples": 50, "weights": [1, 0, 2]}])
    fields |= {"continue": {"cache": old, "samples": 700}}
    new = here.build(fields, tmp_path / "caches", "new").path
    write_lengths(tmp_path / "second", np.full(9, 9))
    here.localize(new, tmp_path / "store")
    assert not list((tmp_path / "store").rglob("second*"))
    words = ["upload", new, "--out", "s3://lake/caches", "--corpora"]
    done = start(words, environment=server.environment)
    assert done.returncode == 0, done.stderr
    assert not [name for name in server.objects if "second" in name]
    (tmp_path / "third.bin").unlink()
    for again in (words, ["localize", new, "--store", tmp_path / "other"]):
        done = start(again, environment=server.environment)
        assert done.returncode == 5, done.stderr
        assert "third.bin" in done.stderr


def test_what_is_drawn_must_not_be_gone(tmp_path: Path) -> None:
    """By training that follows, or by a validation set that names it."""
    fields = fields_of(tmp_path, THREE)
    old = here.build(fields, tmp_path / "caches").path
    (tmp_path / "second.idx").unlink()
    second = fields | {"continue": {"cache": old, "samples": 700}}
    for weights in ([1, 0.1, 2], [0, 1, 1]):
        with pytest.raises(CorpusError, match=r"second\.idx: no such file"):
            plan_of(second | {"phases": [{"samples": 50, "weights": weights}]})
    with pytest.raises(CorpusError, match=r"second\.idx: no such file"):
        plan_of(fields)


def test_a_corpus_that_stands_twice_is_gone_only_if_both_have_ended(tmp_path: Path) -> None:
    """One of the two is still drawn."""
    fields = fields_of(tmp_path, [{"samples": 50, "weights": [1, 1]}])
    plain, second = fields["blend"][:2]
    old = here.build(fields | {"blend": [plain, second]}, tmp_path / "caches").path
    more = {"continue": {"cache": old, "samples": 40}, "blend": [plain, second, plain]}
    more["phases"] = [{"samples": 20, "weights": [0, 1, 1]}]
    (tmp_path / "plain.bin").unlink()
    with pytest.raises(CorpusError, match=r"plain\.bin: cannot be read"):
        plan_of(fields | more)


def test_one_corpus_alone_is_continued(tmp_path: Path) -> None:
    """As a run of one phase: by the samples that it asked for, or by one pass."""
    fields = fields_of(tmp_path, [{"samples": 50, "weights": [1, 1]}])
    blend = fields["blend"][:2]
    for name, samples in (("some", {"train": 300, "valid": 0}), ("pass", {"train": None})):
        first = {k: v for k, v in fields.items() if k != "phases"} | {"samples": samples}
        old = here.build(first | {"blend": blend[:1]}, tmp_path / "caches", name)
        more = {"continue": {"cache": old.path, "samples": 120}, "blend": blend}
        new = here.build(fields | more, tmp_path / "caches", f"next-{name}")
        corpora, samples_of = blend_of(new.path)
        assert not corpora[:120].any()
        assert samples_of[:120].tolist() == list(range(120))
        alone = distcache.open(old.path).dataset("train")
        following = distcache.open(new.path).dataset("train")
        for position in (0, 50, 119):
            assert np.array_equal(alone[position]["tokens"], following[position]["tokens"])
        with pytest.raises(ConfigError, match=r"and .* has"):
            plan_of(fields | more | {"continue": {"cache": old.path, "samples": 10**6}})
