"""Corpora in the making: a hidden directory beside the names that they get when they are whole."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from pathlib import Path
from types import TracebackType
from typing import Final

from distcache.corpus.idx import bin_path, idx_path
from distcache.corpus.receipt import receipt_path
from distcache.errors import ConfigError, DistcacheError, KeyMismatch, NotReady
from distcache.files import sync_directory, write_whole

__all__ = ["Output"]

BUSY: Final = (errno.EWOULDBLOCK, errno.EACCES)
NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class Output:
    """The one owner of every path of unfinished corpora.

    Their files are `N.bin`, `N.idx` and `N.receipt.json` of a hidden directory, N counting from 0.
    Its lock is held by rank 0, from `claim` until `leave` or the end of the process.

    Parameters
    ----------
    prefix : str
        Of the corpus; with `numbered`, the N-th is ``PREFIX-00000``.
    numbered : bool
        Whether there may be several.
    """

    def __init__(self, prefix: str, *, numbered: bool = False) -> None:
        self.prefix = os.path.abspath(prefix)
        self.numbered = numbered
        self.directory = Path(self.prefix).parent / f".{Path(self.prefix).name}.ingest"
        self.journal = self.directory / "journal.jsonl"
        self._stamp = self.directory / "stamp"
        self._complete = self.directory / "complete"
        self._lock: int | None = None

    def final(self, shard: int) -> str:
        """Return the prefix that the N-th corpus gets."""
        return f"{self.prefix}-{shard:05}" if self.numbered else self.prefix

    def name(self, shard: int) -> str:
        """Return the last part of the prefix that the N-th corpus gets."""
        return Path(self.final(shard)).name

    def unfinished(self, shard: int) -> str:
        """Return the prefix of the N-th corpus in the making."""
        return str(self.directory / str(shard))

    def part(self, shard: int, name: str) -> str:
        """Return the path of something that is put together for the N-th corpus."""
        return f"{self.unfinished(shard)}.{name}"

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()

    def claim(self) -> None:
        """Make the directory, and become the only one that writes in it.

        Raises
        ------
        ConfigError
            If the prefix does not lead into a directory.
        NotReady
            If another process writes there.
        DistcacheError
            If something else has the directory's name.
        """
        self._make()
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.directory / "lock", flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in BUSY:
                raise NotReady(
                    f"{self.prefix}: another process is writing it (it holds "
                    f"{self.directory / 'lock'}); wait for it, or choose another --out"
                ) from error
            if error.errno not in NO_LOCKS:
                raise
            return
        self._lock = descriptor

    def _make(self) -> None:
        if not Path(self.prefix).name or os.path.isdir(self.prefix):
            raise ConfigError(
                f"--out {self.prefix}: is a directory; expected the path of a corpus in one"
            )
        try:
            self.directory.parent.mkdir(parents=True, exist_ok=True)
            self.directory.mkdir(mode=0o700)
        except FileExistsError as error:
            if not self.directory.parent.is_dir():
                raise ConfigError(f"{self.directory.parent}: is not a directory") from error
            found = os.lstat(self.directory)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise DistcacheError(
                    f"{self.directory}: is not a directory of this user; move it away"
                ) from error
        except NotADirectoryError as error:
            raise ConfigError(f"{self.directory.parent}: is not a directory") from error

    def resume(self, stamp: str) -> bool:
        """Tell whether what is here is the beginning of the same work; remove it if it is not."""
        content = stamp.encode()
        if self._stamp.is_file() and self._stamp.read_bytes() == content:
            return True
        self.clear()
        self._stamp.write_bytes(content)
        return False

    def clear(self) -> None:
        """Remove what an earlier process has left here."""
        for entry in self.directory.iterdir():
            if entry.name != "lock":
                _remove(entry)

    def leave(self) -> None:
        """Let others write; what is unfinished stays."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def require_free(self, shard: int = 0) -> None:
        """Refuse final names that are taken by files that are not ours.

        Raises
        ------
        KeyMismatch
            Naming all of them.
        """
        taken = [
            final
            for unfinished, final in self._names(shard)
            if os.path.lexists(final) and not _is_same(unfinished, final)
        ]
        if taken:
            raise KeyMismatch(
                *(
                    f"{path}: is there already, and was not made by this command; move it away, or "
                    "choose another --out"
                    for path in taken
                )
            )

    def _names(self, shard: int) -> list[tuple[str, str]]:
        here, there = self.unfinished(shard), self.final(shard)
        # An `.idx` makes a corpus of a `.bin`: it comes last.
        return [(path(here), path(there)) for path in (bin_path, receipt_path, idx_path)]

    def complete(self, shards: int) -> None:
        """Note that so many corpora are whole and synced, so that a publication can be resumed."""
        with write_whole(self._complete) as stream:
            stream.write(b"%d\n" % shards)

    def completed(self) -> int:
        """Return how many corpora are whole, and need their names only; 0 if any is not."""
        return int(self._complete.read_bytes()) if self._complete.is_file() else 0

    def publish(self, shards: int) -> None:
        """Give corpora that are whole and synced their names, and remove the directory.

        A publication that was killed is completed by repeating it.

        Raises
        ------
        KeyMismatch
            If a name has been taken in the meantime.
        """
        for shard in range(shards):
            self.require_free(shard)
        for shard in range(shards):
            for unfinished, final in self._names(shard):
                if not _is_same(unfinished, final) and not _link(unfinished, final):
                    self.require_free(shard)
        sync_directory(Path(self.prefix).parent)
        self.remove()

    def remove(self) -> None:
        """Remove the directory, and let others write."""
        self.clear()
        shutil.rmtree(self.directory)
        self.leave()


def _link(unfinished: str, final: str) -> bool:
    try:
        os.link(unfinished, final, follow_symlinks=False)
    except FileExistsError:
        return False
    return True


def _is_same(unfinished: str, final: str) -> bool:
    """Tell whether a final name is that of a file of ours, which a killed publication gave it."""
    try:
        return os.path.samestat(os.lstat(unfinished), os.lstat(final))
    except FileNotFoundError:
        return False


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()
