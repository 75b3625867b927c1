"""The options of an ingest; all of them change the corpus."""

from __future__ import annotations

from typing import Literal

import msgspec

from distcache.storage.threads import decodable

OnError = Literal["fail", "skip"]


class Common(msgspec.Struct, frozen=True, kw_only=True):
    """The options of both text and token shards."""

    # ``auto`` for the smallest that holds the vocabulary, ``megatron``, or u8, u16, i32, i64
    token_type: str = "auto"
    # whether a row that is wrong ends the ingest, or is left out and reported
    on_error: OnError = "fail"
    # bytes that no `.bin` exceeds, unless a single document does; None for one corpus
    shard_size: int | None = None
    # whether a row without tokens is dropped, or kept as a document without sequences: a repeated
    # boundary, as Megatron's builder writes it
    empty: Literal["drop", "keep"] = "drop"
    # the format of all files, whatever their names; None to take it from each name
    format: str | None = None


@decodable
class TextOptions(Common, frozen=True, kw_only=True):
    """The options of an ingest of text."""

    # the field of JSON lines, or the column of Parquet files, that has the text
    text_key: str = "text"
    append_eod: bool = False  # whether each document ends with the tokenizer's token for that
    # ``no``, or ``lines`` to make a sequence of each line of a text
    sentences: Literal["no", "lines"] = "no"
    # whether a `.txt` file is one document, or each line of it is one
    documents: Literal["file", "line"] = "file"
    longest: int = 64 << 20  # bytes that a document may have


@decodable
class TokenOptions(Common, frozen=True, kw_only=True):
    """The options of an ingest of token shards."""

    # the column of token ids, a list of integers; or the field, in JSON lines
    column: str = "input_ids"
    # the type of arrays without a header
    dtype: Literal["uint8", "uint16", "uint32", "int32", "int64"] | None = None
    vocabulary: int | None = None  # token ids must be below it
    eod: int | None = None  # the token that ends every document; it is appended where it is missing
    # Columns that are checked, where they are there: the number of tokens of a row, and what
    # document it is, which no two neighbours have in common. An empty name checks nothing.
    length_column: str = "length"
    document_column: str = "document_id"
