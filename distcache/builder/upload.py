"""Upload a cache, and the corpora that it was built from, to a bucket.

Objects appear whole and never replace others; the cache is the last, so that whoever sees it finds
its corpora. A journal beside the cache says what is there already: the next run goes on with it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import xxhash

from distcache.cache.contents import Contents, read_contents, read_version
from distcache.cache.corpus_places import beside
from distcache.cache.digests import pieces_of, verify_cache
from distcache.corpus import bin_path, idx_path
from distcache.corpus.receipt import receipt_path
from distcache.errors import ConfigError, CorpusError, KeyMismatch, ObjectMissing, StorageError
from distcache.io.files import FileVersion
from distcache.io.threads import map_in_threads
from distcache.partition import balance
from distcache.progress import NullProgress, Progress
from distcache.ranks.agreement import aborting_on_error, on_all_ranks, on_rank_0
from distcache.ranks.communicator import Communicator
from distcache.staging.journal import Journal, read_journal
from distcache.storage import PIECE, is_url, located, open_place, version_at
from distcache.storage.upload import create_object

__all__ = ["UploadOptions", "Uploaded", "upload"]

PER_OBJECT: Final = 1 << 20  # cost of an object, in bytes that are sent


class UploadOptions(msgspec.Struct, frozen=True):
    """How to upload.

    Attributes
    ----------
    corpora : bool
        Whether the corpora go along, that are not in a bucket already.
    readback : bool
        Whether every byte is read back, and not only those of the cache and of the indices.
    threads : int
        Objects that a rank sends at a time.
    """

    corpora: bool = False
    readback: bool = False
    threads: int = 2


class Uploaded(msgspec.Struct, frozen=True):
    """The result of an upload.

    Attributes
    ----------
    url, key : str
        Of the cache.
    objects, sent : int
        How many objects belong to it, and how many of them were sent now.
    nbytes, sent_bytes : int
        Their bytes.
    """

    url: str
    key: str
    objects: int
    sent: int
    nbytes: int
    sent_bytes: int


class _Task(msgspec.Struct, frozen=True):
    """A file to send: `digest` is the XXH3-128 that it must have, if that is known."""

    path: str
    url: str
    size: int
    digest: str = ""


class _Done(msgspec.Struct, frozen=True):
    """An object that holds what a file held, by the versions of both."""

    url: str
    file: FileVersion
    object: FileVersion


def upload(
    communicator: Communicator,
    cache: str,
    to: str,
    options: UploadOptions = UploadOptions(),  # noqa: B008  frozen
    progress: Progress | None = None,
) -> Uploaded:
    """Upload a cache to a directory of a bucket. Collective.

    Parameters
    ----------
    communicator : Communicator
        Of all ranks; the objects are shared out by their bytes.
    cache : str
        Path of a finished cache.
    to : str
        URL of the directory.
    options : UploadOptions
        The same on all ranks.
    progress : Progress or None
        Receives the progress of this rank.

    Returns
    -------
    Uploaded
        The same on all ranks.

    Raises
    ------
    KeyMismatch
        If another object has the name of one of these.
    CorpusError
        If a corpus is not the one that the cache was built from.
    DistcacheError
        On all ranks the same.
    """
    progress = progress or NullProgress()
    with aborting_on_error(communicator):
        target = f"{located(to)}/{os.path.basename(cache)}"
        tasks, key = on_rank_0(
            communicator,
            lambda: _plan(cache, target, options, progress),
            tuple[list[_Task], str],
            "what to upload",
        )
        journal = _journal_of(cache, communicator.rank)
        known = {record.url: record for record in _earlier(cache)}
        progress.phase("uploading", sum(task.size for task in tasks))
        sent = _send_all(communicator, tasks[:-1], known, journal, options, progress)
        sent += _send_all(communicator, tasks[-1:], known, journal, options, progress)
        progress.phase("reading back")
        on_rank_0(communicator, lambda: _verify_uploaded(target, options), None, "reading back")
        on_rank_0(communicator, lambda: _forget(cache), None, "removing journals")
    return Uploaded(
        url=target,
        key=key,
        objects=len(tasks),
        sent=len(sent),
        nbytes=sum(task.size for task in tasks),
        sent_bytes=sum(sent),
    )


def _plan(
    cache: str, target: str, options: UploadOptions, progress: Progress
) -> tuple[list[_Task], str]:
    """Return the files to send, the cache last, and the key of the cache.

    Raises
    ------
    ConfigError
        If a corpus has no `.bin`, or the target is no URL.
    """
    if is_url(cache) or not is_url(target):
        raise ConfigError(f"upload {cache} --to {target}: expected a path, and a URL as --to")
    contents = read_contents(cache)
    tasks: dict[str, _Task] = {}
    for prefix, entry in zip(contents.prefixes, contents.table("sources"), strict=True):
        if is_url(prefix):
            continue
        if not options.corpora:
            progress.note(
                f"warning: {prefix} stays where it is; --corpora uploads corpora, too, without "
                "which nobody trains from the bucket"
            )
            break
        digest = entry["idx_digest"].decode("ascii")
        for task in _corpus_tasks(prefix, beside(target, prefix, digest), digest, entry):
            tasks[task.url] = task
    cache_task = _Task(cache, target, contents.header.file_size)
    return [*tasks.values(), cache_task], contents.key


def _corpus_tasks(prefix: str, to: str, digest: str, entry: Any) -> Iterator[_Task]:
    """Yield the files of a corpus.

    Raises
    ------
    ConfigError
        If it has no `.bin`.
    """
    if not Path(bin_path(prefix)).exists():
        raise ConfigError(
            f"{bin_path(prefix)}: does not exist; corpora of MDS shards are uploaded after "
            "`distcache index unpack`"
        )
    yield _Task(bin_path(prefix), bin_path(to), int(entry["bin_size"]))
    if (receipt := Path(receipt_path(prefix))).exists():
        yield _Task(str(receipt), receipt_path(to), receipt.stat().st_size)
    yield _Task(idx_path(prefix), idx_path(to), int(entry["idx_size"]), digest)


def _journal_of(cache: str, rank: int) -> Path:
    path = Path(cache)
    return path.with_name(f".{path.name}.upload.{rank}.jsonl")


def _earlier(cache: str) -> Iterator[_Done]:
    """Yield what earlier runs have finished, by any rank."""
    path = Path(cache)
    for journal in sorted(path.parent.glob(f".{path.name}.upload.*.jsonl")):
        yield from read_journal(journal, _Done)


def _forget(cache: str) -> None:
    path = Path(cache)
    for journal in path.parent.glob(f".{path.name}.upload.*.jsonl"):
        journal.unlink(missing_ok=True)


def _send_all(
    communicator: Communicator,
    tasks: Sequence[_Task],
    known: dict[str, _Done],
    journal: Path,
    options: UploadOptions,
    progress: Progress,
) -> list[int]:
    """Send files, each by one rank, and return the sizes of those that were sent. Collective."""
    share = balance([PER_OBJECT + task.size for task in tasks], communicator.size)
    own = [tasks[place] for place in share[communicator.rank]]

    def send_own() -> list[int]:
        with _open_journal(journal, known) as append:

            def send(task: _Task) -> int:
                done, found = _send(task, known.get(task.url), options)
                append(done)
                progress.advance(task.size)
                return 0 if found else task.size

            return [size for size in map_in_threads(send, own, options.threads) if size]

    mine = on_all_ranks(communicator, send_own, "uploading")
    shares = communicator.allgather(mine, list[int], "what was uploaded")
    return [size for share in shares for size in share]


@contextlib.contextmanager
def _open_journal(path: Path, known: dict[str, _Done]) -> Iterator[Callable[[_Done], None]]:
    """Yield what appends to a rank's journal; where none can be written, nothing is remembered."""
    try:
        journal = Journal(path, list(known.values()))
    except OSError:
        yield lambda _: None
        return
    with journal:
        yield journal.append


