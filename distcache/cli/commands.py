"""The commands of `distcache`, each imported when it is asked for: `--help` imports none."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    get_args,
    get_origin,
    get_type_hints,
)

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import OptionInfo

from distcache.cli.common import interrupt_on_signals
from distcache.cli.options import UNIONS, declared_with
from distcache.cli.words import require_given_once, require_no_misspelt, with_empty_value


class CommandEntry(NamedTuple):
    """Where a command or a group of commands is, and what the list of commands says of it."""

    # module in `distcache.cli`, and name of the function or `typer.Typer` in it
    module: str
    name: str
    summary: str  # description of at most 64 characters, which fit beside the names
    passes_options: bool = False  # whether it takes Megatron's options, which nobody has declared
    # message after an interruption; None if the command first joins other ranks, and then prints it
    interrupted: str | None = "nothing has been changed"


KEPT: Final = "run again to continue"
NAMING: Final = r"[0-9.,]+|automodel"  # releases of Megatron-Core, or NeMo Automodel


# Every command below its heading in the list of commands: those of the first week, then all others.
PANELS: Final = {
    "The first week": {
        "doctor": CommandEntry(
            "jobs", "doctor_command", "Find what would break a first job, where it will run.", True
        ),
        "plan": CommandEntry(
            "build", "plan_command", "Show what a build makes and takes, or all problems.", True
        ),
        "build": CommandEntry(
            "build",
            "build_command",
            "Build a cache, alone or with all ranks of a job.",
            True,
            None,
        ),
        "verify": CommandEntry(
            "cache", "verify_command", "Compare every byte of a cache with its digests."
        ),
        "export": CommandEntry(
            "cache",
            "export_command",
            "Write the files that an unmodified Megatron looks for.",
            True,
            KEPT,
        ),
        "localize": CommandEntry(
            "node",
            "localize_command",
            "Bring a cache and its .idx files to every node's disk.",
            interrupted=None,
        ),
    },
    "Corpora": {
        "ingest": CommandEntry(
            "ingest", "ingest_app", "Make corpora of text and of token shards.", interrupted=None
        ),
        "index": CommandEntry(
            "index", "index_app", "Use MDS shards as corpora, without conversion.", interrupted=None
        ),
        "mix": CommandEntry(
            "index",
            "mix_command",
            "Index a list of MDS data sets, and write their blend.",
            interrupted=None,
        ),
        "check": CommandEntry(
            "corpora",
            "check_command",
            "Check that corpora are sound; report every fault.",
            interrupted=None,
        ),
        "show": CommandEntry(
            "corpora",
            "show_command",
            "Show documents of a corpus: tokens, text, and their source.",
        ),
        "mock": CommandEntry(
            "ingest",
            "mock_command",
            "Make up corpora, for tests of infrastructure.",
            interrupted="remove the directory, and run again",
        ),
        "merge": CommandEntry(
            "corpora",
            "merge_command",
            "Put corpora together into one, as Megatron's merge does.",
            interrupted=None,
        ),
        "convert": CommandEntry(
            "corpora",
            "convert_command",
            "Rewrite a multimodal or damaged corpus for Megatron today.",
            interrupted=None,
        ),
        "select": CommandEntry(
            "corpora",
            "select_command",
            "Select documents of a corpus as a view, without a copy.",
            interrupted=None,
        ),
        "materialize": CommandEntry(
            "corpora",
            "materialize_command",
            "Write the tokens of a view as a separate corpus.",
            interrupted=None,
        ),
    },
    "Caches": {
        "inspect": CommandEntry(
            "cache", "inspect_command", "Show the contents of a cache, or how long its build took."
        ),
        "explain": CommandEntry(
            "cache",
            "explain_command",
            "Compare a configuration with a cache; 7 if they differ.",
            True,
        ),
        "schema": CommandEntry(
            "build", "schema_command", "Print the JSON schema of a configuration, for editors."
        ),
        "upload": CommandEntry(
            "build",
            "upload_command",
            "Put a cache, and its corpora, into a bucket.",
            interrupted=None,
        ),
    },
    "Jobs": {
        "submit": CommandEntry(
            "jobs",
            "submit_command",
            "Submit a job that builds, and training after it.",
            interrupted="jobs that were submitted continue: see squeue",
        ),
        "slurm-scripts": CommandEntry(
            "jobs",
            "slurm_scripts_command",
            "Copy job scripts for Slurm, to be changed for your cluster.",
            interrupted="what has been copied remains",
        ),
        "ready": CommandEntry(
            "build",
            "ready_command",
            "Say whether a cache is ready, or how far its build is.",
            interrupted="a build continues without this command",
        ),
        "local": CommandEntry(
            "node", "local_app", "Look after the copies on this node.", interrupted=KEPT
        ),
    },
    "Training": {
        "mask": CommandEntry(
            "corpora",
            "mask_command",
            "Give a corpus its loss mask: which tokens are learned.",
            interrupted=None,
        ),
        "trace": CommandEntry(
            "trace",
            "trace_command",
            "Show which documents steps see, or which steps see documents.",
            True,
        ),
        "report": CommandEntry(
            "report",
            "report_command",
            "Sum up what training sees, as numbers or as a page.",
            True,
        ),
        "rest": CommandEntry(
            "rest",
            "rest_command",
            "Make views of what training has left of its corpora.",
            True,
            KEPT,
        ),
    },
}
COMMANDS: Final = {name: entry for panel in PANELS.values() for name, entry in panel.items()}
# What stands for the value of an option in help, by its long name; for others the name's last word.
VALUES: Final = {
    "SIZE": "memory-limit shard-size budget reserve node-disk mem max-document-size",
    "DIR": "store logs work",
    "PATH": "out",
    "CACHE": "reuse",
    "FROM=TO": "prefix",
    "TIME": "time",
    "N": "documents sample-tokens",
    "TOKEN": "eod",
    "NAME": "partition account qos constraint mpi subdirectory",
    "OPTION": "directive srun",
    "RELEASE": "megatron",
    "FILE|NAME": "tokenizer",
    "SHAPE": "lengths",
    "REGEX": "tiktoken-pattern",
    "FIELD": "text-key column",
}
BOUNDS: Final = re.compile(r"(; )?([-\d.]+<=?)?x([<>]=?[-\d.]+)?(?=\])")
OPENBLAS: Final = "OPENBLAS_NUM_THREADS"
PASS_THROUGH: Final = {"allow_extra_args": True, "ignore_unknown_options": True}


class LazyGroup(TyperGroup):
    """A group that imports a command when its name has been read."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Replace a stand-in by its command, and continue as usual."""
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = load(args[0])
            command = self.commands[args[0]]
            if args[0] == "localize":
                args = with_empty_value(args, "--megatron", NAMING)
            require_given_once(command, args[1:])
            if COMMANDS[args[0]].passes_options:
                require_no_misspelt(args[0], command, args[1:])
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write what fits a terminal: the commands of the first week, and the names of others."""
        formatter.write_usage(ctx.command_path, "[--version | --install-completion] COMMAND ...")
        formatter.write_paragraph()
        formatter.write_text(self.help)
        first, *others = PANELS
        with formatter.section(first):
            formatter.write_dl([(name, entry.summary) for name, entry in PANELS[first].items()])
        with formatter.section("All others (`distcache COMMAND --help` has examples)"):
            formatter.write_dl([(panel, " ".join(PANELS[panel])) for panel in others])
        formatter.write_paragraph()
        formatter.write_text(self.epilog)


class PassThrough(TyperCommand):
    """A command that takes Megatron's options, and those of distcache beside them."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        taken = {name for option in self.params for name in option.opts}
        own = [option for option in _own_options() if not taken.intersection(option.opts)]
        self.params += own
        self._own = {option.name: option.opts[0] for option in own}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options, and put distcache's own behind the words that are passed on."""
        rest = super().parse_args(ctx, args)
        words: list[str] = []
        for key, name in self._own.items():
            value = ctx.params.pop(key, None)
            words += [name] if value is True else [name, value] if value else []
        ctx.args = [*ctx.args, *words]
        return rest


