"""The pure decisions of a localization."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from distcache.node.arriving import cut_chunks
from distcache.node.manifest import Block

blocks = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 300)), max_size=8).map(
    lambda ranges: tuple(
        Block(i, begin, begin + size, "0" * 16) for i, (begin, size) in enumerate(ranges)
    )
)


@given(blocks=blocks, size=st.integers(1, 64), data=st.data())
def test_chunks_cover_blocks_in_order(
    blocks: tuple[Block, ...], size: int, data: st.DataObject
) -> None:
    """Each byte of those that are asked for once, in chunks that are not too long."""
    numbers = sorted(
        data.draw(st.sets(st.integers(0, max(len(blocks) - 1, 0)))) if blocks else set()
    )
    chunks = cut_chunks(blocks, numbers, size)
    assert all(0 < chunk.end - chunk.begin <= size for chunk in chunks)
    found = [(chunk.block, byte) for chunk in chunks for byte in range(chunk.begin, chunk.end)]
    wanted = [(n, byte) for n in numbers for byte in range(blocks[n].begin, blocks[n].end)]
    assert found == wanted
