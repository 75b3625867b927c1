"""Read shards of a finished corpus again, and compare their digests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xxhash

from distcache.corpus import Fault
from distcache.corpus.shard_table import DIGESTED, ShardTable, read_table
from distcache.errors import BuildInterrupted, DistcacheError
from distcache.mds.index_json import CODECS
from distcache.mds.stored_shard import StoredShard, raw_pieces
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
            size = int(row["zip_size"]) if row["codec"] else int(row["raw_size"])
            stored = StoredShard(path, CODECS[int(row["codec"])], size, int(row["raw_size"]))
            digest = xxhash.xxh3_128()
            for piece in raw_pieces(stored):
                digest.update(piece.data)
        except BuildInterrupted:
            raise
        except (DistcacheError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            yield Fault(prefix, path, f"cannot be read: {reason}".replace(f"{path}: ", ""))
            continue
        if int(row["flags"]) & DIGESTED and digest.digest() != row["raw_digest"].tobytes():
            yield Fault(prefix, path, "is not the shard that was indexed: its digest differs")
