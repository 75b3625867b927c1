"""Texts on which two engines of one tokenizer are compared, before either sees a document.

How a byte-level BPE cuts text depends only on classes of code points (letters, digits, spaces),
in which libraries differ: each has the tables of some version of Unicode. So every code point is
tried beside all classes. A cut is seen in the tokens only where the vocabulary has a token across
it; `probe_of` therefore makes a tokenizer that cuts alike, but whose vocabulary has a token across
every boundary beside a code point beyond ASCII.
"""

from __future__ import annotations

import functools
import itertools
import random
import unicodedata
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

__all__ = [
    "Description",
    "Unsupported",
    "is_assigned",
    "neighbours",
    "probe_of",
    "read_description",
    "require_supported",
    "trials",
]

# One of each class that a pattern may tell apart, and what patterns name.
CLASSES: Final = (
    "aZéÉǅʰ漢アあ가가ा\u0301\u0323" + "1²Ⅷ٣ªß" + "\u017f\u212a\u0130\u0131" + " \t\n\r\v\x1c\x85"
    "\xa0\u2028\u3000" + ".'/_-+^\u2019«—€😀\u200d\ufe0f\xad\ufeff\x00\x7f\ue000\uffff"
)
WORDS: Final = (
    "'s",
    "'LL",
    "'Re",
    "don't",
    "I'VE",
    "  ",
    "\n\n",
    "\r\n",
    "123",
    "1234",
    "ﬁ",
    "👍🏽",
)
# Which of them show of which class a code point is, when it stands beside them.
NEIGHBOURS: Final = (*"aZ漢\u03011 \t\n\r.'/😀", "  ", "\n\n", "12")
SEED: Final = 20
RANDOM_TEXTS: Final = 500
LONGEST_RANDOM: Final = 40  # classes of a random text
TOKEN_TEXTS: Final = 250  # of several tokens
LONG: Final = 300  # of one class


class Unsupported(ValueError):
    """What a tokenizer has and the faster engine does not."""


NULL: Final = msgspec.Raw(b"null")


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


class Description(msgspec.Struct):
    """What a `tokenizer.json` says, without its vocabulary.

    Attributes
    ----------
    model, added_tokens
        What matters here.
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


def read_description(content: bytes) -> Description:
    """Read a `tokenizer.json`.

    Raises
    ------
    Unsupported
        If it has another form than that of tokenizers of today.
    """
    try:
        return msgspec.json.decode(content, type=Description)
    except msgspec.MsgspecError as error:
        raise Unsupported(f"the tokenizer has a form of its own: {error}") from error


def require_supported(description: Description) -> None:
    """Refuse a tokenizer with something that gigatoken may pass over silently.

    It refuses by itself models other than BPE, and normalizers and patterns that it does not know
    (gigatoken 0.10, src/load_tokenizer/hf.rs).

    Raises
    ------
    Unsupported
        Naming it.
    """
    model = description.model
    if model.type != "BPE":
        raise Unsupported(f"gigatoken has no model {model.type}")
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if getattr(model, name):
            raise Unsupported(f"gigatoken has no {name}")
    for token in description.added_tokens:
        if token.single_word or (token.normalized and description.normalizes):
            raise Unsupported(
                f"gigatoken does not look for whole or normalized words, as {token.content!r} is"
            )
    if not model.byte_fallback:
        _require_byte_level(
            msgspec.json.decode(description.pre_tokenizer, type=_PreTokenizer | None)
        )


def _require_byte_level(pre_tokenizer: _PreTokenizer | None) -> None:
    """Accept what cuts text by patterns only, and then makes bytes of it."""
    if pre_tokenizer is None:
        raise Unsupported("gigatoken always has a pre-tokenizer, and this tokenizer none")
    if pre_tokenizer.type == "ByteLevel":
        if not pre_tokenizer.use_regex:
            raise Unsupported("gigatoken has no ByteLevel without a pattern")
        return
    *splits, last = pre_tokenizer.pretokenizers or [pre_tokenizer]
    for split in splits:
        if split.type != "Split" or "Regex" not in (split.pattern or {}):
            raise Unsupported(f"gigatoken has no pre-tokenizer {split.type} like this one")
        if split.behavior != "Isolated" or split.invert:
            raise Unsupported("gigatoken isolates what a pattern matches, and nothing else")
    if last.type != "ByteLevel" or last.use_regex or last.add_prefix_space:
        raise Unsupported(f"gigatoken has no pre-tokenizer {last.type} like the last one")


def probe_of(description: Description) -> bytes | None:
    """Return a `tokenizer.json` that cuts text alike and shows every cut.

    Its vocabulary is all bytes, and all pairs of bytes between two code points of which at least
    one is beyond ASCII. No pairs overlap in a text, so each stands wherever nothing is cut.

    Returns
    -------
    bytes or None
        None for a tokenizer that cuts at spaces only.
    """
    if description.model.byte_fallback:
        return None
    letters = _letters_of_bytes()
    ascii_bytes, continuing, leading = range(0x80), range(0x80, 0xC0), range(0xC2, 0xF5)
    pairs = itertools.chain(
        itertools.product(ascii_bytes, leading),
        itertools.product(continuing, ascii_bytes),
        itertools.product(continuing, leading),
    )
    merges = [(letters[first], letters[second]) for first, second in pairs]
    tokens = [*letters, *map("".join, merges)]
    model = {
        "type": "BPE",
        "vocab": {token: place for place, token in enumerate(tokens)},
        "merges": merges,
    }
    return msgspec.json.encode(
        {
            "version": "1.0",
            "normalizer": description.normalizer,
            "pre_tokenizer": description.pre_tokenizer,
            "added_tokens": [],
            "model": model,
        }
    )


def _letters_of_bytes() -> list[str]:
    """Return the letter of each byte in byte-level vocabularies (GPT-2, bytes_to_unicode)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    places = {byte: place for place, byte in enumerate(sorted(set(range(256)) - set(shown)))}
    return [chr(256 + places[byte]) if byte in places else chr(byte) for byte in range(256)]


