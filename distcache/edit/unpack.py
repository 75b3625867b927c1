"""Unpack the shards of a corpus once: a `.bin` beside its `.shards`."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import msgspec

from distcache.corpus.examine import require_sound
from distcache.corpus.idx import bin_path
from distcache.corpus.mds.shard_table import ShardTable, read_table, shards_path
from distcache.corpus.mds.stored_shard import indexed_pieces, indexed_shard
from distcache.errors import ConfigError, KeyMismatch
from distcache.ranks.agreement import aborting_on_error, on_all_ranks, on_rank_0, own_share
from distcache.ranks.claim import claim
from distcache.ranks.communicator import Communicator
from distcache.ranks.production import produce
from distcache.ranks.progress import NullProgress, Progress, Stopwatch
from distcache.ranks.workspace import Workspace, hidden_directory
from distcache.storage.files import digest_range, require_text
from distcache.storage.journal import Journal, read_journal
from distcache.storage.space import require_space
from distcache.storage.threads import decodable, map_in_threads
from distcache.storage.unfinished_file import UnfinishedFile


class Unpacked(msgspec.Struct, frozen=True):
    """The result of unpacking.

    Attributes
    ----------
    path : str
        Path of the `.bin`.
    nbytes : int
        Length of the `.bin`.
    shards : int
        Number of shards that make it up.
    reused : bool
        Whether it existed.
    """

    path: str
    nbytes: int
    shards: int
    reused: bool


@decodable
class _UnpackedShard(msgspec.Struct, frozen=True):
    """A shard at its place, as a line of a journal."""

    shard: int


def unpack_shards(
    communicator: Communicator,
    prefix: str,
    threads: int = 1,
    progress: Progress | None = None,
) -> Unpacked:
    """Write the `.bin` that the shards of a corpus make up, beside its index. Collective.

    The corpus keeps its key. A killed run continues.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks, which divide the shards.
    prefix : str
        Prefix of the corpus.
    threads : int
        Shards that each rank unpacks at a time.
    progress : Progress or None
        Receives the progress of rank 0.

    Raises
    ------
    CorpusError
        If the corpus or a shard is not sound, or a shard is not the one that was indexed.
    KeyMismatch
        If something else has the name of the `.bin`.
    """
    watch = Stopwatch(progress or NullProgress(), lambda: communicator.waited)
    with aborting_on_error(communicator):
        on_rank_0(communicator, lambda: require_text(prefix), None, "reading names")
        watch.phase("examining the corpus")
        facts = require_sound(communicator, [prefix], threads)[prefix]
        if facts.shards is None:
            raise ConfigError(
                f"{prefix}: has no {shards_path('')}, so there is nothing to unpack"
            ).of_all_ranks()
        table = on_all_ranks(communicator, lambda: read_table(prefix), "reading the table")
        final = os.path.abspath(bin_path(prefix))
        workspace = Workspace(hidden_directory(Path(final), "unpack"), otherwise="make room there")

        job = _Unpacking(communicator, table, threads, watch)
        stamp = facts.shards.digest

        def outcome(*, reused: bool) -> Unpacked:
            return Unpacked(final, table.bin_size, len(table.rows), reused)

        def existing() -> Unpacked:
            watch.phase("comparing what is there")
            _require_same(communicator, table, final, threads)
            return outcome(reused=True)

        def publish(mine: Workspace, data: str) -> None:
            if mine.publish([(data, final)]) is not None:
                raise KeyMismatch(f"{final}: exists, and this command has not made it")

        return produce(
            communicator,
            workspace,
            watch,
            claim=lambda: claim(workspace, lambda: _is_there(final, table), final, watch),
            existing=existing,
            make=lambda mine: job.run(mine, stamp),
            publish=publish,
            report=lambda _made, _none: Unpacked(
                final, table.bin_size, len(table.rows), reused=False
            ),
            resumes=True,
        )


def _is_there(final: str, table: ShardTable) -> bool:
    """Return whether the `.bin` exists with its length; what has another one was refused before."""
    return os.path.lexists(final) and os.stat(final).st_size == table.bin_size


def _require_same(communicator: Communicator, table: ShardTable, path: str, threads: int) -> None:
    """Require that an unpacked file has the digests of its shards. Collective."""
    own = own_share(communicator, range(len(table.rows)), table.rows["raw_size"].tolist())

    def compare() -> None:
        right = map_in_threads(lambda shard: _is_unpacked(path, table.rows[shard]), own, threads)
        if not all(right):
            other = table.path_of(own[right.index(False)])
            raise KeyMismatch(f"{path}: differs from shard {other}; remove it, and unpack again")

    on_all_ranks(communicator, compare, "comparing what is there")


def _is_unpacked(path: str, row: Any) -> bool:
    """Return whether a file has a shard at its place, by its digest."""
    begin, end = int(row["base"]), int(row["base"] + row["raw_size"])
    known: bytes = row["raw_digest"].tobytes()
    return bytes.fromhex(digest_range(path, begin, end)) == known


class _Unpacking:
    """Writes shards to their places in an unfinished `.bin`, each by one rank."""

    def __init__(
        self,
        communicator: Communicator,
        table: ShardTable,
        threads: int,
        watch: Stopwatch,
    ) -> None:
        self._communicator = communicator
        self._table = table
        self._threads = threads
        self._watch = watch

    def run(self, workspace: Workspace, stamp: str) -> str:
        """Unpack all shards that are not there yet; return the path of the file. Collective."""
        communicator, rows = self._communicator, self._table.rows
        data = str(workspace.path / "data")

        def prepare() -> str:
            workspace.prepare(stamp)
            written = 512 * os.stat(data).st_blocks if os.path.lexists(data) else 0
            needed = int(rows["raw_size"].sum())
            require_space(workspace.path, needed, "make room there", written=written)
            with UnfinishedFile(data, make=True) as file:
                file.truncate(self._table.bin_size)
            return secrets.token_hex(4)

        attempt = on_rank_0(communicator, prepare, str, "making room")
        own = own_share(communicator, range(len(rows)), rows["raw_size"].tolist())
        self._watch.phase("unpacking", float(rows["raw_size"][own].sum()))
        on_all_ranks(communicator, lambda: self._unpack(data, own, attempt), "unpacking shards")
        return data

    def _unpack(self, data: str, own: list[int], attempt: str) -> None:
        directory = Path(data).parent
        journaled = {
            record.shard
            for path in directory.glob("unpacked.*.jsonl")
            for record in read_journal(path, _UnpackedShard)
        }
        intact = {
            shard
            for shard in own
            if shard in journaled and _is_unpacked(data, self._table.rows[shard])
        }
        self._watch.advance(float(self._table.rows["raw_size"][list(intact)].sum()))
        todo = [shard for shard in own if shard not in intact]
        path = directory / f"unpacked.{attempt}.{self._communicator.rank}.jsonl"
        records = [_UnpackedShard(shard) for shard in sorted(intact)]
        with Journal(path, records) as journal, UnfinishedFile(data) as file:

            def write(shard: int) -> None:
                row = self._table.rows[shard]
                offset = int(row["base"])
                for piece in indexed_pieces(*indexed_shard(row, self._table.path_of(shard))):
                    file.write(offset, piece)
                    offset += piece.size
                journal.append(_UnpackedShard(shard))
                self._watch.advance(float(self._table.rows["raw_size"][shard]))

            map_in_threads(write, todo, self._threads)
            file.sync()
