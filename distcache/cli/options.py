"""Make the options of a command from the fields of the structs that it takes."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
import typer

from distcache.option import Option
from distcache.storage.url import path_only

UNIONS: Final = (Union, types.UnionType)


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of its parameters; a decorator.

    Parameters
    ----------
    command : callable
        A command. A parameter whose type is a struct gives an option for each field that has an
        `Option`; other fields keep their defaults, which the command may replace. A parameter may
        also be annotated with an `Option` itself.

    Returns
    -------
    callable
        The same command, with parameters as typer takes them.
    """
    hints = get_type_hints(command, include_extras=True)
    structs: dict[str, Any] = {}
    fields: dict[str, list[_Field]] = {}  # those of each parameter
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        hint = hints[name]
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            structs[name], fields[name] = hint, list(fields_of(hint))
        elif (field := _declared(name, hint, parameter.default)) is not None:
            fields[name] = [field]
        else:
            kept = parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY)
            parameters.append(kept)
        parameters += [field.parameter() for field in fields.get(name, [])]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        made: dict[str, Any] = {}
        for name, members in fields.items():
            values = {field.name: field.read(given.pop(field.name)) for field in members}
            made[name] = structs[name](**values) if name in structs else values[name]
        command(**made, **given)

    del run.__wrapped__  # typer would follow it to the original signature
    return declared_with(run, parameters)


def declared_with(
    run: Callable[..., None], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """Give a function that takes any keywords the parameters that typer makes options of."""
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {entry.name: entry.annotation for entry in parameters}
    return run


class _Field(NamedTuple):
    """A field of a struct, or a parameter, that has an option."""

    name: str
    kind: Any  # type without the option
    option: Option
    default: Any

    def parameter(self) -> inspect.Parameter:
        """Return the parameter of the command."""
        option, default = self.option, self.default
        members = get_args(self.kind) if get_origin(self.kind) in UNIONS else (self.kind,)
        item = get_args(members[0])[0] if isinstance(default, tuple) else members[0]
        if option.choices:
            item = Literal[option.choices]
        elif option.parse is not None:
            item = str
        names = option.names.split() or [f"--{self.name.replace('_', '-')}"]
        more: dict[str, Any] = {}
        if item is Path:
            more["callback"] = path_only
        if default is msgspec.NODEFAULT:
            default = inspect.Parameter.empty
        elif isinstance(default, tuple):
            item, default = list[item], None  # type: ignore[valid-type]
        elif option.parse is not None and default is not None:
            assert option.shown is not None, f"{self.name}: the default as it would be written"
            assert option.parse(option.shown) == default, f"{self.name}: another default is shown"
            default = option.shown
        elif option.shown is not None:
            more["show_default"] = option.shown
        declared = typer.Option(
            *names,
            help=option.help,
            metavar=option.metavar,
            min=option.least,
            max=option.most,
            **more,
        )
        annotation: Any = Annotated[item | None if default is None else item, declared]
        return inspect.Parameter(
            self.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )

    def read(self, value: Any) -> Any:
        """Return the field's value from what typer has read."""
        if isinstance(self.default, tuple):
            return tuple(value or ())
        if self.option.parse is not None and value is not None:
            return self.option.parse(value)
        return value


def fields_of(struct: Any) -> Iterator[_Field]:
    """Yield the fields of a struct that have options."""
    hints = get_type_hints(struct, include_extras=True)
    for entry in msgspec.structs.fields(struct):
        if (field := _declared(entry.name, hints[entry.name], entry.default)) is not None:
            yield field


def _declared(name: str, hint: Any, default: Any) -> _Field | None:
    """Return the field of an annotation, if it has an option."""
    kind, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    option = next((extra for extra in extras if isinstance(extra, Option)), None)
    return None if option is None else _Field(name, kind, option, default)
