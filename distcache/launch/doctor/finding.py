"""What an examination has found."""

from __future__ import annotations

from typing import Literal

import msgspec

Level = Literal["ok", "warning", "problem"]


class Finding(msgspec.Struct, frozen=True):
    """One sentence on one topic.

    Attributes
    ----------
    level : str
        "ok"; "warning", with which a job runs; "problem", with which it does not.
    topic : str
        What was examined.
    text : str
        What was found, and for a problem what to do.
    """

    level: Level
    topic: str
    text: str
