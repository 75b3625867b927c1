"""The options of an ingest; all of them change the corpus."""

from __future__ import annotations

from typing import Literal

import msgspec

from distcache.ingest.inputs import Format
from distcache.storage.threads import decodable

OnError = Literal["fail", "skip"]


class Common(msgspec.Struct, frozen=True, kw_only=True):
    """The options of both text and token shards.

    Attributes
    ----------
    token_type : str
        ``auto`` for the smallest that holds the vocabulary, ``megatron``, or u8, u16, i32, i64.
    on_error : str
        Whether a row that is wrong ends the ingest, or is left out and reported.
    shard_size : int or None
        Bytes that no `.bin` exceeds, unless a single document does; None for one corpus.
    format : str or None
        The format of all files, whatever their names; None to take it from each name.
    empty : str
        Whether a row without tokens is dropped, or kept as a document without sequences: a
        repeated boundary, as Megatron's builder writes it.
    """

    token_type: str = "auto"
    on_error: OnError = "fail"
    shard_size: int | None = None
    empty: Literal["drop", "keep"] = "drop"
    format: Format | None = None


@decodable
class TextOptions(Common, frozen=True, kw_only=True):
    """The options of an ingest of text.

    Attributes
    ----------
    text_key : str
        The field of JSON lines, or the column of Parquet files, that has the text.
    append_eod : bool
        Whether each document ends with the tokenizer's token for that.
    sentences : str
        ``no``, or ``lines`` to make a sequence of each line of a text.
    documents : str
        Whether a `.txt` file is one document, or each line of it is one.
    longest : int
        Bytes that a document may have.
    """

    text_key: str = "text"
    append_eod: bool = False
    sentences: Literal["no", "lines"] = "no"
    documents: Literal["file", "line"] = "file"
    longest: int = 64 << 20


@decodable
class TokenOptions(Common, frozen=True, kw_only=True):
    """The options of an ingest of token shards.

    Attributes
    ----------
    column : str
        The column of token ids, a list of integers; or the field, in JSON lines.
    dtype : str or None
        The type of arrays without a header.
    vocabulary : int or None
        Token ids must be below it.
    eod : int or None
        The token that ends every document; it is appended where it is missing.
    length_column, document_column : str
        Columns that are checked, where they are there: the number of tokens of a row, and what
        document it is, which no two neighbours have in common. An empty name checks nothing.
    """

    column: str = "input_ids"
    dtype: Literal["uint8", "uint16", "uint32", "int32", "int64"] | None = None
    vocabulary: int | None = None
    eod: int | None = None
    length_column: str = "length"
    document_column: str = "document_id"
