"""Encodings of tiktoken: from a file of ranks, from Megatron's JSON vocabulary, or by name."""

from __future__ import annotations

import base64
import json
from collections.abc import Set
from pathlib import Path
from typing import ClassVar, Final, Literal

import msgspec
import tiktoken

from distcache.errors import ConfigError, DistcacheError, NotReady
from distcache.ingest.tokenizers.tokenizer import (
    Encoded,
    TokenizerOptions,
    TokenizerSource,
    encoded_lists,
    eod_of,
    facts_of,
    name_and_version,
    refusing,
)
from distcache.storage.threads import decodable

_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SPACES: Final = r"\s+(?!\S)|\s+"
# The two that Megatron-Core's TikTokenTokenizer has (tokenizers/text/libraries), and its numbers.
MEGATRON_PATTERNS: Final = {
    "v1": r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|" + _SPACES,
    "v2": rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|" + _SPACES,
}
MEGATRON_SPECIAL: Final = ("<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>")
MEGATRON_RESERVED: Final = 1000
MEGATRON_VOCABULARY: Final = 1 << 17

_END: Final = "<|endoftext|>"


@decodable
class _Parts(msgspec.Struct, frozen=True, array_like=True):
    """The arguments of `tiktoken.Encoding`."""

    name: str
    pat_str: str
    mergeable_ranks: dict[bytes, int]
    special_tokens: dict[str, int]


def source_of_file(path: Path, content: bytes, options: TokenizerOptions) -> TokenizerSource:
    """Return the encoding of a file of ranks, or of Megatron's JSON vocabulary."""
    try:
        if path.suffix != ".tiktoken":
            parts = _encoding_of_megatron(content, options)
            return TokenizerSource("tiktoken", path.name, parts, "</s>")
        pairs = (line.split() for line in content.splitlines() if line)
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
        if not ranks:
            raise ValueError("it has no token")
        return TokenizerSource(
            "tiktoken", path.name, _encoding_of_ranks(path.stem, ranks, options), _END
        )
    except (DistcacheError, MemoryError):
        raise
    except Exception as error:  # whatever a file of another kind leads to
        raise ConfigError(
            f"--tokenizer {path}: is not a vocabulary of tiktoken: {error}"
        ) from error


def source_by_name(options: TokenizerOptions) -> TokenizerSource:
    """Return an encoding that tiktoken has in its cache, or can download."""
    try:
        with refusing():
            encoding = tiktoken.get_encoding(options.name)
    except ValueError as error:
        raise NotReady(
            f"--tokenizer {options.name}: tiktoken cannot get it ({error}); have it in a directory "
            "that TIKTOKEN_CACHE_DIR names"
        ) from error
    special, ranks = encoding._special_tokens, encoding._mergeable_ranks
    content = _encoded(options.name, encoding._pat_str, special, ranks)
    return TokenizerSource("tiktoken", options.name, content, _END)


def _encoded(name: str, pattern: str, special: dict[str, int], ranks: dict[bytes, int]) -> bytes:
    """Return an encoding in MessagePack, after checking its types."""
    return msgspec.msgpack.encode(msgspec.convert((name, pattern, ranks, special), _Parts))


class Tiktoken:
    """An encoding of tiktoken. Texts of special tokens become these, as in Megatron, or stay text.

    Parameters
    ----------
    source : TokenizerSource
        Result of `source_of_file` or `source_by_name`.
    options : TokenizerOptions
        Options of the tokenizer.
    """

    libraries: ClassVar[tuple[str, ...]] = ("tiktoken",)
    note: str | None = None

    def __init__(self, source: TokenizerSource, options: TokenizerOptions) -> None:
        self.engine = name_and_version("tiktoken")
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
        parsed = options.special_text == "parse"
        self._special: Literal["all"] | Set[str] = "all" if parsed else frozenset()
        choices = {"special_text": "parse"} if parsed else {}
        eod = eod_of(options, special.get, special.get(source.end or ""))
        size = self._encoding.max_token_value + 1
        self.facts = facts_of("tiktoken", source.name, content.encode(), size, eod, choices)

    def encode(self, texts: list[str]) -> Encoded:
        """Return the tokens of texts."""
        with refusing():
            found = [
                self._encoding.encode(text, allowed_special=self._special, disallowed_special=())
                for text in texts
            ]
        return encoded_lists(found)

    def decode(self, tokens: list[int]) -> str:
        """Return the text of tokens."""
        with refusing():
            return self._encoding.decode(tokens)


def _encoding_of_ranks(name: str, ranks: dict[bytes, int], options: TokenizerOptions) -> bytes:
    """Return ranks with the pattern of the options, and a token that ends documents."""
    if options.pattern is None:
        raise ConfigError(
            f"--tokenizer {options.name}: the file holds ranks only; give --tiktoken-pattern, or "
            f"the name of an encoding ({', '.join(tiktoken.list_encoding_names())})"
        )
    pattern = MEGATRON_PATTERNS.get(options.pattern, options.pattern)
    return _encoded(name, pattern, {_END: max(ranks.values()) + 1}, ranks)


def _encoding_of_megatron(content: bytes, options: TokenizerOptions) -> bytes:
    """Return the encoding of objects with rank and token_bytes, after 1,000 special tokens."""
    entries = json.loads(content)[: MEGATRON_VOCABULARY - MEGATRON_RESERVED]
    ranks = {
        base64.b64decode(entry["token_bytes"], validate=True): entry["rank"] + MEGATRON_RESERVED
        for entry in entries
    }
    special = {token: place for place, token in enumerate(MEGATRON_SPECIAL)}
    special |= {f"<SPECIAL_{i}>": i for i in range(len(special), MEGATRON_RESERVED)}
    pattern = options.pattern or "v2"
    return _encoded("megatron", MEGATRON_PATTERNS.get(pattern, pattern), special, ranks)
