"""Check whether a corpus is sound, in pieces for different ranks.

A corpus is sound when the header is right, the `.idx` is exactly as long as its counts say, no
length is negative, document boundaries rise from 0 to the number of sequences, and its offsets
have one of two forms:

- each is the running sum of the lengths in bytes, and the `.bin` is exactly as long as they say;
- or the corpus is a view: each sequence is within a `.bin` that others may share, in any order.
  Offsets that are the running sum are a view too if the `.bin` is a link to a longer one. If the
  `.bin` is no link and exactly as long as the lengths say, the sequences cover each byte once.

With a `.shards` file beside it, a corpus is a view of shards: each sequence is within the records
of one of them.
"""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from distcache.corpus.corpus import CorpusFacts, open_to_keep
from distcache.corpus.idx import (
    HEADER_SIZE,
    ITEM_TYPES,
    POINTER,
    Idx,
    bin_path,
    idx_path,
    require_no_pointer,
)
from distcache.corpus.loss import loss_path, loss_version
from distcache.corpus.mds.shard_table import (
    ShardTable,
    TableFacts,
    has_table,
    read_table,
    shards_at,
    shards_path,
)
from distcache.errors import BuildInterrupted, CorpusError, DistcacheError, NotReady
from distcache.kernels import check_sequences, find_outside, first_descent
from distcache.storage.files import FileVersion, closing_fd, open_regular, version_of
from distcache.storage.listing import listed_version
from distcache.storage.place import require_answer
from distcache.storage.url import is_url
from distcache.storage.watchdog import tick

CHUNK_BYTES: Final = 16 << 20
RELEASED_FROM: Final = 8 << 20  # bytes of a file; a smaller one is released when it is checked
MAX_NAMED: Final = 3  # corpora of a directory, in a message
MAX_COMPARED_NAMES: Final = 50  # names, with one that is not there
BLOCK_SEQUENCES: Final = 1 << 18  # of shards, that are compared at a time


class Fault(msgspec.Struct, frozen=True):
    """A fault of a corpus: the file, and what was found and expected."""

    prefix: str
    path: str
    message: str
    missing: bool = False  # whether there is no such corpus

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class Outline(msgspec.Struct, frozen=True):
    """The header and the sizes of a corpus's files; `faults` if they are wrong.

    `linked` says whether the `.bin` is a link; `shards` is what makes it up, if shards do.
    """

    prefix: str
    idx_size: int = 0
    bin_size: int = 0
    type_code: int = 0
    sequences: int = 0
    documents: int = 0
    linked: bool = False
    shards: TableFacts | None = None
    faults: tuple[Fault, ...] = ()
    file_versions: tuple[FileVersion, ...] = ()
    has_loss: bool = False  # whether there is a loss mask beside it


class RangeFacts(msgspec.Struct, frozen=True):
    """The sums over a range of a corpus's sequences, and its faults."""

    # tokens of the range's sequences, and the number of sequences without any
    tokens: int
    empty: int
    faults: tuple[Fault, ...]  # faults in any form of offsets
    view: bool = False  # whether the offsets of the range are not the running sum of lengths
    # if they are not, the sequences that are not within the `.bin`
    outside: tuple[Fault, ...] = ()


def outline(prefix: str) -> Outline:
    """Read the header and the sizes of one corpus.

    Parameters
    ----------
    prefix : str
        The corpus's path without suffix.

    Returns
    -------
    Outline
        Outline with a fault for each file that is missing or has a wrong header; nothing is
        raised.
    """
    faults: list[Fault] = []
    shards = None
    bin_size, bin_version = 0, FileVersion(0, 0, 0)
    if has_table(prefix):
        shards, bin_size, bin_version = _shard_facts(prefix, faults)
    else:
        bin_size, bin_version = _look_at_tokens(prefix, faults)
    try:
        idx = open_to_keep(prefix)
        faults += _bounds_faults(prefix, idx)
        idx.require_intact()
    except BuildInterrupted:
        raise
    except DistcacheError as error:
        path = idx_path(prefix)
        message = str(error).removeprefix(f"{path}: ")
        there = bool(bin_version.size) if is_url(prefix) else os.path.lexists(bin_path(prefix))
        missing = isinstance(error, NotReady) and not there
        if missing:
            faults, message = [], f"{message}, nor {bin_path(prefix)}{_hint(prefix)}"
        faults.append(Fault(prefix, path, message, missing))
        return Outline(prefix, bin_size=bin_size, faults=tuple(faults))
    has_loss = _has_loss(prefix, faults, shards=shards is not None)
    return Outline(
        prefix=prefix,
        idx_size=idx.size,
        bin_size=bin_size,
        type_code=idx.type_code,
        sequences=len(idx.lengths),
        documents=max(len(idx.bounds) - 1, 0),
        linked=os.path.islink(bin_path(prefix)),
        shards=shards,
        faults=tuple(faults),
        file_versions=(idx.file_version, bin_version),
        has_loss=has_loss,
    )


