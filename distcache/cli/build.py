"""`distcache plan`, `build`, `ready`, `upload` and `schema`: from a configuration to a cache."""

from __future__ import annotations

import gc
import json
import os
import re
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from distcache import __version__
from distcache.builder.configuration import NOT_WRITTEN, OWN_KEYS, complete, load_config
from distcache.builder.job import BuildOptions, MemoryLimit
from distcache.builder.prepare import agree_on_plan, require_name
from distcache.builder.run import build
from distcache.builder.upload import UploadOptions, upload
from distcache.cache.readiness import RESUME_ADVICE, State, look, wait
from distcache.cli.common import (
    JsonOption,
    LogOption,
    ThreadsOption,
    interrupt_on_signals,
)
from distcache.cli.options import with_options
from distcache.cli.plan_tables import plan_document, show_plan
from distcache.cli.show import make_progress, print_json, print_result
from distcache.corpus.fetched import fetched_indices
from distcache.errors import BuildInterrupted, ConfigError, NotReady
from distcache.megatron.command_line import is_command
from distcache.megatron.options import MEGATRON_KEYS, config_from_options
from distcache.plan.assignment import assign, estimate
from distcache.plan.config import Config
from distcache.plan.layout import make_layout
from distcache.plan.problems import plan_warnings
from distcache.plan.source_needs import (
    BucketOptions,
    bucket_needs,
    prefix_warnings,
    shard_needs,
)
from distcache.plan.written_blends import WrittenForms
from distcache.ranks.agreement import on_rank_0
from distcache.ranks.communicator import SerialCommunicator
from distcache.ranks.connect import connect
from distcache.ranks.job_environment import share_of_cores, threads_of, usable_cores
from distcache.ranks.progress import NullProgress
from distcache.storage.units import size_text
from distcache.storage.url import path_only, require_file

ConfigArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="CONFIG | @FILE | -- COMMAND",
        callback=path_only,
        help="Configuration file; or the training command, in words or in a file.",
    ),
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="List every section, however many there are.")
]
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def read_config(path: Path | None, context: typer.Context) -> Config:
    """Read the configuration from its file, or from a training command of Megatron.

    Raises
    ------
    ConfigError
        If both are given, or neither.
    """
    words = [*([] if path is None else [str(path)]), *context.args]
    if not words:
        raise ConfigError("give a configuration file, or a training command of Megatron")
    named = words[0].endswith((".json", ".yaml", ".yml", ".toml"))
    if is_command(words) and not named:
        return complete(config_from_options(words))
    if len(words) == 1:
        return load_config(words[0])
    said = f"unknown option or word: {' '.join(words[1:])}"
    if not named and not os.path.lexists(words[0]):
        return complete(config_from_options(words))  # a command, of which no word is a script
    raise ConfigError(f"{said} (Megatron's options cannot be combined with a configuration file)")


