"""Upload a cache, and the corpora that it was built from, to a bucket.

The cache is the last object, so that a reader who sees it finds its corpora. Then it is read back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec

from distcache.cache.contents import Contents, read_contents, read_version, sources_drawn_no_more
from distcache.cache.corpus_places import (
    beside,
    corpus_places,
)
from distcache.cache.digests import verify_cache
from distcache.corpus import bin_path, idx_path
from distcache.corpus.loss import loss_path
from distcache.corpus.receipt import receipt_path
from distcache.errors import ConfigError, CorpusError, NotReady, ObjectMissing, StorageError
from distcache.option import Option
from distcache.ranks.agreement import aborting_on_error, on_rank_0
from distcache.ranks.communicator import Communicator
from distcache.ranks.progress import NullProgress, Progress
from distcache.ranks.sending import FileToSend, Sender, digest_of_place
from distcache.storage.listing import listed, listed_version
from distcache.storage.place import threads_for
from distcache.storage.threads import map_in_threads
from distcache.storage.url import is_url, located


class UploadOptions(msgspec.Struct, frozen=True):
    """How to upload."""

    corpora: Annotated[
        bool, Option("Also upload the .idx, .bin, .loss and receipts, beside it.")
    ] = False
    readback: Annotated[
        bool, Option("Also read every .bin back, not only the cache and .idx.", "--tokens")
    ] = False
    threads: Annotated[
        int,
        Option(
            "Large objects that a rank sends at a time; of small ones 16.", "--parallel", least=1
        ),
    ] = 4


class Uploaded(msgspec.Struct, frozen=True):
    """The result of an upload.

    Attributes
    ----------
    url, key : str
        URL and key of the cache.
    objects, sent : int
        Number of objects that belong to it, and of those that were sent now.
    nbytes, sent_bytes : int
        Bytes of these objects.
    """

    url: str
    key: str
    objects: int
    sent: int
    nbytes: int
    sent_bytes: int


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
        Group of all ranks, which share the objects by their bytes.
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
        files, key = on_rank_0(
            communicator,
            lambda: _plan(cache, to, options, progress),
            tuple[list[FileToSend], str],
            "what to upload",
        )
        target = files[-1].url
        sender = Sender(
            communicator, Path(cache), progress, options.threads, readback=options.readback
        )
        progress.phase("uploading", sum(file.size for file in files))
        sent = sender.send(files[:-1])
        sent += sender.send(files[-1:])
        progress.phase("reading back")
        on_rank_0(communicator, lambda: _read_back(target, options), None, "reading back")
        on_rank_0(communicator, sender.forget, None, "removing journals")
    return Uploaded(
        url=target,
        key=key,
        objects=len(files),
        sent=len(sent),
        nbytes=sum(file.size for file in files),
        sent_bytes=sum(sent),
    )


def _plan(
    cache: str, to: str, options: UploadOptions, progress: Progress
) -> tuple[list[FileToSend], str]:
    """Return the files to send, the cache last, and the key of the cache.

    Raises
    ------
    ConfigError
        If a corpus is one of MDS shards, or the target is no URL.
    NotReady
        If a corpus has no `.bin`.
    """
    if is_url(cache) or not is_url(to):
        raise ConfigError(f"upload {cache} --out {to}: expected a path, and a URL as --out")
    target = f"{located(to)}/{os.path.basename(cache)}"
    contents = read_contents(cache)
    local = list(_sources_to_send(contents))
    files: dict[str, FileToSend] = {}
    if local and not options.corpora:
        progress.note(
            f"warning: {local[0][1]} stays where it is; --corpora uploads corpora, too, without "
            "which nobody trains from the bucket"
        )
    elif local:
        for number, prefix, entry in local:
            place = beside(target, prefix, entry["idx_digest"].decode("ascii"))
            for file in _corpus_files(contents, number, prefix, place):
                files[file.url] = file
    cache_file = FileToSend(cache, target, contents.header.file_size)
    return [*files.values(), cache_file], contents.key


def _sources_to_send(contents: Contents) -> Iterator[tuple[int, str, Any]]:
    """Yield number, prefix and row of the corpora that are files, of which samples follow."""
    left_out = sources_drawn_no_more(contents)
    sources = zip(contents.prefixes, contents.table("sources"), strict=True)
    for number, (prefix, entry) in enumerate(sources):
        if not is_url(prefix) and number not in left_out:
            yield number, prefix, entry


def _corpus_files(contents: Contents, number: int, prefix: str, to: str) -> Iterator[FileToSend]:
    """Yield the files of a corpus.

    Raises
    ------
    ConfigError
        If it is one of MDS shards.
    NotReady
        If it has no `.bin`, or its loss mask is gone.
    """
    entry = contents.table("sources")[number]
    if entry["shards_end"] > entry["shards_begin"]:
        raise ConfigError(
            f"{prefix}: corpora of MDS shards are not uploaded: build from the one that "
            "`distcache materialize` makes of them"
        )
    mask = contents.loss_digest(number)
    for path in (bin_path(prefix), *([loss_path(prefix)] if mask else [])):
        if not Path(path).exists():
            raise NotReady(f"{path}: no such file")
    yield FileToSend(bin_path(prefix), bin_path(to), int(entry["bin_size"]))
    if mask:
        yield FileToSend(loss_path(prefix), loss_path(to), contents.loss_size(number), mask)
    if (receipt := Path(receipt_path(prefix))).exists():
        yield FileToSend(str(receipt), receipt_path(to), receipt.stat().st_size)
    digest = entry["idx_digest"].decode("ascii")
    yield FileToSend(idx_path(prefix), idx_path(to), int(entry["idx_size"]), digest)


def _read_back(target: str, options: UploadOptions) -> None:
    """Read the cache back, and the indices and loss masks beside it.

    Raises
    ------
    CacheCorrupt, CorpusError
        If what is there differs.
    """
    contents, version = read_version(target)
    verify_cache(contents, options.threads, version)
    if options.corpora:
        _read_corpora_back(contents, target, options.threads)


def _read_corpora_back(contents: Contents, target: str, threads: int) -> None:
    """Compare uploaded indices and loss masks with their digests."""
    places = corpus_places(contents)
    wanted: dict[str, str] = {}
    for number, _, entry in _sources_to_send(contents):
        wanted[idx_path(places[number])] = entry["idx_digest"].decode("ascii")
        if digest := contents.loss_digest(number):
            wanted[loss_path(places[number])] = digest

    def compare(url: str) -> str:
        try:
            right = digest_of_place(url, listed_version(url)) == wanted[url]
        except ObjectMissing as error:
            raise StorageError(url, "was uploaded, and is gone") from error
        return "" if right else f"{url}: differs from what was uploaded"

    with listed(wanted):
        at_once = threads_for(wanted, threads)
        problems = list(filter(None, map_in_threads(compare, list(wanted), at_once)))
    if problems:
        raise CorpusError(*problems)
