"""The options of every command, and the fields of a configuration, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from distcache.cli.build import configuration_schema
from distcache.cli.commands import COMMANDS, load


def reference() -> Iterator[str]:
    """Yield the lines of the reference."""
    for name in COMMANDS:
        command = load(name)
        if isinstance(command, TyperGroup):
            for inner in sorted(command.commands):
                yield from _describe(f"distcache {name} {inner}", command.commands[inner])
        else:
            yield from _describe(f"distcache {name}", command)


def configuration() -> Iterator[str]:
    """Yield the rows of the fields of a configuration, as its schema describes them."""
    described = configuration_schema()["$defs"]["Config"]
    yield from ("| field | default | meaning |", "|---|---|---|")
    for name, field in described["properties"].items():
        default = "required" if name in described["required"] else field.get("default")
        shown = "" if default is None else str(default).lower()
        yield f"| `{name}` | {shown} | {field['description']} |"


def _describe(path: str, command: Any) -> Iterator[str]:
    with typer.Context(command, info_name=path) as context:
        usage = command.get_usage(context).removeprefix("Usage: ")
    yield f"## {path}"
    yield ""
    yield from _text_of(command.help or "")
    yield f"```text\n{' '.join(usage.split())}\n```"
    yield ""
    rows = [row for row in map(_row_of, command.params) if row]
    if rows:
        yield "| | default | |"
        yield "|---|---|---|"
        yield from rows
        yield ""


def _text_of(text: str) -> Iterator[str]:
    """Yield a command's help as Markdown: click marks paragraphs that stay as they are."""
    for paragraph in text.replace("\b\n", "").split("\n\n"):
        lines = paragraph.strip("\n").splitlines()
        if lines and all(line.startswith("    ") for line in lines):
            yield from ["```text", *(line.strip() for line in lines), "```", ""]
        elif lines and lines[0].strip() not in ("Examples", "Example:"):
            yield from [" ".join(line.strip() for line in lines), ""]


def _row_of(parameter: Any) -> str:
    """Return the row of an argument or option; empty if users do not see it."""
    if getattr(parameter, "hidden", False) or parameter.name == "help":
        return ""
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if isinstance(parameter, TyperArgument):
        names = f"`{parameter.make_metavar(typer.Context(TyperCommand('x')))}`"
    names = names.replace("|", "\\|")
    choices = getattr(parameter.type, "choices", None)
    values = " " + " ".join(f"`{choice}`" for choice in choices) if choices else ""
    default = "required" if parameter.required else _shown(parameter.default)
    described = (getattr(parameter, "help", None) or "").replace("|", "\\|")
    return f"| {names} | {default} | {described}{values} |"


def _shown(default: Any) -> str:
    if default is None or default is False or default == () or callable(default):
        return ""
    return f"`{getattr(default, 'value', default)}`"