def _send(task: _Task, known: _Done | None, options: UploadOptions) -> tuple[_Done, bool]:
    """Send a file, unless an object has its bytes; return both versions, and whether one had.

    Raises
    ------
    CorpusError
        If it is not the file that the cache was built from, or is being written to.
    KeyMismatch
        If an object with other bytes has the name.
    """
    file = version_at(task.path)
    if file.size != task.size or (task.digest and _digest(task.path, file) != task.digest):
        raise CorpusError(
            f"{task.path}: is not the file that the cache was built from; build again"
        )
    there = _version_or_none(task.url)
    if there is not None and known == _Done(task.url, file, there):
        return known, True
    found = there is not None
    if not found:
        found = not create_object(task.url, Path(task.path))
        there = version_at(task.url)
    assert there is not None, "it was created, or was there"
    if found or options.readback:
        _require_same(task, file, there)
    if version_at(task.path) != file or there.size != task.size:
        raise CorpusError(f"{task.path}: was written to while it was uploaded; upload again")
    return _Done(task.url, file, there), found


def _version_or_none(url: str) -> FileVersion | None:
    try:
        return version_at(url)
    except ObjectMissing:
        return None


def _require_same(task: _Task, file: FileVersion, there: FileVersion) -> None:
    """Compare an object with its file, byte for byte by a digest.

    Raises
    ------
    KeyMismatch
        If they differ.
    """
    same = file.size == there.size and _digest(task.path, file) == _digest(task.url, there)
    if not same:
        raise KeyMismatch(
            f"{task.url}: another object has this name, and is not replaced; give another --to"
        )


def _digest(path: str, version: FileVersion) -> str:
    """Return the XXH3-128 of a file or an object."""
    digest = xxhash.xxh3_128()
    with open_place(path, version) as place:
        for piece in pieces_of(place, 0, version.size, PIECE):
            digest.update(piece.data)
    return digest.hexdigest()


def _verify_uploaded(target: str, options: UploadOptions) -> None:
    """Read the cache back, and the indices beside it.

    Raises
    ------
    CacheCorrupt, CorpusError
        If what is there differs.
    """
    contents, version = read_version(target)
    verify_cache(contents, options.threads, version)
    if options.corpora:
        _verify_indices(contents, target, options.threads)


def _verify_indices(contents: Contents, target: str, threads: int) -> None:
    sources = zip(contents.prefixes, contents.table("sources")["idx_digest"].tolist(), strict=True)
    wanted = {
        idx_path(beside(target, prefix, digest.decode("ascii"))): digest.decode("ascii")
        for prefix, digest in sources
        if not is_url(prefix)
    }

    def compare(url: str) -> str:
        try:
            right = _digest(url, version_at(url)) == wanted[url]
        except ObjectMissing as error:
            raise StorageError(url, "was uploaded, and is gone") from error
        return "" if right else f"{url}: differs from what was uploaded"

    problems = list(filter(None, map_in_threads(compare, list(wanted), threads)))
    if problems:
        raise CorpusError(*problems)
