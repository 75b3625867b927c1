"""What holds for every order of samples: each is a row of `tests.orders.orders.ORDERS`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import distcache
from distcache.builder.configuration import config_from_mapping
from distcache.builder.run import build
from distcache.cache import Cache, open_cache
from distcache.cache.digests import verify_cache
from distcache.corpus import open_idx
from distcache.errors import ConfigError
from distcache.plan import layout
from distcache.plan.assignment import assign
from tests.orders.orders import ORDERS, Tokens, build_numbered, fields_of, write_numbered
from tests.support import here
from tests.support.caches import Dying
from tests.support.threads import run_ranks

GROWING = [name for name, order in ORDERS.items() if order.grows]


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with corpora."""
    directory = tmp_path_factory.mktemp("numbered")
    write_numbered(directory)
    return directory


def arrays_of(cache: Cache, table: str, row: int) -> dict[str, NDArray[Any]]:
    """Return the arrays of a section or a blend."""
    return {name: cache.read(view) for name, view in cache.arrays(table, row).items()}


def all_arrays(cache: Cache) -> list[dict[str, NDArray[Any]]]:
    """Return the arrays of all sections and blends."""
    return [
        arrays_of(cache, table, row)
        for table in ("sections", "blends")
        for row in range(len(cache.table(table)))
    ]


def test_each_has_a_key_of_its_own(numbered: Path) -> None:
    """And a field that an order does not use is refused."""
    keys = {case: here.plan(fields_of(numbered, case)).key for case in ORDERS}
    assert len(set(keys.values())) == len(ORDERS)
    for case, more in (("windows", {"window": 41}), ("packed", {"pack": {"documents": 9}})):
        assert here.plan(fields_of(numbered, case) | more).key not in keys.values()
    for case in ("megatron", "passes", "none", "packed"):
        with pytest.raises(ConfigError, match="window: only shuffle: windows"):
            here.plan(fields_of(numbered, case) | {"window": 3})


@pytest.mark.parametrize("case", ORDERS)
def test_samples_are_what_the_arrays_say(case: str, tmp_path: Path) -> None:
    """A loader serves the tokens that the plainest reader of Megatron's arrays finds."""
    path = build_numbered(tmp_path, case)
    truth = Tokens(path)
    dataset = distcache.open(path).numpy_dataset(
        "train", inter_document_masking=True, unpadded_bounds=True
    )
    assert len(dataset) == truth.members.size
    for position in range(len(dataset)):
        _, tokens = truth.of(position)
        found = dataset[position]
        inputs = tokens[:-1] if truth.cache.add_extra_token else tokens
        inputs = tokens[: truth.cache.sequence_length] if ORDERS[case].packs else inputs
        own = zip(found["cu_seqlens"][:-1], np.diff(found["cu_seqlens_unpadded"]), strict=True)
        read = np.concatenate([found["tokens"][begin : begin + size] for begin, size in own])
        assert read[: len(inputs)].tolist() == inputs[: len(read)].tolist()
        if not ORDERS[case].packs:
            assert found["labels"][: len(tokens) - 1].tolist() == tokens[1:].tolist()


@pytest.mark.parametrize("case", ORDERS)
def test_each_pass_has_every_sequence(case: str, numbered: Path, tmp_path: Path) -> None:
    """Each equally often; in orders that grow once in each pass, and in another way."""
    fields = fields_of(numbered, case)
    if case in GROWING:
        fields["samples"] = {"train": 1500, "valid": 0}
    plan = here.plan(fields)
    cache = open_cache(here.build(fields, tmp_path).path)
    corpora = cache.table("sections")["source"].tolist()
    assert max(section.size.passes for section in plan.sections) > 1
    for row, (section, corpus) in enumerate(zip(plan.sections, corpora, strict=True)):
        lengths = open_idx(cache.prefixes[corpus]).lengths[section.begin : section.end]
        order = arrays_of(cache, "sections", row)["document_index"]
        counts = np.bincount(order, minlength=section.end)[section.begin :]
        if ORDERS[case].packs:  # a longer one comes in parts
            assert (counts[lengths > 0] >= section.size.passes).all()
            assert not counts[lengths == 0].any()
            continue
        assert set(counts.tolist()) == {section.size.passes}
        if case in GROWING and section.size.passes > 1:
            first, second, *_ = np.split(order, section.size.passes)
            assert sorted(first) == sorted(second)
            assert np.array_equal(first, second) == (case == "none")


@pytest.mark.parametrize("case", GROWING)
def test_more_samples_change_none_of_those_before(
    case: str, numbered: Path, tmp_path: Path
) -> None:
    """All arrays of a cache of more passes begin with those of one of fewer."""
    few, many = (
        all_arrays(
            open_cache(
                here.build(
                    fields_of(numbered, case) | {"samples": {"train": count, "valid": 0}}, tmp_path
                ).path
            )
        )
        for count in (250, 2500)
    )
    for less, more in zip(few, many, strict=True):
        for name, values in less.items():
            assert np.array_equal(values, more[name][: len(values)]), name
    entries = [sum(len(one.get("document_index", [])) for one in some) for some in (few, many)]
    assert entries[1] > 3 * entries[0]


@pytest.mark.few(9)
@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("case", ORDERS)
def test_any_ranks_make_the_same_bytes(
    case: str, ranks: int, numbered: Path, tmp_path: Path, limit: Callable[..., None]
) -> None:
    """Of sections that several ranks build together, whose arrays are those of one rank's."""
    limit("distcache.plan.packing", GROUP=50)
    fields = fields_of(numbered, case)
    usual = all_arrays(open_cache(here.build(fields, tmp_path / "usual").path))
    limit("distcache.plan.layout", SPLITTABLE_FROM=1 << 10)
    alone = Path(here.build(fields, tmp_path / "alone").path)
    config = config_from_mapping(fields)
    items = here.plan(config).items
    assigned = assign(items, layout.make_layout(items), ranks)
    # `builder/test_ranks.py` has sections of Megatron's that are large enough to be shared.
    assert bool(assigned.sliced) == (config.order == "packed")
    outcomes, aborted = run_ranks(ranks, lambda c: build(c, config, tmp_path / "more").path)
    assert not aborted
    assert len(set(map(str, outcomes))) == 1
    assert Path(str(outcomes[0])).read_bytes() == alone.read_bytes()
    verify_cache(open_cache(alone), 1)
    for one, other in zip(usual, all_arrays(open_cache(alone)), strict=True):
        assert {name: values.tobytes() for name, values in one.items()} == {
            name: values.tobytes() for name, values in other.items()
        }


@pytest.mark.parametrize("case", ORDERS)
def test_a_build_that_ended_is_resumed(case: str, numbered: Path, tmp_path: Path) -> None:
    """To the same bytes."""
    fields = fields_of(numbered, case)
    expected = Path(here.build(fields, tmp_path / "whole").path).read_bytes()
    with pytest.raises(RuntimeError, match="ended in reading back"):
        here.build(fields, tmp_path / "again", progress=Dying("reading back"))
    resumed = here.build(fields, tmp_path / "again")
    assert resumed.resumed > 0
    assert Path(resumed.path).read_bytes() == expected
