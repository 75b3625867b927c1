"""Copy the tokens of corpora: merge them, convert or repair one, materialize a view or shards.

Every rank copies an equal share of the bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from distcache import __version__
from distcache.corpus.ancestry import ancestors_of
from distcache.corpus.corpus import CopySource, CorpusFacts, open_copy_source, require_tokens
from distcache.corpus.examine import digest_tokens, require_sound, require_unchanged
from distcache.corpus.idx import ITEM_TYPES, bin_path, idx_path
from distcache.corpus.idx_writer import IdxPlan, lay_out_idx, write_bounds, write_lengths
from distcache.corpus.loss import loss_path, loss_pieces, reading
from distcache.corpus.receipt import (
    Ancestor,
    InputReceipt,
    Kind,
    Origin,
    PieceReceipt,
    Receipt,
    TokenizerFacts,
    receipt_of,
    require_one_tokenizer,
    tokenizers_of,
)
from distcache.corpus.repair import open_damaged
from distcache.corpus.view_bytes import token_pieces
from distcache.edit.padded_source import (
    PaddedSource,
    Padding,
    eod_of,
    padded_losses,
    padded_pieces,
    padded_source,
)
from distcache.errors import ConfigError
from distcache.ingest.output import Links, Output
from distcache.ranks.agreement import aborting_on_error, on_all_ranks, on_rank_0
from distcache.ranks.communicator import Communicator
from distcache.ranks.partition import slice_bounds
from distcache.ranks.progress import NullProgress, Progress, Stopwatch
from distcache.storage.files import (
    closing_fd,
    no_space_as_error,
    open_regular,
    open_to_write,
    recreate,
    require_text,
    write_range,
)
from distcache.storage.listing import listed_version
from distcache.storage.units import counted

STRIPE_BYTES: Final = 1 << 20  # bytes; two ranks never write into the same one of a `.bin`
COPY_BYTES: Final = 16 << 20  # bytes at a time
BLOCK_SEQUENCES: Final = 1 << 18  # at a time


def copy_corpora(
    communicator: Communicator,
    prefixes: Sequence[str],
    out: str,
    threads: int = 1,
    progress: Progress | None = None,
    *,
    kind: Literal["merge", "convert", "materialize"] = "merge",
    mixed: bool = False,
    drop_modes: bool = False,
    multiple_of: int = 1,
    eod: int | None = None,
    names: Mapping[str, str] = MappingProxyType({}),
) -> Receipt:
    """Write the tokens of corpora, views and MDS shards as one corpus. Collective.

    The bytes are those of Megatron-Core's ``IndexedDatasetBuilder.add_index``.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks. Their number changes no byte.
    prefixes : sequence of str
        Prefixes of the corpora, in the order of the result.
    out : str
        Prefix of the result.
    threads : int
        Files that each rank reads at a time.
    progress : Progress or None
        Receives the progress of rank 0.
    kind : str
        The command, for the receipt.
    mixed : bool
        Whether their receipts may name different tokenizers.
    drop_modes : bool
        Whether to leave the modes of multimodal sequences out.
    multiple_of : int
        Tokens to whose multiples each sequence is filled up, with the end-of-document token.
    eod : int or None
        The token; by default the one that the receipt names.
    names : mapping of str to str
        URLs of corpora of which these are copies, by their prefixes, for the receipt.

    Returns
    -------
    Receipt
        Receipt of the result; it is also written beside it.

    Raises
    ------
    CorpusError
        With every fault of every corpus.
    ConfigError
        If they differ in token type, in having modes, or in their tokenizers; or nothing says
        which token ends a document.
    """
    watch = Stopwatch(progress or NullProgress(), lambda: communicator.waited)
    with aborting_on_error(communicator):
        on_rank_0(communicator, lambda: require_text(*prefixes), None, "reading names")
        watch.phase("examining corpora")
        facts = require_sound(communicator, list(dict.fromkeys(prefixes)), threads)
        examined = [facts[prefix] for prefix in prefixes]

        def compare() -> TokenizerFacts | None:
            for corpus in facts.values():
                require_tokens(corpus)
            _require_alike(list(facts.values()))
            return _common_tokenizer(facts, mixed=mixed)

        tokenizer = on_rank_0(communicator, compare, TokenizerFacts | None, "comparing corpora")
        padding: Padding | None = None
        if multiple_of > 1:
            padding = Padding(multiple_of, eod_of(eod, tokenizer, prefixes[0]))

        def open_sources() -> list[CopySource]:
            opened = [open_copy_source(corpus) for corpus in examined]
            if drop_modes:
                opened = [dataclasses.replace(source, modes=None) for source in opened]
            return [s if padding is None else padded_source(s, padding) for s in opened]

        sources = on_all_ranks(communicator, open_sources, "opening corpora")
        versions = [text for corpus in examined for text in _versions(corpus, names)]
        origin = _origin(kind, versions, sources, tokenizer, padding)
        digests = [corpus.idx_digest for corpus in examined]
        examined = list(facts.values())
        return _make(communicator, origin, sources, digests, examined, out, threads, watch, names)


def _versions(corpus: CorpusFacts, names: Mapping[str, str]) -> Iterator[str]:
    """Yield what identifies the files of a corpus, or those of which they are copies."""
    name = names.get(corpus.prefix)
    if corpus.loss is not None:
        yield corpus.loss.digest
    for path, version in zip(corpus.files, corpus.file_versions, strict=True):
        if name is None:
            yield f"{path} {version}"
        else:  # each copy is another file
            suffix = path.removeprefix(corpus.prefix)
            yield f"{name}{suffix} {msgspec.structs.replace(version, inode=0)}"


def repair(
    communicator: Communicator,
    prefix: str,
    out: str,
    threads: int = 1,
    progress: Progress | None = None,
    *,
    drop_modes: bool = False,
) -> Receipt:
    """Write a corpus whose offsets overflowed with offsets made again of its lengths. Collective.

    Parameters
    ----------
    communicator, out, threads, progress, drop_modes
        Arguments of `copy_corpora`.
    prefix : str
        Prefix of the corpus.

    Raises
    ------
    ConfigError
        If nothing is wrong with it.
    CorpusError
        If it cannot be repaired.
    """
    watch = Stopwatch(progress or NullProgress(), lambda: communicator.waited)

    with aborting_on_error(communicator):
        on_rank_0(communicator, lambda: require_text(prefix), None, "reading names")
        watch.phase("examining corpora")
        found = on_all_ranks(communicator, lambda: open_damaged(prefix), "opening the corpus")
        if not found.wrong:
            raise ConfigError(f"{prefix}: nothing is wrong with it; leave --repair out")
        watch.note(f"{counted(found.wrong, 'offset')} made again of the lengths")
        if os.path.lexists(loss_path(prefix)):
            watch.note(f"{loss_path(prefix)} is not copied; it is the mask of the result, too")
        digest = xxhash.xxh3_128(np.ascontiguousarray(found.source.lengths).data).hexdigest()
        versions = on_rank_0(
            communicator,
            lambda: [
                f"{path} {listed_version(path)}" for path in (bin_path(prefix), idx_path(prefix))
            ],
            list[str],
            "looking at the corpus",
        )
        source = dataclasses.replace(found.source, modes=None) if drop_modes else found.source
        origin = _origin("convert", versions, [source], None)
        return _make(communicator, origin, [source], [digest], [], out, threads, watch)


def _require_alike(facts: Sequence[CorpusFacts]) -> None:
    kinds = {(entry.type_code, _has_modes(entry)): entry.prefix for entry in facts}
    if len(kinds) > 1:
        found = "; ".join(
            f"{prefix} has type code {code}{', with modes' if modes else ''}"
            for (code, modes), prefix in kinds.items()
        )
        raise ConfigError(
            f"corpora to merge must have one token type, and all or none modes: {found}"
        )


def _has_modes(facts: CorpusFacts) -> bool:
    return facts.idx_size > IdxPlan(facts.type_code, facts.sequences, facts.documents).size


def _common_tokenizer(facts: dict[str, CorpusFacts], *, mixed: bool) -> TokenizerFacts | None:
    """Return the tokenizer that all receipts name; None if they differ, or one names none."""
    tokenizers = tokenizers_of(facts)
    if not mixed:
        require_one_tokenizer(tokenizers, "give --mixed-tokenizers if that is meant")
    digests = {known.digest if known else None for known in tokenizers.values()}
    return next(iter(tokenizers.values())) if len(digests) == 1 else None


def _origin(
    kind: Kind,
    versions: Sequence[str],
    sources: Sequence[CopySource],
    tokenizer: TokenizerFacts | None,
    padding: Padding | None = None,
) -> Origin:
    """Return what a copy is made from: the same files and options are known again."""
    words = [str(source.modes is None) for source in sources]
    words += [] if padding is None else [str(padding)]
    identity = " ".join([kind, *versions, *words])
    return Origin(
        kind=kind,
        made_from=xxhash.xxh3_128(identity.encode()).hexdigest(),
        tokenizer=tokenizer,
        options={} if padding is None else msgspec.structs.asdict(padding),
        versions={"distcache": __version__},
    )


def _make(
    communicator: Communicator,
    origin: Origin,
    sources: Sequence[CopySource],
    digests: Sequence[str],
    examined: Sequence[CorpusFacts],
    out: str,
    threads: int,
    progress: Stopwatch,
    names: Mapping[str, str] = MappingProxyType({}),
) -> Receipt:
    """Claim the output, fill it, and publish it with its receipt. Collective."""
    output = Output(out)

    def make() -> tuple[list[Receipt], dict[int, Links]]:
        ancestors = on_rank_0(
            communicator,
            lambda: [
                msgspec.structs.replace(one, corpus=names.get(one.corpus, one.corpus))
                for one in ancestors_of([source.prefix for source in sources])
            ],
            list[Ancestor],
            "reading receipts",
        )
        facts = join(communicator, sources, output, threads, progress)
        require_unchanged(communicator, examined, tokens=True)
        inputs = _input_receipts(sources, digests, names)
        digest = digest_tokens(communicator, output.unfinished(0), facts.bin_size)
        made = receipt_of(
            facts, output.name(0), origin, inputs, bin_digest=digest, origins=tuple(ancestors)
        )
        return [made], {}

    receipts, _ = output.produce(communicator, origin, progress, make)
    return receipts[0]


def _input_receipts(
    sources: Sequence[CopySource], digests: Sequence[str], names: Mapping[str, str]
) -> Iterator[InputReceipt]:
    begin = 0
    for source, digest in zip(sources, digests, strict=True):
        sequences, documents = len(source.lengths), len(source.bounds) - 1
        yield InputReceipt(
            path=names.get(source.prefix, source.prefix),
            size=source.unpadded.nbytes if isinstance(source, PaddedSource) else source.nbytes,
            digest=digest,
            rows=documents,
            documents=documents,
            sequences=sequences,
            tokens=source.tokens,
            first_offset=begin if sequences else None,
            pieces=(PieceReceipt(0, sequences, documents, documents, sequences, source.tokens),),
        )
        begin += source.nbytes


def join(
    communicator: Communicator,
    sources: Sequence[CopySource],
    output: Output,
    threads: int,
    progress: Progress,
) -> CorpusFacts:
    """Concatenate corpora, in order, into an unfinished one. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks.
    sources : sequence of CopySource
        Corpora of one token type, all with modes or all without.
    output : Output
        Claimed by rank 0.
    threads : int
        Threads that examine the result.
    progress : Progress
        Receives the bytes that this rank has copied.

    Returns
    -------
    CorpusFacts
        Facts of the corpus, which is synced and sound.

    Raises
    ------
    DistcacheError
        On all ranks the same.
    """
    plan = IdxPlan(
        sources[0].type_code,
        sum(len(source.lengths) for source in sources),
        sum(len(source.bounds) - 1 for source in sources),
        sources[0].modes is not None,
    )
    total = sum(source.nbytes for source in sources)
    prefix = output.unfinished(0)
    on_rank_0(communicator, lambda: _lay_out(prefix, plan, total), None, "laying out")
    stripes = slice_bounds(total, communicator.size, STRIPE_BYTES)
    begin, end = stripes[communicator.rank], stripes[communicator.rank + 1]
    progress.phase("copying tokens", end - begin)
    on_all_ranks(
        communicator, lambda: _copy_tokens(prefix, sources, begin, end, progress), "copying tokens"
    )
    if any(source.has_loss for source in sources):
        on_rank_0(communicator, lambda: _lay_out_loss(prefix, plan, total), None, "laying out")
        on_all_ranks(
            communicator,
            lambda: _write_loss(prefix, sources, communicator.rank, communicator.size),
            "copying loss masks",
        )
    progress.phase("writing the index")
    on_all_ranks(
        communicator,
        lambda: _write_index(prefix, plan, sources, communicator.rank, communicator.size),
        "writing the index",
    )
    progress.phase("examining")
    return require_sound(communicator, [prefix], threads)[prefix]


def _lay_out(prefix: str, plan: IdxPlan, total: int) -> None:
    """Make both files with their sizes, and the bytes of the index that belong to no sequence."""
    lay_out_idx(prefix, plan)
    path = bin_path(prefix)
    with no_space_as_error(path), recreate(path) as stream:
        stream.truncate(total)


def _shares(sizes: Sequence[int], begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the parts of sources in [begin, end) of the result, and where they begin."""
    bounds = [0, *itertools.accumulate(sizes)]
    for index, (first, last) in enumerate(itertools.pairwise(bounds)):
        low, high = max(first, begin), min(last, end)
        if low < high:
            yield index, low - first, high - first, low


