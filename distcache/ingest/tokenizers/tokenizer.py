"""The interface of tokenizers, and what all kinds have in common."""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Protocol

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from distcache.corpus.receipt import TokenizerFacts
from distcache.errors import ConfigError, DistcacheError
from distcache.megatron.tokenizers import Release, one_release
from distcache.option import Option
from distcache.storage.files import read_file
from distcache.storage.interruption import require_uninterrupted
from distcache.storage.threads import decodable

MAX_TOKENIZER_BYTES: Final = 1 << 30  # bytes of a tokenizer's file


@decodable
class TokenizerOptions(msgspec.Struct, frozen=True):
    """How to load a tokenizer, and which of its features to use."""

    # also Megatron's JSON vocabulary for tiktoken; a name is of an encoding of tiktoken or of a
    # tokenizer of Hugging Face
    name: Annotated[
        str,
        Option(
            "tokenizer.json or its directory, SentencePiece .model, .tiktoken; or a name.",
            "--tokenizer",
        ),
    ]
    eod: Annotated[
        str | None, Option("End each document with this token, given as text or as a number.")
    ] = None
    special_tokens: Annotated[
        bool | None,
        Option(
            "Add the tokens that the model expects around a text.",
            "--add-special-tokens/--no-add-special-tokens",
            shown="as Megatron does; see --megatron",
        ),
    ] = None
    pattern: Annotated[
        str | None,
        Option(
            "Regular expression of a .tiktoken file; v1 and v2 are Megatron's.",
            "--tiktoken-pattern",
        ),
    ] = None
    special_text: Annotated[
        Literal["parse", "text"],
        Option(
            "Whether, with tiktoken, the text of a special token in a document becomes that token, "
            "as in Megatron, or stays text."
        ),
    ] = "parse"
    megatron: Annotated[
        Release | None,
        Option(
            "Release whose preprocessing is followed: since 0.17, Hugging Face's tokenizers add "
            "special tokens by default.",
            parse=one_release,
            shown="0.16",
        ),
    ] = None
    chat_template: Annotated[
        str | None,
        Option(
            "File with a chat template for --messages, instead of the tokenizer's.", metavar="FILE"
        ),
    ] = None
    engine: Annotated[
        Literal["auto", "gigatoken", "tokenizers"],
        Option(
            "Engine for tokenizers of Hugging Face. All make equal tokens; gigatoken is faster, "
            "and auto takes it if it has what the tokenizer needs."
        ),
    ] = "auto"


class Conversation(NamedTuple):
    """A conversation, as its row has it."""

    messages: Any  # list of objects with a role and a content, if it is valid
    tools: Any = None  # what the model may call: a list of objects, or its JSON


class Encoded(NamedTuple):
    """The tokens of texts, one text after the other."""

    ids: NDArray[Any]  # not yet compared with the vocabulary
    lengths: NDArray[np.int64]  # tokens of each text
    # texts that went to the tokenizer's own library, where a faster engine has the others
    by_library: int = 0
    compared: int = 0  # texts that both encoded, with equal tokens
    losses: NDArray[np.uint8] | None = None  # 1 for each token that has a loss; None if all have

    def split(self) -> list[NDArray[Any]]:
        """Return the tokens of each text."""
        return np.split(self.ids, np.cumsum(self.lengths)[:-1]) if len(self.lengths) else []


class EnginesDiffer(Exception):  # no ValueError, which is a refusal
    """A faster engine and the tokenizer's own library make different tokens of a text.

    Parameters
    ----------
    place : int
        Number of the text.
    engine : str
        The faster one.
    """

    def __init__(self, place: int, engine: str) -> None:
        super().__init__(
            f"{engine} and the library tokenizers make different tokens of it; run with "
            "--engine tokenizers, which begins again, and please report it"
        )
        self.place = place


class Tokenizer(Protocol):
    """Makes tokens from text. Called from several threads."""

    libraries: ClassVar[tuple[str, ...]]  # names of the Python packages that make its tokens
    facts: TokenizerFacts  # identity of the tokenizer
    engine: str  # the library that encodes, and its version
    note: str | None  # why that is not a faster one

    def encode(self, texts: list[str]) -> Encoded:
        """Return the tokens of texts; `ValueError` if one cannot be encoded."""
        ...

    def decode(self, tokens: list[int]) -> str:
        """Return the text of tokens; what is not UTF-8 becomes U+FFFD."""
        ...


