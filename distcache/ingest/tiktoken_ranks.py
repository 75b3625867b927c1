"""Encodings of tiktoken: from a file of ranks, from Megatron's JSON vocabulary, or by name."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import msgspec
import tiktoken
from tiktoken_ext import openai_public

from distcache.errors import ConfigError, NotReady
from distcache.ingest.tokenizer import (
    TokenizerOptions,
    TokenizerSource,
    facts_of,
    is_token_id,
    refusing,
    unknown_eod,
)

__all__ = ["Tiktoken", "knows", "parts_by_name", "parts_of_file"]

# The two that Megatron-Core's TikTokenTokenizer has (tokenizers/text/libraries), and its numbers.
_LETTERS: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SPACES: Final = r"\s+(?!\S)|\s+"
MEGATRON_PATTERNS: Final = {
    "v1": r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|" + _SPACES,
    "v2": rf"[^\r\n\p{{L}}\p{{N}}]?{_LETTERS[0]}*{_LETTERS[1]}+|"
    rf"[^\r\n\p{{L}}\p{{N}}]?{_LETTERS[0]}+{_LETTERS[1]}*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|" + _SPACES,
}
MEGATRON_SPECIAL: Final = ("<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>")
MEGATRON_RESERVED: Final = 1000
MEGATRON_VOCABULARY: Final = 1 << 17

Constructor = Callable[[], dict[str, Any]]
CONSTRUCTORS: Final[dict[str, Constructor]] = openai_public.ENCODING_CONSTRUCTORS


def knows(name: str) -> bool:
    """Tell whether tiktoken has an encoding of this name."""
    return name in CONSTRUCTORS


class _Parts(msgspec.Struct, frozen=True):
    """What `tiktoken.Encoding` takes."""

    name: str
    pat_str: str
    mergeable_ranks: dict[bytes, int]
    special_tokens: dict[str, int]


def parts_of_file(path: Path, content: bytes, options: TokenizerOptions) -> TokenizerSource:
    """Return the encoding of a file of ranks, or of Megatron's JSON vocabulary."""
    try:
        if path.suffix != ".tiktoken":
            return _source(path.name, _megatron_parts(content, options), options, "</s>")
        ranks = _read_ranks(content)
        if not ranks:
            raise ValueError("it has no token")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"--tokenizer {path}: is not a vocabulary of tiktoken: {error}"
        ) from error
    return _source(path.name, _parts(path.stem, ranks, options), options, "<|endoftext|>")


def parts_by_name(options: TokenizerOptions) -> TokenizerSource:
    """Return an encoding that tiktoken has in its cache, or can download."""
    try:
        with refusing():
            parts = CONSTRUCTORS[options.name]()
    except ValueError as error:
        raise NotReady(
            f"--tokenizer {options.name}: tiktoken cannot get it ({error}); "
            f"give the file {options.name}.tiktoken"
        ) from error
    return _source(options.name, parts, options, "<|endoftext|>")


def _source(
    name: str, parts: dict[str, Any], options: TokenizerOptions, end: str
) -> TokenizerSource:
    known = {field: value for field, value in parts.items() if field in _Parts.__struct_fields__}
    try:
        content = msgspec.msgpack.encode(msgspec.convert(known, _Parts))
    except (msgspec.ValidationError, OverflowError) as error:
        raise ConfigError(
            f"--tokenizer {options.name}: is not a vocabulary of tiktoken: {error}"
        ) from error
    return TokenizerSource("tiktoken", name, content, end)


class Tiktoken:
    """An encoding of tiktoken. What looks like a special token in a text is ordinary text.

    Parameters
    ----------
    source : TokenizerSource
        From `parts_of_file` or `parts_by_name`.
    options : TokenizerOptions
        How to use it.
    """

    def __init__(self, source: TokenizerSource, options: TokenizerOptions) -> None:
        if options.special_tokens:
            raise ConfigError("--add-special-tokens: encodings of tiktoken add none")
        parts = msgspec.msgpack.decode(source.content, type=_Parts)
        try:
            with refusing():
                self._encoding = tiktoken.Encoding(**msgspec.structs.asdict(parts))
        except ValueError as error:
            raise ConfigError(f"--tokenizer {options.name}: {error}") from error
        special = parts.special_tokens
        content = json.dumps(
            [
                parts.pat_str,
                sorted(special.items()),
                sorted((rank, token.hex()) for token, rank in parts.mergeable_ranks.items()),
            ]
        )
        eod = _end(special, options, source.end or "")
        size = self._encoding.max_token_value + 1
        self.facts = facts_of("tiktoken", source.name, content.encode(), size, eod, {})

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Return the token ids of each text."""
        with refusing():
            return [self._encoding.encode_ordinary(text) for text in texts]

    def decode(self, ids: list[int]) -> str:
        """Return the text of token ids."""
        return self._encoding.decode(ids)


def _end(special: dict[str, int], options: TokenizerOptions, end: str) -> int | None:
    if options.eod is None:
        return special.get(end)
    if options.eod in special:
        return special[options.eod]
    if is_token_id(options.eod):
        return int(options.eod)
    raise unknown_eod(options)


def _read_ranks(content: bytes) -> dict[bytes, int]:
    """Read lines of a token in base 64 and its rank."""
    pairs = (line.split() for line in content.splitlines() if line)
    return {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}


def _parts(name: str, ranks: dict[bytes, int], options: TokenizerOptions) -> dict[str, Any]:
    """Complete ranks by what tiktoken knows of an encoding of this name, or by what is asked."""
    if options.pattern is not None:
        pattern = MEGATRON_PATTERNS.get(options.pattern, options.pattern)
        special = {"<|endoftext|>": max(ranks.values()) + 1}
        return {
            "name": name,
            "pat_str": pattern,
            "mergeable_ranks": ranks,
            "special_tokens": special,
        }
    if not knows(name):
        raise ConfigError(
            f"--tokenizer {options.name}: the file holds ranks only, and tiktoken knows no "
            f"encoding {name} ({', '.join(sorted(CONSTRUCTORS))}); give --tiktoken-pattern"
        )
    # The library keeps pattern and special tokens in a function that also downloads the ranks.
    constructor = CONSTRUCTORS[name]
    if not isinstance(constructor, FunctionType):
        raise ConfigError(f"--tokenizer {options.name}: give --tiktoken-pattern")
    known = {**constructor.__globals__, "load_tiktoken_bpe": lambda *_, **__: ranks}
    known |= {"data_gym_to_mergeable_bpe_ranks": known["load_tiktoken_bpe"]}
    parts: dict[str, Any] = FunctionType(constructor.__code__, known)()
    return parts


def _megatron_parts(content: bytes, options: TokenizerOptions) -> dict[str, Any]:
    """Read a list of objects with rank and token_bytes, which follow 1,000 special tokens."""
    entries = json.loads(content)[: MEGATRON_VOCABULARY - MEGATRON_RESERVED]
    ranks = {
        base64.b64decode(entry["token_bytes"], validate=True): entry["rank"] + MEGATRON_RESERVED
        for entry in entries
    }
    special = {token: place for place, token in enumerate(MEGATRON_SPECIAL)}
    special |= {f"<SPECIAL_{i}>": i for i in range(len(special), MEGATRON_RESERVED)}
    pattern = options.pattern or "v2"
    return {
        "name": "megatron",
        "pat_str": MEGATRON_PATTERNS.get(pattern, pattern),
        "mergeable_ranks": ranks,
        "special_tokens": special,
    }
