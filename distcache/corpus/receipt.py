"""Receipts: the sources and the tokenizer of a corpus, in JSON beside it.

A receipt holds nothing that differs between two makings of the same corpus: no time, no host and
no number of ranks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from distcache.corpus.corpus import CorpusFacts
from distcache.errors import ConfigError, CorpusError, NotReady
from distcache.storage.files import atomic_write, no_space_as_error, read_file
from distcache.storage.place import copy_of
from distcache.storage.threads import decodable
from distcache.storage.url import is_url

FORMAT: Final = 1
Kind = Literal["text", "tokens", "merge", "convert", "select", "rest", "materialize", "mds"]
VIEWS: Final = ("select", "rest")  # whose tokens are in the `.bin` of another corpus
Count = Annotated[int, msgspec.Meta(ge=0)]
MAX_RECEIPT_BYTES: Final = 1 << 30  # bytes of a receipt; one of a hundred thousand pieces has 10 MB
# The facts of a corpus that its receipt repeats, as messages call them.
CONTENT: Final = {
    "type_code": "token type code",
    "sequences": "sequences",
    "documents": "documents",
    "tokens": "tokens",
    "bin_size": ".bin bytes",
    "idx_size": ".idx bytes",
    "idx_digest": ".idx digest",
    "view": "view",
}


class TokenizerFacts(msgspec.Struct, frozen=True):
    """The tokenizer of a corpus."""

    kind: str  # ``huggingface``, ``sentencepiece`` or ``tiktoken``
    name: str  # name of the tokenizer's file, without directories
    # XXH3-128 over all that changes tokens, in hexadecimal. Corpora of different digests do not
    # belong into one blend.
    digest: str
    vocabulary: Annotated[int, msgspec.Meta(ge=1)]  # token ids are below it
    eod: int | None  # the token that ends a document, if there is one


class PieceReceipt(msgspec.Struct, frozen=True, array_like=True):
    """The result of a piece of an input."""

    # bytes, row groups or sequences, as the input has them
    begin: Count
    end: Count
    # numbers of rows, documents, sequences and tokens; documents and what follows as far as they
    # are in this corpus
    rows: Count
    documents: Count
    sequences: Count
    tokens: Count
    before: Count = 0  # documents of the piece that are in an earlier corpus of the same ingest
    first: Count = 0  # lines, with blank ones, or rows of the input before the piece
    # Places within the piece (lines, with blank ones; else rows) that became documents, by the code
    # of `distcache.corpus.kept_runs`; of the whole piece, even where a part of it is elsewhere
    kept: bytes = b""


class InputReceipt(msgspec.Struct, frozen=True):
    """The result of one input."""

    path: str  # path as it was given, or the prefix of a corpus
    size: Count  # bytes
    # XXH3-128 of the file; of an input of several pieces, over the digests of their bytes
    digest: str
    # rows, lines or files that were read; what they became; and how many had no token or were
    # skipped because of an error
    rows: Count
    documents: Count
    sequences: Count
    tokens: Count
    empty: Count = 0
    skipped: Count = 0
    # byte of the `.bin` at which its first sequence begins; None without any
    first_offset: Count | None = None
    pieces: tuple[PieceReceipt, ...] = ()  # pieces in the order of the input
    lines: bool = False  # whether places are lines of the file
    # documents of the input that an ancestor has, which is a view, by the code of
    # `distcache.corpus.kept_runs`
    kept: bytes = b""


class Ancestor(msgspec.Struct, frozen=True):
    """What the receipt of a corpus says that tokens were copied from; it may be deleted since."""

    corpus: str  # its prefix, as the corpora made from it name it
    idx_digest: str
    kind: Kind
    documents: Count
    sequences: Count
    inputs: tuple[InputReceipt, ...]


class EngineReceipt(msgspec.Struct, frozen=True):
    """What an engine encoded that is faster than the tokenizer's own library, with equal tokens."""

    name: str  # name of the engine
    version: str  # version of the engine
    # texts of which it is not known that both are equal, so that the library encoded them
    by_library: int
    compared: int  # texts that both encoded; the tokens were equal


