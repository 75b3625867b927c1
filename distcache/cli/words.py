"""The words of a command line before a command reads them: misspelt, given twice, without value."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

from distcache.errors import ConfigError


def require_given_once(command: Any, words: Sequence[str]) -> None:
    """Refuse an option with two values, of which the last would win without a word.

    Raises
    ------
    ConfigError
        If there is one.
    """
    if hasattr(command, "commands"):
        if not words or words[0] not in command.commands:
            return
        command, words = command.commands[words[0]], words[1:]
    options = _with_value(command)
    given: dict[str, str] = {}
    following = iter(words)
    for word in itertools.takewhile(lambda word: word != "--", following):
        name, equals, value = word.partition("=")
        if word[:2] in options and word[1:2] != "-" and len(word) > 2:  # -oDIR
            name, equals, value = word[:2], "=", word[2:]
        if name not in options:
            continue
        value = value if equals else next(following, "")
        if options[name].multiple:
            continue
        first = given.setdefault(options[name].name, value)
        if first != value:
            raise ConfigError(f"{name} is given twice, as {first!r} and {value!r}; give it once")


def require_no_misspelt(called: str, command: Any, words: Sequence[str]) -> None:
    """Refuse an option that is like one of a command.

    It would be ignored as one of Megatron's, or taken for an argument.

    Raises
    ------
    ConfigError
        Naming both.
    """
    known = tuple(
        name for option in command.params for name in (*option.opts, *option.secondary_opts)
    )
    own = _without_launcher(list(itertools.takewhile(lambda word: word != "--", words)), command)
    names = [word.partition("=")[0] for word in own if word.startswith("--")]
    unknown = [name for name in names if name not in known]
    if not unknown:
        return
    from distcache.megatron.command_line import DATA_OPTIONS, meant_option  # noqa: PLC0415

    for name in unknown:
        meant = None if name in DATA_OPTIONS else meant_option(name, known)
        if meant is not None:
            raise ConfigError(
                f"unknown option or word: {name}; did you mean {meant}?; see distcache {called} "
                "--help"
            )


def _without_launcher(words: list[str], command: Any) -> list[str]:
    """Return words without those of a launcher and its options, up to the script that it starts."""
    script = next((place for place, word in enumerate(words) if word.endswith(".py")), 0)
    flags = {name for option in command.params for name in option.opts} - {*_with_value(command)}
    followed = zip(words, ["", *words], strict=False)
    launcher = next(
        (
            place
            for place, (word, before) in enumerate(followed)
            if not word.startswith("-")
            and (not before.startswith("-") or "=" in before or before in flags)
        ),
        len(words),
    )
    return words if script <= launcher else words[:launcher] + words[script + 1 :]


def _with_value(command: Any) -> dict[str, Any]:
    """Return the options of a command that a word follows, by each of their names."""
    return {
        name: option
        for option in command.params
        for name in option.opts
        if name.startswith("-") and not option.is_flag
    }


def with_empty_value(words: Sequence[str], option: str, value: str) -> list[str]:
    """Return words in which an option that may go without a value has one: else an empty one."""
    followed = itertools.zip_longest(words, words[1:], fillvalue="")
    return [
        f"{word}=" if word == option and not re.fullmatch(value, after) else word
        for word, after in followed
    ]
