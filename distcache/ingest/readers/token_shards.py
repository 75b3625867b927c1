"""Token ids of any format, as Arrow's buffers, to the documents of a corpus."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from distcache.corpus.idx import limit_of
from distcache.errors import CorpusError
from distcache.extras import imported
from distcache.ingest.document_buffer import DocumentBuffer, Problem, ReadingEnds
from distcache.ingest.inputs import Group, Input, TokenOptions
from distcache.ingest.pieces import InputPiece
from distcache.ingest.readers.formats import FORMATS
from distcache.ingest.readers.input_rows import InputRow, TokenRows
from distcache.ingest.readers.tables import Table, column_type, is_list, open_table
from distcache.ingest.readers.token_masks import (
    IGNORE,
    LABELS,
    LEFT_OUT,
    PACKED_MASK,
    STARTS,
    LabelShift,
    Rows,
    is_other,
    masked,
)
from distcache.kernels import first_outside, narrow_tokens

MAX_SEQUENCE_TOKENS: Final = (1 << 31) - 2  # tokens of a sequence, with room for its end
BATCH_BYTES: Final = 4 << 20  # bytes of tokens that are decoded at a time
MAX_ROWS: Final = 1 << 16


def require_token_column(entry: Input, options: TokenOptions) -> None:
    """Refuse a table whose column does not have lists of integers, or whose masks none of numbers.

    Raises
    ------
    CorpusError
        Naming the file, the column and its type.
    """
    with open_table(entry) as table:
        kind = column_type(table, entry.path, options.column)
        masks = {
            name: [table.schema.field(place).type for place in places]
            for name in LEFT_OUT
            if (places := table.schema.get_all_field_indices(name)) and name != options.column
        }
        known = _mask_columns(table, options.column)
        packed = table.schema.get_all_field_indices(STARTS)
        starts = [table.schema.field(place).type for place in packed]
    if packed and options.masks == "keep":
        is_right = len(starts) == 1 and is_list(starts[0]) and _is_integer(starts[0].value_type)
        if not is_right or PACKED_MASK not in known:
            raise CorpusError(
                f"{entry.path}: column {STARTS!r} marks packed rows of Megatron-Bridge; expected "
                f"lists of integers there, and a column {PACKED_MASK!r}; {IGNORE}"
            )
    if not pa.types.is_null(kind) and not (is_list(kind) and _is_integer(kind.value_type)):
        raise CorpusError(
            f"{entry.path}: column {options.column!r} is of type {kind}, expected lists of integers"
        )
    for name, kinds in masks.items():
        nothing = len(kinds) == 1 and pa.types.is_null(kinds[0])
        if (
            name not in known
            and not nothing
            and not is_other(name, ignored=options.masks == "ignore")
        ):
            found = " and ".join(map(str, kinds))
            raise CorpusError(
                f"{entry.path}: column {name!r} is of type {found}, expected one with lists of "
                f"numbers; {IGNORE}"
            )


def _is_integer(kind: pa.DataType) -> bool:
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_integer(inner) or pa.types.is_null(inner))


class ShardReader:
    """Adds the rows of token shards to buffers. Only invalid rows become Python objects.

    Parameters
    ----------
    options : TokenOptions
        Checks, and the token to append.
    """

    def __init__(self, options: TokenOptions) -> None:
        self._options = options
        self._shift = LabelShift()

    def read(
        self, entry: Input, piece: InputPiece, buffer: DocumentBuffer, stopped: Callable[[], bool]
    ) -> None:
        """Add the documents of a piece to a buffer, until an error or `stopped` ends it."""
        reading = _Reading(self._options, self._shift, buffer, stopped)
        with contextlib.suppress(ReadingEnds):
            if entry.is_table:
                with open_table(entry) as table:
                    for group in range(piece.begin, piece.end):
                        reading.add_group(table, entry, group)
                return
            rows_of = imported(FORMATS[entry.format].tokens)
            for found in rows_of(entry, piece, self._options):
                reading.add_rows(found)


def _rows_at_a_time(group: Group) -> int:
    """Return how many rows have about `BATCH_BYTES`, which fit into the processor's cache."""
    return min(max(BATCH_BYTES * group.rows // max(group.nbytes, 1), 1), MAX_ROWS)


class _Reading:
    """Reads one piece."""

    def __init__(
        self,
        options: TokenOptions,
        shift: LabelShift,
        buffer: DocumentBuffer,
        stopped: Callable[[], bool],
    ) -> None:
        self._options = options
        self._shift = shift
        self._stopped = stopped
        self._buffer = buffer
        self._limit = limit_of(buffer.dtype, options.vocabulary)
        self._scratch = np.empty(0, buffer.dtype)

    def add_group(self, table: Table, entry: Input, group: int) -> None:
        """Add the documents of a group of rows."""
        at_a_time = _rows_at_a_time(entry.groups[group])
        facts = self._buffer.facts
        before = facts.rows
        try:
            columns = [self._options.column, *_mask_columns(table, self._options.column)]
            if STARTS in table.schema.names and self._options.masks == "keep":
                columns.append(STARTS)
            for batch in table.batches(group, columns, at_a_time):
                places = np.arange(facts.rows, facts.rows + len(batch), dtype=np.int64)
                lists = _as_lists(batch, self._options.column)
                self._add(TokenRows(lists, places, None, group, before))
        except ValueError as error:
            place = facts.rows - before
            lost = entry.groups[group].rows - place
            reason = f"{error}; {lost} rows are left out" if lost > 1 else str(error)
            facts.skipped += max(lost - 1, 0)
            facts.rows += lost
            self._reject([Problem(place, reason, group=group)])

    def add_rows(self, found: TokenRows | InputRow) -> None:
        """Add the documents of lines, or of an array."""
        if isinstance(found, TokenRows):
            self._buffer.facts.lines += found.lines
            self._add(found)
            return
        self._buffer.facts.lines += 1
        self._buffer.facts.rows += 1
        self._reject([Problem(found.place, str(found.reason), found.byte)])

    def _reject(self, problems: list[Problem]) -> None:
        """Record invalid rows; raise `ReadingEnds` if they end the ingest."""
        fails = self._options.on_error == "fail"
        self._buffer.facts.reject(problems[:1] if fails else problems)
        if fails and problems:
            raise ReadingEnds

    def _add(self, rows: TokenRows) -> None:
        """Add rows, unless the work is to stop."""
        if self._stopped():
            raise ReadingEnds
        found = self._masked(rows.batch)
        wrong = found.wrong | _row_problems(found.lists)
        decoded = None if wrong else self._decode(found.lists)
        if decoded is not None:
            self._append(*decoded, rows.places, found)
            self._buffer.facts.rows += len(rows.batch)
            return
        wrong = {**dict(_wrong_values(found.lists, self._limit)), **wrong}
        self._reject([_problem(rows, row, wrong[row]) for row in sorted(wrong)])
        self._buffer.facts.rows += len(wrong)
        keep = np.ones(len(rows.batch), bool)
        keep[list(wrong)] = False
        # Of rows that are left, masks may be wrong that were not compared beside invalid ids.
        self._add(rows._replace(batch=rows.batch.filter(pa.array(keep)), places=rows.places[keep]))

    def _masked(self, batch: pa.RecordBatch) -> _Masked:
        """Return what masks say of a batch."""
        lists = batch.column(self._options.column)
        if batch.num_columns == 1:
            return _Masked(lists, {})
        ignored = self._options.masks == "ignore"
        return _masked_lists(lists, batch, self._shift, ignored=ignored)

    def _decode(self, lists: pa.Array) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
        """Return the tokens and the lengths of lists without nulls; None if a token is invalid.

        The next call overwrites the tokens.
        """
        values = _plain(lists.flatten())
        if values.null_count:
            return None
        if len(self._scratch) < len(values):
            self._scratch = np.empty(len(values), self._buffer.dtype)
        tokens = self._scratch[: len(values)]
        if narrow_tokens(values.to_numpy(zero_copy_only=True), self._limit, tokens) >= 0:
            return None
        lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
        return tokens, lengths.astype(np.int64)

    def _append(
        self,
        tokens: NDArray[Any],
        lengths: NDArray[np.int64],
        places: NDArray[np.int64],
        found: _Masked,
    ) -> None:
        losses, counts = found.losses, (lengths > 0).astype(np.int64)
        lengths = lengths[lengths > 0]
        if found.sequences is not None:
            lengths, counts = found.sequences
        if self._options.eod is not None:
            missing = _without_end(tokens, lengths, self._options.eod)
            ends = np.cumsum(lengths)[missing]
            if losses is not None:  # an appended end has the loss of the token before it
                losses = np.insert(losses, ends, losses[ends - 1])
            tokens, lengths = np.insert(tokens, ends, self._options.eod), lengths + missing
        drop = self._options.empty == "drop"
        self._buffer.add(tokens, lengths.astype(np.int32), counts, places, losses, drop_empty=drop)


def _mask_columns(table: Table, column: str) -> list[str]:
    """Return the masks of a table that has them once, as lists of numbers."""
    kinds = {
        name: table.schema.field(name).type
        for name in LEFT_OUT
        if name != column and len(table.schema.get_all_field_indices(name)) == 1
    }
    tests = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_floating, pa.types.is_null)
    return [
        name
        for name, kind in kinds.items()
        if is_list(kind) and any(test(kind.value_type) for test in tests)
    ]


class _Masked(NamedTuple):
    """What masks say of a batch."""

    lists: pa.Array  # lists of ids without padding; a row with a problem has all of its ids
    wrong: dict[int, str]  # problems of rows
    losses: NDArray[np.uint8] | None = None  # whether each token has a loss; None if all have
    # Of packed rows, the tokens of each sequence, and the sequences of each row; None of others.
    sequences: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None


def _masked_lists(
    lists: pa.Array, batch: pa.RecordBatch, shift: LabelShift, *, ignored: bool
) -> _Masked:
    """Return what masks say of lists of ids."""
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    values = _plain(lists.flatten())
    if values.null_count:  # the rows are refused for it
        return _Masked(lists, {})
    rows = Rows(values.to_numpy(zero_copy_only=False), counts.astype(np.int64))
    wrong: dict[int, str] = {}
    if STARTS in batch.schema.names:
        wrong, first = _first_tokens(batch.column(STARTS), rows.counts)
        rows = rows._replace(first=first)
    masks: dict[str, NDArray[Any]] = {}
    for name in (name for name in batch.schema.names if name in LEFT_OUT):
        problems, masks[name] = _aligned(name, batch.column(name), rows)
        for row, reason in problems.items() if not is_other(name, ignored=ignored) else ():
            wrong.setdefault(row, reason)
    if wrong:  # the others are looked at when these are out of the way
        keep = np.ones(len(lists), bool)
        keep[list(wrong)] = False
        chosen = pa.array(keep)
        more = _masked_lists(lists.filter(chosen), batch.filter(chosen), shift, ignored=ignored)
        numbers = np.flatnonzero(keep).tolist()
        return _Masked(lists, wrong | {numbers[row]: why for row, why in more.wrong.items()})
    found = masked(rows, masks, shift, ignored=ignored)
    losses = None if found.losses is None else found.losses[found.kept]
    sequences = None if rows.first is None else _sequences_of(rows, found.kept)
    if found.kept.all():
        return _Masked(lists, found.wrong, losses, sequences)
    sums = np.concatenate([[0], np.cumsum(found.kept)])
    offsets = np.concatenate([[0], sums[np.cumsum(rows.counts)]])
    inside = lists.flatten().filter(pa.array(found.kept))
    kept_lists = pa.LargeListArray.from_arrays(offsets, inside, mask=lists.is_null())
    return _Masked(kept_lists, found.wrong, losses, sequences)


def _first_tokens(
    starts: pa.Array, counts: NDArray[np.int64]
) -> tuple[dict[int, str], NDArray[np.bool_]]:
    """Return the problems of invalid starts of sequences, and whether each token begins one.

    Parameters
    ----------
    starts : Array
        Numbers of the first tokens of sequences, for each row.
    counts : ndarray of int64, shape (rows,)
        Tokens of each row.

    Returns
    -------
    dict of int to str
        Problems by row.
    ndarray of bool, shape (tokens,)
    """
    sizes = pc.fill_null(pc.list_value_length(starts), 0).to_numpy(zero_copy_only=False)
    numbers = _plain(starts.flatten()).cast(pa.int64(), safe=False)  # beyond 63 bits: below zero
    values = pc.fill_null(numbers, -1).to_numpy(zero_copy_only=False)
    row_of = np.repeat(np.arange(len(counts)), sizes)
    leads = np.append(True, row_of[1:] != row_of[:-1])[: len(row_of)]
    ascends = np.append(True, values[1:] >= values[:-1])[: len(row_of)]
    right = np.where(leads, values == 0, ascends) & (values < counts[row_of])
    bad = sizes == 0
    bad[row_of[~right]] = True
    bad &= counts > 0
    wrong = {
        row: f"{STARTS} is not an ascending list that starts at 0 and stays below {counts[row]}; "
        f"{IGNORE}"
        for row in np.flatnonzero(bad).tolist()
    }
    begins = np.cumsum(counts) - counts
    first = np.zeros(int(counts.sum()), bool)
    first[begins[counts > 0]] = True
    good = ~bad[row_of] & (counts[row_of] > 0)
    first[begins[row_of[good]] + values[good]] = True
    return wrong, first


def _sequences_of(
    rows: Rows, kept: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the tokens of each sequence that has some, and the sequences of each row."""
    lengths = np.bincount(rows.sequence_of[kept])
    row_of_first = rows.row_of[rows.first]
    filled = np.flatnonzero(lengths)
    return lengths[filled], np.bincount(row_of_first[filled], minlength=len(rows.counts))


def _aligned(name: str, mask: pa.Array, rows: Rows) -> tuple[dict[int, str], NDArray[Any]]:
    """Return the rows of which a mask is none, and a value for each token of the others.

    A token whose row has no mask has a value that leaves nothing out.
    """
    counts = rows.counts
    found = pc.fill_null(pc.list_value_length(mask), 0).to_numpy(zero_copy_only=False)
    values = mask.flatten()
    wrong = {}
    if values.null_count:
        places = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
        for row in np.unique(np.searchsorted(np.cumsum(found), places, "right")).tolist():
            wrong[row] = f"{name} has a null instead of a number; {IGNORE}"
    differing = np.flatnonzero(found != counts)
    missing = mask.is_null().to_numpy(zero_copy_only=False)
    for row in differing[~missing[differing]].tolist():
        wrong[row] = f"{name} has {found[row]} values for {counts[row]} tokens; {IGNORE}"
    fitting = np.ones(len(mask), bool)
    fitting[differing] = fitting[list(wrong)] = False
    whole = np.full(int(counts.sum()), np.nan if name == LABELS else 1.0)
    numbers = values.to_numpy(zero_copy_only=False)
    whole[np.repeat(fitting, counts)] = numbers[np.repeat(fitting, found)].astype(np.float64)
    return wrong, whole


def _row_problems(lists: pa.Array) -> dict[int, str]:
    """Return the problems of rows, except those of tokens, by the number in the batch."""
    lengths = pc.list_value_length(lists)
    found = dict.fromkeys(_where(lists.is_null()), "is null")
    too_long = pc.fill_null(pc.greater(lengths, MAX_SEQUENCE_TOKENS), False)
    return found | {row: f"has {lengths[row]} tokens, 2**31 or more" for row in _where(too_long)}


def _problem(rows: TokenRows, row: int, reason: str) -> Problem:
    byte = None if rows.bytes is None else int(rows.bytes[row])
    return Problem(int(rows.places[row]) - rows.before, reason, byte, rows.group)


def _as_lists(batch: pa.RecordBatch, column: str) -> pa.RecordBatch:
    """Return a batch whose column of tokens has lists of integers: no views, and no null type."""
    place = batch.schema.get_field_index(column)
    lists = batch.column(place)
    kind = lists.type
    if pa.types.is_null(kind) or pa.types.is_null(kind.value_type):
        lists = lists.cast(pa.large_list(pa.int64()))
    elif pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        # Arrow casts no views (pyarrow 26).
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        lists = pa.LargeListArray.from_arrays(offsets, lists.flatten(), mask=lists.is_null())
    else:
        return batch
    return batch.set_column(place, column, lists)


def _where(mask: pa.Array) -> list[int]:
    rows: list[int] = np.flatnonzero(mask.to_numpy(zero_copy_only=False)).tolist()
    return rows


def _plain(values: pa.Array) -> pa.Array:
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def _wrong_values(lists: pa.Array, limit: int) -> Iterator[tuple[int, str]]:
    for row in range(len(lists)):
        values = lists[row].values
        if values is None:
            continue
        values = _plain(values)
        if values.null_count:
            yield row, f"token {_where(values.is_null())[0]} is null"
            continue
        place = first_outside(values.to_numpy(zero_copy_only=True), limit)
        if place >= 0:
            yield row, f"token {place} is {values[place]}, expected 0 to {limit - 1}"


def _without_end(tokens: NDArray[Any], lengths: NDArray[np.int64], end: int) -> NDArray[np.bool_]:
    """Return which documents do not end with a token."""
    found: NDArray[np.bool_] = tokens[np.cumsum(lengths) - 1] != end
    return found