def _copy_tokens(
    prefix: str, sources: Sequence[CopySource], begin: int, end: int, progress: Progress
) -> None:
    path = bin_path(prefix)
    room = np.empty(COPY_BYTES, np.uint8)
    with no_space_as_error(path), closing_fd(open_to_write(path)) as target:
        for index, low, high, at in _shares([source.nbytes for source in sources], begin, end):
            place = at
            for piece in _pieces(sources[index], low, high, room):
                write_range(target, place, piece)
                place += len(piece)
                progress.advance(len(piece))
        os.fsync(target)


def _lay_out_loss(prefix: str, plan: IdxPlan, total: int) -> None:
    path = loss_path(prefix)
    with no_space_as_error(path), recreate(path) as stream:
        stream.truncate(total // ITEM_TYPES[plan.type_code].itemsize)


def _write_loss(prefix: str, sources: Sequence[CopySource], rank: int, ranks: int) -> None:
    """Write a rank's share of the mask, by sequences; sources without one have a loss everywhere.

    Padding of a sequence has none.
    """
    path = loss_path(prefix)
    counts = [len(source.lengths) for source in sources]
    before = [0, *itertools.accumulate(source.tokens for source in sources)]
    begin, end = slice_bounds(sum(counts), ranks, 1)[rank : rank + 2]
    with no_space_as_error(path), closing_fd(open_to_write(path)) as target:
        for index, low, high, _ in _shares(counts, begin, end):
            source = sources[index]
            at = before[index] + int(source.lengths[:low].sum(dtype=np.int64))
            for values in _losses(source, low, high):
                write_range(target, at, values)
                at += len(values)
        os.fsync(target)


def _losses(source: CopySource, first: int, last: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the mask of some sequences, as they are in the result."""
    unpadded = source.unpadded if isinstance(source, PaddedSource) else source
    path = loss_path(source.prefix)
    with contextlib.ExitStack() as stack:
        pieces = _ones(int(unpadded.lengths[first:last].sum(dtype=np.int64)))
        if source.has_loss and unpadded.idx is not None:
            stack.enter_context(reading(path))
            descriptor = stack.enter_context(closing_fd(open_regular(path)))
            pieces = loss_pieces(descriptor, unpadded.idx, first, last)
        if isinstance(source, PaddedSource):
            pieces = padded_losses(source, pieces, first, last)
        yield from pieces


def _ones(count: int) -> Iterator[NDArray[np.uint8]]:
    for begin in range(0, count, COPY_BYTES):
        yield np.ones(min(COPY_BYTES, count - begin), np.uint8)


def _pieces(
    source: CopySource, low: int, high: int, room: NDArray[np.uint8]
) -> Iterator[NDArray[np.uint8]]:
    if isinstance(source, PaddedSource):
        return padded_pieces(source, low, high, room)
    return token_pieces(source, low, high, room)


def _write_index(
    prefix: str, plan: IdxPlan, sources: Sequence[CopySource], rank: int, ranks: int
) -> None:
    """Write a rank's share of the sequences and documents, except for the last boundary."""
    path = idx_path(prefix)
    sequences = [len(source.lengths) for source in sources]
    documents = [len(source.bounds) - 1 for source in sources]
    sequences_before = [0, *itertools.accumulate(sequences)]
    tokens_before = [0, *itertools.accumulate(source.tokens for source in sources)]
    begin, end = slice_bounds(plan.sequences, ranks, 1)[rank : rank + 2]
    first, last = slice_bounds(plan.documents, ranks, 1)[rank : rank + 2]
    with no_space_as_error(path), closing_fd(open_to_write(path)) as descriptor:
        for index, low, high, at in _shares(sequences, begin, end):
            before = tokens_before[index]
            _write_sequences(descriptor, plan, sources[index], range(low, high), at, before)
        for index, low, high, at in _shares(documents, first, last):
            for some in range(low, high, BLOCK_SEQUENCES):
                bounds = sources[index].bounds[some : min(some + BLOCK_SEQUENCES, high)]
                write_bounds(descriptor, plan, at + some - low, bounds + sequences_before[index])
            _require_intact(sources[index])
        os.fsync(descriptor)


def _write_sequences(
    descriptor: int, plan: IdxPlan, source: CopySource, part: range, at: int, before: int
) -> None:
    """Write some sequences of a source, the first as number `at`, with tokens `before` it."""
    tokens = before + int(source.lengths[: part.start].sum(dtype=np.int64))
    for begin in range(part.start, part.stop, BLOCK_SEQUENCES):
        lengths = source.lengths[begin : min(begin + BLOCK_SEQUENCES, part.stop)]
        place = at + begin - part.start
        write_lengths(descriptor, plan, place, tokens, lengths)
        tokens += int(lengths.sum(dtype=np.int64))
        if source.modes is not None:
            modes = np.ascontiguousarray(source.modes[begin : begin + len(lengths)])
            write_range(descriptor, plan.modes_begin + place, modes)
    _require_intact(source)


def _require_intact(source: CopySource) -> None:
    if source.idx is not None:
        source.idx.require_intact()
