"""How ranks agree, and how they end where they cannot."""

from __future__ import annotations

import pytest

from distcache.errors import DistcacheError, NotReady
from distcache.ranks.agreement import on_all_ranks, on_all_ranks_watched, on_rank_0
from distcache.ranks.communicator import Communicator, SerialCommunicator
from tests.support.threads import run_ranks


def test_agreeing_within_agreeing_is_impossible() -> None:
    """It would be a collective that some ranks do not take part in."""
    world = SerialCommunicator()
    with pytest.raises(RuntimeError, match="inner"):
        on_all_ranks(world, lambda: on_all_ranks(world, lambda: 1, "inner"), "outer")
    with pytest.raises(RuntimeError, match="inner"):
        on_all_ranks(world, lambda: on_rank_0(world, lambda: 1, int, "inner"), "outer")
    with pytest.raises(RuntimeError, match="inner"):  # in the thread that is watched, too
        on_all_ranks_watched(world, lambda: on_all_ranks(world, lambda: 1, "inner"), "outer")
    assert on_all_ranks(world, lambda: 1, "after it") == 1


def test_all_ranks_have_the_problems_of_all() -> None:
    """All ranks have the problems of all, with the ranks that had them."""

    def work(world: Communicator) -> tuple[tuple[int, ...], str]:
        def fail() -> None:
            if world.rank != 1:
                raise DistcacheError(f"problem {world.rank}")

        with pytest.raises(DistcacheError) as caught:
            on_all_ranks(world, fail, "work")
        return caught.value.failed_ranks, str(caught.value)

    found, _ = run_ranks(3, work)
    assert len(set(found)) == 1
    ranks, text = found[0]
    assert ranks == (0, 2)
    assert "problem 0" in text
    assert "problem 2" in text


def test_a_problem_with_a_name_that_is_no_text() -> None:
    """Reaches all ranks: the name is escaped."""

    def work(world: Communicator) -> str:
        def fail() -> None:
            if world.rank == 0:
                raise NotReady("/data/\udcff.idx: no such file")

        with pytest.raises(NotReady) as caught:
            on_all_ranks(world, fail, "work")
        return str(caught.value)

    assert set(run_ranks(3, work)[0]) == {r"/data/\udcff.idx: no such file"}
