"""How a field of an options struct is given on the command line.

A field is annotated with its option: ``split: Annotated[str, Option("A subdirectory.")] = ""``.
`distcache.cli.options` makes the option of it; here nothing depends on the command line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Option(NamedTuple):
    """The option of a field. Its default is that of the field."""

    help: str
    names: str = ""  # separated by blanks; by default the field's name, as in --shard-size
    # reads a text that is given, and raises `ConfigError`; None if the type of the field says how
    parse: Callable[[str], Any] | None = None
    shown: str | None = None  # default in help, where the field's own does not say it
    metavar: str | None = None
    # bounds of a number
    least: int | None = None
    most: int | None = None
    choices: tuple[str, ...] = ()
