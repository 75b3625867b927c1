"""`distcache doctor`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from distcache.cli.common import JsonOption, path_only
from distcache.cli.show import print_json
from distcache.errors import ConfigError, NotReady
from distcache.launch.doctor.finding import Finding
from distcache.launch.doctor.machine import examine_machine
from distcache.launch.doctor.training import examine_training
from distcache.megatron.command_line import require_command
from distcache.storage.units import counted


def doctor_command(
    context: typer.Context,
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR -- COMMAND]",
            callback=path_only,
            help="A directory that `export` or `localize --megatron` wrote, and the training "
            "command that is to find its files, as it is or as @FILE.",
        ),
    ] = None,
    shared: Annotated[
        Path | None,
        typer.Option(
            callback=path_only,
            help="A directory for caches on the shared filesystem, to try locks in.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find what would break a first job. Run it where training runs, in its container.

    With a directory and a training command, the Megatron of this environment says which files it
    would look for, and for those that are missing which field of their names differs. Nothing is
    built. Exit code 5 if anything is missing or cannot work.

    Examples
    --------
        distcache doctor --shared /shared/caches

        distcache doctor /shared/megatron-cache -- torchrun pretrain_gpt.py --data-path ...
    """
    findings = list(examine_machine(shared, os.environ))
    document: dict[str, Any] = {}
    if directory is not None:
        if not directory.is_dir():
            raise ConfigError(f"{directory}: is not a directory; give one before the command")
        if not context.args:
            raise ConfigError("give the training command after the directory and --, or as @FILE")
        require_command(context.args)
        # Where there is no network, a tokenizer that is not here would be waited for.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        found, files = examine_training(context.args, directory)
        findings += found
        document["files"] = files
    problems = [finding for finding in findings if finding.level == "problem"]
    if as_json:
        print_json({"ready": not problems, "findings": findings} | document)
    else:
        for finding in findings:
            _show(finding)
    if problems:
        raise NotReady(f"{counted(len(problems), 'problem')}: a job would fail, or build by itself")


def _show(finding: Finding) -> None:
    typer.echo(f"{finding.level:8} {finding.topic}: {finding.text}")
