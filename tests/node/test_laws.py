"""The pure decisions of a localization."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from distcache.node.copies import AT_ONCE, turns
from distcache.node.pieces import cut, reader_of
from distcache.node.wanted import Unit

units = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 300)), max_size=8).map(
    lambda ranges: tuple(
        Unit(i, begin, begin + size, "0" * 16) for i, (begin, size) in enumerate(ranges)
    )
)


@given(units=units, size=st.integers(1, 64), data=st.data())
def test_pieces_cover_units_in_order(
    units: tuple[Unit, ...], size: int, data: st.DataObject
) -> None:
    """Each byte of those that are asked for once, in pieces that are not too long."""
    numbers = sorted(data.draw(st.sets(st.integers(0, max(len(units) - 1, 0)))) if units else set())
    pieces = cut(units, numbers, size)
    assert all(0 < piece.end - piece.begin <= size for piece in pieces)
    found = [(piece.unit, byte) for piece in pieces for byte in range(piece.begin, piece.end)]
    wanted = [(n, byte) for n in numbers for byte in range(units[n].begin, units[n].end)]
    assert found == wanted


@given(pieces=st.integers(0, 500), agents=st.integers(1, 40))
def test_agents_read_equal_shares(pieces: int, agents: int) -> None:
    """Every piece has one reader, and none reads two more than another."""
    readers = [reader_of(piece, agents) for piece in range(pieces)]
    assert all(0 <= reader < agents for reader in readers)
    counts = [readers.count(agent) for agent in range(agents)]
    assert max(counts) - min(counts) <= 1
    for agent in range(agents):
        assert [p for p, reader in enumerate(readers) if reader == agent] == list(
            range(pieces)[agent::agents]
        )


@given(nodes=st.integers(1, 1000))
def test_turns_are_bounded(nodes: int) -> None:
    """Each node has one, with at most so many others."""
    found = turns(nodes)
    assert [node for turn in found for node in turn] == list(range(nodes))
    assert max(map(len, found)) <= AT_ONCE
