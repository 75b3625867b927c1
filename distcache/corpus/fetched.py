"""Fetch the indices and receipts of corpora in buckets, each once for all ranks of a job.

They go to a directory of each node, which is removed at the end. The `.bin` files stay where they
are: nothing but training reads them.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from distcache.corpus.corpus import keeping_indices
from distcache.corpus.idx import idx_path
from distcache.corpus.receipt import receipt_path
from distcache.errors import AccessDenied, DistcacheError
from distcache.ranks.agreement import on_all_ranks, spread
from distcache.ranks.communicator import Communicator
from distcache.ranks.gather_rounds import Buffer, chunk_bytes, gather_rounds
from distcache.ranks.job_environment import node_name
from distcache.ranks.progress import Progress
from distcache.storage.files import (
    FileVersion,
    closing_fd,
    no_space_as_error,
    open_to_write,
    write_range,
)
from distcache.storage.listing import listed, listed_version
from distcache.storage.locks import LOCK, try_lock
from distcache.storage.place import (
    STAT_REQUESTS,
    ObjectCopy,
    forget_copies,
    open_place,
    register_copy,
)
from distcache.storage.threads import map_in_threads
from distcache.storage.url import is_url

CHUNK_REQUESTS: Final = 8  # chunks that an agent reads at a time
SMALL_CHUNK_REQUESTS: Final = 16  # small chunks
SMALL_CHUNK_BYTES: Final = 1 << 20  # in the mean: of these more are read at a time


class _Object(msgspec.Struct, frozen=True):
    """An object that exists."""

    url: str
    version: FileVersion


class _Chunk(msgspec.Struct, frozen=True):
    """Bytes [begin, end) of an object, by its number."""

    number: int
    begin: int
    end: int


@contextlib.contextmanager
def fetched_indices(
    communicator: Communicator, prefixes: Sequence[str], progress: Progress
) -> Iterator[None]:
    """Fetch what all ranks read of corpora in buckets, for the time of the block. Collective.

    Those that do not exist are not fetched: opening them says so.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks.
    prefixes : sequence of str
        Prefixes of corpora, the same on all ranks; paths need nothing.
    progress : Progress
        Receives the bytes.

    Raises
    ------
    DistcacheError
        On all ranks the same.
    """
    wanted = [prefix for prefix in prefixes if is_url(prefix)]
    if not wanted:
        with keeping_indices():
            yield
        return
    progress.phase("looking for indices in buckets")
    objects = _find(communicator, [idx_path(p) for p in wanted], [receipt_path(p) for p in wanted])
    with contextlib.ExitStack() as stack:
        nodes = communicator.allgather(_node(), str, "the names of nodes")
        first = nodes.index(nodes[communicator.rank]) == communicator.rank
        directory = _directory(communicator, nodes, stack, is_first=first)
        agents = communicator.subgroup({nodes.index(node) for node in nodes})
        on_all_ranks(
            communicator,
            lambda: _make_files(directory, objects) if first else None,
            "making files",
        )
        size = sum(found.version.size for found in objects)
        progress.phase("fetching indices", size)

        failed: list[DistcacheError] = []  # the same on all agents
        if agents is not None:
            try:
                _fetch(agents, objects, directory, progress)
            except DistcacheError as error:
                failed.append(error)

        def require_fetched() -> None:
            for error in failed:
                raise error

        on_all_ranks(communicator, require_fetched, "fetching indices")
        stack.callback(forget_copies, [found.url for found in objects])
        stack.enter_context(keeping_indices())
        for number, found in enumerate(objects):
            register_copy(found.url, ObjectCopy(_path(directory, number), found.version))
        yield
        communicator.allgather(True, bool, "the end of reading indices")


def _find(
    communicator: Communicator, indices: Sequence[str], receipts: Sequence[str]
) -> list[_Object]:
    """Return which objects exist; ranks share the requests. Collective."""
    urls = list(itertools.chain.from_iterable(zip(indices, receipts, strict=True)))
    optional = frozenset(receipts)

    def look(url: str) -> _Object | None:
        try:
            return _Object(url, listed_version(url, confirm_missing=url not in optional))
        except FileNotFoundError:
            return None
        except AccessDenied:
            # A user who may not list is refused what does not exist, such as most receipts.
            if url not in optional:
                raise
            return None

    def look_at_own(own: Sequence[str]) -> list[_Object | None]:
        with listed(own):
            return map_in_threads(look, own, STAT_REQUESTS)

    found = spread(communicator, urls, look_at_own, _Object | None, "looking for objects")
    return [entry for entry in found if entry is not None]


def _node() -> str:
    """Return what all processes that share a temporary directory have in common."""
    found = os.stat(tempfile.gettempdir())
    return f"{node_name(os.environ)} {found.st_dev} {found.st_ino}"


def _directory(
    communicator: Communicator,
    nodes: Sequence[str],
    stack: contextlib.ExitStack,
    *,
    is_first: bool,
) -> str:
    """Return this node's directory, made by its first rank, which removes it at the end."""
    made = on_all_ranks(
        communicator, lambda: _make_directory(stack) if is_first else "", "making a directory"
    )
    paths = communicator.allgather(made, str, "directories of nodes")
    return paths[nodes.index(nodes[communicator.rank])]


def _make_directory(stack: contextlib.ExitStack) -> str:
    _sweep()
    while True:
        directory = tempfile.mkdtemp(prefix=_start())
        lock = try_lock(Path(directory, LOCK))
        if lock is not None:  # else another job has taken it for a dead one's
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            stack.callback(os.close, lock)
            return directory


def _make_files(directory: str, objects: Sequence[_Object]) -> None:
    for number in range(len(objects)):
        Path(_path(directory, number)).touch(0o600)


def _start() -> str:
    return f"distcache-{os.geteuid()}-indices-"


def _sweep() -> None:
    """Remove the directories of killed jobs: those that nobody has locked."""
    for path in Path(tempfile.gettempdir()).glob(f"{_start()}*"):
        with contextlib.suppress(OSError):
            if path.is_symlink() or os.lstat(path).st_uid != os.geteuid():
                continue
            lock = try_lock(path / LOCK, make=False)
            if lock is not None:
                with closing_fd(lock):
                    shutil.rmtree(path, ignore_errors=True)


def _path(directory: str, number: int) -> str:
    return os.path.join(directory, str(number))


def _fetch(
    agents: Communicator, objects: Sequence[_Object], directory: str, progress: Progress
) -> None:
    """Fetch objects to this node's directory. Collective over the agents.

    Raises
    ------
    DistcacheError
        On all agents the same.
    """
    step = chunk_bytes(agents.size)
    chunks = [
        _Chunk(number, begin, min(begin + step, found.version.size))
        for number, found in enumerate(objects)
        for begin in range(0, found.version.size, step)
    ]

    def read(place: int, out: Buffer) -> None:
        chunk = chunks[place]
        found = objects[chunk.number]
        with open_place(found.url, found.version) as source:
            source.read_into(out, chunk.begin)

    def write(place: int, data: Buffer) -> None:
        chunk = chunks[place]
        path = _path(directory, chunk.number)
        with no_space_as_error(path), closing_fd(open_to_write(path)) as descriptor:
            write_range(descriptor, chunk.begin, data)

    sizes = [chunk.end - chunk.begin for chunk in chunks]
    small = sum(sizes) < len(sizes) * SMALL_CHUNK_BYTES
    gather_rounds(
        agents,
        sizes,
        read,
        write,
        progress.advance,
        functools.partial(on_all_ranks, agents),
        SMALL_CHUNK_REQUESTS if small else CHUNK_REQUESTS,
    )
