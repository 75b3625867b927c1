"""Whole builds by 2 to 16 ranks, which are threads of this process: the bytes of one rank's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distcache.builder import blends
from distcache.builder.configuration import config_from_mapping
from distcache.builder.job import BuildOptions
from distcache.builder.run import BuildOutcome, build
from distcache.plan.assignment import assign
from distcache.plan.layout import BLEND_SLICE, make_layout
from tests.builder.wrong_guesses import guess_badly
from tests.support import here
from tests.support.large import write_blend
from tests.support.threads import run_ranks

pytestmark = pytest.mark.slow


def build_by(ranks: int, fields: dict[str, Any], directory: Path, **options: Any) -> bytes:
    """Build with ranks that are threads, and return the bytes of the cache."""
    config = config_from_mapping(fields)
    outcomes, aborted = run_ranks(
        ranks,
        lambda communicator: build(communicator, config, directory, "c", BuildOptions(**options)),
    )
    assert aborted == []
    for outcome in outcomes:
        assert isinstance(outcome, BuildOutcome), outcome
    assert sorted(path.name for path in directory.iterdir()) == ["c.h5", "c.h5.build.json"]
    return (directory / "c.h5").read_bytes()


@pytest.mark.few(3)
@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16])
def test_split_sections(
    ranks: int, large_config: dict[str, Any], serial_bytes: bytes, shared: Path
) -> None:
    """Two ranks shuffle each, and all ranks cut and write it."""
    threads = 1 + ranks % 2
    assert build_by(ranks, large_config, shared, threads=threads) == serial_bytes


@pytest.mark.few(1)
@pytest.mark.parametrize("ranks", [2, 3, 5, 16])
def test_linked_sections(
    ranks: int,
    large_config: dict[str, Any],
    serial_bytes: bytes,
    shared: Path,
    limit: Callable[..., None],
) -> None:
    """No rank holds more than its slice."""
    limit("distcache.plan.costs", LINK_SHARE=0.0, DRAW_SHARE=0.0)
    plan = here.plan(large_config)
    assert len(assign(plan.items, make_layout(plan.items), ranks).linked) == 2
    assert build_by(ranks, large_config, shared) == serial_bytes


def test_links_are_taken_where_they_cost_nothing(
    large_config: dict[str, Any], limit: Callable[..., None]
) -> None:
    """All large sections where links cost nothing, and some of them with 2,048 ranks."""
    plan = here.plan(large_config)
    layout = make_layout(plan.items)
    assert len(assign(plan.items, layout, 2048).linked) > 0
    limit("distcache.plan.costs", LINK_SHARE=0.0, DRAW_SHARE=0.0)
    for ranks in (2, 3, 4):
        assert len(assign(plan.items, layout, ranks).linked) == 2


def test_two_threads_of_one_process(
    large_config: dict[str, Any], serial_bytes: bytes, shared: Path
) -> None:
    """A second thread takes half of a large section."""
    assert Path(here.build(large_config, shared, threads=2).path).read_bytes() == serial_bytes


@pytest.fixture(scope="module", params=["by weight", "exhaustive"])
def blend_case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """More than three slices of a blend over sections that are small beside it."""
    return write_blend(tmp_path_factory.mktemp("corpora"), weighted=request.param == "by weight")


@pytest.fixture(scope="module")
def blend_bytes(blend_case: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The cache that one process builds."""
    return Path(here.build(blend_case, tmp_path_factory.mktemp("alone")).path).read_bytes()


@pytest.mark.parametrize("ranks", [2, 3, 16])
def test_blends(
    ranks: int,
    blend_case: dict[str, Any],
    blend_bytes: bytes,
    shared: Path,
    limit: Callable[..., None],
) -> None:
    """Drawn by all ranks and their threads, from estimated states that are verified."""
    limit("distcache.plan.costs", WORKER_STEPS=1)
    plan = here.plan(blend_case)
    assert plan.blends[0].size > 3 * BLEND_SLICE
    assert len(assign(plan.items, make_layout(plan.items), ranks).sliced) == 1
    assert build_by(ranks, blend_case, shared, threads=1 + ranks % 2) == blend_bytes


@pytest.mark.parametrize(("ranks", "threads"), [(3, 1), (1, 3), (2, 2)])
def test_slices_from_wrong_guesses_are_drawn_again(
    ranks: int,
    threads: int,
    blend_case: dict[str, Any],
    blend_bytes: bytes,
    shared: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: Callable[..., None],
) -> None:
    """From the state with which the slice before has ended, one after the other."""
    begins: list[Any] = []
    original = blends._Slice.draw

    def noting(self: blends._Slice, begin: Any = None) -> None:
        begins.append(begin)
        original(self, begin)

    limit("distcache.builder.blends", RUN_UP=1)
    limit("distcache.plan.costs", WORKER_STEPS=1)
    monkeypatch.setattr(blends, "estimate_counts", guess_badly)
    monkeypatch.setattr(blends._Slice, "draw", noting)
    assert build_by(ranks, blend_case, shared, threads=threads) == blend_bytes
    assert sum(begin is not None for begin in begins) >= 2


@pytest.mark.parametrize("size", [0, 1, 2, 5])
def test_odd_collectives(size: int) -> None:
    """Parts of which some are empty."""
    ranks = max(size, 1)

    def talk(communicator: Any) -> tuple[list[int], list[int]]:
        rank = communicator.rank
        counts = np.array([(rank + other) % 3 for other in range(ranks)], np.int64)
        values = np.repeat(np.arange(ranks) + 10 * rank, counts)
        found, sent = communicator.all_to_all(values, counts, "a test")
        return found.tolist(), sent.tolist()

    outcomes, _ = run_ranks(ranks, talk)
    for rank, outcome in enumerate(outcomes):
        assert not isinstance(outcome, BaseException), outcome
        found, sent = outcome
        assert sent == [(other + rank) % 3 for other in range(ranks)]
        assert found == [
            rank + 10 * other for other in range(ranks) for _ in range((other + rank) % 3)
        ]
