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

# How the encodings of tiktoken cut text, and their special tokens, by name (tiktoken 0.14,
# tiktoken_ext/openai_public.py): a file of ranks says neither. A test compares them.
_R50K: Final = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
_CL100K: Final = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|"
    r"\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_SHORT: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_O200K: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SHORT}|"
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SHORT}|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|" + _SPACES
)
_END: Final = "<|endoftext|>"
_FIM: Final = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
_HARMONY: Final = {
    "startoftext": 199998,
    "return": 200002,
    "constrain": 200003,
    "channel": 200005,
    "start": 200006,
    "end": 200007,
    "message": 200008,
    "call": 200012,
}
_O200K_SPECIAL: Final = {_END: 199999, "<|endofprompt|>": 200018}


def _harmony() -> dict[str, int]:
    """Return the special tokens of o200k_harmony: named ones among reserved ones."""
    named = {number: name for name, number in _HARMONY.items()}
    found = {
        f"<|{named.get(number, f'reserved_{number}')}|>": number
        for number in (199998, *range(200000, 201088))
    }
    return found | _O200K_SPECIAL


ENCODINGS: Final[dict[str, tuple[str, dict[str, int]]]] = {
    "gpt2": (_R50K, {_END: 50256}),
    "r50k_base": (_R50K, {_END: 50256}),
    "p50k_base": (_R50K, {_END: 50256}),
    "p50k_edit": (_R50K, {_END: 50256, **dict(zip(_FIM, range(50281, 50284), strict=True))}),
    "cl100k_base": (
        _CL100K,
        {
            _END: 100257,
            **dict(zip(_FIM, range(100258, 100261), strict=True)),
            "<|endofprompt|>": 100276,
        },
    ),
    "o200k_base": (_O200K, _O200K_SPECIAL),
    "o200k_harmony": (_O200K, _harmony()),
}


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
            f"--tokenizer {options.name}: tiktoken cannot get it ({error}); "
            f"give the file {options.name}.tiktoken"
        ) from error
    rank_of = encoding.encode_single_token
    ranks = {token: rank_of(token) for token in encoding.token_byte_values()}
    content = _encoded(options.name, *ENCODINGS[options.name], ranks)
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
    """Return ranks with a pattern and special tokens, from the options or by their name."""
    if options.pattern is not None:
        pattern = MEGATRON_PATTERNS.get(options.pattern, options.pattern)
        return _encoded(name, pattern, {_END: max(ranks.values()) + 1}, ranks)
    if name not in ENCODINGS:
        raise ConfigError(
            f"--tokenizer {options.name}: the file holds ranks only, and no encoding {name} is "
            f"known ({', '.join(sorted(ENCODINGS))}); give --tiktoken-pattern"
        )
    return _encoded(name, *ENCODINGS[name], ranks)


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
