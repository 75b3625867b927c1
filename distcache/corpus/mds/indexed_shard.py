"""Read a shard that a `.shards` file names, and require that it is the one that was indexed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from distcache.corpus.mds.index_json import CODECS
from distcache.corpus.mds.shard_table import DIGESTED
from distcache.corpus.mds.stored_shard import StoredShard, raw_pieces
from distcache.errors import CorpusError


def indexed_pieces(row: Any, path: str) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of a raw shard, in pieces that stay valid.

    Parameters
    ----------
    row : row of `shard_table.ROWS`
        Row of the shard.
    path : str
        Path of the shard's file.

    Raises
    ------
    CorpusError
        If it cannot be read, or, after its last piece, if its digest is known and differs.
    """
    raw_size = int(row["raw_size"])
    size = int(row["zip_size"]) if row["codec"] else raw_size
    stored = StoredShard(path, CODECS[int(row["codec"])], size, raw_size)
    digest = xxhash.xxh3_128()
    try:
        for piece in raw_pieces(stored):
            digest.update(piece.data)
            yield piece
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror}") from error
    if int(row["flags"]) & DIGESTED and digest.digest() != row["raw_digest"].tobytes():
        raise CorpusError(
            f"{path}: is not the shard that was indexed: its digest differs; index the data set "
            "again, and build again"
        )
