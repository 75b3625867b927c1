"""What a tokenizer is here, and how one is found by the name of its file."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec
import xxhash

from distcache.corpus.receipt import TokenizerFacts
from distcache.errors import ConfigError, DistcacheError, NotReady
from distcache.files import open_sized, read_range

__all__ = [
    "Tokenizer",
    "TokenizerOptions",
    "TokenizerSource",
    "find_tokenizer",
    "load_tokenizer",
    "make_tokenizer",
]

LARGEST: Final = 1 << 30  # bytes of a tokenizer's file
SUFFIXES: Final = (".json", ".model", ".tiktoken")
# What a tokenizer may be called: of tiktoken, or of the hub of Hugging Face, with or without owner.
NAME: Final = re.compile(r"\w[\w.-]*(/[\w.-]+)?")


class TokenizerOptions(msgspec.Struct, frozen=True):
    """How to load a tokenizer, and what of it to use.

    Attributes
    ----------
    name : str
        A ``tokenizer.json`` or its directory, a SentencePiece ``.model``, a ``.tiktoken`` file,
        Megatron's JSON vocabulary for tiktoken, or the name of an encoding of tiktoken or of a
        tokenizer of Hugging Face.
    eod : str or None
        The token that ends a document, as text or number; by default what the tokenizer says.
    special_tokens : bool
        Whether the tokenizer adds the tokens to each text that its model expects around one.
    pattern : str or None
        Of tiktoken: the regular expression that cuts text, or ``v1`` or ``v2`` of Megatron.
    """

    name: str
    eod: str | None = None
    special_tokens: bool = False
    pattern: str | None = None


class Tokenizer(Protocol):
    """Makes tokens from text. Called from several threads.

    Attributes
    ----------
    facts : TokenizerFacts
        Which tokenizer this is.
    """

    facts: TokenizerFacts

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the token ids of each text; `ValueError` if one cannot be encoded."""
        ...

    def decode(self, ids: list[int]) -> str:
        """Return the text of token ids."""
        ...


class TokenizerSource(msgspec.Struct, frozen=True):
    """All of a tokenizer that comes from files or from the network, so that one rank may read it.

    Attributes
    ----------
    kind : str
        Whose it is.
    name : str
        For receipts.
    content : bytes
        Of its file; of tiktoken, the parts of an encoding in MessagePack.
    end : str or None
        What it calls the end of a document.
    """

    kind: Literal["huggingface", "sentencepiece", "tiktoken"]
    name: str
    content: bytes
    end: str | None = None


def load_tokenizer(options: TokenizerOptions) -> Tokenizer:
    """Load a tokenizer from its file, or by its name.

    Raises
    ------
    NotReady
        If there is no such file, or its name is not known.
    ConfigError
        If it is not a tokenizer, an option does not fit, or the library is missing.
    """
    return make_tokenizer(find_tokenizer(options), options)


def find_tokenizer(options: TokenizerOptions) -> TokenizerSource:
    """Read a tokenizer's files, or get them from a cache or the network.

    Raises
    ------
    NotReady, ConfigError
        As `load_tokenizer`.
    """
    path = Path(options.name)
    if path.is_dir():
        path /= "tokenizer.json"
    with _as_errors(options):
        if not path.is_file():
            return _find_by_name(options)
        content = read_file(path)
        if path.suffix == ".model":
            return TokenizerSource("sentencepiece", path.name, content)
        if path.suffix == ".tiktoken" or _is_vocabulary(path):
            from distcache.ingest.tiktoken_ranks import parts_of_file  # noqa: PLC0415

            return parts_of_file(path, content, options)
        from distcache.ingest.huggingface import stated_end  # noqa: PLC0415

        return TokenizerSource("huggingface", path.name, content, stated_end(path.parent))


def make_tokenizer(source: TokenizerSource, options: TokenizerOptions) -> Tokenizer:
    """Make a tokenizer of what was read of it.

    Raises
    ------
    ConfigError
        If it is not a tokenizer, an option does not fit, or the library is missing.
    """
    with _as_errors(options):
        if source.kind == "sentencepiece":
            from distcache.ingest.sentencepiece_model import SentencePiece  # noqa: PLC0415

            return SentencePiece(source.name, source.content, options)
        if source.kind == "tiktoken":
            from distcache.ingest.tiktoken_ranks import Tiktoken  # noqa: PLC0415

            return Tiktoken(source, options)
        from distcache.ingest.huggingface import HuggingFace  # noqa: PLC0415

        return HuggingFace(source.name, source.content, options, source.end)


@contextlib.contextmanager
def _as_errors(options: TokenizerOptions) -> Iterator[None]:
    """Say of errors that they are the tokenizer's."""
    try:
        yield
    except DistcacheError:
        raise
    except OSError as error:
        raise NotReady(f"--tokenizer {options.name}: cannot be read: {error.strerror}") from error
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--tokenizer {options.name}: {error.name} is not installed; pip install "
            '"distcache[ingest]"'
        ) from error


def _find_by_name(options: TokenizerOptions) -> TokenizerSource:
    name = options.name
    if os.path.lexists(name) or name.endswith(SUFFIXES) or not NAME.fullmatch(name):
        raise NotReady(f"--tokenizer {name}: no such file")
    from distcache.ingest.tiktoken_ranks import knows, parts_by_name  # noqa: PLC0415

    if knows(name):
        return parts_by_name(options)
    from distcache.ingest.huggingface import download  # noqa: PLC0415

    return download(options)


def _is_vocabulary(path: Path) -> bool:
    """Tell whether a JSON file is a list, as Megatron's vocabularies for tiktoken are."""
    with path.open("rb") as stream:
        return stream.read(64).lstrip().startswith(b"[")


def read_file(path: Path) -> bytes:
    """Read a tokenizer's file.

    Raises
    ------
    ConfigError
        If it cannot be read, or is too large for a tokenizer.
    """
    try:
        descriptor, size = open_sized(path)
    except OSError as error:
        raise ConfigError(f"--tokenizer {path}: cannot be read: {error.strerror}") from error
    try:
        if size > LARGEST:
            raise ConfigError(f"--tokenizer {path}: has {size} bytes, too many for a tokenizer")
        return read_range(descriptor, 0, size)
    finally:
        os.close(descriptor)


def facts_of(
    kind: str,
    name: str,
    content: bytes,
    vocabulary: int,
    eod: int | None,
    choices: Mapping[str, object],
) -> TokenizerFacts:
    """Describe a tokenizer; the choices are all else that changes tokens.

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


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Turn whatever a tokenizer's library raises into `ValueError`.

    Libraries in Rust panic on some texts and vocabularies, by what is no `Exception`.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, DistcacheError, MemoryError):
        raise
    except BaseException as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(reason) from error


def is_token_id(text: str) -> bool:
    """Tell whether a text is a number that may be a token."""
    return text.isascii() and text.isdecimal() and len(text) < 19


def unknown_eod(options: TokenizerOptions) -> ConfigError:
    """Return the error for an end of documents that is not a token."""
    return ConfigError(f"--eod {options.eod}: the tokenizer {options.name} has no such token")