def _own_options() -> list[Any]:
    """Return distcache's own options of a training command, as typer makes them of a function."""
    from distcache.megatron.command_line import own_options  # noqa: PLC0415

    parameters = []
    for action in own_options():
        plain = action.nargs != 0 and not action.choices
        declared = typer.Option(
            action.option_strings[0],
            help=f"{str(action.help).rstrip('.')} (with a training command).",
            metavar=str(action.metavar) if plain else None,
        )
        kind: Any = bool if action.nargs == 0 else str
        if action.choices:
            kind = Literal[tuple(action.choices)]
        parameters.append(
            inspect.Parameter(
                action.dest,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[kind | None, declared],
            )
        )

    def with_them(**given: Any) -> None:
        del given

    app = typer.Typer(add_completion=False)
    app.command()(declared_with(with_them, parameters))
    made: Any = typer.main.get_command(app)
    return [option for option in made.params if option.name != "help"]


def add_commands(app: typer.Typer) -> None:
    """Give an app a stand-in for each command, of which only the summary is used."""
    for name, entry in COMMANDS.items():
        app.command(name, help=entry.summary)(_stand_in)


def load(name: str) -> Any:
    """Import a command, and return it as the group holds it."""
    entry = COMMANDS[name]
    if entry.interrupted is not None:
        interrupt_on_signals(entry.interrupted)
    with _one_thread_for_matrices():
        found = getattr(importlib.import_module(f"distcache.cli.{entry.module}"), entry.name)
    if not isinstance(found, typer.Typer):
        command = found
        found = typer.Typer(
            add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
        )
        settings = PASS_THROUGH if entry.passes_options else None
        kind = PassThrough if entry.passes_options else None
        found.command(name, cls=kind, context_settings=settings, help=help_of(command))(command)
    for command in found.registered_commands:
        if command.help is None and command.callback is not None:
            command.help = help_of(command.callback)
        _name_values(command.callback)
    made: Any = typer.main.get_command(found)
    for each in getattr(made, "commands", {"": made}).values():
        for option in each.params:
            if option.param_type_name == "option":
                described = option.get_help_record
                option.get_help_record = functools.partial(_without_bounds, described)
    return made


