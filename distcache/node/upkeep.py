"""Maintain a store: list its caches, verify them, remove unused ones."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from distcache.cache import Cache, open_cache
from distcache.cache.digests import verify_cache
from distcache.corpus import bin_path, idx_path
from distcache.corpus.loss import loss_path
from distcache.errors import BuildInterrupted, CacheCorrupt, DistcacheError, NotReady
from distcache.megatron.export import wrong_files
from distcache.node.lock import exclusive, is_used, try_exclusive
from distcache.node.manifest import Block, Manifest, copy_blocks, digests_path, shard_blocks
from distcache.node.records import LocalCorpus, Ready, read_records
from distcache.node.staged_files import block_matches, recorded_digest
from distcache.node.store import Store, existing_store
from distcache.node.view import renamer, view_of
from distcache.ranks.communicator import SerialCommunicator
from distcache.ranks.progress import NullProgress, Progress
from distcache.storage.files import closing_fd, open_sized
from distcache.storage.space import allocated
from distcache.storage.url import is_url

_CACHE: Final = r"[0-9a-f]{16}-[0-9a-f]{16}"
_CORPUS: Final = r".+-[0-9a-f]{16}"
# Files with other names are not distcache's, and are never removed.
CACHES: Final = re.compile(rf"({_CACHE})\.(?:h5|json|lock)|\.({_CACHE})\.(?:h5|json)\..*part")
CORPORA: Final = re.compile(
    rf"({_CORPUS})\.(?:idx|bin|loss|bin\.xxh3)|\.({_CORPUS})\.(?:idx|bin|loss)\..*part"
)
VIEWS: Final = re.compile(rf"({_CACHE})()")
VIEW_FILES: Final = re.compile(
    r"\.?(?:[0-9a-f]{32}-(?:GPT|Blended)Dataset-|distcache-[0-9a-f]{16}).*"
)


class HeldCache(msgspec.Struct, frozen=True):
    """A cache in a store."""

    record: Ready  # record of the cache
    nbytes: int  # bytes on the disk, without corpora, which caches share
    last_use: float  # seconds since the epoch
    used: bool  # whether a process uses it now


def open_store(root: Path) -> Store:
    """Return the store at a path.

    Raises
    ------
    NotReady
        If there is none.
    DistcacheError
        If it is not one.
    """
    store = existing_store(root)
    if store is None:
        raise NotReady(f"{root}: there is no store; `distcache localize` makes one")
    return store


def list_store(store: Store) -> list[HeldCache]:
    """Return the complete caches of a store, the most recently used first."""
    mapped = _mapped_paths(store)
    held = [_held(store, record, mapped) for record in read_records(store)]
    return sorted(held, key=lambda entry: -entry.last_use)


def _held(store: Store, record: Ready, mapped: set[str]) -> HeldCache:
    lock = store.use_lock(record.name)
    own = str(store.view(record.name)) + "/"
    cache = str(store.cache(record.name))
    return HeldCache(
        record=record,
        nbytes=allocated(store.cache(record.name)) + tree_bytes(store.view(record.name)),
        last_use=lock.stat().st_mtime if lock.exists() else 0.0,
        used=is_used(lock) or any(path == cache or path.startswith(own) for path in mapped),
    )


def _mapped_paths(store: Store) -> set[str]:
    """Return the files of a store that processes have mapped, as Megatron takes no lock."""
    start = os.path.realpath(store.root) + "/"  # as the kernel names them
    found = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            text = maps.read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            continue
        found |= {
            f"{store.root}/{line.partition(start)[2]}"
            for line in text.splitlines()
            if start in line
        }
    return found


def tree_bytes(directory: Path) -> int:
    """Return the bytes on disk of all files under a directory; 0 if it is a link or missing.

    A file with several names counts once.
    """
    if directory.is_symlink() or not directory.is_dir():
        return 0
    sizes: dict[tuple[int, int], int] = {}
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):  # removed since
            found = path.lstat()
            sizes[found.st_dev, found.st_ino] = 512 * found.st_blocks
    return sum(sizes.values())


def verify_store(store: Store, threads: int = 2, progress: Progress | None = None) -> list[str]:
    """Read every complete copy back, and return what is wrong."""
    progress = progress or NullProgress()
    problems: dict[str, None] = {}
    for record in read_records(store):
        size = record.size + sum(corpus.size for corpus in record.corpora)
        progress.phase(f"reading the copy of {record.source}", size)
        for problem in _verify_copy(store, record, threads, progress.advance):
            problems[problem] = None
    return list(problems)


def _verify_copy(
    store: Store, record: Ready, threads: int, advance: Callable[[float], None]
) -> Iterator[str]:
    try:
        cache = open_cache(store.cache(record.name))
    except BuildInterrupted:
        raise
    except DistcacheError as error:
        yield from error.problems
        return
    try:
        verify_cache(cache, threads, advance=advance)
    except CacheCorrupt as error:
        yield from error.problems
    digests = [digest.decode("ascii", "replace") for digest in cache.table("sources")["idx_digest"]]

    indices = (
        (
            idx_path(store.prefix(corpus.stem)),
            corpus.idx_size,
            Block(0, 0, corpus.idx_size, digest),
        )
        for corpus, digest in zip(record.corpora, digests, strict=True)
        if corpus.idx_size
    )
    masks = (
        (
            loss_path(store.prefix(corpus.stem)),
            corpus.loss_size,
            Block(0, 0, corpus.loss_size, cache.loss_digest(source) or ""),
        )
        for source, corpus in enumerate(record.corpora)
        if corpus.loss_size
    )
    blocks = itertools.chain(indices, masks, _token_blocks(store, record, cache))

    def compare(task: tuple[str, int, Block]) -> str | None:
        problem = _compare(task)
        advance(task[2].size)
        return problem

    with ThreadPoolExecutor(threads) as pool:
        yield from filter(None, pool.map(compare, blocks))
    if (naming := record.request.naming) is not None:
        rename = renamer(store, cache.prefixes, record.corpora)
        for path in wrong_files(cache, view_of(store, record.name, naming), rename, naming):
            yield f"{path}: is not what the cache says; export it again"
    if record.request.tokens != "none":
        for corpus in record.corpora:
            link = bin_path(store.prefix(corpus.stem))
            if corpus.is_linked and not os.path.islink(link):
                yield f"{link}: the link to the tokens is gone"


def _token_blocks(store: Store, record: Ready, cache: Cache) -> Iterator[tuple[str, int, Block]]:
    """Yield the blocks of each `.bin`, shards or copies: the file, its bytes, and the block."""
    seen = set()
    for source, corpus in enumerate(record.corpora):
        if corpus.bin_size and corpus.stem not in seen:
            seen.add(corpus.stem)
            path = bin_path(store.prefix(corpus.stem))
            if not corpus.copied:
                blocks = shard_blocks(cache, source, 0)
            else:
                blocks = [
                    msgspec.structs.replace(
                        block, digest=recorded_digest(digests_path(Path(path)), block)
                    )
                    for block in copy_blocks(corpus.bin_size, 0)
                ]
            for block in blocks:
                yield path, corpus.bin_size, block


def _compare(task: tuple[str, int, Block]) -> str | None:
    path, size, block = task
    try:
        descriptor, found = open_sized(path, follow=False)
    except OSError as error:
        return f"{path}: cannot be opened: {error.strerror}"
    with closing_fd(descriptor):
        if found != size:
            return f"{path}: has {found} bytes, expected {size}"
        right = block_matches(descriptor, block)
    return None if right else f"{path}: bytes {block.begin} to {block.end} differ from their digest"


class Collected(msgspec.Struct, frozen=True):
    """The result of a collection."""

    # names of the caches that were removed, and of those that stay because they are in use
    removed: list[str]
    in_use: list[str]
    # bytes by which the store has shrunk, and its size now
    freed: int
    nbytes: int


def collect(store: Store, budget: int, progress: Progress, *, dry_run: bool = False) -> Collected:
    """Remove the least recently used caches until a store is within its budget.

    Files that no complete cache needs are always removed: unfinished files, and corpora of removed
    caches. A cache in use stays.

    Parameters
    ----------
    store : Store
        The store.
    budget : int
        Bytes that it may take.
    progress : Progress
        Receives for which job this one waits.
    dry_run : bool
        Whether to report only, and remove nothing.

    Returns
    -------
    Collected
        Files and bytes that were, or would be, removed.
    """
    with exclusive(SerialCommunicator(), store.lock, progress):
        return _Collection(store, dry_run=dry_run).run(budget)


def make_room(store: Store, budget: int, manifest: Manifest) -> Collected:
    """Remove what `collect` would, but nothing of a cache that is being localized.

    The store is locked.
    """
    return _Collection(store, manifest).run(budget)


def bytes_of(store: Store) -> int:
    """Return the bytes that a store takes."""
    parts = (store.caches, store.corpora, store.megatron, store.ahead)
    return sum(map(tree_bytes, parts))


class _Collection:
    """One collection of a locked store; nothing that belongs to `incoming` is removed."""

    def __init__(
        self, store: Store, incoming: Manifest | None = None, *, dry_run: bool = False
    ) -> None:
        self._store = store
        self._dry_run = dry_run
        self._gone: set[Path] = set()
        # The stems of the corpora that each cache needs, by its name.
        self._kept = {record.name: _stems(record.corpora) for record in read_records(store)}
        self._incoming = None if incoming is None else incoming.name
        if incoming is not None:
            self._kept[incoming.name] = _stems(incoming.corpora)

    def run(self, budget: int) -> Collected:
        """Remove what is not needed, then caches, the least recently used first."""
        before = now = bytes_of(self._store)
        now -= self._discard(self._unneeded())
        removed, in_use = [], []
        for held in reversed(list_store(self._store)):
            name = held.record.name
            if name == self._incoming:
                continue
            freed = None if held.used else 0
            if now > budget and not held.used:
                freed = self._remove(name)
            if freed is None:
                in_use.append(name)
            elif freed:
                removed.append(name)
                now -= freed
        self._discard(self._unneeded_objects())
        return Collected(removed, in_use, before - now, now)

    def _remove(self, name: str) -> int | None:
        """Remove a cache and the corpora that only it needs; return the bytes, None if in use."""
        descriptor = try_exclusive(self._store.use_lock(name))
        if descriptor is None:
            return None
        with closing_fd(descriptor):
            del self._kept[name]
            return self._discard([self._store.ready(name), *self._unneeded(name)])  # record first

    def _unneeded(self, removed: str = "") -> Iterator[Path]:
        """Yield the store's files that no kept cache needs, also those of a removed one.

        Unfinished files stay only if they are of the incoming cache.
        """
        store, incoming = self._store, self._incoming
        unfinished = set() if incoming is None else {incoming, *self._kept[incoming]}
        # A copy without a record may be in use, and its corpora are unknown.
        locked = {lock.stem for lock in store.caches.glob("*.lock") if is_used(lock)}
        used = locked - {*self._kept, removed}
        names, stems = used.union(self._kept), set().union(*self._kept.values())
        places = [(store.caches, CACHES, names), (store.megatron, VIEWS, names)]
        places += [] if used else [(store.corpora, CORPORA, stems)]
        for directory, pattern, needed in places:
            for path in directory.iterdir() if directory.is_dir() else ():
                found = pattern.fullmatch(path.name)
                if found and found.group(1) not in needed and found.group(2) not in unfinished:
                    yield from _with_content(path)

    def _unneeded_objects(self) -> Iterator[Path]:
        """Yield the indices that Megatron would find of corpora of no kept cache."""
        needed = {
            self._store.object_index(corpus.shared)
            for record in read_records(self._store)
            for corpus in record.corpora
            if is_url(corpus.shared)
        }
        going: set[Path] = set()
        for path in sorted(self._store.objects.rglob("*"), reverse=True):  # children come first
            if path.is_dir() and not path.is_symlink():
                unneeded = going.issuperset(path.iterdir())
            else:
                unneeded = path.name.endswith(".idx") and path not in needed
            if unneeded:
                going.add(path)
                yield path

    def _discard(self, paths: Iterable[Path]) -> int:
        """Remove files, links and emptied directories; return the bytes. Each path counts once."""
        freed = 0
        for path in list(paths):
            if path in self._gone:
                continue
            self._gone.add(path)
            nbytes = allocated(path)
            with contextlib.suppress(OSError):
                if not self._dry_run:
                    is_directory = stat.S_ISDIR(os.lstat(path).st_mode)
                    (path.rmdir if is_directory else path.unlink)()
                freed += nbytes
        return freed


def _stems(corpora: Iterable[LocalCorpus]) -> frozenset[str]:
    return frozenset(corpus.stem for corpus in corpora)


def _with_content(path: Path) -> Iterator[Path]:
    """Yield a file; or the store's files in a directory, then the directory."""
    if path.is_dir() and not path.is_symlink():
        yield from (entry for entry in path.iterdir() if VIEW_FILES.fullmatch(entry.name))
    yield path