class Skipped(msgspec.Struct, frozen=True, omit_defaults=True):
    """A skipped row: its place, and why it was skipped."""

    path: str
    reason: str
    line: int | None = None
    byte: int | None = None
    row_group: int | None = None
    row: int | None = None

    def __str__(self) -> str:
        places = {
            "row group": self.row_group,
            "row": self.row,
            "line": self.line,
            "byte": self.byte,
        }
        place = ", ".join(f"{name} {at}" for name, at in places.items() if at is not None)
        return f"{self.path}: {place + ': ' if place else ''}{self.reason}"


class LossReceipt(msgspec.Struct, frozen=True):
    """The loss mask of a corpus."""

    digest: str  # XXH3-128 of it
    tokens: Count  # tokens with a loss


@decodable
class Receipt(msgspec.Struct, frozen=True):
    """The receipt of one corpus."""

    format: int  # version of this document's format
    kind: Kind  # name of the command that made the corpus
    corpus: str  # the last part of its prefix
    made_from: str  # digest of all that was asked for, so that asking again finds the corpus
    # fields of `CorpusFacts`
    idx_digest: str
    idx_size: int
    bin_size: int
    type_code: int
    sequences: int
    documents: int
    tokens: int
    tokenizer: TokenizerFacts | None  # none if it is not known
    options: dict[str, Any]  # all that was asked for and changes the corpus
    versions: dict[str, str]  # versions of distcache and of the libraries that made the tokens
    corpora: int  # number of corpora that the command made; this is one of them
    inputs: tuple[InputReceipt, ...]  # inputs in the order of the corpus
    # rows that were left out because of an error: of each piece the first 1,000, 100,000 in all
    skipped: tuple[Skipped, ...] = ()
    engine: EngineReceipt | None = None  # none if the tokenizer's own library encoded all texts
    view: bool = False
    # digest of the tokens, by `distcache.corpus.examine.digest_tokens`; None of a view and
    # of shards
    bin_digest: str | None = None
    # corpora that the tokens were copied from, at any number of steps, each once
    origins: tuple[Ancestor, ...] = ()
    loss: LossReceipt | None = None  # loss mask; None if there was none

    def differences(self, facts: CorpusFacts) -> list[str]:
        """Return how a corpus differs from its receipt."""
        found = [
            f"{label}: has {getattr(facts, name)}, the receipt says {getattr(self, name)}"
            for name, label in CONTENT.items()
            if getattr(facts, name) != getattr(self, name)
        ]
        if self.loss is not None and self.loss != loss_receipt(facts):
            found.append("the loss mask is missing, or another than the receipt says")
        return found


class Origin(msgspec.Struct, frozen=True):
    """What all corpora of one command have in common: the fields of `Receipt` of these names."""

    kind: Kind
    made_from: str
    tokenizer: TokenizerFacts | None
    options: dict[str, Any]
    versions: dict[str, str]


def loss_receipt(facts: CorpusFacts) -> LossReceipt | None:
    """Return what the receipt of a corpus says of its loss mask."""
    return None if facts.loss is None else LossReceipt(facts.loss.digest, facts.loss.tokens)


def receipt_of(
    facts: CorpusFacts,
    name: str,
    origin: Origin,
    inputs: Iterable[InputReceipt],
    skipped: Iterable[Skipped] = (),
    corpora: int = 1,
    engine: EngineReceipt | None = None,
    bin_digest: str | None = None,
    origins: tuple[Ancestor, ...] = (),
) -> Receipt:
    """Return the receipt of a corpus that has been examined, one of so many that were made."""
    return Receipt(
        format=FORMAT,
        corpus=name,
        **msgspec.structs.asdict(origin),
        **{field: getattr(facts, field) for field in CONTENT},
        corpora=corpora,
        inputs=tuple(inputs),
        skipped=tuple(skipped),
        engine=engine,
        bin_digest=bin_digest,
        origins=origins,
        loss=loss_receipt(facts),
    )


