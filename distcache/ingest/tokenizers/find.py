"""Find a tokenizer by its file or name, and load it; each kind is an entry of a table."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from distcache.corpus.receipt import find_receipt
from distcache.errors import ConfigError, DistcacheError, NotReady
from distcache.extras import imported, needing
from distcache.ingest.tokenizers.tokenizer import (
    Tokenizer,
    TokenizerOptions,
    TokenizerSource,
    read_tokenizer_file,
)
from distcache.storage.files import read_text

if TYPE_CHECKING:
    from distcache.ingest.tokenizers.chat_template import ChatTokenizer

SUFFIXES: Final = (".json", ".model", ".tiktoken")
# Names of tokenizers: of tiktoken, or of the Hugging Face hub, with or without an owner.
HERE: Final = "distcache.ingest.tokenizers."
NAME: Final = re.compile(r"\w[\w.-]*(/[\w.-]+)?")


class TokenizerKind(NamedTuple):
    """A kind of tokenizers; functions are named ``module:function``, and import its library."""

    is_of: Callable[[Path], bool]  # whether a file is of this kind, by its name and its first bytes
    source: str  # function that takes a file, its content and the options: a `TokenizerSource`
    load: str  # function that takes that source and the options: a `Tokenizer`


def _is_for_tiktoken(path: Path) -> bool:
    """Return whether a file has ranks, or is a list, as Megatron's vocabularies of tiktoken."""
    with path.open("rb") as stream:
        return path.suffix == ".tiktoken" or stream.read(64).lstrip().startswith(b"[")


KINDS: Final = {
    "sentencepiece": TokenizerKind(
        lambda path: path.suffix == ".model",
        "sentencepiece_model:source_of_file",
        "sentencepiece_model:load",
    ),
    "tiktoken": TokenizerKind(
        _is_for_tiktoken, "tiktoken_ranks:source_of_file", "tiktoken_ranks:Tiktoken"
    ),
    "huggingface": TokenizerKind(
        lambda _path: True, "huggingface:source_of_file", "huggingface:load"
    ),
}


def find_tokenizer(options: TokenizerOptions) -> TokenizerSource:
    """Read a tokenizer's files, or download them, or find them in a cache.

    Raises
    ------
    NotReady
        If there is no such file, or its name is not known.
    ConfigError
        If it is not a tokenizer, or the library is missing.
    """
    path = Path(options.name)
    with _as_errors(options):
        if path.is_dir():
            source = _of_directory(path, options)
        else:
            source = _of_file(path, options) if path.is_file() else _find_by_name(options)
    if options.chat_template is None:
        return source
    template = read_template(options.chat_template)
    return msgspec.structs.replace(source, template=template, tool_template=None)


def read_template(path: str) -> str:
    """Read a chat template.

    Raises
    ------
    NotReady
        If it cannot be read.
    ConfigError
        If it is no text.
    """
    try:
        return read_text(path)
    except OSError as error:
        raise NotReady(f"--chat-template {path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--chat-template {path}: is not UTF-8 text") from error


def make_tokenizer(source: TokenizerSource, options: TokenizerOptions) -> Tokenizer:
    """Make a tokenizer from the contents of its files.

    Raises
    ------
    ConfigError
        If it is not a tokenizer, an option does not fit, or the library is missing.
    """
    with _as_errors(options):
        if source.kind != "huggingface" and options.engine != "auto":
            raise ConfigError(f"--engine {options.engine}: is not for a {source.kind} tokenizer")
        loaded: Tokenizer = imported(HERE + KINDS[source.kind].load)(source, options)
        return loaded


def make_chat_tokenizer(
    source: TokenizerSource, options: TokenizerOptions, *, marked: bool
) -> ChatTokenizer:
    """Return the tokenizer of conversations.

    Parameters
    ----------
    source, options : TokenizerSource, TokenizerOptions
        The tokenizer.
    marked : bool
        Whether only what the chat template marks has a loss.

    Raises
    ------
    ConfigError
        If the tokenizer or its chat template cannot be used, or a library is missing.
    """
    with _as_errors(options):
        chats = imported(HERE + "chat_template:ChatTokenizer")
        loaded: ChatTokenizer = chats(source, options, marked=marked)
        return loaded


