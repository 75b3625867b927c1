"""Consecutive documents of token ids, as a list of Arrow."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa


class TokenRows(NamedTuple):
    """Consecutive documents, or one that is rejected."""

    first: int  # number of the first, in the piece
    lists: pa.Array | None  # token ids of each
    rejected: tuple[str, int | None] | None = None  # problem, and the byte at which the line begins
    byte: int | None = None  # byte at which the first begins
    lines: int = 0  # lines that were read, with blank ones
