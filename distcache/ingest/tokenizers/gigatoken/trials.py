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
from typing import Final

import msgspec

from distcache.ingest.tokenizers.tokenizer_json import TokenizerJson, letters_of_bytes

# One of each class that a pattern may distinguish, and what patterns name.
CLASSES: Final = (
    "aZéÉǅʰ漢アあ가ा\u0301\u0323" + "1²Ⅷ٣ªß" + "\u017f\u212a\u0130\u0131" + " \t\n\r\v\x1c\x85"
    "\xa0\u2028\u3000" + ".'/_-+^\u2019«—€😀\u200d\ufe0f\xad\ufeff\x00\x7f\ue000\uffff"
)
WORDS: Final = ("'s", "'LL", "'Re", "don't", "I'VE", "123", "ﬁ", "👍🏽", "  ", "\n\n", "\r\n")
# Neighbours of a code point to show its class: one of each class, and what patterns
# distinguish. All have at least two bytes, so that what is cut before and after them is seen apart.
NEIGHBOURS: Final = (
    *("aa", "aZ", "Za", "漢", "\u0301", "11", "1a", "😀", "/\n", "..", ".\n", "''", "'s"),
    *("  ", " a", "a ", "\t ", "\n\n", " \n", "\r\n"),
)
SOME: Final = "aZ漢\u03011 \t\n\r.'/😀€"  # of which all triples are tried
SEED: Final = 20
RANDOM_TEXTS: Final = 500
MAX_RANDOM_CLASSES: Final = 40  # of a random text
TOKEN_TEXTS: Final = 250  # of several tokens
LONG_RUN: Final = 300  # of one class


def probe_of(description: TokenizerJson) -> bytes | None:
    """Return a `tokenizer.json` that cuts text alike and shows every cut.

    Its vocabulary is all bytes, and all pairs of bytes between two code points of which at least
    one is beyond ASCII. Unless a single letter of ASCII is between two others, no pairs overlap
    in a text, and each is a token wherever nothing is cut.

    Parameters
    ----------
    description : TokenizerJson
        Description of the tokenizer.

    Returns
    -------
    bytes or None
        None for a tokenizer with bytes to fall back on, which cuts at spaces only.
    """
    if description.model.byte_fallback:
        return None
    letters = letters_of_bytes()
    merges = [(letters[first], letters[second]) for first, second in _pairs()]
    tokens = [*letters, *map("".join, merges)]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    return msgspec.json.encode(
        {
            "version": "1.0",
            "normalizer": description.normalizer,
            "pre_tokenizer": description.pre_tokenizer,
            "added_tokens": [],
            "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
        }
    )


def _pairs() -> Iterator[tuple[int, int]]:
    """Yield the pairs of bytes between two code points, but for two of ASCII."""
    single, continuing, leading = range(0x80), range(0x80, 0xC0), range(0xC2, 0xF5)
    yield from itertools.product(single, leading)
    yield from itertools.product(continuing, single)
    yield from itertools.product(continuing, leading)


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
    parts = ["", *NEIGHBOURS, "", ""]  # it is its own neighbour, too
    if normalized and unicodedata.ucd_3_2_0.category(it) == "Cn":
        parts += _composing()
    return it.join(parts)


@functools.cache
def _composing() -> tuple[str, ...]:
    """Return the code points that compose with one before them."""
    pairs = (unicodedata.decomposition(chr(code_point)) for code_point in range(0xC0, 0x20000))
    found = {pair.split()[1] for pair in pairs if pair and pair[0] != "<" and " " in pair}
    return tuple(chr(int(code_point, 16)) for code_point in sorted(found))


def is_stable(code_point: int) -> bool:
    """Return whether a code point normalizes to itself, and will in every version of Unicode.

    How strings normalize never changes (Unicode's stability policy) if all of their code points
    are assigned.

    Parameters
    ----------
    code_point : int
        Any.
    """
    it = chr(code_point)
    return unicodedata.category(it) != "Cn" and unicodedata.normalize("NFC", it) == it


def trials(tokens: list[str]) -> Iterator[list[str]]:
    """Yield batches of texts that show how a tokenizer treats ASCII, all classes, and its tokens.

    Parameters
    ----------
    tokens : list of str
        The texts of tokens of the vocabulary.
    """
    every = [chr(code_point) for code_point in range(0x80)]
    yield ["", *("".join(first + second for second in every) for first in every)]
    pairs = ["".join(pair) for pair in itertools.product(SOME, SOME)]
    yield ["".join(first + pair for pair in pairs) for first in SOME]
    parts = [*CLASSES, *WORDS, *every]
    yield [part * count for part in parts for count in (1, 2, 3, 17)]
    yield [part * LONG_RUN for part in CLASSES]
    chosen = random.Random(SEED)  # noqa: S311  # the same trials everywhere
    yield [
        "".join(chosen.choices(parts, k=chosen.randrange(1, MAX_RANDOM_CLASSES)))
        for _ in range(RANDOM_TEXTS)
    ]
    yield tokens
    yield ["".join(chosen.choices(tokens, k=8)) for _ in range(TOKEN_TEXTS)] if tokens else []
