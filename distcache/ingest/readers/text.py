"""Tokenize the rows of text inputs, as Megatron's preprocessing does."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from distcache.corpus.idx import limit_of
from distcache.errors import ConfigError
from distcache.extras import imported
from distcache.ingest.document_buffer import DocumentBuffer, Problem, ReadingEnds
from distcache.ingest.inputs import Input, TextOptions
from distcache.ingest.pieces import InputPiece
from distcache.ingest.readers.formats import FORMATS
from distcache.ingest.readers.input_rows import InputRow, checked
from distcache.ingest.tokenizers.find import make_chat_tokenizer, make_tokenizer
from distcache.ingest.tokenizers.tokenizer import (
    Conversation,
    Encoded,
    EnginesDiffer,
    Tokenizer,
    TokenizerOptions,
    TokenizerSource,
)
from distcache.kernels import narrow_tokens

BATCH_CHARACTERS: Final = 1 << 20  # characters of a call of the tokenizer
BATCH_ROWS: Final = 1 << 12  # rows of a call, if they are short
LARGE_TEXT: Final = 4 << 20  # characters; the library tokenizers takes about 100 times their bytes
HALF_PAIR: Final = re.compile("[\ud800-\udfff]")
_large_texts = threading.Lock()


def make_text_reader(
    source: TokenizerSource, tokenizer: TokenizerOptions, options: TextOptions
) -> TextReader:
    """Return the reader of texts or conversations.

    Raises
    ------
    ConfigError
        If the tokenizer cannot be loaded, or an option does not fit.
    """
    if options.messages is None:
        return TextReader(make_tokenizer(source, tokenizer), options)
    chats = make_chat_tokenizer(source, tokenizer, marked=options.loss == "marked")
    return TextReader(chats, options, chats.render)


class TextReader:
    """Adds the rows of text inputs to buffers, as Megatron's preprocessing does it.

    Each text of a row becomes a sequence, unless it has no token. The end-of-document token is
    appended to the last one. Rows without tokens are counted, and dropped unless they are to be
    kept.

    Parameters
    ----------
    tokenizer : Tokenizer
        Makes the tokens.
    options : TextOptions
        Options of a row.
    render : callable or None
        Makes a text of a conversation; None if rows have texts.

    Attributes
    ----------
    tokenizer : Tokenizer
        Tokenizer of the texts.
    engine : str
        Name of the engine that encodes, and why not a faster one.
    ending : str or None
        Token that ends each document: its number and its text.

    Raises
    ------
    ConfigError
        If the tokenizer does not know its end-of-document token, but one is to be appended.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        options: TextOptions,
        render: Callable[[Conversation], str] | None = None,
    ) -> None:
        self.engine = tokenizer.engine + (f" ({tokenizer.note})" if tokenizer.note else "")
        self.tokenizer = tokenizer
        self._options = options
        self._render = render
        self._end = tokenizer.facts.eod if options.append_eod else None
        if self._end is None and options.append_eod:
            raise ConfigError(
                f"--append-eod: {tokenizer.facts.name} does not say which token ends a document; "
                "name it with --eod"
            )
        self.ending = None
        if self._end is not None:
            self.ending = f"{self._end} {tokenizer.decode([self._end])!r}"

    def read(
        self, entry: Input, piece: InputPiece, buffer: DocumentBuffer, stopped: Callable[[], bool]
    ) -> None:
        """Add the documents of a piece to a buffer, until an error or `stopped` ends it."""
        batch: list[InputRow] = []
        size = 0
        with contextlib.suppress(ReadingEnds):
            for found in imported(FORMATS[entry.format].texts)(entry, piece, self._options):
                row = checked(self._rendered(found), self._options)
                buffer.facts.lines += 1
                full = (
                    size >= BATCH_CHARACTERS or len(batch) >= BATCH_ROWS or row.reason is not None
                )
                if (full or buffer.facts.lines % BATCH_ROWS == 0) and stopped():
                    return
                if full:
                    self._flush(batch, buffer)
                    batch, size = [], 0
                if row.reason is not None:
                    self._reject(row, row.reason, buffer)
                elif row.value is not None:  # else a blank line
                    batch.append(row)
                    size += sum(map(len, row.value))
            self._flush(batch, buffer)

    def _rendered(self, row: InputRow) -> InputRow:
        """Return a row with the text of its conversation."""
        if self._render is None or row.value is None:
            return row
        try:
            return row._replace(value=list(map(self._render, row.value)))
        except ValueError as error:
            return row._replace(value=None, reason=str(error))

    def _reject(self, row: InputRow, reason: str, buffer: DocumentBuffer) -> None:
        """Record an invalid row; raise `ReadingEnds` if that ends the ingest."""
        buffer.facts.rows += 1
        buffer.facts.reject([Problem(row.place, reason, row.byte, row.group)])
        if self._options.on_error == "fail":
            raise ReadingEnds

    def _flush(self, batch: list[InputRow], buffer: DocumentBuffer) -> None:
        """Encode rows together, or one by one if that fails."""
        if not batch:
            return
        try:
            self._append(batch, buffer)
        except EnginesDiffer as error:
            texts = np.cumsum([len(self._sentences(row)) for row in batch])
            row = batch[int(np.searchsorted(texts, error.place, side="right"))]
            problem = Problem(row.place, str(error), row.byte, row.group, fatal=True)
            buffer.facts.problems.append(problem)
            raise ReadingEnds from error
        except ValueError as error:
            if len(batch) == 1:
                half = _half_pair(batch[0])
                self._reject(batch[0], half or f"the tokenizer refuses it: {error}", buffer)
                return
            for row in batch:
                self._flush([row], buffer)

    def _append(self, batch: list[InputRow], buffer: DocumentBuffer) -> None:
        texts = [self._sentences(row) for row in batch]
        encoded = self._encode(list(itertools.chain.from_iterable(texts)))
        limit = limit_of(buffer.dtype, self.tokenizer.facts.vocabulary)
        tokens = np.empty(len(encoded.ids), buffer.dtype)
        if (wrong := narrow_tokens(encoded.ids, limit, tokens)) >= 0:
            raise ValueError(
                f"it makes token {encoded.ids[wrong]}, beyond its vocabulary of {limit}"
            )
        kept = encoded.lengths > 0
        lengths = encoded.lengths[kept].astype(np.int32)
        counts = _sums(kept, np.fromiter(map(len, texts), np.int64, len(texts)))
        filled = counts > 0
        losses = encoded.losses
        if losses is not None and losses.all():
            losses = None
        if self._end is not None:
            last = np.cumsum(counts[filled]) - 1  # sequence of each document
            ends = np.cumsum(lengths, dtype=np.int64)[last]
            is_ended = tokens[ends - 1] == self._end
            buffer.facts.ended += int(is_ended.sum())
            if self._options.eod_once:
                last, ends = last[~is_ended], ends[~is_ended]
            if losses is not None:  # an appended end has the loss of the token before it
                losses = np.insert(losses, ends, losses[ends - 1])
            tokens = np.insert(tokens, ends, self._end)
            lengths[last] += 1
        places = np.array([row.before + row.place for row in batch], np.int64)
        drop = self._options.empty == "drop"
        buffer.add(tokens, lengths, counts, places, losses, drop_empty=drop)
        buffer.facts.rows += len(batch)
        buffer.facts.by_library += encoded.by_library
        buffer.facts.compared += encoded.compared

    def _encode(self, texts: list[str]) -> Encoded:
        """Return the tokens of texts; of large texts one thread at a time, which bounds memory."""
        if sum(map(len, texts)) < LARGE_TEXT:
            return self.tokenizer.encode(texts)
        with _large_texts:
            return self.tokenizer.encode(texts)

    def _sentences(self, row: InputRow) -> list[str]:
        texts = row.value or []
        if self._options.sentences == "no":
            return texts
        return [line for text in texts for line in text.splitlines()]


def _half_pair(row: InputRow) -> str | None:
    """Return where a row has half of a surrogate pair, which is no character."""
    for text in row.value or []:
        found = HALF_PAIR.search(text)
        if found is not None:
            return (
                f"has half of a surrogate pair, \\u{ord(found[0]):04x}, at character "
                f"{found.start()} of its text"
            )
    return None


def _sums(values: NDArray[Any], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sums of consecutive runs of values, of these lengths, which may be 0."""
    sums = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    ends = np.cumsum(counts)
    return np.asarray(sums[ends] - sums[ends - counts], np.int64)