def neighbours(code_point: int, *, normalized: bool) -> str:
    """Return a text with a code point beside all classes, at its beginning and at its end.

    Parameters
    ----------
    code_point : int
        No surrogate.
    normalized : bool
        Whether the tokenizer has a normalizer: then also beside all that compose with others, if
        it is newer than the first Unicode that promises stable normalization.
    """
    it = chr(code_point)
    parts = ["", *NEIGHBOURS, "", ""]
    if normalized and unicodedata.ucd_3_2_0.category(it) == "Cn":
        parts += _composing()
    return it.join(parts)


@functools.cache
def _composing() -> tuple[str, ...]:
    """Return the code points that compose with one before them."""
    pairs = (unicodedata.decomposition(chr(code_point)) for code_point in range(0xC0, 0x20000))
    found = {pair.split()[1] for pair in pairs if pair and pair[0] != "<" and " " in pair}
    return tuple(chr(int(code_point, 16)) for code_point in sorted(found))


def is_assigned(code_point: int) -> bool:
    """Return whether a code point exists in this Python's version of Unicode.

    How those normalize never changes (Unicode's stability policy); of others that is not known.
    """
    return unicodedata.category(chr(code_point)) != "Cn"


def trials(tokens: list[str]) -> Iterator[list[str]]:
    """Yield batches of texts that show how a tokenizer treats ASCII, all classes, and its tokens.

    Parameters
    ----------
    tokens : list of str
        The texts of tokens of the vocabulary.
    """
    every = [chr(code_point) for code_point in range(0x80)]
    yield ["", *("".join(first + second for second in every) for first in every)]
    pairs = ["".join(pair) for pair in itertools.product(NEIGHBOURS, NEIGHBOURS)]
    yield ["".join(first + pair for pair in pairs) for first in NEIGHBOURS]
    parts = [*CLASSES, *WORDS, *every]
    yield [part * count for part in parts for count in (1, 2, 3, 17)]
    yield [part * LONG for part in CLASSES]
    chosen = random.Random(SEED)  # noqa: S311  # the same trials everywhere
    yield [
        "".join(chosen.choices(parts, k=chosen.randrange(1, LONGEST_RANDOM)))
        for _ in range(RANDOM_TEXTS)
    ]
    yield tokens
    yield ["".join(chosen.choices(tokens, k=8)) for _ in range(TOKEN_TEXTS)] if tokens else []
