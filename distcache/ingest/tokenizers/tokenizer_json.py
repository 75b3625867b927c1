"""What a `tokenizer.json` of Hugging Face asks for, and whether gigatoken has all of it."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from distcache.storage.threads import decodable

NULL: Final = msgspec.Raw(b"null")
MAX_HOLES: Final = 1 << 16  # ids without a token, besides as many as there are tokens


class Unsupported(ValueError):
    """A tokenizer needs what gigatoken does not have; says what."""


class _Model(msgspec.Struct):
    vocab: msgspec.Raw = NULL
    merges: msgspec.Raw = NULL
    type: str = "BPE"
    dropout: float | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None
    byte_fallback: bool = False


class _AddedToken(msgspec.Struct):
    id: int
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


decodable(_PreTokenizer)  # once it is defined: it holds others of its kind


@decodable
class TokenizerJson(msgspec.Struct):
    """A `tokenizer.json`."""

    # parts that decide whether gigatoken supports it; vocabulary and merges in JSON
    model: _Model
    # content in JSON
    normalizer: msgspec.Raw = NULL
    pre_tokenizer: msgspec.Raw = NULL
    added_tokens: list[_AddedToken] = []

    @property
    def normalizes(self) -> bool:
        """Whether text is normalized: a sequence of no normalizers does nothing."""
        return not _does_nothing(msgspec.json.decode(self.normalizer))


def _does_nothing(normalizer: Any) -> bool:
    """Return whether a normalizer is none, or a sequence of such."""
    if not isinstance(normalizer, dict):
        return True
    parts = normalizer.get("normalizers")
    return (
        normalizer.get("type") == "Sequence"
        and isinstance(parts, list)
        and all(map(_does_nothing, parts))
    )


def read_tokenizer_json(content: bytes) -> TokenizerJson:
    """Read a `tokenizer.json`.

    Parameters
    ----------
    content : bytes
        Content that the library tokenizers accepts.

    Raises
    ------
    Unsupported
        If it has not the form that the library writes today.
    """
    description: TokenizerJson = _decode(msgspec.Raw(content), TokenizerJson)
    return description


def require_supported(description: TokenizerJson) -> None:
    """Refuse a tokenizer with something that gigatoken may pass over silently.

    It refuses by itself models other than BPE, and normalizers and patterns that it does not know
    (gigatoken 0.10, src/load_tokenizer/hf.rs).

    Parameters
    ----------
    description : TokenizerJson
        Description of the tokenizer.

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
    pre_tokenizer = _decode(description.pre_tokenizer, _PreTokenizer | None)
    _require_plain_added_tokens(description, pre_tokenizer)
    if not model.byte_fallback:
        _require_byte_level(pre_tokenizer)
    _require_plain_vocabulary(description)


def _require_plain_added_tokens(
    description: TokenizerJson, pre_tokenizer: _PreTokenizer | None
) -> None:
    """Refuse added tokens that may arise from a text that does not hold them.

    Gigatoken takes whatever it cuts off and is an added token's text for that token, also if
    normalizing or the space before a text made it so.
    """
    prefixed = pre_tokenizer is not None and pre_tokenizer.add_prefix_space
    for token in description.added_tokens:
        if token.single_word or (token.normalized and description.normalizes):
            raise Unsupported(f"gigatoken has no whole or normalized words as {token.content!r}")
        made = description.normalizes and not token.content.isascii()
        if made or (prefixed and token.content[0].isspace()):
            raise Unsupported(f"gigatoken may find the added token {token.content!r} by mistake")


def _require_plain_vocabulary(description: TokenizerJson) -> None:
    """Refuse what the library and gigatoken read in different ways."""
    vocabulary = _decode(description.model.vocab, dict[str, int])
    merges = _decode(description.model.merges, list[str | tuple[str, str]])
    pairs = {tuple(merge.split(" ", 1)) if isinstance(merge, str) else merge for merge in merges}
    if len(pairs) < len(merges) or len(set(vocabulary.values())) < len(vocabulary):
        raise Unsupported("its vocabulary has a merge or an id twice")
    ids = [*vocabulary.values(), *(token.id for token in description.added_tokens)]
    if max(ids, default=0) > 2 * len(ids) + MAX_HOLES:
        raise Unsupported(f"gigatoken needs memory for all ids up to {max(ids)}")
    added = {token.content for token in description.added_tokens}
    letters = set(letters_of_bytes())
    for text in () if description.model.byte_fallback else vocabulary.keys() - added:
        if not letters.issuperset(text):
            raise Unsupported(f"{text!r} in its vocabulary stands for no bytes")


def _decode(content: msgspec.Raw, kind: Any) -> Any:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise Unsupported(f"its tokenizer.json has another form: {error}") from error


def letters_of_bytes() -> list[str]:
    """Return the letter of each byte in byte-level vocabularies (GPT-2, bytes_to_unicode)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    places = {byte: place for place, byte in enumerate(sorted(set(range(256)) - set(shown)))}
    return [chr(256 + places[byte]) if byte in places else chr(byte) for byte in range(256)]


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
