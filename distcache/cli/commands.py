"""The commands of `distcache`, each imported when it is asked for: `--help` imports none."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import typer
from typer.core import TyperGroup

__all__ = ["COMMANDS", "Entry", "LazyGroup", "add_commands", "load"]


class Entry(NamedTuple):
    """Where a command or a group of commands is, and what the list of commands says of it.

    Attributes
    ----------
    module, name : str
        Of the function or `typer.Typer`, in `distcache.cli`.
    summary : str
        At most 64 characters, which is what fits beside the names.
    passes_options : bool
        Whether it takes Megatron's options, which nobody has declared.
    """

    module: str
    name: str
    summary: str
    passes_options: bool = False


COMMANDS: Final = {
    "plan": Entry(
        "build", "plan_command", "Show what a build makes and takes, or all problems.", True
    ),
    "build": Entry(
        "build", "build_command", "Build a cache, alone or with all ranks of a job.", True
    ),
    "submit": Entry("submit", "submit_command", "Submit a job that builds, and training after it."),
    "check": Entry("check", "check_command", "Check that corpora are sound; report every fault."),
    "merge": Entry(
        "merge", "merge_command", "Put corpora together into one, as Megatron's merge does."
    ),
    "convert": Entry(
        "merge", "convert_command", "Rewrite a legacy or multimodal corpus for Megatron today."
    ),
    "inspect": Entry(
        "cache", "inspect_command", "Show what a cache holds, or who was slow in building it."
    ),
    "verify": Entry("cache", "verify_command", "Compare every byte of a cache with its digests."),
    "explain": Entry(
        "cache", "explain_command", "Say why a configuration is a cache or not; 7 if not."
    ),
    "export": Entry(
        "cache", "export_command", "Write the files that an unmodified Megatron looks for."
    ),
    "ready": Entry(
        "ready", "ready_command", "Say whether a cache is ready, or how far its build is."
    ),
    "localize": Entry(
        "node", "localize_command", "Bring a cache and its .idx files to every node's disk."
    ),
    "local": Entry("node", "local_app", "Look after the copies on this node."),
    "ingest": Entry("ingest", "ingest_app", "Make corpora of text and of token shards."),
}
OPENBLAS: Final = "OPENBLAS_NUM_THREADS"
PASS_THROUGH: Final = {"allow_extra_args": True, "ignore_unknown_options": True}


class LazyGroup(TyperGroup):
    """A group that imports a command when its name has been read."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Put the command in the place of its stand-in, and go on as ever."""
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = load(args[0])
        return super().resolve_command(ctx, args)


def add_commands(app: typer.Typer) -> None:
    """Give an app a stand-in for each command, of which only the summary is looked at."""
    for name, entry in COMMANDS.items():
        app.command(name, help=entry.summary)(_stand_in)


def load(name: str) -> Any:
    """Import a command, and return it as the group holds it."""
    entry = COMMANDS[name]
    with _one_thread_for_matrices():
        found = getattr(importlib.import_module(f"distcache.cli.{entry.module}"), entry.name)
    if not isinstance(found, typer.Typer):
        command, found = found, typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        found.command(name, context_settings=PASS_THROUGH if entry.passes_options else None)(
            command
        )
    return typer.main.get_command(found)


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
    """Only its place is needed."""
