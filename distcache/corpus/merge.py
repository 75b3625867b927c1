"""Merge corpora, and convert what is not an `.idx` of today: both by `join`."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence

import msgspec
import xxhash

from distcache.corpus.claim import claim_output, publish_output
from distcache.corpus.corpus import CorpusFacts
from distcache.corpus.examine import require_sound
from distcache.corpus.idx_writer import IdxPlan
from distcache.corpus.join import join
from distcache.corpus.legacy import is_legacy, open_legacy
from distcache.corpus.output import Output
from distcache.corpus.provenance import require_one_tokenizer, tokenizers_of
from distcache.corpus.receipt import (
    FORMAT,
    InputReceipt,
    Kind,
    PieceReceipt,
    Receipt,
    TokenizerFacts,
    find_receipt,
)
from distcache.corpus.source import Source, open_source
from distcache.errors import ConfigError
from distcache.progress import Progress, Silent, Stopwatch
from distcache.ranks.agreement import from_rank_0, together
from distcache.ranks.communicator import Communicator

__all__ = ["convert", "merge"]


class _Origin(msgspec.Struct, frozen=True):
    """What the corpora were: their digests by which a receipt tells them, and their tokenizer."""

    digests: list[str]
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
    progress = Stopwatch(progress or Silent(), lambda: communicator.waited)
    progress.phase("examining corpora")
    facts = require_sound(communicator, list(dict.fromkeys(prefixes)), threads)

    def prepare() -> _Origin:
        _require_alike(list(facts.values()))
        digests = [facts[prefix].idx_digest for prefix in prefixes]
        return _Origin(digests, _common_tokenizer(facts, mixed=mixed))

    origin = from_rank_0(communicator, prepare, _Origin, "comparing corpora")
    sources = together(
        communicator,
        lambda: [open_source(prefix, facts[prefix].bin_size) for prefix in prefixes],
        "opening corpora",
    )
    return _make(communicator, "merge", sources, origin, out, threads, progress)


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
    progress = Stopwatch(progress or Silent(), lambda: communicator.waited)
    progress.phase("examining corpora")
    legacy = from_rank_0(communicator, lambda: is_legacy(prefix), bool, "looking at the corpus")
    if legacy:
        source = together(communicator, lambda: open_legacy(prefix), "opening the corpus")
        digest = xxhash.xxh3_128(source.lengths.data).hexdigest()
        origin = _Origin([digest], None)
    else:
        facts = require_sound(communicator, [prefix], threads)[prefix]
        source = together(communicator, lambda: open_source(prefix, facts.bin_size), "opening")
        known = from_rank_0(
            communicator, lambda: find_receipt(prefix), Receipt | None, "reading receipts"
        )
        origin = _Origin([facts.idx_digest], known.tokenizer if known else None)
    if drop_modes:
        source = Source(
            prefix, source.type_code, source.lengths, source.bounds, None, source.nbytes
        )
    return _make(communicator, "convert", [source], origin, out, threads, progress)


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
    origin: _Origin,
    out: str,
    threads: int,
    progress: Progress,
) -> Receipt:
    """Claim the output, fill it, and publish it with its receipt. Collective."""
    made_from = xxhash.xxh3_128(" ".join([kind, *origin.digests]).encode())
    made_from.update(str([source.modes is None for source in sources]).encode())
    with Output(out) as output:
        found = from_rank_0(
            communicator,
            lambda: claim_output(output, made_from.hexdigest()),
            list[Receipt],
            "claiming the output",
        )
        if found:
            return found[0]
        facts = join(communicator, sources, output, threads, progress)
        receipt = _receipt(kind, sources, origin, facts, output.name(0), made_from.hexdigest())
        progress.phase("publishing")
        from_rank_0(communicator, lambda: publish_output(output, [receipt]), None, "publishing")
        return receipt


def _receipt(
    kind: Kind,
    sources: Sequence[Source],
    origin: _Origin,
    facts: CorpusFacts,
    name: str,
    made_from: str,
) -> Receipt:
    inputs = []
    begin = 0
    for source, digest in zip(sources, origin.digests, strict=True):
        sequences, documents = len(source.lengths), len(source.bounds) - 1
        end = begin + source.nbytes
        piece = PieceReceipt(0, sequences, documents, documents, sequences, source.tokens)
        inputs.append(
            InputReceipt(
                source.prefix,
                source.nbytes,
                digest,
                documents,
                documents,
                0,
                0,
                sequences,
                source.tokens,
                begin if sequences else None,
                end if sequences else None,
                (piece,),
            )
        )
        begin = end
    return Receipt(
        format=FORMAT,
        kind=kind,
        corpus=name,
        made_from=made_from,
        idx_digest=facts.idx_digest,
        idx_size=facts.idx_size,
        bin_size=facts.bin_size,
        type_code=facts.type_code,
        sequences=facts.sequences,
        documents=facts.documents,
        tokens=facts.tokens,
        tokenizer=origin.tokenizer,
        options={},
        versions={"distcache": importlib.metadata.version("distcache")},
        inputs=tuple(inputs),
    )