@with_options
def plan_command(
    context: typer.Context,
    config: ConfigArgument = None,
    ranks: Annotated[int, typer.Option(min=1, max=65_536, help="Ranks that would build.")] = 1,
    nodes: Annotated[int, typer.Option(min=1, max=65_536, help="Nodes of the ranks.")] = 1,
    threads: ThreadsOption = 0,
    memory_limit: MemoryLimit = None,
    *,
    training: BucketOptions,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a build would make and need: samples, passes, bytes, time; and all problems.

    For corpora in a bucket it also shows requests and bytes of training, and the best way to read.

    Examples
    --------
        distcache plan blend.yaml --ranks 32 --nodes 4

        distcache plan --data-path 0.3 data/web 0.7 data/code --split 99,1,0 --seq-length 4096
        --train-samples 1000000 --global-batch-size 512

        distcache plan --megatron 0.19 -- torchrun --nproc-per-node 8 pretrain_gpt.py ...

        distcache plan blend.yaml --bucket --training-nodes 16 --node-disk 2T
    """
    settings = read_config(config, context)
    threads = threads or threads_of(usable_cores(), ranks)
    communicator, silent = SerialCommunicator(), NullProgress()
    with fetched_indices(communicator, settings.prefixes(), silent):
        plan = agree_on_plan(communicator, settings, threads, silent)
    layout = make_layout(plan.items)
    work = assign(plan.items, layout, ranks, threads, memory_limit)
    document = plan_document(plan, layout)
    document |= {"ranks": ranks, "threads": work.threads, "memory_per_rank": list(work.memory)}
    document["estimate"] = estimate(plan, layout, work, -(-ranks // nodes))
    shared = sorted(layout.units[unit].items[0] for unit in work.linked + work.sliced)
    sections = len(plan.sections)
    document["split_sections"] = [item for item in shared if item < sections]
    document["split_blends"] = [item - sections for item in shared if item >= sections]
    document["shards"] = shard_needs(plan)
    needs = document["buckets"] = bucket_needs(plan, training)
    document["warnings"] = plan_warnings(settings, plan) + prefix_warnings(needs)
    if as_json:
        print_json(document)
    else:
        show_plan(document, verbose=verbose)


@with_options
def build_command(
    context: typer.Context,
    directory: Annotated[str, typer.Option("--out", "-o", help="Directory that all ranks share.")],
    options: BuildOptions,
    config: ConfigArgument = None,
    name: Annotated[
        str | None, typer.Option(help="File name, with .h5 or without; by default from the key.")
    ] = None,
    threads: ThreadsOption = 0,
    log_format: LogOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Build the cache, alone or with all ranks of mpiexec or srun, and print its path.

    An existing cache is used. A killed build is resumed. If another job builds the same cache, this
    one waits for it.

    Examples
    --------
        distcache build blend.yaml -o /shared/caches

        srun --mpi=pmi2 -n 64 distcache build blend.yaml -o /shared/caches --name pretrain

        srun --mpi=pmi2 -n 64 distcache build @train-command.txt -o /shared/caches
    """
    gc.disable()  # a plan of many corpora has hundreds of thousands of objects, and no cycles
    communicator = connect()
    interrupt_on_signals()
    options = msgspec.structs.replace(options, threads=threads or share_of_cores(communicator))

    def read() -> Config:
        require_name(name)
        require_file(directory, "--out", "build to a filesystem, then `distcache upload`")
        return read_config(config, context)

    settings = on_rank_0(communicator, read, Config, "reading the configuration")
    with make_progress(log_format, communicator.rank) as progress:
        outcome = build(communicator, settings, directory, name, options, progress)
        progress.note(f"{'found' if outcome.reused else 'built'} {outcome.path}")
    print_result(communicator.rank, outcome, [outcome.path], as_json=as_json)


def ready_command(
    cache: Annotated[str, typer.Argument(help="The cache that is built: a path, or a URL.")],
    patience: Annotated[
        float | None, typer.Option("--wait", min=0, help="Seconds to wait for it.")
    ] = None,
    log_format: LogOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Show whether a cache is ready, or the progress of its build.

    Exit code 0: it is ready. 5: it is not, or not yet. 8: its builder has died; building again
    resumes. With --wait it returns at once when the cache is ready or the builder has died.

    Examples
    --------
        distcache ready /shared/caches/pretrain.h5

        distcache ready /shared/caches/pretrain.h5 --wait 1800 && srun python train.py
    """
    if patience is None:
        found = look(cache)
    else:
        with make_progress(log_format) as progress:
            found = wait(cache, patience, lambda seen: progress.note(str(seen)))
    if as_json:
        print_json(found)
    elif found.state is not State.dead:
        typer.echo(str(found))
    if found.state is State.dead:
        raise BuildInterrupted(f"{found}; {RESUME_ADVICE}")
    if found.state is not State.ready:
        raise typer.Exit(NotReady.exit_code)


@with_options
def upload_command(
    cache: Annotated[str, typer.Argument(help="A finished cache.")],
    to: Annotated[
        str, typer.Option("--out", "-o", help="A directory of a bucket: s3://bucket/directory.")
    ],
    options: UploadOptions,
    log_format: LogOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Upload a cache to a bucket, from which any node localizes it and trains.

    Runs alone or under mpiexec or srun; the objects are shared out over the ranks. No object is
    ever replaced: exit code 7 if another one has a name. Run it again to continue. Credentials and
    endpoints are those of AWS's own tools.

    Examples
    --------
        distcache upload caches/pretrain.h5 -o s3://bucket/pretrain --corpora

        srun -n 16 distcache upload caches/pretrain.h5 -o s3://bucket/pretrain --corpora
    """
    communicator = connect()
    interrupt_on_signals()
    with make_progress(log_format, communicator.rank) as progress:
        done = upload(communicator, cache, to, options, progress)
    if communicator.rank == 0:
        if as_json:
            print_json(done)
        else:
            sent = f"{done.sent} of {done.objects} objects, {size_text(done.sent_bytes)}, sent now"
            typer.echo(f"{done.url}: {size_text(done.nbytes)}, key {done.key}; {sent}")
            typer.echo(f"# on every node: distcache localize {done.url}")


def schema_command() -> None:
    """Print the JSON schema of a configuration.

    Editors complete and check a YAML file that names it in its first line:
    `# yaml-language-server: $schema=blend.schema.json`.

    Examples
    --------
        distcache schema > blend.schema.json
    """
    print_json(configuration_schema())


def configuration_schema() -> dict[str, Any]:
    """Return the JSON schema of a configuration, or of a file of Megatron's options."""
    places, kinds = msgspec.json.schema_components(
        (Config, WrittenForms), ref_template="#/$defs/{name}"
    )
    own = kinds["Config"]
    fields: dict[str, Any] = own["properties"]
    for name, form in kinds.pop("WrittenForms")["properties"].items():
        fields[name] = {"description": fields[name]["description"], **form}
    for name in NOT_WRITTEN:
        del fields[name]
    own["title"] = "Configuration of distcache"
    spellings = sorted({spelt for key in MEGATRON_KEYS for spelt in (key, key.replace("_", "-"))})
    kinds["Megatron"] = {
        "title": "Options of Megatron-LM; distcache ignores those that do not concern data",
        "type": "object",
        "properties": {name: {"description": "an option of data"} for name in spellings},
        "anyOf": [{"required": [name]} for name in spellings],
    }
    _keep_reachable(kinds)
    return {
        "$schema": DIALECT,
        "$comment": f"distcache {__version__}",
        "if": {"anyOf": [{"required": [name]} for name in sorted(OWN_KEYS)]},
        "then": places[0],
        "else": {"$ref": "#/$defs/Megatron"},
        "$defs": kinds,
    }


def _keep_reachable(kinds: dict[str, Any]) -> None:
    """Remove the definitions to which neither form of a configuration leads."""
    found, new = set(), {"Config", "Megatron"}
    while new:
        found |= new
        text = json.dumps([kinds[name] for name in new])
        new = set(re.findall(r'"#/\$defs/(\w+)"', text)) - found
    for name in kinds.keys() - found:
        del kinds[name]