class TokenizerSource(msgspec.Struct, frozen=True):
    """The contents of a tokenizer's files, which one rank reads for all."""

    kind: str  # one of `distcache.ingest.tokenizers.find.KINDS`
    name: str  # name for receipts
    content: bytes  # content of its file; for tiktoken, the parts of an encoding in MessagePack
    end: str | None = None  # text that it calls the end of a document
    template: str | None = None  # its chat template
    tool_template: str | None = None  # that of conversations with tools, if it is another one
    # its special tokens by name, which chat templates write; None if they are not known
    special_tokens: dict[str, Any] | None = None


def template_digest(source: TokenizerSource) -> str:
    """Return XXH3-128 over chat templates and the special tokens that they may write."""
    templates = [source.template, source.tool_template]
    known = json.dumps([templates, source.special_tokens], sort_keys=True)
    return xxhash.xxh3_128_hexdigest(known.encode())


def read_tokenizer_file(path: Path) -> bytes:
    """Read a tokenizer's file.

    Raises
    ------
    ConfigError
        If it cannot be read, or is too large for a tokenizer.
    """
    try:
        content = read_file(path, MAX_TOKENIZER_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"--tokenizer {path}: cannot be read: {error.strerror}") from error
    if len(content) > MAX_TOKENIZER_BYTES:
        raise ConfigError(
            f"--tokenizer {path}: has more than {MAX_TOKENIZER_BYTES} bytes, too many for one"
        )
    return content


def facts_of(
    kind: str,
    name: str,
    content: bytes,
    vocabulary: int,
    eod: int | None,
    choices: Mapping[str, object],
) -> TokenizerFacts:
    """Describe a tokenizer; the choices are everything else that changes tokens.

    Raises
    ------
    ConfigError
        If the end of documents is outside of the vocabulary.
    """
    if eod is not None and not 0 <= eod < vocabulary:
        raise ConfigError(f"--eod {eod}: the tokenizer has tokens 0 to {vocabulary - 1}")
    digest = xxhash.xxh3_128(content)
    digest.update(json.dumps([kind, dict(choices)], sort_keys=True).encode())
    return TokenizerFacts(kind, name, digest.hexdigest(), vocabulary, eod)


def encoded_lists(found: Sequence[Sequence[int]]) -> Encoded:
    """Return the tokens of texts, given as a list for each.

    Raises
    ------
    ValueError
        If a token is beyond 31 bits.
    """
    lengths = np.fromiter(map(len, found), np.int64, len(found))
    try:
        ids = np.fromiter(itertools.chain.from_iterable(found), np.int32, int(lengths.sum()))
    except OverflowError as error:
        raise ValueError(f"it makes a token beyond every vocabulary: {error}") from error
    return Encoded(ids, lengths)


def name_and_version(library: str) -> str:
    """Return the name and the version of a Python package."""
    return f"{library} {importlib.metadata.version(library)}"


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Turn any exception of a tokenizer's library into `ValueError`.

    Libraries in Rust panic on some texts and vocabularies, by what is no `Exception`.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, DistcacheError, MemoryError):
        raise
    except BaseException as error:
        require_uninterrupted()
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(reason) from error


def eod_of(
    options: TokenizerOptions, find: Callable[[str], int | None], default: int | None
) -> int | None:
    """Return the token that ends a document: the one asked for, by its text or its number.

    Parameters
    ----------
    options : TokenizerOptions
        May name it.
    find : callable
        Returns the id of a token with this text, or None.
    default : int or None
        The token if none is named.

    Raises
    ------
    ConfigError
        If there is no such token.
    """
    text = options.eod
    if text is None:
        return default
    found = find(text)
    if found is None and text.isascii() and text.isdecimal() and len(text) < 19:
        found = int(text)
    if found is None:
        raise ConfigError(f"--eod {text}: the tokenizer {options.name} has no such token")
    return found