def receipt_path(prefix: str) -> str:
    """Return the path of the receipt of a corpus."""
    return prefix + ".receipt.json"


def read_receipt(path: str | Path, url: str | None = None) -> Receipt:
    """Read a receipt, or the copy of one that is an object of a bucket.

    Raises
    ------
    NotReady
        If it does not exist.
    CorpusError
        If it is no receipt, or one of another format.
    """
    try:
        content = read_file(path, MAX_RECEIPT_BYTES + 1)
        path = path if url is None else url  # for messages
    except FileNotFoundError as error:
        raise NotReady(f"{path}: no such receipt") from error
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > MAX_RECEIPT_BYTES:
        raise CorpusError(
            f"{path}: has more than {MAX_RECEIPT_BYTES} bytes, too many for a receipt"
        )
    try:
        receipt = msgspec.json.decode(content, type=Receipt)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorpusError(f"{path}: is not a receipt: {error}") from error
    if receipt.format != FORMAT:
        raise CorpusError(f"{path}: has format {receipt.format}, expected {FORMAT}")
    return receipt


def write_receipt(prefix: str, receipt: Receipt) -> None:
    """Write the receipt of a corpus atomically."""
    path = receipt_path(prefix)
    with no_space_as_error(path), atomic_write(path) as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(receipt), indent=1))


def find_receipt(prefix: str) -> Receipt | None:
    """Return the receipt beside a corpus, if there is one."""
    path = receipt_path(prefix)
    if is_url(path):
        copy = copy_of(path)
        return None if copy is None else read_receipt(copy.path, path)
    return read_receipt(path) if os.path.lexists(path) else None


def tokenizers_of(corpora: Mapping[str, CorpusFacts]) -> dict[str, TokenizerFacts | None]:
    """Read the receipts beside corpora.

    Parameters
    ----------
    corpora : mapping of str to CorpusFacts
        Facts of the corpora, by prefix.

    Returns
    -------
    dict of str to TokenizerFacts or None
        Tokenizers by prefix; None where there is no receipt, or it names none.

    Raises
    ------
    CorpusError
        Naming every receipt that cannot be read, or belongs to another corpus.
    """
    found: dict[str, TokenizerFacts | None] = {}
    problems: list[str] = []
    for prefix, facts in corpora.items():
        try:
            receipt = find_receipt(prefix)
        except CorpusError as error:
            problems += error.problems
            continue
        differences = receipt.differences(facts) if receipt else []
        if differences:
            problems.append(
                f"{receipt_path(prefix)}: is not the receipt of the corpus beside it "
                f"({'; '.join(differences)}); remove it if the corpus was recreated"
            )
        found[prefix] = receipt.tokenizer if receipt else None
    if problems:
        raise CorpusError(*problems)
    return found


def require_one_tokenizer(tokenizers: Mapping[str, TokenizerFacts | None], remedy: str) -> None:
    """Refuse corpora of different tokenizers; those without a receipt are accepted.

    Parameters
    ----------
    tokenizers : mapping of str to TokenizerFacts or None
        Tokenizers of the corpora, by prefix.
    remedy : str
        Advice for combining the corpora although their tokenizers differ.

    Raises
    ------
    ConfigError
        Naming a corpus of each tokenizer.
    """
    first: dict[str, str] = {}
    for prefix, facts in tokenizers.items():
        if facts is not None:
            first.setdefault(facts.digest, f"{prefix}: {facts.name}, digest {facts.digest}")
    if len(first) > 1:
        raise ConfigError(
            "corpora of different tokenizers are put together, whose tokens mean different things "
            f"({'; '.join(first.values())}); {remedy}"
        )