@contextlib.contextmanager
def _as_errors(options: TokenizerOptions) -> Iterator[None]:
    """Turn errors into ones that name the tokenizer."""
    try:
        with needing(f"--tokenizer {options.name}"):
            yield
    except DistcacheError:
        raise
    except OSError as error:
        raise NotReady(f"--tokenizer {options.name}: cannot be read: {error.strerror}") from error


def _find_by_name(options: TokenizerOptions) -> TokenizerSource:
    name = options.name
    if os.path.lexists(name) or name.endswith(SUFFIXES) or not NAME.fullmatch(name):
        raise NotReady(f"--tokenizer {name}: no such file")
    import tiktoken  # noqa: PLC0415

    if name in tiktoken.list_encoding_names():
        from distcache.ingest.tokenizers.tiktoken_ranks import source_by_name  # noqa: PLC0415

        return source_by_name(options)
    from distcache.ingest.tokenizers.huggingface import download  # noqa: PLC0415

    return download(options)


def _of_file(path: Path, options: TokenizerOptions) -> TokenizerSource:
    """Return the tokenizer of a file alone, of whatever kind it is."""
    kind = next(kind for kind in KINDS.values() if kind.is_of(path))
    found: TokenizerSource = imported(HERE + kind.source)(path, read_tokenizer_file(path), options)
    return found


def _of_directory(directory: Path, options: TokenizerOptions) -> TokenizerSource:
    """Return the tokenizer of a directory, as `AutoTokenizer` reads it.

    Raises
    ------
    NotReady
        If there is none.
    ConfigError
        If files beside it change tokens in a way that is not followed here.
    """
    names = ("tokenizer.json", "vocab.json", "tokenizer.model")
    path = next((directory / name for name in names if (directory / name).is_file()), None)
    if path is not None:
        from distcache.ingest.tokenizers.directory import FILES, source_of_directory  # noqa: PLC0415

        beside = [name for name in FILES if (directory / name).is_file()]
        if beside and path.name == "tokenizer.model":
            raise ConfigError(
                f"--tokenizer {options.name}: training also reads {beside[0]} beside "
                f"tokenizer.model, which may change tokens; give {path} to follow that file alone, "
                "or have transformers write tokenizer.json: "
                "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
            )
        if beside:
            return source_of_directory(directory, options, path.name)
        return _of_file(path, options)
    raise NotReady(
        f"--tokenizer {options.name}: has no tokenizer.json, no vocab.json with merges.txt and no "
        "tokenizer.model"
    )


def tokenizer_of(prefix: str, name: str | None, *, needed: bool = False) -> Tokenizer | None:
    """Return the tokenizer that is named, or that the receipt beside a corpus names; or None.

    Parameters
    ----------
    prefix : str
        Path of the corpus.
    name : str or None
        Name of the tokenizer; by default that of the receipt.
    needed : bool
        Whether one that the receipt names, and that cannot be loaded, is an error.

    Raises
    ------
    DistcacheError
        If it is named and cannot be loaded.
    """
    options = TokenizerOptions(name) if name is not None else _stated_options(prefix)
    if options is None:
        return None
    engine: Any = "auto" if name else "tokenizers"
    options = msgspec.structs.replace(options, engine=engine, chat_template=None)
    try:
        source = find_tokenizer(options)
        if source.kind != "huggingface":
            options = msgspec.structs.replace(options, engine="auto")
        return make_tokenizer(source, options)
    except DistcacheError:
        if name is not None or needed:
            raise
        return None


def _stated_options(prefix: str) -> TokenizerOptions | None:
    """Return the tokenizer that the receipt beside a corpus names: as it was given, or by name."""
    receipt = find_receipt(prefix)
    if receipt is None:
        return None
    stated: Any = receipt.options.get("tokenizer")
    if stated is not None:
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.convert(stated, TokenizerOptions)
    return None if receipt.tokenizer is None else TokenizerOptions(receipt.tokenizer.name)
