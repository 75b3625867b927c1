"""What a `tokenizer.json` of Hugging Face asks for, and whether gigatoken has all of it."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

__all__ = ["TokenizerJson", "Unsupported", "read_tokenizer_json", "require_supported"]

NULL: Final = msgspec.Raw(b"null")


class Unsupported(ValueError):
    """A tokenizer needs what gigatoken does not have; says what."""


class _Model(msgspec.Struct):
    type: str = "BPE"
    dropout: float | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None
    byte_fallback: bool = False


class _AddedToken(msgspec.Struct):
    content: Annotated[str, msgspec.Meta(min_length=1)]
    single_word: bool = False
    normalized: bool = False


class _PreTokenizer(msgspec.Struct):
    type: str
    pattern: dict[str, str] | None = None
    behavior: str | None = None
    invert: bool = False
    use_regex: bool = True
    add_prefix_space: bool = False
    pretokenizers: list[_PreTokenizer] = []


class TokenizerJson(msgspec.Struct):
    """A `tokenizer.json` without its vocabulary.

    Attributes
    ----------
    model, added_tokens
        What decides whether gigatoken has it.
    normalizer, pre_tokenizer : Raw
        In JSON.
    """

    model: _Model
    normalizer: msgspec.Raw = NULL
    pre_tokenizer: msgspec.Raw = NULL
    added_tokens: list[_AddedToken] = []

    @property
    def normalizes(self) -> bool:
        """Whether text is normalized."""
        return self.normalizer != NULL


def read_tokenizer_json(content: bytes) -> TokenizerJson:
    """Read a `tokenizer.json`.

    Parameters
    ----------
    content : bytes
        That the library tokenizers accepts.

    Raises
    ------
    Unsupported
        If it has not the form that the library writes today.
    """
    try:
        return msgspec.json.decode(content, type=TokenizerJson)
    except msgspec.MsgspecError as error:
        raise Unsupported(f"its tokenizer.json has another form: {error}") from error


def require_supported(description: TokenizerJson) -> None:
    """Refuse a tokenizer with something that gigatoken may pass over silently.

    It refuses by itself models other than BPE, and normalizers and patterns that it does not know
    (gigatoken 0.10, src/load_tokenizer/hf.rs).

    Parameters
    ----------
    description : TokenizerJson
        Of the tokenizer.

    Raises
    ------
    Unsupported
        Naming what gigatoken lacks.
    """
    model = description.model
    if model.type != "BPE":
        raise Unsupported(f"gigatoken has no model {model.type}")
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if getattr(model, name):
            raise Unsupported(f"gigatoken has no {name}")
    for token in description.added_tokens:
        if token.single_word or (token.normalized and description.normalizes):
            raise Unsupported(f"gigatoken has no whole or normalized words as {token.content!r}")
    if not model.byte_fallback:
        _require_byte_level(
            msgspec.json.decode(description.pre_tokenizer, type=_PreTokenizer | None)
        )


def _require_byte_level(pre_tokenizer: _PreTokenizer | None) -> None:
    """Accept what cuts text by patterns only, and then makes bytes of it."""
    if pre_tokenizer is None:
        raise Unsupported("gigatoken always has a pre-tokenizer")
    if pre_tokenizer.type == "ByteLevel":
        if not pre_tokenizer.use_regex:
            raise Unsupported("gigatoken has no ByteLevel without a pattern")
        return
    *splits, last = pre_tokenizer.pretokenizers or [pre_tokenizer]
    for split in splits:
        if split.type != "Split" or "Regex" not in (split.pattern or {}):
            raise Unsupported(f"gigatoken has no pre-tokenizer {split.type} before another")
        if split.behavior != "Isolated" or split.invert:
            raise Unsupported("gigatoken only isolates what a pattern matches")
    if last.type != "ByteLevel" or last.use_regex or last.add_prefix_space:
        raise Unsupported(f"gigatoken has no pre-tokenizer {last.type} like this after others")
