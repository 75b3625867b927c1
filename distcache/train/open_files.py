"""What a process has open: the node's ready copy of a cache if there is one, or the shared file."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

import msgspec

from distcache.cache import Cache
from distcache.cache import open_cache as open_mapped
from distcache.cache.contents import open_cache_file, packed_sources
from distcache.cache.corpus_places import (
    located_moved,
    moves_from,
    moves_of,
    prefix_renamer,
)
from distcache.cache.mapped_section import open_own_idx
from distcache.corpus import Idx, bin_path, idx_path
from distcache.corpus.loss import loss_path
from distcache.errors import (
    CacheCorrupt,
    ConfigError,
    DistcacheError,
    NotReady,
    SharedFileWarning,
)
from distcache.node.ahead.client import FetchClient
from distcache.node.ahead.protocol import Source
from distcache.node.lock import try_shared
from distcache.node.records import (
    AHEAD,
    Ready,
    read_record,
    read_records,
)
from distcache.node.store import Store, cache_name, existing_store, local_directory
from distcache.storage.url import is_url, located
from distcache.train.token_places import TokenPlaces, find_tokens


class CacheHandle(msgspec.Struct, frozen=True):
    """What a process needs to open a cache; small, so that every worker can get it."""

    path: str  # the shared cache, absolute, or its URL
    # this node's store and the name of the copy in it; empty if the shared file is read
    store: str
    name: str
    directory: str  # the working directory for relative paths of shared corpora
    reason: str  # why that file is read, in a few words
    moves: tuple[tuple[str, str], ...] = ()  # former and present paths of corpora that were moved

    def open(self) -> OpenFiles:
        """Open this node's copy, or else the shared file with a `SharedFileWarning`.

        Raises
        ------
        NotReady
            If neither exists.
        CacheCorrupt
            If the shared file is not whole.
        """
        if not self.name:
            return self.open_shared()
        try:
            return self.open_copy()
        except (NotReady, CacheCorrupt) as error:
            # Another job may be repairing it, or it may have been deleted.
            _warn(self.path, error)
            return self.open_shared()

    def open_shared(self) -> OpenFiles:
        """Open the shared file.

        Raises
        ------
        NotReady
            If it, or a corpus, is in a bucket, which only copies on a node are read of.
        """
        if is_url(self.path):
            raise NotReady(f"{self.path}: {self.reason}; run `distcache localize` on this node")
        cache = open_mapped(self.path)
        shared = [located_moved(self.directory, prefix, self.moves) for prefix in cache.prefixes]
        if (remote := next(filter(is_url, shared), None)) is not None:
            raise NotReady(
                f"{self.path}: its corpus {remote} is in a bucket; run `distcache localize` on "
                "this node"
            )
        return OpenFiles(self, cache, shared, shared, shared, None)

    def open_copy(self) -> OpenFiles:
        """Open this node's copy, which cannot be removed until it is closed.

        Raises
        ------
        NotReady
            If it is not complete.
        CacheCorrupt
            If it is not whole.
        """
        store = Store(Path(self.store))
        lock = try_shared(store.use_lock(self.name))
        try:
            record = read_record(store, self.name)
            if lock is None or record is None:
                raise NotReady(f"{store.root} has no complete copy of it")
            _require_files(store, record)
            cache = open_mapped(store.cache(self.name))
        except BaseException:
            if lock is not None:
                os.close(lock)
            raise
        local = [store.prefix(corpus.stem) for corpus in record.corpora]
        rename = prefix_renamer(self.moves)
        tokens = [
            here if corpus.bin_size else rename(corpus.shared)
            for here, corpus in zip(local, record.corpora, strict=True)
        ]
        fetched = {
            source: Source(bin_path(rename(corpus.shared)), corpus.bin_version)
            for source, corpus in enumerate(record.corpora)
            if corpus.bin_version is not None and not corpus.bin_size
        }
        unpacked = packed_sources(cache) if record.request.tokens == AHEAD else frozenset()
        client = FetchClient(store.ahead) if fetched or unpacked else None
        shared = [rename(corpus.shared) for corpus in record.corpora]
        return OpenFiles(self, cache, local, tokens, shared, lock, fetched, unpacked, client)


def _require_files(store: Store, record: Ready) -> None:
    """Require that all files of a copy exist: some may have been deleted."""
    files = {str(store.cache(record.name)): record.size}
    for corpus in record.corpora:
        prefix = store.prefix(corpus.stem)
        if corpus.idx_size:
            files[idx_path(prefix)] = corpus.idx_size
        if corpus.bin_size:
            files[bin_path(prefix)] = corpus.bin_size
        if corpus.loss_size:
            files[loss_path(prefix)] = corpus.loss_size
    for path, size in files.items():
        try:
            found = os.lstat(path).st_size
        except OSError as error:
            raise NotReady(f"{path}: {error.strerror}; localize it again") from error
        if found != size:
            raise NotReady(f"{path} has {found} bytes, expected {size}; localize it again")


class OpenFiles:
    """An open cache, and the paths of its corpora; made by `open_files`.

    Attributes
    ----------
    handle : CacheHandle
        Handle for another process to open it.
    cache : Cache
        Mapped cache.
    fetch_client : FetchClient or None
        Client of the node's fetcher, if that reads the tokens of any corpus.
    """

    def __init__(
        self,
        handle: CacheHandle,
        cache: Cache,
        indices: Sequence[str],
        tokens: Sequence[str],
        shared: Sequence[str],
        lock: int | None,
        fetched: Mapping[int, Source] = {},
        unpacked_ahead: Set[int] = frozenset(),
        client: FetchClient | None = None,
    ) -> None:
        self.handle = handle
        self.cache = cache
        self._fetched = fetched
        self._unpacked_ahead = unpacked_ahead
        self.fetch_client = client
        self._indices = indices
        self._tokens = tokens
        self._shared = shared
        self._lock = lock

    def __del__(self) -> None:
        if self._lock is not None:
            os.close(self._lock)

    @property
    def fetched_sources(self) -> list[Source]:
        """The `.bin` files that the node's fetcher reads."""
        return list(self._fetched.values())

    @property
    def is_local(self) -> bool:
        """Whether the node's copy is read, and not the shared file."""
        return self._lock is not None

    def tokens_of(self, source: int) -> TokenPlaces:
        """Return where the tokens of a corpus are: in a `.bin`, or in the shards that make it up.

        Raises
        ------
        NotReady
            If a shard is compressed, and the `.bin` is not there.
        """
        size = int(self.cache.table("sources")["bin_size"][source])
        found = find_tokens(
            self.cache,
            source,
            self._tokens[source],
            size,
            unpacked_ahead=source in self._unpacked_ahead,
        )
        if loss_size := self.cache.loss_size(source):
            shared = self._shared[source]
            place = self._indices[source] if is_url(shared) else shared
            found = dataclasses.replace(found, loss=(loss_path(place), loss_size))
        if found.begins is None and source in self._fetched:
            fetched = self._fetched[source]
            return dataclasses.replace(found, fetched=lambda _: fetched)
        return found

    def idx_of(self, source: int) -> Idx:
        """Map a corpus's index.

        Raises
        ------
        NotReady, CorpusError
            If it does not exist, or is not the index that the cache was built from.
        """
        try:
            return open_own_idx(self.cache, source, self._indices[source])
        except NotReady as error:
            raise NotReady(f"{error}{_moved_advice(self.is_local)}") from error

    def shared_prefix(self, source: int) -> str:
        """Return the path of a corpus on the shared filesystem, after moves."""
        return self._shared[source]


