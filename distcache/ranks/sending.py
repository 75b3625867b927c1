"""Send finished files to a bucket, shared out over ranks; a journal says what is there already.

Objects appear whole and never replace others: stores refuse a small object whose name is taken; a
large one is written in parts, without such a condition, so a small object claims its name until
then. The files of a group are sent in their order, and the groups too, so that what readers look
for is the last.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import xxhash

from distcache.errors import CorpusError, DistcacheError, KeyMismatch
from distcache.ranks.agreement import spread
from distcache.ranks.communicator import Communicator
from distcache.ranks.progress import Progress
from distcache.storage.files import FileVersion, version_of
from distcache.storage.journal import Journal, read_journal
from distcache.storage.listing import listed, listed_version
from distcache.storage.place import (
    PIECE_BYTES,
    bucket_of,
    exists,
    open_place,
    pieces_of,
    read_place,
    threads_for,
    version_at,
    version_or_none,
)
from distcache.storage.threads import map_in_threads

WHOLE: Final = 64 << 20  # bytes that are sent in one request
CLAIM: Final = ".uploading"
PER_OBJECT: Final = 1 << 20  # cost of an object, in bytes that are sent


def create_object(url: str, path: Path) -> FileVersion | None:
    """Send a file, and return the version of the object; None if one has the name already.

    Raises
    ------
    KeyMismatch
        If another job is sending an object of this name.
    StorageError
        If it cannot be written.
    """
    bucket = bucket_of(url)
    size = path.stat().st_size
    if size <= WHOLE:
        tag = bucket.create(url, path)
        if tag is None:
            return None
        return FileVersion(size, 0, 0, tag) if tag else version_at(url)
    if exists(url):
        return None
    claim, token = f"{url}{CLAIM}", claim_token(path)
    if bucket.create(claim, token) is None and not _is_ours(claim, token):
        raise KeyMismatch(
            f"{claim}: another file is being uploaded under this name; if no job is running, "
            "remove this claim and upload again"
        )
    try:
        created = not exists(url)
        if created:
            bucket.put_parts(url, path)
    except BaseException:
        with contextlib.suppress(DistcacheError):  # the first error is what matters
            bucket.remove(claim)
        raise
    with contextlib.suppress(DistcacheError):  # not everybody may remove; the object is there
        bucket.remove(claim)
    return version_at(url) if created else None


def claim_token(path: Path) -> bytes:
    """Return what identifies a file: a run that continues a killed one has the same."""
    origin = (str(path.absolute()), version_of(path.stat()))
    return repr(origin).encode("utf-8", "surrogateescape")


def _is_ours(claim: str, token: bytes) -> bool:
    """Return whether a claim is for the same file, as that of a killed run is."""
    version = version_or_none(claim)
    if version is None:
        return True  # its owner has just finished: the object is there
    return version.size == len(token) and read_place(claim, 0, len(token), version) == token


class FileToSend(msgspec.Struct, frozen=True):
    """A file, and the URL that it gets."""

    # source and target
    path: str
    url: str
    size: int  # bytes that it must have
    digest: str = ""  # XXH3-128 that it must have; empty if that is not known


class _Sent(msgspec.Struct, frozen=True):
    """An object that holds what a file held, by the versions of both."""

    url: str
    file: FileVersion
    object: FileVersion


class Sender:
    """Sends files with all ranks.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks.
    journal : Path
        Path after which its journals are named; where they cannot be written, nothing is
        remembered.
    progress : Progress
        Receives the bytes.
    threads : int
        Files that a rank sends at a time.
    readback : bool
        Whether every byte is read back.
    """

    def __init__(
        self,
        communicator: Communicator,
        journal: Path,
        progress: Progress,
        threads: int,
        *,
        readback: bool = False,
    ) -> None:
        self._communicator = communicator
        self._journal = journal
        self._progress = progress
        self._threads = threads
        self._readback = readback
        self._known: dict[str, _Sent] | None = None

    def _journals(self) -> list[Path]:
        return sorted(self._journal.parent.glob(f".{self._journal.name}.sent.*.jsonl"))

    def _earlier(self) -> dict[str, _Sent]:
        """Return what any rank of an earlier run has sent, by URL."""
        if self._known is None:
            self._known = {}
            for path in self._journals():
                with contextlib.suppress(OSError):  # another user's
                    self._known |= {sent.url: sent for sent in read_journal(path, _Sent)}
        return self._known

    def forget(self) -> None:
        """Remove the journals, after all have sent everything. Not collective: for one rank."""
        for path in self._journals():
            path.unlink(missing_ok=True)

    def send(self, files: Sequence[FileToSend]) -> list[int]:
        """Send files, each by one rank, and return the sizes of those that were sent. Collective.

        Raises
        ------
        CorpusError
            If a file is not the one that it must be, or is being written to.
        KeyMismatch
            If an object with other bytes has a name.
        DistcacheError
            On all ranks the same.
        """

        def send_own(own: Sequence[FileToSend]) -> list[int]:
            known = self._earlier()
            large = [file for file in own if file.size > PIECE_BYTES]
            small = [file for file in own if file.size <= PIECE_BYTES]
            with self._open_journal() as append, listed(file.url for file in own):

                def send(file: FileToSend) -> int:
                    sent, found = self._send(file)
                    append(sent)
                    known[sent.url] = sent
                    self._progress.advance(file.size)
                    return 0 if found else file.size

                done = map_in_threads(send, large, self._threads)
                at_once = threads_for((file.url for file in small), self._threads)
                return done + map_in_threads(send, small, at_once)

        costs = [PER_OBJECT + file.size for file in files]
        sent = spread(self._communicator, files, send_own, int, "uploading", costs)
        return [size for size in sent if size]

    @contextlib.contextmanager
    def _open_journal(self) -> Iterator[Callable[[_Sent], None]]:
        """Yield what appends to this rank's journal."""
        name = f".{self._journal.name}.sent.{self._communicator.rank}.jsonl"
        try:
            journal = Journal(self._journal.with_name(name), list(self._earlier().values()))
        except OSError:
            yield lambda _: None
            return
        with journal:
            yield journal.append

    def _send(self, file: FileToSend) -> tuple[_Sent, bool]:
        """Send a file, unless an object has its bytes; return versions, and whether one had."""
        before = version_at(file.path)
        unlike = file.digest and digest_of_place(file.path, before) != file.digest
        if before.size != file.size or unlike:
            raise CorpusError(
                f"{file.path}: is not the file that the cache was built from; build again"
            )
        there = _existing(file.url)
        known = self._earlier().get(file.url)
        if there is not None and known == _Sent(file.url, before, there):
            return known, True
        made = create_object(file.url, Path(file.path)) if there is None else None
        found = made is None
        there = there or _by_tag(made or version_at(file.url))
        if (found or self._readback) and not _is_same(file, before, there):
            if not found:
                raise CorpusError(f"{file.url}: differs from what was uploaded")
            raise KeyMismatch(
                f"{file.url}: another object has this name, and is not replaced; give another URL"
            )
        if version_at(file.path) != before or there.size != file.size:
            if not found:
                with contextlib.suppress(DistcacheError):  # not everybody may remove
                    bucket_of(file.url).remove(file.url)  # nobody may read what was torn
            raise CorpusError(f"{file.path}: was written to while it was uploaded; upload again")
        return _Sent(file.url, before, there), found


def _existing(url: str) -> FileVersion | None:
    """Return the object that has a name, if there is one."""
    try:
        return _by_tag(listed_version(url, confirm_missing=False))
    except FileNotFoundError:
        return None


def _by_tag(version: FileVersion) -> FileVersion:
    """Return a version without its time, which not every answer has, if the ETag identifies it."""
    return msgspec.structs.replace(version, modified=0) if version.tag else version


def _is_same(file: FileToSend, before: FileVersion, there: FileVersion) -> bool:
    """Return whether an object has the bytes of its file, by a digest."""
    if before.size != there.size:
        return False
    return digest_of_place(file.path, before) == digest_of_place(file.url, there)


def digest_of_place(path: str, version: FileVersion, begin: int = 0, end: int = -1) -> str:
    """Return the XXH3-128 of bytes [begin, end) of a file or an object; by default of all.

    Raises
    ------
    OSError, ObjectChanged
        If it cannot be read, or is another object.
    """
    digest = xxhash.xxh3_128()
    with open_place(path, version) as place:
        for piece in pieces_of(place, begin, version.size if end < 0 else end, PIECE_BYTES):
            digest.update(piece.data)
    return digest.hexdigest()
