"""Documents of a corpus: their tokens, their text and the rows that they were made of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from distcache.corpus.corpus import CorpusFacts, open_copy_source
from distcache.corpus.idx import Idx
from distcache.corpus.source_rows import CorpusSources
from distcache.edit.source_readback import read_document
from distcache.errors import ConfigError, CorpusError
from distcache.ingest.tokenizers.tokenizer import Tokenizer

NUMBER: Final = re.compile("[0-9]{1,18}")


class ShownDocument(msgspec.Struct, frozen=True):
    """A document of a corpus."""

    document: int  # number of the document, from 0
    sequences: tuple[int, ...]  # tokens of each of its sequences
    tokens: tuple[int, ...]  # token ids
    text: str | None = None  # text of the tokens, if a tokenizer is known
    source: str | None = None  # file that it comes from, as receipts say
    row: int | None = None  # row of that file, from 0
    line: int | None = None  # line of that file, from 1, if it has lines


def document_numbers(numbers: Sequence[str], random: int, seed: int, documents: int) -> list[int]:
    """Return which documents are asked for.

    Parameters
    ----------
    numbers : sequence of str
        Numbers, from 0, and ranges A:B.
    random : int
        Number of further documents, drawn at random.
    seed : int
        Seed of those.
    documents : int
        Documents of the corpus.

    Raises
    ------
    ConfigError
        If a word is neither a number nor a range, or the document does not exist.
    """
    found: list[int] = []
    if numbers and not documents:
        raise ConfigError(f"{numbers[0]}: the corpus has no documents")
    for word in numbers:
        first, colon, last = word.partition(":")
        if NUMBER.fullmatch(first or "0") is None or NUMBER.fullmatch(last or "0") is None:
            raise ConfigError(f"{word!r}: expected the number of a document, or A:B")
        begin = int(first or 0)
        end = (int(last) if last else documents) if colon else begin + 1
        if not 0 <= begin < end <= documents:
            raise ConfigError(f"{word}: the corpus has documents 0 to {documents - 1}")
        found += range(begin, end)
    if random:
        chosen = np.random.default_rng(seed).choice(documents, min(random, documents), False)
        found += sorted(map(int, chosen))
    return found or [0][:documents]


def show_documents(
    facts: CorpusFacts, numbers: Sequence[int], tokenizer: Tokenizer | None
) -> list[ShownDocument]:
    """Read documents of a sound corpus.

    Raises
    ------
    CorpusError
        If the corpus has changed.
    """
    source = open_copy_source(facts)
    assert source.idx is not None, "an examined corpus has an index"
    origins = _origins(facts.prefix, source.idx, numbers)
    found = []
    for number in numbers:
        document = read_document(source.idx, facts.prefix, number)
        if document is None:
            raise CorpusError(f"{facts.prefix}: document {number} cannot be read; see `check`")
        tokens = document.tokens.tolist()
        found.append(
            ShownDocument(
                number,
                tuple(document.lengths.tolist()),
                tuple(tokens),
                None if tokenizer is None else tokenizer.decode(tokens),
                *origins.get(number, ()),
            )
        )
    return found


def _origins(
    prefix: str, idx: Idx, numbers: Sequence[int]
) -> dict[int, tuple[str, int | None, int | None]]:
    """Return file, row and line of documents, as far as receipts say them."""
    if not len(idx.lengths):
        return {}
    found = CorpusSources(prefix, idx).find_documents(np.array(numbers, np.int64))
    columns = (found.files.tolist(), found.rows.tolist(), found.lines.tolist())
    return {
        number: (found.paths[file], None if row < 0 else row, None if line < 0 else line)
        for number, file, row, line in zip(numbers, *columns, strict=True)
        if file >= 0
    }