def _has_loss(prefix: str, faults: list[Fault], *, shards: bool) -> bool:
    """Return whether a corpus has a loss mask, or add a fault where none is read."""
    path = loss_path(prefix)
    if is_url(prefix):
        return loss_version(prefix) is not None
    there = os.path.lexists(path)
    tokens = bin_path(prefix)
    if not there and os.path.islink(tokens):
        other = loss_path(os.path.realpath(tokens).removesuffix(".bin"))
        if os.path.lexists(other):
            message = f"is missing, and the .bin is that of a corpus that has one, {other}; make "
            faults.append(Fault(prefix, path, f"{message}the view again"))
    if there and shards:
        faults.append(
            Fault(prefix, path, "corpora of MDS shards have no loss mask; materialize them")
        )
    return there and not shards


def _look_at_tokens(prefix: str, faults: list[Fault]) -> tuple[int, FileVersion]:
    """Return the size and the version of the `.bin`, or add a fault."""
    path = bin_path(prefix)
    try:
        found = listed_version(path)
        if not is_url(path):
            with closing_fd(open_regular(path)) as descriptor:  # its permissions
                require_no_pointer(path, os.pread(descriptor, POINTER, 0))
    except CorpusError as error:
        faults.append(Fault(prefix, path, str(error).removeprefix(f"{path}: ")))
        return 0, FileVersion(0, 0, 0)
    except OSError as error:
        require_answer(error)
        faults.append(Fault(prefix, path, f"cannot be read: {error.strerror}{_hint(prefix)}"))
        return 0, FileVersion(0, 0, 0)
    return found.size, found


def _shard_facts(prefix: str, faults: list[Fault]) -> tuple[TableFacts | None, int, FileVersion]:
    """Return what makes up the `.bin`, its size, and the version of the `.shards`."""
    path = shards_path(prefix)
    try:
        version = version_of(os.stat(path))
        table = read_table(prefix)
    except OSError as error:
        faults.append(Fault(prefix, path, f"cannot be read: {error.strerror}"))
        return None, 0, FileVersion(0, 0, 0)
    except DistcacheError as error:
        faults.append(Fault(prefix, path, str(error).removeprefix(f"{path}: ")))
        return None, 0, FileVersion(0, 0, 0)
    return table.facts, table.bin_size, version


def _hint(prefix: str) -> str:
    """Return a hint for a prefix without files."""
    for suffix in (".bin", ".idx"):
        if prefix.endswith(suffix):
            return f"; name the corpus without {suffix}: {prefix.removesuffix(suffix)}"
    if is_url(prefix):
        return ""
    where = "" if os.path.isabs(prefix) else f"; relative to {os.getcwd()}"  # noqa: PTH109, PTH117
    directory = prefix if os.path.isdir(prefix) else os.path.dirname(prefix) or "."  # noqa: PTH120
    names = _corpora_in(directory)
    if directory == prefix and names:
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        named = ", ".join(os.path.join(prefix, name) for name in names[:MAX_NAMED])
        return f"; it is a directory: give the corpora in it, {named}{more}{where}"
    near = _nearest(os.path.basename(prefix), names)
    parent = os.path.dirname(prefix)  # noqa: PTH120
    return (f"; did you mean {os.path.join(parent, near)}?" if near else "") + where


@functools.lru_cache(maxsize=4)
def _corpora_in(directory: str) -> tuple[str, ...]:
    """Return the names of the corpora in a directory, for hints."""
    try:
        names = os.listdir(directory)
    except OSError:
        return ()
    return tuple(sorted(name[:-4] for name in names if name.endswith(".idx")))


def _nearest(name: str, names: Sequence[str]) -> str:
    """Return the first of the names that are most like one; empty if none is, or it is there."""
    alike = [other for other in names if other[:2] == name[:2] and abs(len(other) - len(name)) < 4]
    found = difflib.get_close_matches(name, alike[:MAX_COMPARED_NAMES], n=3)
    return "" if name in names else min(found, default="")


def _bounds_faults(prefix: str, idx: Idx) -> list[Fault]:
    sequences = len(idx.lengths)
    messages = []
    if len(idx.bounds) == 0:
        messages.append("has no document boundaries, expected at least the leading 0")
    else:
        if idx.bounds[0] != 0:
            messages.append(f"document boundary 0 is {idx.bounds[0]}, expected 0")
        if idx.bounds[-1] != sequences:
            messages.append(
                f"the last document boundary is {idx.bounds[-1]}, expected the sequence count "
                f"{sequences}; the tool that made or merged it has to make it again"
            )
    return [Fault(prefix, idx.path, message) for message in messages]


