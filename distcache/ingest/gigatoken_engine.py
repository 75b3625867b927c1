"""The library gigatoken as a faster engine for tokenizers of Hugging Face, with equal tokens.

Gigatoken is ten to forty times as fast as the library tokenizers, but has other tables of Unicode,
and other ways with added tokens. So before it sees a document, both are compared on trials; each
code point beyond ASCII is compared beside others when it first occurs; texts with one that differs,
with the text of an added token, or without valid UTF-8 go to the library; and of the other texts
some are encoded by both.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Final

import gigatoken
import numpy as np
import tokenizers
import xxhash
from numpy.typing import NDArray

from distcache.errors import ConfigError
from distcache.ingest.engine_trials import (
    Unsupported,
    is_assigned,
    neighbours,
    probe_of,
    read_description,
    require_supported,
    trials,
)
from distcache.ingest.huggingface import HuggingFace
from distcache.ingest.tokenizer import (
    Encoded,
    EnginesDiffer,
    Tokenizer,
    TokenizerOptions,
    encoded_lists,
    named,
    refusing,
)
from distcache.kernels import TextScanner

__all__ = ["Gigatoken", "with_gigatoken"]

CODE_POINTS: Final = 0x110000
PLAIN: Final = 1  # of `TextScanner.scan`
SPECIAL: Final = 2
COMPARED: Final = 512  # of so many texts, one on average is encoded by both
TOKENS: Final = 1_000  # of the vocabulary that are tried
CHARACTERS: Final = 16 << 20  # that each gigatoken encodes before one is made anew
GROWTH: Final = 128 << 20  # bytes of the process for each gigatoken before one is made anew
PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def with_gigatoken(library: HuggingFace, content: bytes, options: TokenizerOptions) -> Tokenizer:
    """Return a tokenizer that gigatoken speeds up, or the library's if it cannot.

    Parameters
    ----------
    library : HuggingFace
        The tokenizer.
    content : bytes
        Of its `tokenizer.json`.
    options : TokenizerOptions
        Whether gigatoken is asked for.

    Raises
    ------
    ConfigError
        If gigatoken is asked for, but cannot be used.
    """
    try:
        return Gigatoken(library, content)
    except Unsupported as error:
        if options.engine == "gigatoken":
            raise ConfigError(f"--engine gigatoken: {options.name}: {error}") from error
        library.engine += f", since {error}"
        return library


class Gigatoken:
    """A tokenizer of Hugging Face whose texts gigatoken encodes, wherever it is equal.

    Parameters
    ----------
    library : HuggingFace
        The tokenizer.
    content : bytes
        Of its `tokenizer.json`.

    Raises
    ------
    Unsupported
        If gigatoken has not what the tokenizer needs, or differs in trials.
    """

    libraries = (*HuggingFace.libraries, "gigatoken")

    def __init__(self, library: HuggingFace, content: bytes) -> None:
        description = read_description(content)
        require_supported(description)
        self.facts = library.facts
        self.engine = named("gigatoken")
        self._library = library
        self._engines = _Engines(content, *library.tokens_around())
        self._normalized = description.normalizes
        probe = probe_of(description)
        self._probe = None if probe is None else _Probe(probe)
        self._scanner = TextScanner([token.content for token in description.added_tokens])
        self._known = np.zeros(CODE_POINTS, np.uint8)
        self._lock = threading.Lock()
        self._require_equal()

    def _require_equal(self) -> None:
        """Compare both on trials."""
        size = self.facts.vocabulary
        chosen = range(0, size, max(size // TOKENS, 1))
        tokens = [self._library.text_of(token) for token in chosen]
        for texts in trials([text for text in tokens if text and "\ufffd" not in text]):
            try:
                differing = _differing(self._library.encode(texts), self._engines.encode(texts))
            except ValueError as error:
                raise Unsupported(f"one of both refuses a trial: {error}") from error
            if differing.any():
                text = texts[int(np.argmax(differing))]
                raise Unsupported(f"{self.engine} encodes {text[:60]!r} differently")

    def encode(self, texts: list[str]) -> Encoded:
        """Return the tokens of texts.

        Raises
        ------
        ValueError
            If the library refuses one.
        EnginesDiffer
            If one of those that are compared differs.
        """
        special = self._find_special(texts)
        plain = np.flatnonzero(~special)
        try:
            fast = self._engines.encode([texts[place] for place in plain])
        except ValueError:  # the library may not refuse it
            return self._library.encode(texts)._replace(by_library=len(texts))
        compared = self._compare(texts, plain, fast)
        if len(plain) == len(texts):
            return fast._replace(compared=compared)
        slow = self._library.encode([texts[place] for place in np.flatnonzero(special)])
        return _interleaved(special, slow, fast)._replace(
            by_library=len(slow.lengths), compared=compared
        )

    def _find_special(self, texts: list[str]) -> NDArray[np.bool_]:
        """Return which texts are for the library; new code points are compared first."""
        special, unknown = self._scanner.scan(texts, self._known)
        if not len(unknown):
            return special
        with self._lock:
            new = unknown[self._known[unknown] == 0]  # another thread may have compared some
            self._known[new] = np.where(self._are_equal(new.tolist()), PLAIN, SPECIAL)
        if (self._known[unknown] == PLAIN).all():
            return special
        return self._scanner.scan(texts, self._known)[0]

    def _are_equal(self, code_points: list[int]) -> NDArray[np.bool_]:
        """Return which code points both encode alike, beside all others."""
        texts = [neighbours(code_point, normalized=self._normalized) for code_point in code_points]
        if self._probe is not None:
            equal = self._probe.are_equal(texts)
        else:
            equal = ~_differing(self._library.encode(texts), self._engines.encode(texts))
        if self._normalized:
            equal &= np.fromiter(map(is_assigned, code_points), np.bool_, len(code_points))
        return equal

    def _compare(self, texts: list[str], places: NDArray[np.int64], fast: Encoded) -> int:
        """Encode some texts by the library too, and return how many.

        Which ones follows from the lengths, so that it is the same for any number of ranks.
        """
        seed = xxhash.xxh3_64_intdigest(fast.lengths.tobytes())
        drawn = np.random.default_rng(seed).integers(COMPARED, size=len(places))
        chosen = np.flatnonzero(drawn == 0)
        if not len(chosen):
            return 0
        slow = self._library.encode([texts[places[index]] for index in chosen])
        some = fast.split()
        differing = _differing(slow, encoded_lists([some[index].tolist() for index in chosen]))
        if differing.any():
            raise EnginesDiffer(
                int(places[chosen[np.argmax(differing)]]),
                f"{self.engine} and the library tokenizers make different tokens of it; "
                "run with --engine tokenizers",
            )
        return len(chosen)


class _Engines:
    """As many gigatokens as threads need at a time.

    Gigatoken keeps what it has encoded, without a bound. So one that has encoded much, in a
    process that has grown much, is made anew.

    Parameters
    ----------
    content : bytes
        A `tokenizer.json`.
    before, after : sequence of int
        Tokens that are put around each text.
    """

    def __init__(self, content: bytes, before: list[int], after: list[int]) -> None:
        self._content = content
        self._around = (before, after)
        self._resident = _resident_bytes()
        self._free = [_load(content)]
        self._made = 1
        self._characters = 0  # encoded since one was made anew
        self._lock = threading.Lock()

    def encode(self, texts: list[str]) -> Encoded:
        """Return the tokens of texts."""
        engine = self._take()
        try:
            with refusing():
                found = _encode(engine, texts)
        finally:
            self._give(engine, sum(map(len, texts)))
        return _wrapped(found, *self._around)

    def _take(self) -> gigatoken.Tokenizer:
        with self._lock:
            if self._free:
                return self._free.pop()
            self._made += 1
        return _load(self._content)

    def _give(self, engine: gigatoken.Tokenizer, characters: int) -> None:
        with self._lock:
            self._characters += characters
            if self._characters > CHARACTERS * self._made and self._has_grown():
                self._made -= 1  # this one goes
                self._characters = 0
            else:
                self._free.append(engine)

    def _has_grown(self) -> bool:
        return _resident_bytes() > self._resident + GROWTH * self._made


class _Probe:
    """A tokenizer that shows where text is cut, in both libraries."""

    def __init__(self, content: bytes) -> None:
        self._slow = tokenizers.Tokenizer.from_buffer(content)
        self._fast = _load(content)

    def are_equal(self, texts: list[str]) -> NDArray[np.bool_]:
        """Return which texts both cut alike."""
        found = self._slow.encode_batch_fast(texts, add_special_tokens=False)
        slow = encoded_lists([encoding.ids for encoding in found])
        return ~_differing(slow, _encode(self._fast, texts))


def _load(content: bytes) -> gigatoken.Tokenizer:
    try:
        with refusing():
            return gigatoken.Tokenizer.from_json(content)
    except ValueError as error:
        raise Unsupported(f"gigatoken refuses the tokenizer: {error}") from error


def _encode(engine: gigatoken.Tokenizer, texts: list[str]) -> Encoded:
    """Encode in this thread alone."""
    if not texts:
        return Encoded(np.empty(0, np.int32), np.empty(0, np.int64))
    layout: Any = engine.encode_batch(texts, parallel=False).layout
    lengths = np.diff(np.asarray(layout.offsets.data)).astype(np.int64, copy=False)
    return Encoded(np.asarray(layout.content.data).view(np.int32), lengths)


def _wrapped(found: Encoded, before: list[int], after: list[int]) -> Encoded:
    """Put tokens around each text."""
    if not before and not after:
        return found
    count = len(found.lengths)
    ends = np.cumsum(found.lengths)
    bounds = np.stack([ends - found.lengths, ends], axis=1).ravel()
    places = np.repeat(bounds, np.tile([len(before), len(after)], count))
    tokens = np.tile(np.array([*before, *after], np.int32), count)
    ids = np.insert(found.ids, places, tokens)
    return Encoded(ids, found.lengths + len(before) + len(after))


def _interleaved(special: NDArray[np.bool_], slow: Encoded, fast: Encoded) -> Encoded:
    """Put the tokens of both into the order of the texts."""
    lengths = np.empty(len(special), np.int64)
    lengths[special], lengths[~special] = slow.lengths, fast.lengths
    by_library = np.repeat(special, lengths)
    ids = np.empty(len(by_library), np.int32)
    ids[by_library], ids[~by_library] = slow.ids, fast.ids
    return Encoded(ids, lengths)


def _differing(first: Encoded, second: Encoded) -> NDArray[np.bool_]:
    """Return of which texts the tokens differ."""
    if np.array_equal(first.lengths, second.lengths) and np.array_equal(first.ids, second.ids):
        return np.zeros(len(first.lengths), np.bool_)
    pairs = zip(first.split(), second.split(), strict=True)
    return np.array([not np.array_equal(one, other) for one, other in pairs], np.bool_)


def _resident_bytes() -> int:
    """Return the memory of this process (proc(5), statm)."""
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * PAGE
