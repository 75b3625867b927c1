"""The formats of inputs: their suffixes, how a file is cut into pieces, and what reads it.

A new format is a file beside this one, and an entry in this table.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True)
class SourceFormat:
    """A format of inputs.

    Functions are named ``module:function``, since they import libraries that only their format
    needs. Both take the input, a piece of it, and the options.
    """

    suffixes: tuple[str, ...]
    # Pieces of a file: byte ranges, where each line is a row; groups of rows; or the whole file,
    # where rows span lines. `lines` cuts such rows apart without an error.
    cut: Literal["lines", "groups", "no"]
    texts: str = ""  # function that yields `InputRow`; empty if the format has no texts
    # Function that yields `TokenRows`, and an `InputRow` for an invalid one; of a format with
    # groups of rows the one that opens a table. Empty if the format has no token ids.
    tokens: str = ""
    can_be_compressed: bool = False
    # Suffixes of files that may be beside it: where documents end, and what the loss leaves out.
    beside: tuple[str, ...] = ()
    # Suffixes of the files that a directory yields when the format is given; all without any.
    given: tuple[str, ...] = ()


OLMO_TOKENS: Final = "token_ids"  # begin of the name of an array of OLMo-core
OLMO_MASK: Final = "labels_mask"  # the same of the mask of its loss, which is beside it
ENDS: Final = ".index"
LOSS: Final = ".loss"
HERE: Final = "distcache.ingest.readers."
FORMATS: Final = {
    "jsonl": SourceFormat(
        (".jsonl", ".ndjson", ".json"),
        "lines",
        texts=HERE + "json_lines:json_rows",
        tokens=HERE + "json_lines:json_id_rows",
        can_be_compressed=True,
    ),
    "txt": SourceFormat(
        (".txt",), "lines", texts=HERE + "input_rows:plain_rows", can_be_compressed=True
    ),
    "parquet": SourceFormat(
        (".parquet",),
        "groups",
        texts=HERE + "tables:table_rows",
        tokens=HERE + "tables:open_table",
    ),
    "arrow": SourceFormat(
        (".arrow",),
        "groups",
        texts=HERE + "tables:table_rows",
        tokens=HERE + "tables:open_table",
    ),
    "raw": SourceFormat(
        (".npy", ".ds"),
        "no",
        tokens=HERE + "token_arrays:array_rows",
        beside=(ENDS, LOSS),
        given=(".npy", ".ds", ".bin"),
    ),
}
SUFFIXES: Final = {suffix: name for name, kind in FORMATS.items() for suffix in kind.suffixes}
TEXT_FORMATS: Final = tuple(name for name, kind in FORMATS.items() if kind.texts)
TOKEN_FORMATS: Final = tuple(name for name, kind in FORMATS.items() if kind.tokens)


def paths_beside(path: str, kind: str) -> list[str]:
    """Return where the files beside an input of a format would be."""
    directory, name = os.path.split(path)
    found = [path + suffix for suffix in FORMATS[kind].beside]
    if kind == "raw" and name.startswith(OLMO_TOKENS):
        found.append(os.path.join(directory, OLMO_MASK + name.removeprefix(OLMO_TOKENS)))
    return found
