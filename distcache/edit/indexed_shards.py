"""What is known of indexed shards: journaled lines and numbers, and what is made of them."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from distcache.corpus.corpus import CorpusFacts
from distcache.corpus.mds.index_json import CODECS, INDEX, Columns, ShardEntry
from distcache.corpus.mds.shard_table import ALIGNMENT, DIGESTED, ROWS, ShardTable
from distcache.corpus.mds.stored_shard import StoredShard
from distcache.corpus.receipt import (
    InputReceipt,
    Origin,
    PieceReceipt,
    Receipt,
    Skipped,
    receipt_of,
)
from distcache.edit.mds_scan import MdsOptions, Scan
from distcache.errors import CorpusError, DistcacheError
from distcache.storage.files import (
    closing_fd,
    no_space_as_error,
    open_regular,
    read_range,
    recreate,
    write_range,
)
from distcache.storage.threads import decodable

MAX_LISTED: Final = 1000  # damaged records of a shard that are listed; all are counted
LISTED_PER_RECEIPT: Final = 100_000  # of a receipt
BLOCK_SEQUENCES: Final = 1 << 20  # sequences whose lengths and pointers are in memory


@decodable
class IndexedShard(msgspec.Struct, frozen=True):
    """What is known of a shard, as a line of a journal."""

    number: int  # among the shards of all data sets
    # the form that was read; `zip_size` is 0 if it is raw, `modified` its time in nanoseconds
    path: str
    codec: str
    zip_size: int
    raw_size: int
    modified: int
    # XXH3-128 in hexadecimal; zeros where it is not known
    raw_digest: str
    zip_digest: str
    data_begin: int  # start of the records, in bytes
    # records that it has; those that are kept, with all tokens; and how many have none
    records: int
    sequences: int
    tokens: int
    empty: int
    # tokens of the shortest and of the longest
    least: int
    most: int
    dtype: str  # type of the tokens
    wrong: list[tuple[int, str]]  # records that are left out, and why: the first 1,000
    damage: str  # why the whole shard is left out; empty if it is not
    # file and first byte of the lengths and pointers that are kept, and their XXH3-128
    file: str = ""
    begin: int = 0
    digest: str = ""


class SetFacts(msgspec.Struct, frozen=True):
    """A data set, and the raw bytes of its shards."""

    directory: str
    size: int
    digest: str
    sizes: list[int]
    columns: list[Columns]


class Totals(msgspec.Struct, frozen=True, array_like=True):
    """What the shards of a rank add up to, the bytes aligned."""

    sequences: int
    nbytes: int
    dtypes: list[str]


def scanned_shard(
    number: int, stored: StoredShard, modified: int, entry: ShardEntry, scan: Scan
) -> IndexedShard:
    """Return what is known of a scanned shard, whose numbers are nowhere yet."""
    return IndexedShard(
        number=number,
        path=stored.path,
        codec=stored.codec,
        zip_size=stored.size if stored.codec else 0,
        raw_size=stored.raw_size,
        modified=modified,
        raw_digest=scan.raw_digest.hex(),
        zip_digest=scan.zip_digest.hex(),
        data_begin=scan.data_begin,
        records=entry.samples,
        sequences=len(scan.lengths),
        tokens=int(scan.lengths.sum(dtype=np.int64)),
        empty=int(np.count_nonzero(scan.lengths == 0)),
        least=int(scan.lengths.min(initial=np.iinfo(np.int32).max)),
        most=int(scan.lengths.max(initial=0)),
        dtype=scan.dtype,
        wrong=sorted(scan.wrong.items())[:MAX_LISTED],
        damage="",
    )


def damaged_shard(number: int, directory: str, entry: ShardEntry, reason: str) -> IndexedShard:
    """Return what is known of a shard that is left out."""
    path = os.path.join(directory, entry.raw_data.basename)
    if entry.zip_data is not None and not os.path.lexists(path):
        path = os.path.join(directory, entry.zip_data.basename)
    zeros = "0" * 32
    return IndexedShard(
        number=number,
        path=path,
        codec="",
        zip_size=0,
        raw_size=0,
        modified=0,
        raw_digest=zeros,
        zip_digest=zeros,
        data_begin=0,
        records=entry.samples,
        sequences=0,
        tokens=0,
        empty=0,
        least=0,
        most=0,
        dtype="",
        wrong=[],
        damage=reason.removeprefix(f"{path}: "),
    )


def aligned(size: int) -> int:
    """Return the bytes of the `.bin` from the start of a shard to that of the next one."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def totals_of(shards: Iterable[IndexedShard]) -> Totals:
    """Add up the shards of a rank that are kept."""
    kept = [shard for shard in shards if not shard.damage]
    return Totals(
        sum(shard.sequences for shard in kept),
        sum(aligned(shard.raw_size) for shard in kept),
        sorted({shard.dtype for shard in kept if shard.tokens}),
    )


def common_type(totals: Sequence[Totals], options: MdsOptions) -> str:
    """Return the type of the tokens of all ranks.

    Raises
    ------
    CorpusError
        If there are several.
    """
    found = sorted({name for total in totals for name in total.dtypes})
    if len(found) > 1:
        raise CorpusError(
            f"column {options.column} has tokens of different types, {', '.join(found)}; index "
            "data sets of one type together"
        )
    return found[0] if found else options.dtype or "int32"


