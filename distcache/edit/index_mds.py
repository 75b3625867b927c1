"""Index MDS shards as a corpus: all ranks scan them, and nothing is converted.

Rank r scans a contiguous range of the shards. What it finds of each goes to a journal and a file of
numbers, so that a killed run continues; then the `.idx` is written, each rank its own slice.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from distcache import __version__
from distcache.corpus.corpus import CorpusFacts
from distcache.corpus.examine import require_sound
from distcache.corpus.idx import code_of, idx_path
from distcache.corpus.idx_writer import IdxPlan, lay_out_idx, write_bounds, write_sequences
from distcache.corpus.mds.index_json import Columns, DataSet, ShardEntry, read_index
from distcache.corpus.mds.shard_table import read_table, shards_path, write_table
from distcache.corpus.mds.stored_shard import StoredShard, find_shard
from distcache.corpus.receipt import Origin, Receipt
from distcache.edit.indexed_shards import (
    IndexedShard,
    RecordIndexReader,
    RecordIndexWriter,
    SetFacts,
    Totals,
    aligned,
    batches_of_shards,
    common_type,
    damaged_shard,
    receipt_of_sets,
    scanned_shard,
    table_of,
    totals_of,
)
from distcache.edit.mds_scan import MdsOptions, kind_of, scan_shard, token_type
from distcache.errors import (
    ConfigError,
    CorpusError,
    DistcacheError,
    KeyMismatch,
    NotReady,
    error_from_exit_code,
)
from distcache.ingest.output import Links, Output
from distcache.ranks.agreement import aborting_on_error, on_all_ranks, on_rank_0, own_share, spread
from distcache.ranks.communicator import Communicator
from distcache.ranks.progress import NullProgress, Progress, Stopwatch
from distcache.storage.files import (
    closing_fd,
    digest_range,
    no_space_as_error,
    open_to_write,
    require_text,
    version_of,
)
from distcache.storage.journal import Journal, read_journal
from distcache.storage.threads import map_in_threads


def index_mds(
    communicator: Communicator,
    directories: Sequence[str],
    out: str,
    options: MdsOptions,
    threads: int = 1,
    progress: Progress | None = None,
) -> Receipt:
    """Index MDS data sets as one corpus. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks, which divide the shards. Their number changes no byte.
    directories : sequence of str
        Directories of the data sets, in the order of the corpus; nothing is written there.
    out : str
        Prefix of the corpus.
    options : MdsOptions
        Columns and split to index, and how.
    threads : int
        Shards that each rank reads at a time.
    progress : Progress or None
        Receives the progress of rank 0.

    Returns
    -------
    Receipt
        Receipt of the corpus.

    Raises
    ------
    NotReady
        If a data set has no `index.json`.
    CorpusError
        With what is wrong with data sets, or the first damaged shard of each rank.
    ConfigError
        If the column does not hold tokens, or their type is not known.
    """
    watch = Stopwatch(progress or NullProgress(), lambda: communicator.waited)
    with aborting_on_error(communicator):
        on_rank_0(communicator, lambda: _require_options(directories, options), None, "options")
        watch.phase("reading indices")
        sets = _read_sets(communicator, directories, options)
        on_rank_0(communicator, lambda: _require_column(sets, options), None, "columns")
        origin = _origin(sets, options)
        output = Output(out, tokens="shards")

        def make() -> tuple[list[Receipt], dict[int, Links]]:
            facts, shards = _Indexing(communicator, sets, output, options, threads, watch).make()
            receipt = on_rank_0(
                communicator,
                lambda: receipt_of_sets(facts, output.name(0), origin, sets, shards, options),
                Receipt,
                "the receipt",
            )
            return [receipt], {}

        receipts, existed = output.produce(communicator, origin, watch, make, resumes=True)
        if existed:
            _require_unwritten(communicator, out)
        return receipts[0]


def _require_unwritten(communicator: Communicator, out: str) -> None:
    """Refuse to take a corpus for that of shards that were written to after it. Collective.

    Their `index.json` may be the same: only few have hashes.
    """

    def look() -> None:
        table, made = read_table(out), os.stat(shards_path(out)).st_mtime_ns
        for shard in own_share(communicator, range(len(table.rows))):
            path = table.path_of(shard)
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_mtime_ns > made:
                    raise KeyMismatch(
                        f"{path}: was written to after it was indexed; remove {out}.idx, .shards "
                        "and .receipt.json, and run again"
                    )

    on_all_ranks(communicator, look, "looking at shards")


def _require_options(directories: Sequence[str], options: MdsOptions) -> None:
    require_text(*directories)
    if not directories:
        raise ConfigError("no data set is named")
    if options.dtype is not None:
        try:
            token_type(options.dtype)
        except KeyError as error:
            raise ConfigError(f"--dtype {options.dtype}: expected a type of integers") from error


def _read_sets(
    communicator: Communicator, directories: Sequence[str], options: MdsOptions
) -> list[SetFacts]:
    """Read the index of each data set once. Collective."""

    def read(own: Sequence[str]) -> list[SetFacts]:
        found: list[SetFacts] = []
        errors: list[DistcacheError] = []
        for directory in own:
            try:
                found.append(_facts_of(read_index(directory, options.split)))
            except (CorpusError, NotReady) as error:
                errors.append(error)
        if errors:
            problems = [problem for error in errors for problem in error.problems]
            raise error_from_exit_code(errors[0].exit_code, *problems)
        return found

    return spread(communicator, directories, read, SetFacts, "reading indices")


def _facts_of(data: DataSet) -> SetFacts:
    sizes = [shard.raw_data.bytes for shard in data.shards]
    columns = list(dict.fromkeys(shard.columns for shard in data.shards))
    return SetFacts(data.directory, data.size, data.digest, sizes, columns)


def _require_column(sets: Sequence[SetFacts], options: MdsOptions) -> None:
    """Refuse data sets that do not fit the options, before any shard is read."""
    if not any(entry.sizes for entry in sets):
        raise CorpusError(f"{', '.join(entry.directory for entry in sets)}: without a shard")
    if options.rows:
        kinds = {columns: entry.directory for entry in sets for columns in entry.columns}
        if len(kinds) > 1:
            names = "; ".join(f"{path}: {', '.join(c.column_names)}" for c, path in kinds.items())
            raise ConfigError(f"rows of one corpus must have one set of columns ({names})")
        return
    for entry in sets:
        data = read_index(entry.directory)
        seen: set[Columns] = set()
        for shard in data.shards:
            if shard.columns not in seen:
                seen.add(shard.columns)
                _require_type(data.directory, shard, options)


def _require_type(directory: str, shard: ShardEntry, options: MdsOptions) -> None:
    """Refuse a column without tokens, and bytes whose type is not stated, with advice."""
    try:
        kind_of(shard, options)
    except ConfigError as error:
        raise ConfigError(f"{directory}: {error}") from error
    encoding = shard.column_encodings[shard.columns.place_of(options.column)]
    if encoding != "bytes" or options.dtype is not None:
        return
    raise ConfigError(
        f"{directory}: --column {options.column} is {encoding}, whose type the data does not say: "
        "give --dtype"
    )


def _origin(sets: Sequence[SetFacts], options: MdsOptions) -> Origin:
    chosen: dict[str, Any] = {
        name: value for name, value in msgspec.to_builtins(options).items() if value is not None
    }
    known = [(entry.directory, entry.digest) for entry in sets]
    identity = msgspec.json.encode(["mds", known, sorted(chosen.items())])
    return Origin(
        kind="mds",
        made_from=xxhash.xxh3_128(identity).hexdigest(),
        tokenizer=None,
        options=chosen,
        versions={"distcache": __version__},
    )


class _Indexing:
    """Makes the unfinished corpus of data sets, each rank from its own shards."""

    def __init__(
        self,
        communicator: Communicator,
        sets: Sequence[SetFacts],
        output: Output,
        options: MdsOptions,
        threads: int,
        watch: Stopwatch,
    ) -> None:
        self._communicator = communicator
        self._sets = sets
        self._output = output
        self._options = options
        self._threads = threads
        self._watch = watch
        sizes = np.array([size for entry in sets for size in entry.sizes], np.int64)
        self._own = _share(sizes, communicator.size, communicator.rank)
        self._sizes = sizes

    def make(self) -> tuple[CorpusFacts, list[IndexedShard]]:
        """Scan all shards and write the index. Collective.

        Returns
        -------
        facts : CorpusFacts
            Facts of the unfinished corpus, which is sound.
        shards : list
            All shards, on rank 0; empty elsewhere.
        """
        communicator = self._communicator
        attempt = on_rank_0(communicator, lambda: secrets.token_hex(4), str, "naming the attempt")
        weights = self._sizes[self._own.start : self._own.stop]
        self._watch.phase("indexing shards", float(weights.sum()))
        mine = on_all_ranks(communicator, lambda: self._scan(attempt), "indexing shards")
        totals = communicator.allgather(totals_of(mine), Totals, "what is indexed")
        before = totals[: communicator.rank]
        dtype = on_rank_0(communicator, lambda: common_type(totals, self._options), str, "tokens")
        kept = sum(total.sequences for total in totals)
        plan = IdxPlan(code_of(token_type(dtype)), kept, kept)
        prefix = self._output.unfinished(0)
        on_rank_0(communicator, lambda: self._lay_out(plan), None, "laying out")
        self._watch.phase("writing the index")
        first = sum(total.sequences for total in before)
        base = sum(total.nbytes for total in before)
        on_all_ranks(
            communicator, lambda: self._write(plan, mine, first, base), "writing the index"
        )
        shards: list[IndexedShard] = []

        def write_shards() -> None:
            shards.extend(self._all_shards(attempt))
            write_table(prefix, table_of(shards, self._columns()))

        on_rank_0(communicator, write_shards, None, "writing the table of shards")
        self._watch.phase("examining")
        return require_sound(communicator, [prefix], self._threads)[prefix], shards

    def _columns(self) -> bytes:
        if not self._options.rows:
            return b""
        columns = next(columns for entry in self._sets for columns in entry.columns)
        return msgspec.json.encode(columns)

    def _lay_out(self, plan: IdxPlan) -> None:
        if not plan.sequences:
            raise CorpusError("no record is left to index")
        lay_out_idx(self._output.unfinished(0), plan)

    def _entries(self) -> Iterator[tuple[int, str, ShardEntry]]:
        """Yield this rank's shards: number, directory, and what the index says."""
        first = 0
        for entry in self._sets:
            last = first + len(entry.sizes)
            begin, end = max(first, self._own.start), min(last, self._own.stop)
            if begin < end:
                data = read_index(entry.directory)
                if data.digest != entry.digest:
                    raise CorpusError(f"{entry.directory}: was written to while it was indexed")
                for number in range(begin, end):
                    yield number, data.directory, data.shards[number - first]
            first = last

    def _scan(self, attempt: str) -> list[IndexedShard]:
        """Scan this rank's shards, but for those that an earlier run has left."""
        directory = self._output.directory
        known = {
            shard.number: shard
            for path in sorted(directory.glob("index.*.jsonl"))
            for shard in read_journal(path, IndexedShard)
            if shard.number in self._own
        }
        entries = list(self._entries())
        left = [known[number] for number, *_ in entries if number in known]
        left = [shard for shard in left if self._is_valid(shard)]
        done = {shard.number: shard for shard in left}
        self._watch.advance(float(sum(self._sizes[number] for number in done)))
        todo = [entry for entry in entries if entry[0] not in done]
        rank = self._communicator.rank
        journal = directory / f"index.{attempt}.{rank}.jsonl"
        with (
            Journal(journal, left) as lines,
            RecordIndexWriter(directory, attempt, rank) as numbers,
        ):
            scanner = _Scanner(self._options, lines, numbers, self._watch)
            made = map_in_threads(scanner.scan, todo, self._threads)
        found = done | {shard.number: shard for shard in made}
        return [found[number] for number, *_ in entries]

    def _is_valid(self, shard: IndexedShard) -> bool:
        """Return whether a shard is the one that was scanned, and its numbers are there."""
        try:
            modified = os.stat(shard.path).st_mtime_ns
            path = self._output.directory / shard.file
            end = shard.begin + 8 * shard.sequences
            same = digest_range(path, shard.begin, end) == shard.digest
        except OSError:
            return False
        return same and modified == shard.modified and not shard.damage

    def _write(self, plan: IdxPlan, shards: Sequence[IndexedShard], first: int, base: int) -> None:
        path = idx_path(self._output.unfinished(0))
        kept = [shard for shard in shards if not shard.damage]
        with (
            no_space_as_error(path),
            closing_fd(open_to_write(path)) as descriptor,
            RecordIndexReader(self._output.directory) as numbers,
        ):
            for some in batches_of_shards(kept):
                lengths, pointers = zip(*map(numbers.of, some), strict=True)
                sizes = [aligned(shard.raw_size) for shard in some]
                bases = base + np.cumsum([0, *sizes])
                starts = np.repeat(bases[:-1], list(map(len, lengths)))
                offsets = starts + np.concatenate(pointers)
                write_sequences(descriptor, plan, first, np.concatenate(lengths), offsets)
                write_bounds(descriptor, plan, first, np.arange(first, first + len(offsets)))
                first += len(offsets)
                base = int(bases[-1])
            os.fsync(descriptor)

    def _all_shards(self, attempt: str) -> list[IndexedShard]:
        """Read what all ranks have found, from their journals."""
        shards = [
            shard
            for rank in range(self._communicator.size)
            for shard in read_journal(
                self._output.directory / f"index.{attempt}.{rank}.jsonl", IndexedShard
            )
        ]
        shards.sort(key=lambda shard: shard.number)
        if [shard.number for shard in shards] != list(range(len(self._sizes))):
            raise DistcacheError(
                f"{self._output.directory}: the journals of the ranks are not whole; run again"
            )
        return shards


