"""A reader of Megatron-Core's own loader, for corpora in buckets: exact ranges, by the fetcher.

Megatron has a table of readers by the scheme of a path. Two lines of a training script put this one
into it::

    from megatron.core.datasets import indexed_dataset
    indexed_dataset.OBJECT_STORAGE_BIN_READERS["s3"] = distcache.MegatronBinReader
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distcache.corpus import bin_path
from distcache.errors import CorpusError, NotReady
from distcache.node.ahead.client import FetchClient
from distcache.node.ahead.protocol import Source
from distcache.node.records import read_records
from distcache.node.store import Store, existing_store, local_directory
from distcache.storage.files import closing_fd, read_range
from distcache.storage.url import located
from distcache.train.token_files import TokenFiles


class MegatronBinReader:
    """Reads tokens of a `.bin` in a bucket, as Megatron's ``_BinReader`` classes do.

    A localized cache on this node says which version of the object to read; another version is an
    error. A forked process reads through its own connections.

    Parameters
    ----------
    bin_path : str
        URL of the `.bin`.
    object_storage_config : object
        Megatron's; not needed.

    Raises
    ------
    NotReady
        If no cache on this node is of this corpus.
    """

    def __init__(self, bin_path: str, object_storage_config: Any = None) -> None:
        del object_storage_config
        self._client, self._source, self._copy = _find(located(bin_path))
        self._files = TokenFiles()

    def read(self, dtype: Any, count: int, offset: int) -> NDArray[Any]:
        """Return `count` values that begin at a byte.

        Raises
        ------
        CorpusError
            If the object has changed since it was localized, or has no such bytes.
        DistcacheError
            If it cannot be read.
        """
        kind = np.dtype(dtype)
        size = int(count) * kind.itemsize
        begin = int(offset)
        if begin < 0 or size < 0 or begin + size > self._source.version.size:
            raise CorpusError(
                f"{self._source.path}: has {self._source.version.size} bytes, asked for {size} at "
                f"byte {begin}"
            )
        if self._copy:
            data = self._files.read((self._copy, self._source.version.size), begin, size)
            return np.frombuffer(data, kind)
        if not size:
            return np.empty(0, kind)
        found = self._client.read([self._source], np.array([[0, begin, size]], np.int64))
        with closing_fd(found[self._source]) as descriptor:
            return np.frombuffer(read_range(descriptor, begin, begin + size), kind)


@functools.cache
def _client_of(directory: Any) -> FetchClient:
    return FetchClient(directory)


def _find(path: str) -> tuple[FetchClient, Source, str]:
    """Return what reads an object, of the version that was localized last.

    Returns
    -------
    client : FetchClient
        Client of this node's fetcher.
    source : Source
        The object.
    copy : str
        Path of the node's whole copy; empty if there is none.
    """
    root = local_directory(None, os.environ)
    store = None if root is None else existing_store(root)
    if store is None:
        raise NotReady(f"{path}: localize its cache on this node, and set DISTCACHE_LOCAL_DIR")
    found = _objects_of(store.root, os.stat(store.caches).st_mtime_ns).get(path)
    if found is None:
        raise NotReady(f"{path}: no cache in {root} is of this corpus; localize one that is")
    return _client_of(store.ahead), *found


@functools.lru_cache(1)
def _objects_of(root: Path, _changed: int) -> dict[str, tuple[Source, str]]:
    """Return the objects that caches of a store know, by path, and their copies.

    Megatron makes a reader for each of its corpora: their records are read once.
    """
    store, found = Store(root), {}
    for record in sorted(read_records(store), key=lambda record: record.when):
        for corpus in record.corpora:
            if corpus.bin_version is not None:
                path = bin_path(corpus.shared)
                copy = bin_path(store.prefix(corpus.stem)) if corpus.bin_size else ""
                found[path] = Source(path, corpus.bin_version), copy
    return found
