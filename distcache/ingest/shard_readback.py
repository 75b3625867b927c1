"""Read shards of a finished corpus again, and compare their digests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from distcache.corpus import Fault
from distcache.corpus.indexed_shard import indexed_pieces
from distcache.corpus.shard_table import ShardTable, read_table
from distcache.errors import CorpusError
from distcache.ranks.agreement import on_all_ranks
from distcache.ranks.communicator import Communicator

__all__ = ["compare_shards"]


def compare_shards(communicator: Communicator, prefix: str, count: int) -> list[Fault]:
    """Compare the shards that have evenly spread sequences of a corpus. Collective.

    Parameters
    ----------
    communicator : Communicator
        Of all ranks, which distribute the shards.
    prefix : str
        Of a sound corpus.
    count : int
        How many sequences.

    Returns
    -------
    list of Fault
        One for each shard that is another one than was indexed, or cannot be read.
    """

    def compare() -> list[Fault]:
        table = read_table(prefix)
        wanted = (2 * np.arange(count) + 1) * table.sequences // (2 * count)
        firsts = table.rows["first_sequence"].astype(np.int64)
        shards = np.unique(np.searchsorted(firsts, wanted, "right") - 1).tolist()
        return list(_faults(prefix, table, shards[communicator.rank :: communicator.size]))

    found = on_all_ranks(communicator, compare, "reading shards back")
    shares = communicator.allgather(found, list[Fault], "shards that differ")
    return [fault for share in shares for fault in share]


def _faults(prefix: str, table: ShardTable, shards: list[int]) -> Iterator[Fault]:
    for shard in shards:
        row, path = table.rows[shard], table.path_of(shard)
        try:
            for _ in indexed_pieces(row, path):
                pass
        except CorpusError as error:
            yield Fault(prefix, path, str(error).removeprefix(f"{path}: "))
