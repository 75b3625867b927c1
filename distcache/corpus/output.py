"""Corpora in the making: a hidden directory beside the names that they get when they are whole."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import secrets
import stat
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from distcache.corpus.idx import bin_path, idx_path
from distcache.corpus.receipt import receipt_path
from distcache.errors import ConfigError, DistcacheError, KeyMismatch, NotReady
from distcache.files import (
    is_plain_file,
    make_directories,
    may_write,
    require_links,
    sync_directory,
    write_whole,
)
from distcache.life import SIGNS
from distcache.locks import LOCK, NO_LOCKS, discard_empty, empty_directory, try_lock
from distcache.owner import OWNER, Owner
from distcache.timeouts import limits

__all__ = ["Output"]

GUARDS: Final = (LOCK, OWNER, *SIGNS)
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
        self._lock: int | None = None
        self._claimed = False
        self.use("")

    def use(self, private: str) -> None:
        """Work in the directory of all, or in one that has a token of its own; not collective."""
        self.private = private
        name = f".{Path(self.prefix).name}.ingest{private and '-' + private}"
        self.directory = Path(self.prefix).parent / name
        self.journal = self.directory / "journal.jsonl"
        self._stamp = self.directory / "stamp"
        self._complete = self.directory / "complete"
        self._owner = Owner(self.directory)

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

        Where the filesystem has no locks, that is a directory of this process's own, which nobody
        can resume.

        Raises
        ------
        ConfigError
            If the prefix does not lead into a directory, or the filesystem has no hard links.
        NotReady
            If another process writes there.
        DistcacheError
            If something else has the directory's name.
        """
        for look in range(LOOKS):
            time.sleep(LOOK if look else 0)
            existed = os.path.lexists(self.directory)
            self._make()
            try:
                self._lock = try_lock(self.directory / LOCK)
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                if not existed:
                    discard_empty(self.directory)
                self.use(secrets.token_hex(4))
                self._make()
            if self.private or (self._lock is not None and self._owner.take()):
                self._claimed = True
                try:
                    require_links(self.directory, self.directory.parent)
                except DistcacheError:
                    self.leave()
                    raise
                return
            self._unlock()
        raise NotReady(
            f"{self.prefix}: another process is writing it (it holds {self.directory / LOCK}); "
            "wait for it, or choose another --out"
        )

    def _sweep(self) -> None:
        """Remove this user's private directories without life for an hour: none can be resumed."""
        parent, shared = Path(self.prefix).parent, f".{Path(self.prefix).name}.ingest"
        private = re.compile(re.escape(shared) + r"-[0-9a-f]{8}")
        for name in filter(private.fullmatch, os.listdir(parent)):
            with contextlib.suppress(OSError):
                found = os.lstat(parent / name)
                if time.time() - found.st_mtime > limits().leftover:
                    empty_directory(parent / name)
                    (parent / name).rmdir()

    def _make(self) -> None:
        name = os.fsencode(Path(self.prefix).name)
        if len(name) > LONGEST_NAME:
            raise ConfigError(f"--out: the name has {len(name)} bytes, more than {LONGEST_NAME}")
        if not name or self._given.endswith("/") or os.path.isdir(self.prefix):
            raise ConfigError(
                f"--out {self.prefix}: is a directory; expected the path of a corpus in one"
            )
        if not self.prefix.isprintable():
            raise ConfigError(f"--out {self.prefix!r}: expected printable text")
        try:
            with may_write(self.directory.parent, "choose another --out"):
                make_directories(self.directory.parent)
                self.directory.mkdir(mode=0o700)
        except FileExistsError as error:
            if not self.directory.parent.is_dir():
                raise ConfigError(f"{self.directory.parent}: is not a directory") from error
            found = os.lstat(self.directory)
            if not stat.S_ISDIR(found.st_mode):
                raise DistcacheError(
                    f"{self.directory}: is not a directory; remove it, or choose another --out"
                ) from error
            if found.st_uid != os.geteuid():
                raise NotReady(
                    f"{self.prefix}: user {user_name(found.st_uid)} is writing it, or has begun to "
                    "and was interrupted; wait, let that user run again or remove "
                    f"{self.directory}, or choose another --out"
                ) from error

    @property
    def stamp(self) -> str | None:
        """What the unfinished corpora here are made from; None if there are none."""
        return self._stamp.read_text(encoding="ascii") if self._stamp.is_file() else None

    def begin(self, stamp: str) -> None:
        """Note what the corpora are made from, and remove what is here, unless it is of the same.

        Raises
        ------
        DistcacheError
            If there is something that no ingest has left: where one has, there is a stamp.
        """
        self._sweep()
        if self.stamp == stamp:
            return
        others = [entry.name for entry in self.directory.iterdir() if entry.name not in GUARDS]
        if others and not self._stamp.is_file():
            raise DistcacheError(
                f"{self.directory}: has files of somebody else ({', '.join(others[:3])}); move it "
                "away, or choose another --out"
            )
        with write_whole(self._stamp) as stream:
            stream.write(stamp.encode())
        self._clear()

    def _clear(self) -> None:
        """Remove all but the stamp, by which the rest is known as ours, and what guards it."""
        empty_directory(self.directory, (*GUARDS, self._stamp.name), self._lock)

    def is_mine(self) -> bool:
        """Tell whether no other process has taken the directory over, where locks do not exclude.

        One does if it has seen no heartbeat for too long, as on a filesystem that has hung.
        """
        return self._lock is None or not self._owner.is_another()

    def leave(self) -> None:
        """Let others write; what is unfinished stays, unless nobody could resume it."""
        if self.private:
            if self._claimed:
                self.remove()
            return
        if self._lock is not None:
            self._owner.release()
            discard_empty(self.directory, (LOCK, *SIGNS))
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._owner.release()
            os.close(self._lock)
            self._lock = None

    def require_free(self, why: str = "") -> None:
        """Refuse final names that are taken by files that are not ours.

        Parameters
        ----------
        why : str
            What is known of the difference, for the message.

        Raises
        ------
        KeyMismatch
            Naming all of them.
        """
        taken = [final for final, ours in self._final_files() if not ours]
        if taken:
            verb = "exist" if len(taken) > 1 else "exists"
            raise KeyMismatch(
                f"{', '.join(taken)}: already {verb}, and not as this command makes it{why}; move "
                "it away, or choose another --out"
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
        """Give corpora that are whole and synced their names; `remove` comes next.

        A publication that was killed is completed by repeating it.

        Raises
        ------
        KeyMismatch
            If a name has been taken in the meantime.
        DistcacheError
            If the directory has become another process's.
        """
        if not self.is_mine():
            raise DistcacheError(
                f"{self.directory}: another process has taken it over, since it saw no heartbeat "
                "of this one for too long; run again when that one is done"
            )
        self.require_free()
        for shard in range(shards):
            for unfinished, final in self._names(shard):
                if not _is_same(unfinished, final) and not _link(unfinished, final):
                    self.require_free()
                    raise KeyMismatch(
                        f"{final}: was made by another process meanwhile, and is gone or going; "
                        "run again, which publishes what is done"
                    )
        sync_directory(Path(self.prefix).parent)

    def remove(self) -> None:
        """Remove the directory, unless another process has become its owner; let others write."""
        with contextlib.suppress(OSError):
            if self.is_mine():
                self._clear()
                empty_directory(self.directory, (LOCK, OWNER), self._lock)
                self._owner.release()
                (self.directory / LOCK).unlink(missing_ok=True)
        self._unlock()
        # Another process may have begun to write; a network filesystem may keep a name for a while.
        with contextlib.suppress(OSError):
            self.directory.rmdir()


def user_name(uid: int) -> str:
    """Return what a user is called here."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


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