def digest_idx(idx: Idx) -> str:
    """Return the XXH3-128 of a whole `.idx` file, in hexadecimal."""
    digest = xxhash.xxh3_128()
    with memoryview(idx.map) as view:
        for begin in range(0, idx.size, CHUNK_BYTES):
            digest.update(view[begin : begin + CHUNK_BYTES])
            if idx.size >= RELEASED_FROM:
                idx.release(begin, min(begin + CHUNK_BYTES, idx.size))
            tick()
    return digest.hexdigest()


def check_range(head: Outline, idx: Idx, begin: int, end: int) -> RangeFacts:
    """Check sequences [begin, end) and the same share of the document boundaries.

    Parameters
    ----------
    head : Outline
        Outline of the corpus.
    idx : Idx
        Mapped `.idx` of the corpus.
    begin, end : int
        The range of sequences.

    Returns
    -------
    RangeFacts
        Ranges that cover all sequences are put together by `summarize`.
    """
    facts = check_sequences(idx.lengths, idx.offsets, begin, end, idx.item_size)
    messages = []
    if (first := facts.first_negative) >= 0:
        messages.append(
            f"{facts.negative_count} lengths are negative, the first is {idx.lengths[first]} of "
            f"sequence {first}"
        )
    descent = first_descent(idx.bounds, *_share_of_bounds(idx, begin, end))
    if descent >= 0:
        messages.append(
            f"document boundary {descent} is {idx.bounds[descent]}, below the previous one, "
            f"{idx.bounds[descent - 1]}"
        )
    view = facts.misplaced_count > 0
    outside: tuple[Fault, ...] = ()
    if head.shards is not None and not messages:
        rows = read_table(head.prefix)
        outside = _lost_shards(head, rows, begin, end) or _outside_shards(
            head, rows.rows, idx, begin, end
        )
    elif not head.faults and (view or not _is_inside(head, idx, begin, end)):
        outside = _outside(head, idx, begin, end)
    faults = tuple(Fault(head.prefix, idx.path, message) for message in messages)
    if idx.size >= RELEASED_FROM:
        _release_range(idx, begin, end)
    return RangeFacts(facts.tokens, facts.empty, faults, view, outside)


def _is_shared(head: Outline) -> bool:
    """Return whether the `.bin` may be that of other corpora: a link, shards, or an object."""
    return head.linked or head.shards is not None or is_url(head.prefix)


def _is_inside(head: Outline, idx: Idx, begin: int, end: int) -> bool:
    """Return whether a range that is a running sum from its first offset on is in the `.bin`.

    Another range may say that the corpus is a view.
    """
    if begin == end:
        return True
    last = int(idx.offsets[end - 1]) + int(idx.lengths[end - 1]) * idx.item_size
    return 0 <= int(idx.offsets[begin]) <= last <= head.bin_size


def _outside(head: Outline, idx: Idx, begin: int, end: int) -> tuple[Fault, ...]:
    count, first = find_outside(idx.lengths, idx.offsets, begin, end, idx.item_size, head.bin_size)
    if not count:
        return ()
    message = (
        f"{count} sequences are neither at the running sum of lengths nor within the .bin, the "
        f"first is {first}: {idx.lengths[first]} tokens at byte {idx.offsets[first]} of "
        f"{head.bin_size}"
    )
    return (Fault(head.prefix, idx.path, message),)


def _lost_shards(head: Outline, table: ShardTable, begin: int, end: int) -> tuple[Fault, ...]:
    """Return which files are gone or have other sizes, of shards that begin in a range."""
    if os.path.lexists(bin_path(head.prefix)):
        return ()  # nobody needs them any more
    firsts, problems = table.rows["first_sequence"], []
    for shard in np.flatnonzero((firsts >= begin) & (firsts < end)).tolist():
        row, path = table.rows[shard], table.path_of(shard)
        expected = int(row["zip_size"] if row["codec"] else row["raw_size"])
        try:
            found = os.stat(path).st_size
        except OSError as error:
            problems.append((path, f"cannot be read: {error.strerror}"))
            continue
        if found != expected:
            problems.append((path, f"has {found} bytes, and had {expected}; index it again"))
    more = f" ({len(problems) - 1} more shards are gone or changed)" if len(problems) > 1 else ""
    return tuple(Fault(head.prefix, path, message + more) for path, message in problems[:1])


