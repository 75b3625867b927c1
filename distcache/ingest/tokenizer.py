"""The interface of tokenizers, and what all kinds have in common."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec
import xxhash

from distcache.corpus.receipt import TokenizerFacts
from distcache.errors import ConfigError, DistcacheError
from distcache.io.files import open_sized, read_range

__all__ = [
    "Tokenizer",
    "TokenizerOptions",
    "TokenizerSource",
    "facts_of",
    "is_token_id",
    "read_file",
    "refusing",
    "unknown_eod",
]

LARGEST: Final = 1 << 30  # bytes of a tokenizer's file


class TokenizerOptions(msgspec.Struct, frozen=True):
    """How to load a tokenizer, and which of its features to use.

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
    """The contents of a tokenizer's files, which one rank reads for all.

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
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(reason) from error


def is_token_id(text: str) -> bool:
    """Return whether a text is a number that may be a token."""
    return text.isascii() and text.isdecimal() and len(text) < 19


def unknown_eod(options: TokenizerOptions) -> ConfigError:
    """Return the error for an unknown end-of-document token."""
    return ConfigError(f"--eod {options.eod}: the tokenizer {options.name} has no such token")
