"""Read shards of a finished corpus again; compare their digests, and the `.bin` made of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from distcache.corpus import Fault, bin_path
from distcache.corpus.mds.indexed_shard import indexed_pieces
from distcache.corpus.mds.shard_table import DIGESTED, ShardTable, read_table, shards_path
from distcache.errors import CorpusError
from distcache.ranks.agreement import on_all_ranks, own_share
from distcache.ranks.communicator import Communicator
from distcache.storage.files import closing_fd, open_regular, read_range


def compare_shards(communicator: Communicator, prefix: str, count: int) -> list[Fault]:
    """Compare the shards that have evenly spread sequences of a corpus. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks, which divide the shards.
    prefix : str
        Prefix of a sound corpus.
    count : int
        Number of sequences.

    Returns
    -------
    list of Fault
        One for each shard that is another one than was indexed, cannot be read, or differs from
        the `.bin` beside the index.
    """

    def compare() -> list[Fault]:
        table = read_table(prefix)
        if not (table.rows["flags"] & DIGESTED).all():
            message = "has no digests of shards, since it was indexed with --headers-only"
            return [Fault(prefix, shards_path(prefix), message)] if not communicator.rank else []
        wanted = (2 * np.arange(count) + 1) * table.sequences // (2 * count)
        firsts = table.rows["first_sequence"].astype(np.int64)
        shards = np.unique(np.searchsorted(firsts, wanted, "right") - 1).tolist()
        return list(_faults(prefix, table, own_share(communicator, shards)))

    found = on_all_ranks(communicator, compare, "reading shards back")
    shares = communicator.allgather(found, list[Fault], "shards that differ")
    return [fault for share in shares for fault in share]


def _faults(prefix: str, table: ShardTable, shards: list[int]) -> Iterator[Fault]:
    unpacked = bin_path(prefix)
    with contextlib.ExitStack() as stack:
        descriptor = None
        if os.path.lexists(unpacked):
            descriptor = stack.enter_context(closing_fd(open_regular(unpacked)))
        for shard in shards:
            row, path = table.rows[shard], table.path_of(shard)
            try:
                same = _is_unpacked(indexed_pieces(row, path), descriptor, int(row["base"]))
            except CorpusError as error:
                yield Fault(prefix, path, str(error).removeprefix(f"{path}: "))
                continue
            except EOFError:  # someone cuts the .bin short at this moment
                same = False
            if not same:
                yield Fault(prefix, unpacked, f"differs from shard {path}; unpack it again")


def _is_unpacked(
    pieces: Iterator[NDArray[np.uint8]], descriptor: int | None, position: int
) -> bool:
    """Read a shard to its end; return whether an unpacked file, if any, has the same bytes."""
    same = True
    for piece in pieces:
        end = position + piece.size
        if descriptor is not None:
            same &= read_range(descriptor, position, end) == piece.tobytes()
        position = end
    return same