def _name_values(command: Callable[..., Any] | None) -> None:
    """Give the options that a function declares words for their values, which help shows."""
    named = {name: value for value, names in VALUES.items() for name in names.split()}
    assert command is not None, "every command is a function"
    # Evaluated here once: evaluated again, a text is another declaration.
    command.__annotations__ = get_type_hints(command, include_extras=True)
    for parameter, hint in command.__annotations__.items():
        for declared in getattr(hint, "__metadata__", ()):
            kinds = _kinds_of(hint)
            if not isinstance(declared, OptionInfo) or declared.metavar or bool in kinds:
                continue
            # In an annotation the first name stands where a default value would.
            words = map(str, (declared.default, *(declared.param_decls or ())))
            names = [word for word in words if word.startswith("--")]
            name = max(names, key=len, default=parameter.replace("_", "-")).removeprefix("--")
            if kinds & {int, float}:
                declared.metavar = "N"
            elif kinds & {str, Path}:
                declared.metavar = named.get(name, name.rpartition("-")[2].upper())


def _kinds_of(hint: Any) -> set[Any]:
    """Return the types that a hint is made of, without what is said of them."""
    if get_origin(hint) is Annotated:
        return _kinds_of(get_args(hint)[0])
    if get_origin(hint) in (*UNIONS, list, tuple):
        return {kind for member in get_args(hint) for kind in _kinds_of(member)}
    return {hint}


def _without_bounds(describe: Callable[[Any], Any], context: Any) -> Any:
    """Return the names and the help of an option; an error says its bounds, which are wide."""
    record = describe(context)
    return record and (record[0], BOUNDS.sub("", record[1]).replace("  []", ""))


def help_of(command: Callable[..., Any]) -> str:
    """Return a command's docstring with its examples unchanged, to be copied."""
    lines: list[str] = []
    for line in (inspect.getdoc(command) or "").splitlines():
        if set(line) == {"-"}:
            continue  # under the heading
        is_example = line.startswith("    ") and not (lines and lines[-1].startswith("    "))
        lines += ["", "\b", line] if is_example else [line]
    return "\n".join(lines)


@contextlib.contextmanager
def _one_thread_for_matrices() -> Iterator[None]:
    """Import NumPy without the threads that its OpenBLAS starts for every core.

    No command multiplies matrices. The variable is gone afterwards: jobs that are submitted, and
    training in them, must not inherit it.
    """
    if OPENBLAS in os.environ:
        yield
        return
    os.environ[OPENBLAS] = "1"
    try:
        yield
    finally:
        del os.environ[OPENBLAS]


def _stand_in() -> None:
    """Do nothing: a placeholder that is replaced when the command is resolved."""
