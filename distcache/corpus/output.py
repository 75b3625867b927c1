"""Corpora in the making: a hidden directory beside the names that they get when they are whole."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from distcache.corpus.idx import bin_path, idx_path
from distcache.corpus.receipt import receipt_path
from distcache.errors import ConfigError, DistcacheError, KeyMismatch, NotReady
from distcache.files import is_plain_file, sync_directory, write_whole
from distcache.locks import NO_LOCKS, try_lock

__all__ = ["Output"]

LOCK: Final = "lock"
LONGEST_NAME: Final = 200  # bytes: suffixes and numbers are put to it
LOOKS: Final = 5  # at a lock that another process has, or has just removed
LOOK: Final = 0.2  # seconds from one to the next


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
        self._given = prefix
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
        for look in range(LOOKS):
            time.sleep(LOOK if look else 0)
            self._make()
            try:
                self._lock = try_lock(self.directory / LOCK)
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                return  # what two writers have mixed is found when it is read back
            if self._lock is not None:
                return
        raise NotReady(
            f"{self.prefix}: another process is writing it (it holds {self.directory / LOCK}); "
            "wait for it, or choose another --out"
        )

    def _make(self) -> None:
        name = os.fsencode(Path(self.prefix).name)
        if len(name) > LONGEST_NAME:
            raise ConfigError(f"--out: the name has {len(name)} bytes, more than {LONGEST_NAME}")
        if not name or self._given.endswith("/") or os.path.isdir(self.prefix):
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

    @property
    def stamp(self) -> str | None:
        """What the unfinished corpora here are made from; None if there are none."""
        return self._stamp.read_text(encoding="ascii") if self._stamp.is_file() else None

    def begin(self, stamp: str) -> None:
        """Begin anew: note what the corpora are made from, and remove what is here.

        Raises
        ------
        DistcacheError
            If there is something that no ingest has left: where one has, there is a stamp.
        """
        others = [entry.name for entry in self.directory.iterdir() if entry.name != LOCK]
        if others and not self._stamp.is_file():
            raise DistcacheError(
                f"{self.directory}: has files of somebody else ({', '.join(others[:3])}); move it "
                "away, or choose another --out"
            )
        with write_whole(self._stamp) as stream:
            stream.write(stamp.encode())
        self._clear()

    def _clear(self) -> None:
        """Remove all but the lock and the stamp, by which the rest is known as ours."""
        for entry in self.directory.iterdir():
            if entry.name not in (LOCK, self._stamp.name):
                _remove(entry)

    def leave(self) -> None:
        """Let others write; what is unfinished stays."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def require_free(self) -> None:
        """Refuse final names that are taken by files that are not ours.

        Raises
        ------
        KeyMismatch
            Naming all of them.
        """
        taken = [final for final, ours in self._final_files() if not ours]
        if taken:
            raise KeyMismatch(
                *(
                    f"{path}: is there already, and was not made by this command; move it away, or "
                    "choose another --out"
                    for path in taken
                )
            )

    def is_partly_published(self) -> bool:
        """Tell whether a killed publication has given names to files that are here."""
        return any(ours for _, ours in self._final_files())

    def _final_files(self) -> list[tuple[str, bool]]:
        """Return every file under a name that a corpus may get here, and whether it is ours."""
        parent, name = os.path.split(self.prefix)
        number = r"-(\d{5,})" if self.numbered else "()"
        pattern = re.compile(re.escape(name) + number + r"(\.bin|\.idx|\.receipt\.json)")
        found = []
        for entry in sorted(os.listdir(parent)):
            if match := pattern.fullmatch(entry):
                final = os.path.join(parent, entry)
                here = self.part(int(match[1] or 0), match[2].removeprefix("."))
                found.append((final, _is_same(here, final)))
        return found

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
        text = self._complete.read_bytes()[:9].strip() if self._complete.is_file() else b""
        shards = int(text) if text.isdigit() else 0
        whole = all(
            is_plain_file(here) for shard in range(shards) for here, _ in self._names(shard)
        )
        return shards if whole else 0

    def publish(self, shards: int) -> None:
        """Give corpora that are whole and synced their names, and remove the directory.

        A publication that was killed is completed by repeating it.

        Raises
        ------
        KeyMismatch
            If a name has been taken in the meantime.
        """
        self.require_free()
        for shard in range(shards):
            for unfinished, final in self._names(shard):
                if not _is_same(unfinished, final) and not _link(unfinished, final):
                    self.require_free()
        sync_directory(Path(self.prefix).parent)
        self.remove()

    def remove(self) -> None:
        """Remove the directory, and let others write."""
        with contextlib.suppress(OSError):
            self._clear()
            self._stamp.unlink(missing_ok=True)
            os.unlink(self.directory / LOCK)
        self.leave()
        # Another process may have begun to write; a network filesystem may keep a name for a while.
        with contextlib.suppress(OSError):
            self.directory.rmdir()


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
