"""What an examination has found."""

from __future__ import annotations

from typing import Literal

import msgspec

Level = Literal["ok", "warning", "problem"]


class Finding(msgspec.Struct, frozen=True):
    """One sentence on one topic."""

    level: Level  # "ok"; "warning", with which a job runs; "problem", with which it does not
    topic: str  # subject of the examination
    text: str  # result, and for a problem what to do