def open_files(
    path: str | Path, local: str | Path | None, prefixes: Mapping[str, str] | None
) -> OpenFiles:
    """Open what `distcache.open` is asked for, with its parameters and errors."""
    for name, value in (("path", path), ("local", local)):
        if not isinstance(value, str | os.PathLike) and (name == "path" or value is not None):
            raise ConfigError(f"{name} is {value!r}, expected a path")
    root = local_directory(local, os.environ)
    moves = moves_of(prefixes.items()) if prefixes else moves_from([], os.environ)
    source, here = located(path), os.getcwd()  # noqa: PTH109
    reason = "no local directory is set: DISTCACHE_LOCAL_DIR, or open(..., local=DIRECTORY)"
    if root is not None:
        try:
            name = _name_in(root, source)
            reason = "it is ready on this node"
            return CacheHandle(source, str(root), name, here, reason, moves).open_copy()
        except DistcacheError as error:
            reason = str(error)
    cache = CacheHandle(source, "", "", here, reason, moves).open_shared()
    if root is not None:
        _warn(path, reason)
    return cache


def _name_in(root: Path, source: str) -> str:
    """Return the name that the copy of a shared cache has, or would have, in a store.

    It follows from the header of the shared file; if that file is gone, or is an object, which is
    not inspected, it is the copy that was made from it last: the object may have been replaced.

    Raises
    ------
    NotReady
        If there is no store, or no copy of this path.
    DistcacheError
        If there is something else at `root`.
    CacheCorrupt
        If the shared file exists and is not a cache.
    """
    store = existing_store(root)
    if store is None:
        raise NotReady(f"there is no store at {root}")
    if not is_url(source):
        with contextlib.suppress(NotReady):
            descriptor, header = open_cache_file(Path(source))
            os.close(descriptor)
            return cache_name(header)
    found = [record for record in read_records(store) if record.source == source]
    if not found:
        raise NotReady(f"{root} has no copy of it")
    return max(found, key=lambda record: record.when).name


def _moved_advice(is_local: bool) -> str:
    """Return what to do about a corpus that is not where the cache says."""
    if is_local:
        return "; localize it again"
    return (
        "; if corpora have other paths here than where the cache was built, give "
        "open(..., prefixes={FROM: TO}), or set DISTCACHE_PREFIX=FROM=TO"
    )


def _warn(path: str | Path, reason: object) -> None:
    message = f"{path} is read from the shared filesystem: {reason}"
    warnings.warn(message, SharedFileWarning, stacklevel=4)
