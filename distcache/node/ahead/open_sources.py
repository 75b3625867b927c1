"""What the fetcher reads from: objects, files, and compressed shards."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from distcache.corpus.mds.stored_shard import StoredShard, indexed_pieces
from distcache.errors import CorpusError
from distcache.node.ahead.protocol import Source
from distcache.storage.files import open_sized, version_of
from distcache.storage.place import FilePlace, Place, bucket_of
from distcache.storage.transient import ATTEMPTS, TRANSIENT, pause_before
from distcache.storage.url import is_url

if TYPE_CHECKING:
    from distcache.storage.bucket import Bucket

OPEN_FILES: Final = 512


class OpenSources:
    """Opens sources. Files stay open; objects and shards hold no descriptor."""

    def __init__(self) -> None:
        self._files: dict[Source, tuple[int, FilePlace]] = {}
        self._lock = threading.Lock()
        self._users: collections.Counter[Source] = collections.Counter()
        self._buckets: set[Bucket] = set()

    @contextlib.contextmanager
    def open(self, source: Source) -> Iterator[Place]:
        """Open a file or an object for the time of the block.

        Raises
        ------
        OSError, CorpusError
            If it cannot be opened, or is not the one of the version.
        """
        if is_url(source.path):
            bucket = bucket_of(source.path)
            with self._lock:
                self._buckets.add(bucket)
            yield bucket.open(source.path, source.version)
            return
        with self._lock:
            if source not in self._files:
                descriptor, size = open_sized(source.path)
                found = version_of(os.fstat(descriptor))
                if (size, found.modified) != (source.version.size, source.version.modified):
                    os.close(descriptor)
                    raise CorpusError(
                        f"{source.path}: is another file than when it was localized; localize again"
                    )
                self._files[source] = descriptor, FilePlace(source.path, descriptor)
            self._users[source] += 1
            place = self._files[source][1]
        try:
            yield place
        finally:
            with self._lock:
                self._users[source] -= 1
                unused = [file for file in self._files if not self._users[file]]
                for file in unused[: max(len(self._files) - OPEN_FILES, 0)]:
                    os.close(self._files.pop(file)[0])

    def requests(self) -> tuple[int, int]:
        """Return how many requests were sent to stores, and how many again."""
        with self._lock:
            buckets = list(self._buckets)
        return sum(b.requests for b in buckets), sum(b.retries for b in buckets)

    def read_into(self, out: NDArray[np.uint8], source: Source, begin: int) -> None:
        """Fill an array with bytes of a source; of a compressed shard, all of the raw one.

        Raises
        ------
        OSError, CorpusError
            If it cannot be read, or is not the one of the version.
        """
        if source.codec:
            _unpack(source, out)
        else:
            with self.open(source) as place:
                place.read_into(out, begin)


def _unpack(source: Source, out: NDArray[np.uint8]) -> None:
    """Unpack a shard, and compare its digest.

    Raises
    ------
    CorpusError
        If it is not the shard that was indexed.
    """
    stored = StoredShard(source.path, source.codec, source.version.size, source.raw_size)
    for attempt in itertools.count(1):
        done = 0
        try:
            for piece in indexed_pieces(stored, source.digest):
                out[done : done + piece.size] = piece
                done += piece.size
        except CorpusError as error:
            cause = error.__cause__
            passes = isinstance(cause, OSError) and cause.errno in TRANSIENT
            if not passes or attempt >= ATTEMPTS:
                raise
            time.sleep(pause_before(attempt))
        else:
            return
