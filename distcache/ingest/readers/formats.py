"""The formats of inputs: their suffixes, how a file is cut into pieces, and what reads it.

A new format is a file beside this one, and an entry in this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True)
class SourceFormat:
    """A format of inputs.

    Functions are named ``module:function``, since they import libraries that only their format
    needs. Both take the input, a piece of it, and the options.
    """

    suffixes: tuple[str, ...]
    texts: str = ""  # function that yields `TextRow`; empty if the format has no texts
    # Function that yields `TokenRows`, or of a format with groups of rows the one that opens a
    # table; empty if the format has no token ids.
    tokens: str = ""
    # Pieces: byte ranges of files of lines, groups of rows, or the file as a whole.
    cut: Literal["lines", "groups", "no"] = "lines"
    can_be_compressed: bool = False


HERE: Final = "distcache.ingest.readers."
FORMATS: Final = {
    "jsonl": SourceFormat(
        (".jsonl", ".ndjson", ".json"),
        texts=HERE + "json_texts:json_rows",
        tokens=HERE + "json_ids:json_id_rows",
        can_be_compressed=True,
    ),
    "txt": SourceFormat((".txt",), texts=HERE + "plain_text:plain_rows", can_be_compressed=True),
    "parquet": SourceFormat(
        (".parquet",),
        texts=HERE + "tables:table_rows",
        tokens=HERE + "tables:open_table",
        cut="groups",
    ),
    "arrow": SourceFormat(
        (".arrow",),
        texts=HERE + "tables:table_rows",
        tokens=HERE + "tables:open_table",
        cut="groups",
    ),
    "raw": SourceFormat((".npy", ".ds"), tokens=HERE + "token_arrays:array_rows", cut="no"),
}
SUFFIXES: Final = {suffix: name for name, kind in FORMATS.items() for suffix in kind.suffixes}
TEXT_FORMATS: Final = tuple(name for name, kind in FORMATS.items() if kind.texts)
TOKEN_FORMATS: Final = tuple(name for name, kind in FORMATS.items() if kind.tokens)
