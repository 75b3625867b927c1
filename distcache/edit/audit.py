"""Audit finished corpora: against their receipts, their vocabulary and their sources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

import numpy as np

from distcache.corpus import CorpusFacts, Fault, bin_path, idx_path, open_idx
from distcache.corpus.corpus import open_copy_source
from distcache.corpus.examine import digest_tokens
from distcache.corpus.idx import ITEM_TYPES, limit_of
from distcache.corpus.mds.shard_table import ShardTable, read_table
from distcache.corpus.mds.stored_shard import indexed_pieces, indexed_shard
from distcache.corpus.receipt import Receipt, find_receipt, receipt_path
from distcache.corpus.view_bytes import token_pieces
from distcache.edit.source_readback import read_back, root_of
from distcache.errors import ConfigError, CorpusError, NotReady
from distcache.kernels import first_outside
from distcache.ranks.agreement import on_all_ranks, on_rank_0, own_share
from distcache.ranks.communicator import Communicator
from distcache.ranks.partition import slice_bounds
from distcache.ranks.progress import NullProgress, Progress

BLOCK_BYTES: Final = 4 << 20  # bytes of tokens at a time


def receipts_beside(prefixes: Iterable[str]) -> tuple[dict[str, Receipt], list[Fault]]:
    """Return the receipts beside corpora by their prefixes, and a fault for each without one.

    Raises
    ------
    CorpusError
        If a file is not a receipt.
    """
    found: dict[str, Receipt] = {}
    faults: list[Fault] = []
    for prefix in prefixes:
        receipt = find_receipt(prefix)
        if receipt is None:
            faults.append(Fault(prefix, receipt_path(prefix), "there is no receipt beside it"))
        else:
            found[prefix] = receipt
    return found, faults


def audit(
    communicator: Communicator,
    corpora: Mapping[str, CorpusFacts],
    receipts: Mapping[str, Receipt],
    vocabulary: int | None = None,
    readback: int = 0,
    tokenizer: str | None = None,
    progress: Progress | None = None,
) -> list[Fault]:
    """Compare sound corpora with their receipts, their vocabulary and their sources. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks, which divide the bytes of the `.bin` files, and the documents.
    corpora : mapping of str to CorpusFacts
        Facts of the corpora, by prefix.
    receipts : mapping of str to Receipt
        Receipts by prefix, of those corpora that have one.
    vocabulary : int or None
        Token ids must be below it; by default that of the receipt's tokenizer.
    readback : int
        Documents of each corpus with a receipt that are read back through the pair and through the
        source.
    tokenizer : str or None
        Path of the tokenizer; by default the one in the receipt.
    progress : Progress or None
        Receiver of the bytes of tokens that this rank has read.

    Returns
    -------
    list of Fault
        Faults, on all ranks.
    """
    progress = progress or NullProgress()
    faults = []
    for prefix, facts in corpora.items():
        receipt = receipts.get(prefix)
        limit = vocabulary
        try:
            if receipt is not None:
                faults += _compared(communicator, prefix, facts, receipt)
                if limit is None and facts.shards is None:  # of shards it was compared when indexed
                    limit = _vocabulary_of(receipt)
            if limit is not None:
                progress.phase(f"reading tokens of {prefix}", facts.bin_size / communicator.size)
                faults += _check_range(communicator, prefix, facts, limit, progress.advance)
            if readback and receipt is not None:
                progress.phase(f"reading documents of {prefix} from their source")
                faults += _read_back(communicator, prefix, receipt, readback, tokenizer)
        except (ConfigError, CorpusError, NotReady) as error:
            # What one corpus lacks, such as its tokenizer, keeps no other from being looked at.
            if not error.is_collective and communicator.size > 1:
                raise
            faults += [Fault(prefix, idx_path(prefix), problem) for problem in error.problems]
    return faults


def digest_faults(
    communicator: Communicator,
    corpora: Mapping[str, CorpusFacts],
    receipts: Mapping[str, Receipt],
    progress: Progress | None = None,
) -> list[Fault]:
    """Compare the `.bin` files of corpora with the digests of their receipts. Collective.

    The receipt of a view has no digest.
    """
    progress = progress or NullProgress()
    faults = []
    for prefix, facts in corpora.items():
        receipt = receipts.get(prefix)
        if receipt is None or facts.shards is not None:
            continue
        if receipt.bin_digest is None:
            continue
        progress.phase(f"digesting tokens of {prefix}", facts.bin_size / communicator.size)
        found = digest_tokens(communicator, prefix, facts.bin_size, progress.advance)
        if found != receipt.bin_digest:
            message = f"its tokens have digest {found}, the receipt says {receipt.bin_digest}"
            faults.append(Fault(prefix, bin_path(prefix), message))
    return faults


def _read_back(
    communicator: Communicator, prefix: str, receipt: Receipt, count: int, tokenizer: str | None
) -> list[Fault]:
    """Compare documents with their sources, or with their shards. Collective."""
    root, origin = root_of(communicator, prefix, receipt)
    if origin.kind == "mds":
        return compare_shards(communicator, root, count)
    return read_back(communicator, prefix, receipt, count, tokenizer)


def _vocabulary_of(receipt: Receipt) -> int | None:
    if receipt.tokenizer is not None:
        return receipt.tokenizer.vocabulary
    stated = receipt.options.get("vocabulary")
    return stated if isinstance(stated, int) and stated > 0 else None


def _compared(
    communicator: Communicator, prefix: str, facts: CorpusFacts, receipt: Receipt
) -> list[Fault]:
    """Compare a corpus with its receipt. Collective."""
    differences = on_rank_0(
        communicator,
        partial(_differences, prefix, facts, receipt),
        list[str],
        "comparing receipts",
    )
    return [Fault(prefix, idx_path(prefix), message) for message in differences]


def _differences(prefix: str, facts: CorpusFacts, receipt: Receipt) -> list[str]:
    """Return how a corpus differs from its receipt, and the first input whose offsets are wrong."""
    found = receipt.differences(facts)
    for name in ("documents", "sequences", "tokens"):
        inputs = sum(getattr(entry, name) for entry in receipt.inputs)
        pieces = sum(getattr(piece, name) for entry in receipt.inputs for piece in entry.pieces)
        if not inputs == pieces == getattr(facts, name):
            found.append(
                f"{name}: has {getattr(facts, name)}, the receipt's inputs add up to {inputs}, and "
                f"their pieces to {pieces}"
            )
    if not found:
        return []
    idx = open_idx(prefix)
    sequence = 0
    for entry in receipt.inputs:
        if entry.first_offset is not None and sequence < len(idx.offsets):
            offset = int(idx.offsets[sequence])
            if offset != entry.first_offset:
                found.append(
                    f"sequence {sequence}, the first of {entry.path}, begins at byte {offset}; the "
                    f"receipt says {entry.first_offset}"
                )
                break
        sequence += entry.sequences
    return found


def _check_range(
    communicator: Communicator,
    prefix: str,
    facts: CorpusFacts,
    vocabulary: int,
    advance: Callable[[float], None],
) -> list[Fault]:
    """Check every token. Collective."""
    dtype = ITEM_TYPES[facts.type_code]
    limit = limit_of(dtype, vocabulary)
    bounds = slice_bounds(facts.tokens, communicator.size, BLOCK_BYTES // dtype.itemsize)
    begin, end = bounds[communicator.rank], bounds[communicator.rank + 1]
    own = on_all_ranks(
        communicator,
        lambda: _first_outside(facts, dtype, begin, end, limit, advance),
        "reading tokens",
    )
    everyone = communicator.allgather(own, tuple[int, int] | None, "tokens out of range")
    wrong = [entry for entry in everyone if entry is not None]
    if not wrong:
        return []
    position, token = wrong[0]

    def locate() -> str:
        ends = np.cumsum(open_idx(prefix).lengths, dtype=np.int64)
        sequence = int(np.searchsorted(ends, position, side="right"))
        return f"token {position}, in sequence {sequence}, is {token}, expected 0 to {limit - 1}"

    message = on_rank_0(communicator, locate, str, "tokens out of range")
    return [Fault(prefix, bin_path(prefix), message)]


def _first_outside(
    facts: CorpusFacts,
    dtype: np.dtype[np.generic],
    begin: int,
    end: int,
    limit: int,
    advance: Callable[[float], None],
) -> tuple[int, int] | None:
    """Return the position and the value of the first token outside [0, limit)."""
    source, room = open_copy_source(facts), np.empty(BLOCK_BYTES, np.uint8)
    item = dtype.itemsize
    for piece in token_pieces(source, begin * item, end * item, room):
        tokens = piece.view(dtype)
        place = first_outside(tokens, limit)
        if place >= 0:
            return begin + place, int(tokens[place])
        begin += len(tokens)
        advance(piece.size)
    return None


def compare_shards(communicator: Communicator, prefix: str, count: int) -> list[Fault]:
    """Compare the shards that have evenly spread sequences of a corpus. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks, which divide the shards.
    prefix : str
        Prefix of a sound corpus.
    count : int
        Number of sequences.

    Returns
    -------
    list of Fault
        One for each shard that is another one than was indexed, or cannot be read.
    """

    def compare() -> list[Fault]:
        table = read_table(prefix)
        wanted = (2 * np.arange(count) + 1) * table.sequences // (2 * count)
        firsts = table.rows["first_sequence"].astype(np.int64)
        shards = np.unique(np.searchsorted(firsts, wanted, "right") - 1).tolist()
        return list(_faults(prefix, table, own_share(communicator, shards)))

    found = on_all_ranks(communicator, compare, "reading shards back")
    shares = communicator.allgather(found, list[Fault], "shards that differ")
    return [fault for share in shares for fault in share]


def _faults(prefix: str, table: ShardTable, shards: list[int]) -> Iterator[Fault]:
    for shard in shards:
        path = table.path_of(shard)
        try:
            for _ in indexed_pieces(*indexed_shard(table.rows[shard], path)):
                pass  # read to the end, where the digest is compared
        except CorpusError as error:
            yield Fault(prefix, path, str(error).removeprefix(f"{path}: "))