def _outside_shards(
    head: Outline, rows: NDArray[Any], idx: Idx, begin: int, end: int
) -> tuple[Fault, ...]:
    if not len(rows) and end > begin:
        message = f"has {end - begin} sequences, and the .shards beside it have no shard"
        return (Fault(head.prefix, idx.path, message),)
    for first in range(begin, end, BLOCK_SEQUENCES):
        some = slice(first, min(first + BLOCK_SEQUENCES, end))
        offsets = idx.offsets[some].astype(np.int64)
        nbytes = idx.lengths[some].astype(np.int64) * idx.item_size
        shards = shards_at(rows["base"].astype(np.int64), offsets)
        own = rows[np.maximum(shards, 0)]
        bases = own["base"].astype(np.int64)
        inside = (shards >= 0) & (offsets >= bases + own["data_begin"].astype(np.int64))
        # Offsets may hold anything: what is left of the shard is compared, nothing is added.
        inside &= nbytes <= own["raw_size"].astype(np.int64) - (offsets - bases)
        if not inside.all():
            place = first + int(np.argmin(inside))
            message = (
                f"{np.count_nonzero(~inside)} sequences lie outside of the records of all shards, "
                f"the first is {place}: {idx.lengths[place]} tokens at byte {idx.offsets[place]}"
            )
            return (Fault(head.prefix, idx.path, message),)
    return ()


def _share_of_bounds(idx: Idx, begin: int, end: int) -> tuple[int, int]:
    sequences, entries = len(idx.lengths), len(idx.bounds)
    if sequences == 0:
        return 0, entries
    return begin * entries // sequences, end * entries // sequences


def _release_range(idx: Idx, begin: int, end: int) -> None:
    offsets_begin = HEADER_SIZE + 4 * len(idx.lengths)
    bounds_begin = offsets_begin + 8 * len(idx.offsets)
    first, last = _share_of_bounds(idx, begin, end)
    idx.release_lengths(begin, end)
    idx.release(offsets_begin + 8 * begin, offsets_begin + 8 * end)
    idx.release(bounds_begin + 8 * first, bounds_begin + 8 * last)


def summarize(
    head: Outline, ranges: Sequence[RangeFacts], digest: str
) -> tuple[CorpusFacts, tuple[Fault, ...]]:
    """Combine the findings of one corpus.

    Parameters
    ----------
    head : Outline
        Outline without faults in the header.
    ranges : sequence of RangeFacts
        Facts of ranges that cover the corpus's sequences.
    digest : str
        Result of `digest_idx`.

    Returns
    -------
    facts : CorpusFacts
        They hold only if there is no fault.
    faults : tuple of Fault
        All of them.
    """
    tokens = sum(part.tokens for part in ranges)
    view = head.shards is not None or any(part.view for part in ranges)
    if head.linked and head.bin_size > tokens * ITEM_TYPES[head.type_code].itemsize:
        view = True
    facts = CorpusFacts(
        prefix=head.prefix,
        idx_digest=digest,
        idx_size=head.idx_size,
        bin_size=head.bin_size,
        type_code=head.type_code,
        sequences=head.sequences,
        documents=head.documents,
        tokens=tokens,
        empty_sequences=sum(part.empty for part in ranges),
        view=view,
        shards=head.shards,
        file_versions=head.file_versions,
    )
    faults = [*head.faults, *(fault for part in ranges for fault in part.faults)]
    if view:
        faults += [fault for part in ranges for fault in part.outside]
        faults += _own_bin_faults(head, tokens)
    elif not any(part.faults for part in ranges):
        faults += _bin_faults(head, tokens)
    return facts, tuple(faults)


def _own_bin_faults(head: Outline, tokens: int) -> list[Fault]:
    """Return a fault of offsets that are no running sum, though the `.bin` has just the lengths.

    A view has such offsets, too, but its `.bin` is a link, or has other bytes than its lengths say.
    """
    size = tokens * ITEM_TYPES[head.type_code].itemsize
    if _is_shared(head) or head.bin_size != size:
        return []
    message = (
        "its offsets are not the running sum of lengths, which are all that the .bin has: they "
        "overflowed (`distcache convert --repair`), or do not count bytes; or this is a view, "
        "whose .bin must be a link"
    )
    return [Fault(head.prefix, idx_path(head.prefix), message)]


def _bin_faults(head: Outline, tokens: int) -> list[Fault]:
    expected = tokens * ITEM_TYPES[head.type_code].itemsize
    path = bin_path(head.prefix)
    if head.bin_size == expected or any(fault.path == path for fault in head.faults):
        return []
    message = f"has {head.bin_size} bytes, expected {expected} for {tokens} tokens"
    return [Fault(head.prefix, path, message)]