def table_of(shards: Sequence[IndexedShard], columns: bytes) -> ShardTable:
    """Return the table of the shards that are kept."""
    kept = [shard for shard in shards if not shard.damage]
    rows = np.zeros(len(kept), ROWS)
    names = [shard.path.encode() for shard in kept]
    rows["base"] = [0, *itertools.accumulate(aligned(r.raw_size) for r in kept)][:-1]
    rows["first_sequence"] = [0, *itertools.accumulate(r.sequences for r in kept)][:-1]
    rows["first_token"] = [0, *itertools.accumulate(r.tokens for r in kept)][:-1]
    rows["name_begin"] = [0, *itertools.accumulate(map(len, names))][:-1]
    rows["name_size"] = list(map(len, names))
    for name in ("raw_size", "zip_size", "data_begin"):
        rows[name] = [getattr(shard, name) for shard in kept]
    for name in ("raw_digest", "zip_digest"):
        digests = b"".join(bytes.fromhex(getattr(shard, name)) for shard in kept)
        rows[name] = np.frombuffer(digests, "V16")
    rows["codec"] = [CODECS.index(shard.codec) for shard in kept]
    rows["flags"] = DIGESTED
    return ShardTable(
        rows,
        b"".join(names),
        columns,
        sum(shard.sequences for shard in kept),
        sum(shard.tokens for shard in kept),
    )


def receipt_of_sets(
    facts: CorpusFacts,
    name: str,
    origin: Origin,
    sets: Sequence[SetFacts],
    shards: Sequence[IndexedShard],
    options: MdsOptions,
) -> Receipt:
    """Return the receipt of data sets that were indexed, with what was left out."""
    inputs, skipped = [], []
    rest = iter(shards)
    for entry in sets:
        own = list(itertools.islice(rest, len(entry.sizes)))
        inputs.append(_input_receipt(entry, own))
        skipped += [
            Skipped(shard.path, reason, row=record if record >= 0 else None)
            for shard in own
            for record, reason in ([(-1, shard.damage)] if shard.damage else shard.wrong)
        ]
    lengths = {
        length for shard in shards if shard.sequences for length in (shard.least, shard.most)
    }
    if len(lengths) == 1 and not options.rows:
        origin = msgspec.structs.replace(
            origin, options={**origin.options, "length_of_all": lengths.pop()}
        )
    return receipt_of(facts, name, origin, inputs, skipped[:LISTED_PER_RECEIPT])


def _input_receipt(entry: SetFacts, shards: Sequence[IndexedShard]) -> InputReceipt:
    sequences = sum(shard.sequences for shard in shards)
    tokens = sum(shard.tokens for shard in shards)
    records = sum(shard.records for shard in shards)
    return InputReceipt(
        path=os.path.join(entry.directory, INDEX),
        size=entry.size,
        digest=entry.digest,
        rows=records,
        documents=sequences,
        empty=sum(shard.empty for shard in shards),
        skipped=records - sequences,
        sequences=sequences,
        tokens=tokens,
        pieces=(PieceReceipt(0, records, records, sequences, sequences, tokens),),
    )


class RecordIndexWriter:
    """A file of lengths and pointers, to which the threads of a rank append."""

    def __init__(self, directory: Path, attempt: str, rank: int) -> None:
        self.name = f"numbers.{attempt}.{rank}"
        self._path = directory / self.name
        self._end = 0
        self._lock = threading.Lock()

    def __enter__(self) -> RecordIndexWriter:
        self._stream = recreate(self._path)
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def append(self, data: bytes) -> int:
        """Write numbers, and return the byte at which they begin."""
        with self._lock:
            begin, self._end = self._end, self._end + len(data)
        with no_space_as_error(self._path):
            write_range(self._stream.fileno(), begin, data)
        return begin


class RecordIndexReader(ExitStack):
    """The lengths and pointers that this job and those before it have left in a directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self._file = ""
        self._descriptor = -1

    def of(self, shard: IndexedShard) -> tuple[NDArray[np.int32], NDArray[np.uint32]]:
        """Return the lengths and the pointers of a shard.

        Raises
        ------
        DistcacheError
            If they are not those that were written.
        """
        path = os.path.join(self._directory, shard.file)
        if shard.file != self._file:  # a file holds successive shards: one at a time is enough
            self.close()
            opened = open_regular(path, follow=False)
            self._file, self._descriptor = shard.file, self.enter_context(closing_fd(opened))
        end = shard.begin + 8 * shard.sequences
        data = read_range(self._descriptor, shard.begin, end)
        if xxhash.xxh3_128_hexdigest(data) != shard.digest:
            raise DistcacheError(f"{path}: does not keep what is written to it; run again")
        middle = 4 * shard.sequences
        return np.frombuffer(data[:middle], "<i4"), np.frombuffer(data[middle:], "<u4")


def batches_of_shards(shards: Sequence[IndexedShard]) -> Iterator[list[IndexedShard]]:
    """Yield successive shards, with about BLOCK_SEQUENCES sequences at a time."""
    ends = np.cumsum([0, *(shard.sequences for shard in shards)])
    for _, some in itertools.groupby(range(len(shards)), lambda i: int(ends[i]) // BLOCK_SEQUENCES):
        yield [shards[i] for i in some]
