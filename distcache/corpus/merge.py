"""Merge corpora, and convert what is not an `.idx` of today: both by `join`."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator, Sequence

import msgspec
import xxhash

from distcache.corpus.changes import require_unchanged
from distcache.corpus.claim import claim_output_together, publish_together
from distcache.corpus.corpus import CorpusFacts
from distcache.corpus.examine import require_sound
from distcache.corpus.idx import bin_path, idx_path
from distcache.corpus.idx_writer import IdxPlan
from distcache.corpus.join import join
from distcache.corpus.legacy import is_legacy, open_legacy
from distcache.corpus.output import Output
from distcache.corpus.provenance import require_one_tokenizer, tokenizers_of
from distcache.corpus.receipt import (
    InputReceipt,
    Kind,
    Origin,
    PieceReceipt,
    Receipt,
    TokenizerFacts,
    receipt_of,
)
from distcache.corpus.source import Source, open_source
from distcache.errors import ConfigError
from distcache.files import require_text
from distcache.progress import Progress, Silent, Stopwatch
from distcache.ranks.agreement import ending_job, from_rank_0, together
from distcache.ranks.communicator import Communicator
from distcache.ranks.heartbeat import Heartbeat

__all__ = ["convert", "merge"]


class _Known(msgspec.Struct, frozen=True):
    """What is known of the corpora.

    Attributes
    ----------
    digests : list of str
        Of the `.idx` of each.
    stamps : list of str
        Path, size and time of each file, so that the same corpora are known again.
    tokenizer : TokenizerFacts or None
        That they all have.
    """

    digests: list[str]
    stamps: list[str]
    tokenizer: TokenizerFacts | None


def merge(
    communicator: Communicator,
    prefixes: Sequence[str],
    out: str,
    threads: int = 1,
    progress: Progress | None = None,
    *,
    mixed: bool = False,
) -> Receipt:
    """Put corpora together, as Megatron-Core's ``IndexedDatasetBuilder.add_index``. Collective.

    Parameters
    ----------
    communicator : Communicator
        Of all ranks. Their number changes no byte.
    prefixes : sequence of str
        Of the corpora, in the order of the result.
    out : str
        Prefix of the result.
    threads : int
        Files that each rank reads at a time.
    progress : Progress or None
        Told what rank 0 does.
    mixed : bool
        Whether their receipts may name different tokenizers.

    Returns
    -------
    Receipt
        Of the result, which lies beside it.

    Raises
    ------
    CorpusError
        With every fault of every corpus.
    ConfigError
        If they differ in token type, in having modes, or in their tokenizers.
    """
    watch = Stopwatch(progress or Silent(), lambda: communicator.waited)
    with ending_job(communicator):
        return _merge(communicator, prefixes, out, threads, watch, mixed=mixed)


def _merge(
    communicator: Communicator,
    prefixes: Sequence[str],
    out: str,
    threads: int,
    progress: Stopwatch,
    *,
    mixed: bool,
) -> Receipt:
    from_rank_0(communicator, lambda: _require_text(prefixes), None, "reading names")
    progress.phase("examining corpora")
    facts = require_sound(communicator, list(dict.fromkeys(prefixes)), threads)

    def prepare() -> _Known:
        _require_alike(list(facts.values()))
        digests = [facts[prefix].idx_digest for prefix in prefixes]
        return _Known(digests, _stamps(prefixes), _common_tokenizer(facts, mixed=mixed))

    known = from_rank_0(communicator, prepare, _Known, "comparing corpora")
    sources = together(
        communicator,
        lambda: [open_source(prefix, facts[prefix].bin_size) for prefix in prefixes],
        "opening corpora",
    )
    examined = list(facts.values())
    return _make(communicator, "merge", sources, examined, known, out, threads, progress)


def convert(
    communicator: Communicator,
    prefix: str,
    out: str,
    threads: int = 1,
    progress: Progress | None = None,
    *,
    drop_modes: bool = False,
) -> Receipt:
    """Write a legacy or a multimodal corpus, or any other, as an `.idx` of today. Collective.

    Parameters
    ----------
    communicator, out, threads, progress
        As `merge`.
    prefix : str
        Of the corpus.
    drop_modes : bool
        Whether to leave the modes of multimodal sequences out.

    Raises
    ------
    CorpusError
        If it is not sound.
    """
    watch = Stopwatch(progress or Silent(), lambda: communicator.waited)
    with ending_job(communicator):
        return _convert(communicator, prefix, out, threads, watch, drop_modes=drop_modes)


def _convert(
    communicator: Communicator,
    prefix: str,
    out: str,
    threads: int,
    progress: Stopwatch,
    *,
    drop_modes: bool,
) -> Receipt:
    from_rank_0(communicator, lambda: require_text(prefix), None, "reading names")
    progress.phase("examining corpora")
    legacy = from_rank_0(communicator, lambda: is_legacy(prefix), bool, "looking at the corpus")
    stamps = from_rank_0(communicator, lambda: _stamps([prefix]), list[str], "looking at files")
    if legacy:
        source = together(communicator, lambda: open_legacy(prefix), "opening the corpus")
        digest = xxhash.xxh3_128(source.lengths.data).hexdigest()
        known = _Known([digest], stamps, None)
        examined: list[CorpusFacts] = []
    else:
        facts = require_sound(communicator, [prefix], threads)[prefix]
        source = together(communicator, lambda: open_source(prefix, facts.bin_size), "opening")
        tokenizers = from_rank_0(
            communicator,
            lambda: tokenizers_of({prefix: facts}),
            dict[str, TokenizerFacts | None],
            "reading receipts",
        )
        known = _Known([facts.idx_digest], stamps, tokenizers[prefix])
        examined = [facts]
    if drop_modes:
        source = Source(
            prefix, source.type_code, source.lengths, source.bounds, None, source.nbytes, source.idx
        )
    return _make(communicator, "convert", [source], examined, known, out, threads, progress)


def _require_text(prefixes: Sequence[str]) -> None:
    for prefix in prefixes:
        require_text(prefix)


def _stamps(prefixes: Sequence[str]) -> list[str]:
    paths = [name for prefix in prefixes for name in (bin_path(prefix), idx_path(prefix))]
    return [f"{path} {os.stat(path).st_size} {os.stat(path).st_mtime_ns}" for path in paths]


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
    """Return the tokenizer that all receipts name; None if one names another, or none."""
    tokenizers = tokenizers_of(facts)
    if not mixed:
        require_one_tokenizer(tokenizers, "give --mixed-tokenizers if that is meant")
    digests = {known.digest if known else None for known in tokenizers.values()}
    return next(iter(tokenizers.values())) if len(digests) == 1 else None


def _make(
    communicator: Communicator,
    kind: Kind,
    sources: Sequence[Source],
    examined: Sequence[CorpusFacts],
    known: _Known,
    out: str,
    threads: int,
    progress: Stopwatch,
) -> Receipt:
    """Claim the output, fill it, and publish it with its receipt. Collective."""
    identity = " ".join([kind, *known.stamps, *(str(source.modes is None) for source in sources)])
    origin = Origin(
        kind=kind,
        made_from=xxhash.xxh3_128(identity.encode()).hexdigest(),
        tokenizer=known.tokenizer,
        options={},
        versions={"distcache": importlib.metadata.version("distcache")},
    )
    with Output(out) as output:
        found = claim_output_together(communicator, output, origin)
        if found:
            return found[0]
        with Heartbeat(output.directory, progress, communicator) as heartbeat:
            from_rank_0(communicator, lambda: output.begin(origin.made_from), None, "making room")
            facts = join(communicator, sources, output, threads, progress)
            require_unchanged(communicator, examined, tokens=True)
            inputs = _input_receipts(sources, known.digests)
            receipt = receipt_of(facts, output.name(0), origin, inputs)
            progress.phase("publishing")
            publish_together(communicator, output, [receipt], heartbeat)
        return receipt


def _input_receipts(sources: Sequence[Source], digests: Sequence[str]) -> Iterator[InputReceipt]:
    begin = 0
    for source, digest in zip(sources, digests, strict=True):
        sequences, documents = len(source.lengths), len(source.bounds) - 1
        end = begin + source.nbytes
        yield InputReceipt(
            path=source.prefix,
            size=source.nbytes,
            digest=digest,
            rows=documents,
            documents=documents,
            empty=0,
            skipped=0,
            sequences=sequences,
            tokens=source.tokens,
            first_offset=begin if sequences else None,
            last_offset=end if sequences else None,
            pieces=(PieceReceipt(0, sequences, documents, documents, sequences, source.tokens),),
        )
        begin = end
