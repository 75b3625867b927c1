"""Time limits, as Slurm's users write them."""

from __future__ import annotations

import re
from typing import Final

from distcache.errors import ConfigError

__all__ = ["parse_minutes"]

# minutes[:seconds], hours:minutes:seconds, days-hours[:minutes[:seconds]]
FORMS: Final = (
    re.compile(r"(?P<minutes>\d{1,6})(:(?P<seconds>\d{1,6}))?"),
    re.compile(r"(?P<hours>\d{1,6}):(?P<minutes>\d{1,6}):(?P<seconds>\d{1,6})"),
    re.compile(
        r"(?P<days>\d{1,6})-(?P<hours>\d{1,6})(:(?P<minutes>\d{1,6}))?(:(?P<seconds>\d{1,6}))?"
    ),
)
MINUTES: Final = {"days": 1440, "hours": 60, "minutes": 1}


def parse_minutes(text: str | None) -> int | None:
    """Read a time limit in any form of a number that sbatch takes, in minutes, rounded up.

    Raises
    ------
    ConfigError
        If it is none of them, or no time at all.
    """
    if text is None:
        return None
    for form in FORMS:
        if (found := form.fullmatch(text.strip())) is not None:
            parts = {name: int(value or 0) for name, value in found.groupdict().items()}
            minutes = sum(size * parts.get(name, 0) for name, size in MINUTES.items())
            minutes += -(-parts.get("seconds", 0) // 60)
            if minutes:
                return minutes
    raise ConfigError(
        f"--time {text!r}: expected minutes, H:MM:SS or D-HH:MM:SS, as sbatch does, and more than 0"
    )
