"""Find a tokenizer by its file or name, and load it; each kind is imported when needed."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from distcache.corpus.receipt import find_receipt
from distcache.errors import ConfigError, DistcacheError, NotReady
from distcache.extras import how_to_install, needing
from distcache.ingest.tokenizers.tokenizer import (
    Tokenizer,
    TokenizerOptions,
    TokenizerSource,
    read_tokenizer_file,
)
from distcache.storage.interruption import require_uninterrupted

SUFFIXES: Final = (".json", ".model", ".tiktoken")
# Names of tokenizers: of tiktoken, or of the Hugging Face hub, with or without an owner.
GPT2: Final = re.compile(rb'\{\s*"(?:[^"\\]|\\.)*"\s*:\s*\d')  # how a vocabulary of GPT-2 begins
NAME: Final = re.compile(r"\w[\w.-]*(/[\w.-]+)?")


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
            return _of_directory(path, options)
        return _of_file(path, options) if path.is_file() else _find_by_name(options)


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
        if source.kind == "sentencepiece":
            from distcache.ingest.tokenizers.sentencepiece_model import SentencePiece  # noqa: PLC0415

            return SentencePiece(source.name, source.content, options)
        if source.kind == "tiktoken":
            from distcache.ingest.tokenizers.tiktoken_ranks import Tiktoken  # noqa: PLC0415

            return Tiktoken(source, options)
        return _huggingface(source, options)


def _huggingface(source: TokenizerSource, options: TokenizerOptions) -> Tokenizer:
    """Make a tokenizer of Hugging Face, with the engine that is asked for."""
    from distcache.ingest.tokenizers.huggingface import HuggingFace  # noqa: PLC0415

    library = HuggingFace(source.name, source.content, options, source.end)
    if options.engine == "tokenizers":
        return library
    try:
        from distcache.ingest.tokenizers.gigatoken.engine import Gigatoken  # noqa: PLC0415

        return Gigatoken(library, source.content)
    except ImportError as error:  # missing, or built for another system
        reason = f"gigatoken cannot be imported ({error}): {how_to_install('fast')}"
    except ValueError as error:  # it needs what gigatoken does not have
        reason = str(error)
    require_uninterrupted()
    if options.engine == "gigatoken":
        raise ConfigError(f"--engine gigatoken: {options.name}: {reason}")
    library.note = reason
    return library


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
    from distcache.ingest.tokenizers.tiktoken_ranks import ENCODINGS, source_by_name  # noqa: PLC0415

    if name in ENCODINGS:
        return source_by_name(options)
    from distcache.ingest.tokenizers.huggingface import download  # noqa: PLC0415

    return download(options)


def _of_file(path: Path, options: TokenizerOptions) -> TokenizerSource:
    """Return the tokenizer of a file alone, of whatever kind it is."""
    content = read_tokenizer_file(path)
    if path.suffix == ".model":
        return TokenizerSource("sentencepiece", path.name, content)
    if path.suffix == ".tiktoken" or _is_vocabulary(path):
        from distcache.ingest.tokenizers.tiktoken_ranks import source_of_file  # noqa: PLC0415

        return source_of_file(path, content, options)
    if _is_gpt2(content):
        return _of_vocabulary_and_merges(path, content, options)
    from distcache.ingest.tokenizers.directory import stated_end  # noqa: PLC0415

    return TokenizerSource("huggingface", path.name, content, stated_end(path.parent, options))


def _of_directory(directory: Path, options: TokenizerOptions) -> TokenizerSource:
    """Return the tokenizer of a directory, as `AutoTokenizer` reads it.

    Raises
    ------
    NotReady
        If there is none.
    ConfigError
        If files beside it change tokens in a way that is not followed here.
    """
    if (directory / "tokenizer.json").exists():
        from distcache.ingest.tokenizers.huggingface import source_of_directory  # noqa: PLC0415

        return source_of_directory(directory, options, "tokenizer.json")
    path = directory / "vocab.json"
    if path.is_file():
        from distcache.ingest.tokenizers.directory import read_directory  # noqa: PLC0415
        from distcache.ingest.tokenizers.huggingface import puts_around  # noqa: PLC0415

        source = _of_file(path, options)
        if source.kind != "huggingface":
            return source  # a vocabulary for tiktoken
        found = read_directory(path, source.content, options, around=puts_around(options))
        return msgspec.structs.replace(source, content=found.content, end=found.end or source.end)
    path = directory / "tokenizer.model"
    if path.is_file():
        from distcache.ingest.tokenizers.directory import FILES  # noqa: PLC0415

        beside = [name for name in FILES if (directory / name).is_file()]
        if beside:
            raise ConfigError(
                f"--tokenizer {options.name}: training also reads {beside[0]} beside "
                f"tokenizer.model, which may change tokens; give {path} to follow that file alone, "
                "or have transformers write tokenizer.json: "
                "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
            )
        return TokenizerSource("sentencepiece", path.name, read_tokenizer_file(path))
    raise NotReady(
        f"--tokenizer {options.name}: has no tokenizer.json, no vocab.json with merges.txt and no "
        "tokenizer.model"
    )


def _is_gpt2(content: bytes) -> bool:
    """Return whether a file is a vocabulary of GPT-2: an object of a number for each token."""
    return GPT2.match(content[:4096].lstrip()) is not None


def _of_vocabulary_and_merges(
    path: Path, content: bytes, options: TokenizerOptions
) -> TokenizerSource:
    """Return the tokenizer of GPT-2's two files, as a `tokenizer.json`.

    Raises
    ------
    NotReady
        If there is no file of merges beside the vocabulary.
    """
    merges = path.with_name(path.name.replace("vocab.json", "merges.txt"))
    if merges == path or not merges.is_file():
        raise NotReady(
            f"--tokenizer {options.name}: is a vocabulary of GPT-2; its merges are expected beside "
            "it, in a file of that name with merges.txt for vocab.json"
        )
    from distcache.ingest.tokenizers.huggingface import gpt2_description  # noqa: PLC0415

    made = gpt2_description(path, content, read_tokenizer_file(merges))
    return TokenizerSource("huggingface", path.name, made, "<|endoftext|>")


def _is_vocabulary(path: Path) -> bool:
    """Return whether a JSON file is a list, as Megatron's vocabularies for tiktoken are."""
    with path.open("rb") as stream:
        return stream.read(64).lstrip().startswith(b"[")


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
    options = msgspec.structs.replace(options, engine="auto" if name else "tokenizers")
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