class _Scanner:
    """Scans shards, in several threads, each with room for one."""

    def __init__(
        self, options: MdsOptions, journal: Journal, numbers: RecordIndexWriter, progress: Progress
    ) -> None:
        self._options = options
        self._journal = journal
        self._numbers = numbers
        self._progress = progress
        self._rooms = threading.local()
        self._lock = threading.Lock()

    def scan(self, task: tuple[int, str, ShardEntry]) -> IndexedShard:
        """Scan a shard, and journal what was found.

        Raises
        ------
        CorpusError
            If it or one of its records is damaged, and that is not to be skipped.
        """
        number, directory, entry = task
        skip = self._options.on_error == "skip"
        try:
            stored = find_shard(directory, entry)
            modified = version_of(os.stat(stored.path)).modified
            scan = scan_shard(stored, entry, self._options, self._room(stored))
        except CorpusError as error:
            if not skip:
                raise
            shard = damaged_shard(number, directory, entry, str(error))
        else:
            if scan.wrong and not skip:
                record, reason = min(scan.wrong.items())
                raise CorpusError(
                    f"{stored.path}: record {record}: {reason} ({len(scan.wrong)} such records; "
                    "--on-error skip leaves them out)"
                )
            data = scan.lengths.tobytes() + scan.pointers.tobytes()
            shard = scanned_shard(number, stored, modified, entry, scan)
            shard = msgspec.structs.replace(
                shard,
                file=self._numbers.name,
                begin=self._numbers.append(data),
                digest=xxhash.xxh3_128_hexdigest(data),
            )
        with self._lock:
            self._journal.append(shard)
            self._progress.advance(entry.raw_data.bytes)
        return shard

    def _room(self, stored: StoredShard) -> NDArray[np.uint8]:
        room: NDArray[np.uint8] | None = getattr(self._rooms, "room", None)
        if room is None or len(room) < stored.raw_size:
            room = self._rooms.room = np.empty(stored.raw_size, np.uint8)
        return room


def _share(sizes: NDArray[np.int64], ranks: int, rank: int) -> range:
    """Return the shards of a rank: a contiguous range of about as many bytes as others have."""
    ends = np.cumsum(sizes + 1)
    total = int(ends[-1])
    first, last = (
        int(np.searchsorted(ends, total * bound // ranks, "right")) if bound < ranks else len(sizes)
        for bound in (rank, rank + 1)
    )
    return range(first, last)
