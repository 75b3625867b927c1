"""The library gigatoken as a faster engine for tokenizers of Hugging Face, with equal tokens.

Gigatoken is ten to forty times as fast as the library tokenizers, but has other tables of Unicode,
and other ways with added tokens. So before it sees a document, both are compared on trials; each
code point beyond ASCII is compared beside others when it first occurs; texts with one that differs,
with the text of an added token, or without valid UTF-8 go to the library; and of the other texts
some are encoded by both.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Final

import gigatoken
import msgspec
import numpy as np
import tokenizers
import xxhash
from numpy.typing import NDArray

from distcache.ingest.tokenizers.gigatoken.trials import is_stable, neighbours, probe_of, trials
from distcache.ingest.tokenizers.huggingface import HuggingFace
from distcache.ingest.tokenizers.tokenizer import (
    Encoded,
    EnginesDiffer,
    encoded_lists,
    name_and_version,
    refusing,
)
from distcache.ingest.tokenizers.tokenizer_json import (
    TokenizerJson,
    Unsupported,
    read_tokenizer_json,
    require_supported,
)
from distcache.kernels import TextScanner
from distcache.storage.threads import decodable

TABLE: Final = Path(__file__).with_name("code_points.json")
FIRST_CODE_POINT: Final = 0x80  # those of ASCII are part of the trials
WITHOUT_EFFECT: Final = "trim_offsets"  # on tokens


@decodable
class PatternTable(msgspec.Struct, frozen=True):
    """Result of `scripts/code_points`."""

    versions: dict[str, tuple[str, ...]]  # those of the two libraries with which it was found
    end: int  # code point below which all were compared
    # runs [begin, end) of code points that are cut differently, by `pattern_of`
    differing: dict[str, list[tuple[int, int]]]


def pattern_of(description: TokenizerJson) -> str:
    """Return the digest of what decides where a tokenizer cuts text."""
    normalizer = json.loads(bytes(description.normalizer)) if description.normalizes else None
    pre_tokenizer = _bare(json.loads(bytes(description.pre_tokenizer)))
    document = json.dumps([normalizer, pre_tokenizer], sort_keys=True)
    return xxhash.xxh3_128_hexdigest(document.encode())


def _bare(value: Any) -> Any:
    """Return a JSON value without the fields that change no token."""
    if isinstance(value, dict):
        return {name: _bare(inner) for name, inner in value.items() if name != WITHOUT_EFFECT}
    return [_bare(inner) for inner in value] if isinstance(value, list) else value


def mark_known(description: TokenizerJson, known: NDArray[np.uint8]) -> None:
    """Mark the code points of which the table says whether they are cut alike.

    Parameters
    ----------
    description : TokenizerJson
        Description of a byte-level tokenizer.
    known : ndarray of uint8, shape (0x110000,)
        Array to be marked with `TextScanner.PLAIN` and `TextScanner.OTHER`.
    """
    table = msgspec.json.decode(TABLE.read_bytes(), type=PatternTable)
    if any(metadata.version(name) not in fitting for name, fitting in table.versions.items()):
        return
    runs = table.differing.get(pattern_of(description))
    if runs is None:
        return
    known[FIRST_CODE_POINT : table.end] = TextScanner.PLAIN
    for begin, end in runs:
        known[begin:end] = TextScanner.OTHER


CODE_POINTS: Final = 0x110000
# Characters without a blank, or blanks: patterns step back through them, and the library gives up
# after ten million steps (Oniguruma, retry-limit-in-match), which gigatoken does not.
MAX_RUN_CHARACTERS: Final = 2 << 20
BLANK: Final = re.compile(r"\s")
OTHER: Final = re.compile(r"\S")
COMPARED_OF: Final = 512  # of so many texts, one on average is encoded by both
MIXING: Final = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio (Knuth)
TOKENS: Final = 1_000  # of the vocabulary that are tried
# Gigatoken keeps all that it has encoded. All are made again when they have encoded so many
# characters each, and the process has grown by so many bytes for each of them.
CHARACTERS: Final = 16 << 20
GROWTH: Final = 128 << 20
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
# A thread that encodes alone does it text by text, if there are at most so many, with so many
# characters: encoding them together imports awkward, which takes as long as encoding 50 MB. Each
# text holds the interpreter's lock, which is why this is for one thread alone.
SINGLE_TEXTS: Final = 256
SINGLE_CHARACTERS: Final = 16 << 20


class Gigatoken:
    """A tokenizer of Hugging Face whose texts gigatoken encodes, wherever it is equal.

    Parameters
    ----------
    library : HuggingFace
        The tokenizer.
    content : bytes
        Content of its `tokenizer.json`.

    Attributes
    ----------
    facts, libraries, engine, note
        Attributes of `Tokenizer`.

    Raises
    ------
    Unsupported
        If gigatoken has not what the tokenizer needs, or differs in trials.
    """

    libraries: ClassVar[tuple[str, ...]] = (*HuggingFace.libraries, "gigatoken")
    note: str | None = None

    def __init__(self, library: HuggingFace, content: bytes) -> None:
        description = read_tokenizer_json(content)
        require_supported(description)
        self.facts = library.facts
        self.engine = name_and_version("gigatoken")
        self._library = library
        self._pool = _Pool(content, *_tokens_around(library))
        self._normalizes = description.normalizes
        probe = probe_of(description)
        self._probe = None if probe is None else _Probe(probe)
        self._scanner = TextScanner([token.content for token in description.added_tokens])
        self._known = np.zeros(CODE_POINTS, np.uint8)
        if probe is not None:
            mark_known(description, self._known)
        self._lock = threading.Lock()
        self._require_equal()

    def _require_equal(self) -> None:
        """Compare both on trials."""
        size = self.facts.vocabulary
        chosen = range(0, size, max(size // TOKENS, 1))
        tokens = [self._library.decode([token]) for token in chosen]
        every = trials([text for text in tokens if text and "\ufffd" not in text])
        for texts in itertools.chain.from_iterable(map(_batches, every)):
            try:
                differing = _differing(self._library.encode(texts), self._pool.encode(texts))
            except ValueError as error:
                raise Unsupported(f"one of both refuses a trial: {error}") from error
            if differing.any():
                text = texts[int(np.argmax(differing))]
                raise Unsupported(f"{self.engine} makes other tokens of a trial: {text[:60]!r}")

    def encode(self, texts: list[str]) -> Encoded:
        """Return the tokens of texts.

        Raises
        ------
        ValueError
            If the library refuses one.
        EnginesDiffer
            If one of those that are compared differs.
        """
        left = self._left_to_library(texts)
        places = np.flatnonzero(~left)
        try:
            fast = self._pool.encode([texts[place] for place in places])
        except ValueError:  # of gigatoken; the library may not refuse it
            return self._library.encode(texts)._replace(by_library=len(texts))
        compared = self._compare(texts, places, fast)
        if len(places) == len(texts):
            return fast._replace(compared=compared)
        slow = self._library.encode([texts[place] for place in np.flatnonzero(left)])
        return _interleaved(left, slow, fast)._replace(
            by_library=len(slow.lengths), compared=compared
        )

    def decode(self, tokens: list[int]) -> str:
        """Return the text of tokens, by the library."""
        return self._library.decode(tokens)

    def _left_to_library(self, texts: list[str]) -> NDArray[np.bool_]:
        """Return which texts are left to the library; new code points are compared first."""
        left, unknown = self._scanner.scan(texts, self._known)
        left |= np.fromiter(map(_has_long_run, texts), np.bool_, len(texts))
        if not len(unknown):
            return left
        with self._lock:
            new = unknown[self._known[unknown] == TextScanner.UNKNOWN]  # not by another thread
            equal = self._are_equal(new.tolist())
            self._known[new] = np.where(equal, TextScanner.PLAIN, TextScanner.OTHER)
        if (self._known[unknown] == TextScanner.PLAIN).all():
            return left
        return left | self._scanner.scan(texts, self._known)[0]

    def _are_equal(self, code_points: list[int]) -> NDArray[np.bool_]:
        """Return which code points both encode alike, beside those of all classes."""
        texts = [neighbours(code_point, normalized=self._normalizes) for code_point in code_points]
        try:
            if self._probe is not None:
                equal = ~_differing(self._probe.encode_slow(texts), self._probe.encode_fast(texts))
            else:
                equal = ~_differing(self._library.encode(texts), self._pool.encode(texts))
        except ValueError:  # of which text is not known
            return np.zeros(len(texts), np.bool_)
        if self._normalizes:
            equal &= np.fromiter(map(is_stable, code_points), np.bool_, len(code_points))
        return equal

    def _compare(self, texts: list[str], places: NDArray[np.int64], fast: Encoded) -> int:
        """Encode some texts by the library too, and return how many.

        Which ones follows from the lengths and the last tokens, and so from the batch alone: it is
        the same for any number of ranks.
        """
        ends = np.cumsum(fast.lengths)
        last = fast.ids[ends - 1] if len(fast.ids) else np.zeros_like(ends)
        sums = np.cumsum(fast.lengths + last).astype(np.uint64)
        chosen = np.flatnonzero((sums * MIXING >> np.uint64(32)) % np.uint64(COMPARED_OF) == 0)
        chosen = chosen[[bool(texts[places[index]]) for index in chosen]]
        if not len(chosen):
            return 0
        slow = self._library.encode([texts[places[index]] for index in chosen])
        for index, theirs in zip(chosen, slow.split(), strict=True):
            ours = fast.ids[ends[index] - fast.lengths[index] : ends[index]]
            if not np.array_equal(ours, theirs):
                raise EnginesDiffer(int(places[index]), self.engine)
        return len(chosen)


def _has_long_run(text: str) -> bool:
    """Return whether a text may have a longer run: one of twice the length has such a part."""
    parts = range(0, len(text) - MAX_RUN_CHARACTERS, MAX_RUN_CHARACTERS)
    return not all(
        kind.search(text, begin, begin + MAX_RUN_CHARACTERS)
        for begin in parts
        for kind in (BLANK, OTHER)
    )


def _tokens_around(library: HuggingFace) -> tuple[list[int], list[int]]:
    """Return the tokens that a tokenizer puts before and after each text."""
    bare, whole = library.encode_bare("a"), library.encode(["a"]).ids.tolist()
    for begin in range(len(whole) - len(bare) + 1):
        end = begin + len(bare)
        if bare and whole[begin:end] == bare:
            return whole[:begin], whole[end:]
    raise Unsupported("it does not only put tokens around a text")


class _Pool:
    """As many gigatokens as threads encode at a time.

    Parameters
    ----------
    content : bytes
        A `tokenizer.json`.
    before, after : list of int
        Tokens that are put around each text.

    Raises
    ------
    Unsupported
        If gigatoken refuses the tokenizer.
    """

    def __init__(self, content: bytes, before: list[int], after: list[int]) -> None:
        self._content = content
        self._around = (before, after)
        self._lock = threading.Lock()
        self._busy = 0  # threads that encode
        self._restart()
        self._free.append(self._load())

    def _restart(self) -> None:
        """Leave the gigatokens that there are to those who use them."""
        self._free: list[gigatoken.Tokenizer] = []
        self._made = 0
        self._characters = 0

    def _load(self) -> gigatoken.Tokenizer:
        engine = _load(self._content)
        self._made += 1
        self._resident = _resident_bytes()
        return engine

    def encode(self, texts: list[str]) -> Encoded:
        """Return the tokens of texts; `ValueError` if gigatoken refuses one."""
        with self._lock:
            free = self._free
            engine = free.pop() if free else self._load()
            self._busy += 1
            alone = self._busy == 1
        try:
            found = _encode(engine, texts, alone=alone)  # of one that fails, the state is not known
        finally:
            with self._lock:
                self._busy -= 1
        free.append(engine)
        with self._lock:
            self._characters += sum(map(len, texts))
            if self._characters > CHARACTERS * self._made and self._have_grown():
                self._restart()
        return _wrapped(found, *self._around)

    def _have_grown(self) -> bool:
        return _resident_bytes() > self._resident + GROWTH * self._made


class _Probe:
    """A tokenizer that shows where text is cut, in both libraries; raises as `_Pool` does."""

    def __init__(self, content: bytes) -> None:
        try:
            with refusing():
                self._slow = tokenizers.Tokenizer.from_buffer(content)
        except ValueError as error:
            raise Unsupported(f"tokenizers refuses its pattern alone: {error}") from error
        self._fast = _load(content)

    def encode_slow(self, texts: list[str]) -> Encoded:
        """Return the tokens of texts by the library tokenizers."""
        with refusing():
            found = self._slow.encode_batch_fast(texts, add_special_tokens=False)
        return encoded_lists([encoding.ids for encoding in found])

    def encode_fast(self, texts: list[str]) -> Encoded:
        """Return the tokens of texts by gigatoken."""
        return _encode(self._fast, texts, alone=True)


def _load(content: bytes) -> gigatoken.Tokenizer:
    try:
        with refusing():
            return gigatoken.Tokenizer.from_json(content)
    except ValueError as error:
        raise Unsupported(f"gigatoken refuses it: {error}") from error


def _batches(texts: list[str]) -> Iterator[list[str]]:
    """Yield texts in batches that are encoded one by one."""
    return (texts[begin : begin + SINGLE_TEXTS] for begin in range(0, len(texts), SINGLE_TEXTS))


def _encode(engine: gigatoken.Tokenizer, texts: list[str], *, alone: bool) -> Encoded:
    """Encode in this thread, few texts one by one if `alone`; `ValueError` if that fails."""
    if not texts:
        return Encoded(np.empty(0, np.int32), np.empty(0, np.int64))
    with refusing():
        if alone and len(texts) <= SINGLE_TEXTS and sum(map(len, texts)) <= SINGLE_CHARACTERS:
            found = [engine.encode(text) for text in texts]
            lengths = np.fromiter(map(len, found), np.int64, len(found))
            return Encoded(np.concatenate(found).view(np.int32), lengths)
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


def _interleaved(left: NDArray[np.bool_], slow: Encoded, fast: Encoded) -> Encoded:
    """Put the tokens of both into the order of the texts."""
    lengths = np.empty(len(left), np.int64)
    lengths[left], lengths[~left] = slow.lengths, fast.lengths
    by_library = np.repeat(left, lengths)
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
