"""How a field of an options struct is given on the command line.

A field is annotated with its option: ``split: Annotated[str, Option("A subdirectory.")] = ""``.
`distcache.cli.options` makes the option of it; here nothing depends on the command line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Option(NamedTuple):
    """A command-line option. Its default is the field's default."""

    help: str
    names: str = ""  # separated by blanks; by default the field's name, as in --shard-size
    # reads the given text, and raises `ConfigError`; None if the field's type decides
    parse: Callable[[str], Any] | None = None
    shown: str | None = None  # default in help, where the field's own does not say it
    metavar: str | None = None
    # bounds of a number
    least: int | None = None
    most: int | None = None
    choices: tuple[str, ...] = ()
