"""Which nodes read data, against the ranks themselves."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcache.errors import ConfigError
from distcache.megatron.arguments import ParallelLayout, parse_readers, reading_nodes

SIZES = st.sampled_from([1, 2, 3, 4])


@given(SIZES, SIZES, SIZES, SIZES, SIZES)
def test_by_every_rank(tp: int, cp: int, dp: int, pp: int, gpus: int) -> None:
    """In Megatron's order of ranks, tensor parallel the fastest and pipeline the slowest."""
    ranks = itertools.product(range(pp), range(dp), range(cp), range(tp))
    reads = [stage in (0, pp - 1) and tensor == 0 for stage, _, _, tensor in ranks]
    reads += [False] * (-len(reads) % gpus)
    if tp * cp * dp * pp % gpus:
        return
    wanted = {rank // gpus for rank, has in enumerate(reads) if has}
    assert reading_nodes(ParallelLayout(tp, cp, pp, gpus), len(reads) // gpus) == wanted


def test_a_large_job() -> None:
    """Half of the nodes of four pipeline stages, and none of a tensor group's second node."""
    assert len(reading_nodes(parse_readers("tp=8,pp=4"), 64)) == 32
    assert reading_nodes(parse_readers("tp=16,gpus=8"), 4) == {0, 2}


@pytest.mark.parametrize("text", ["", "tp", "tp=0", "tp=-1", "dp=2", "tp=2;pp=2", "tp=2,pp"])
def test_other_forms(text: str) -> None:
    """Other forms are refused."""
    with pytest.raises(ConfigError, match="--readers"):
        parse_readers(text)


def test_an_impossible_layout() -> None:
    """An impossible layout is refused with the numbers."""
    with pytest.raises(ConfigError, match="24"):
        reading_nodes(ParallelLayout(tp=8, pp=2, gpus=8), 3)
