"""What is searched for: documents and source rows, as words or in files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from distcache.edit.selection import numbers_in
from distcache.errors import ConfigError
from distcache.ledger.trace import Trace
from distcache.storage.files import read_file

NUMBERS: Final = re.compile(r"\d{1,18}(?:-\d{1,18})?(?:,\d{1,18}(?:-\d{1,18})?)*")
MAX_WANTED_BYTES: Final = 1 << 30  # bytes of a file of what is searched for
EXPECTED: Final = "CORPUS:NUMBERS or SOURCE:NUMBERS, with numbers as 12,40-59, all or FILE.npy"
MAX_NUMBERS: Final = 1 << 27  # numbers of a range


def wanted_sequences(
    trace: Trace, words: Sequence[str]
) -> tuple[dict[int, NDArray[np.int64]], list[str]]:
    """Return the sequences that are searched for, by the number of their corpus.

    Parameters
    ----------
    trace : Trace
        The split.
    words : sequence of str
        ``CORPUS:NUMBERS`` or ``SOURCE:NUMBERS``, where numbers are ``12,40-59``, of documents of a
        corpus, or rows of a file (from 0; lines from 1); ``CORPUS:FILE.npy``; or the path of a file
        with such words, one in each line.

    Returns
    -------
    wanted : dict of int to ndarray of int64
        Sequences of each corpus.
    notes : list of str
        Rows that became no document.

    Raises
    ------
    ConfigError
        If a word cannot be read, or there is no such corpus, document or row.
    """
    found: dict[int, list[NDArray[np.int64]]] = {}
    notes: list[str] = []
    sources = sorted({source for _, source in trace.pairs})
    names = {*trace.corpora, *(trace.place(source) for source in sources)}
    for name, numbers in _pairs(words):
        if name in names:
            corpus = trace.number_of(name)
            every = range(len(trace.idx(corpus).bounds) - 1)
            documents = np.array(every, np.int64) if numbers is None else numbers
            found.setdefault(corpus, []).append(trace.sequences(corpus, documents))
            continue
        searched = {source: trace.corpus_sources(source) for source in sources}
        rows = {source: one.documents_from(name, numbers) for source, one in searched.items()}
        known = {source: one for source, one in rows.items() if one is not None}
        if not known:
            raise ConfigError(
                f"--find {name}: is neither a corpus of {trace.cache.path} nor a file that one of "
                "them was made of, as far as their receipts say"
            )
        became = sum(one.of_root for one in known.values())
        if numbers is not None and not became:
            raise ConfigError(f"--find {name}: none of these rows exists, or became a document")
        if numbers is not None and became < len(np.unique(numbers)):
            notes.append(
                f"{name}: {len(np.unique(numbers)) - became} of {len(np.unique(numbers))} rows do "
                "not exist, or became no document"
            )
        for source, one in known.items():
            found.setdefault(source, []).append(trace.sequences(source, one.documents))
    return {corpus: np.unique(np.concatenate(parts)) for corpus, parts in found.items()}, notes


def _pairs(words: Iterable[str]) -> Iterator[tuple[str, NDArray[np.int64] | None]]:
    """Yield names and numbers of words, and of the words in files."""
    for word in words:
        name, colon, numbers = word.rpartition(":")
        if colon and name:
            yield name, _numbers(word, numbers)
        elif Path(word).is_file():
            text = read_file(word, MAX_WANTED_BYTES).decode("utf-8-sig", "surrogateescape")
            own: dict[str, list[NDArray[np.int64] | None]] = {}
            for line in filter(None, map(str.strip, text.splitlines())):
                name, colon, numbers = line.rpartition(":")
                if not colon or not name:
                    raise ConfigError(f"--find {word}: {line!r}: expected {EXPECTED}")
                own.setdefault(name, []).append(_numbers(line, numbers))
            for name, parts in own.items():
                some = [part for part in parts if part is not None]
                yield name, None if len(some) < len(parts) else np.concatenate(some)
        else:
            raise ConfigError(f"--find {word}: expected {EXPECTED}, or a file with such lines")


def _numbers(word: str, text: str) -> NDArray[np.int64] | None:
    """Return the numbers of a word; None for all."""
    if text == "all":
        return None
    if NUMBERS.fullmatch(text) is None:
        if text.endswith(".npy"):
            return numbers_in(text)
        raise ConfigError(f"--find {word}: {text!r}: expected numbers, as 12,40-59, or all")
    found = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        begin, end = int(first), int(last or first) + 1
        if not 0 < end - begin <= MAX_NUMBERS:
            raise ConfigError(
                f"--find {word}: {part}: expected at most {MAX_NUMBERS} numbers, in order"
            )
        found.append(np.arange(begin, end, dtype=np.int64))
    return np.concatenate(found)
