"""`distcache inspect`, `verify`, `explain` and `export`."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from distcache.builder.build_record import (
    make_timings,
    read_build_record,
)
from distcache.builder.configuration import complete, load_config, naming_from
from distcache.builder.prepare import examined
from distcache.cache.contents import (
    Cache,
    Contents,
    open_cache,
    read_contents,
    read_version,
    sources_drawn_no_more,
)
from distcache.cache.corpus_places import corpus_places, moves_from, prefix_renamer
from distcache.cache.deal import Deal
from distcache.cache.digests import verify_cache
from distcache.cache.inspect import inspect_document
from distcache.cli.common import (
    DealOption,
    FimOption,
    JsonOption,
    LogOption,
    MegatronOption,
    PrefixOption,
    TokenizerOption,
    interrupt_on_signals,
)
from distcache.cli.show import make_progress, print_json, print_records
from distcache.corpus import Corpus, idx_path
from distcache.corpus.examine import examine
from distcache.corpus.fetched import fetched_indices
from distcache.corpus.receipt import find_receipt
from distcache.errors import ConfigError, CorpusError, KeyMismatch, NotReady
from distcache.extras import needing
from distcache.megatron.command_line import is_command, require_command
from distcache.megatron.dealt_export import deal_problems
from distcache.megatron.export import export, settings_text
from distcache.megatron.names import Naming
from distcache.megatron.options import config_from_options
from distcache.megatron.run_options import run_of_command
from distcache.plan.config import Config, canonical_json, key_of
from distcache.plan.epochs import EpochSizes, in_numbers
from distcache.plan.identity import identity_of
from distcache.ranks.communicator import SerialCommunicator
from distcache.ranks.progress import NullProgress, Progress
from distcache.storage.place import exists
from distcache.storage.units import counted, size_text
from distcache.storage.url import path_only, require_file

if TYPE_CHECKING:
    from distcache.launch.doctor.rebuild import Rebuilt

CacheArgument = Annotated[str, typer.Argument(help="A cache: a file, or s3://bucket/name.h5.")]
TracedArgument = Annotated[
    str,
    typer.Argument(
        metavar="cache", help="A cache, its URL, or a --data-cache-path directory of Megatron."
    ),
]


def inspect_command(
    cache: CacheArgument,
    timings: Annotated[
        bool,
        typer.Option(
            "--timings", help="Write how long phases and ranks took to build it, as JSON."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a cache has, or how long its build took.

    Examples
    --------
        distcache inspect /shared/caches/pretrain.h5 --json

        distcache inspect /shared/caches/pretrain.h5 --timings
    """
    if timings:
        require_file(cache, "the build record of", "it stays where the cache was built")
        print_json(make_timings(read_build_record(Path(cache))))
        return
    document = inspect_document(read_contents(cache))
    if as_json:
        print_json(document)
        return
    print_records(
        f"{document['path']}, key {document['key']}",
        [
            {
                "corpus": member["corpus"],
                "split": member["split"],
                "sequences": section["end"] - section["begin"],
                "passes": section["epochs"],
                "samples": section["samples"],
                "blend": member["blend"],
                "weight": member["weight"],
            }
            for member in document["members"]
            for section in [document["sections"][member["section"]]]
        ],
    )
    if document["blends"]:
        print_records(
            "Blends",
            [
                {
                    "blend": index,
                    "split": blend["split"],
                    "samples": blend["size"],
                    "exhaustive": blend["exhaustive"],
                }
                for index, blend in enumerate(document["blends"])
            ],
        )
    typer.echo(f"size {size_text(document['file_bytes'])}")


def verify_command(
    cache: CacheArgument,
    corpora: Annotated[
        bool,
        typer.Option(
            "--corpora",
            help="Also the corpora: each .idx by its digest, each .bin by its length and the right "
            "to read it.",
        ),
    ] = False,
    tokens: Annotated[
        bool,
        typer.Option(
            "--tokens", help="Also every .bin by the digest that the receipt beside it has."
        ),
    ] = False,
    against_megatron: Annotated[
        bool,
        typer.Option(
            "--against-megatron",
            help="Also let this environment's Megatron-Core build the same from the corpora, in "
            "one process and in TMPDIR, compare all files, and show both times.",
        ),
    ] = False,
    prefix: PrefixOption = None,
    threads: Annotated[int, typer.Option("--parallel", min=1, help="Blocks read at a time.")] = 4,
    log_format: LogOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Compare every byte of a cache with its digests.

    Examples
    --------
        distcache verify /shared/caches/pretrain.h5 --corpora

        distcache verify caches/toy.h5 --against-megatron
    """
    opened, version = read_version(cache)
    opened.moves = moves_from(prefix or [], os.environ)
    if against_megatron:
        from distcache.launch.doctor.rebuild import require_megatrons  # noqa: PLC0415  rarely used

        require_megatrons(opened)
    nbytes, compared = opened.header.file_size, 0
    with make_progress(log_format) as progress:
        progress.phase("reading the cache", nbytes)
        verify_cache(opened, threads, version, progress.advance)
        if corpora or tokens or against_megatron:
            compared = _verify_corpora(opened, threads, progress, tokens=tokens)
        rebuilt = _rebuild(opened, progress) if against_megatron else None
    if as_json:
        found = {"cache": cache, "key": opened.key, "nbytes": nbytes, "corpora": compared}
        print_json(found | {"tokens": tokens, "megatron": msgspec.to_builtins(rebuilt)})
        return
    bins = "digests of tokens equal" if tokens else ".bin lengths equal, tokens not read"
    said = (
        f"; {counted(compared, 'corpus', 'corpora')}: .idx digests equal, {bins}"
        if compared
        else ""
    )
    typer.echo(f"{cache}: {size_text(nbytes)} verified, key {opened.key}{said}")
    if rebuilt is not None:
        typer.echo(rebuilt.text())


def _rebuild(cache: Contents, progress: Progress) -> Rebuilt:
    """Let Megatron-Core build the same, and compare."""
    from distcache.launch.doctor.rebuild import PREFIX, rebuild_with_megatron  # noqa: PLC0415

    left = Path(tempfile.gettempdir()) / f"{PREFIX}*"
    interrupt_on_signals(f"remove {left}, if it is there")
    progress.phase("Megatron-Core builds the same")
    return rebuild_with_megatron(cache.path, cache.moves)


def _verify_corpora(cache: Contents, threads: int, progress: Progress, *, tokens: bool) -> int:
    """Compare the corpora with what a cache was built from, and return their number."""
    communicator, sources = SerialCommunicator(), cache.table("sources")
    ended = sources_drawn_no_more(cache)
    places = enumerate(corpus_places(cache))
    here = {n: name for n, name in places if n not in ended or exists(idx_path(name))}
    if len(here) < len(sources):
        progress.note(f"{len(sources) - len(here)} corpora are drawn no more, and are not here")
    prefixes = list(here.values())
    with fetched_indices(communicator, prefixes, progress):
        facts, faults = examine(communicator, prefixes, threads, progress)
        problems = [str(fault) for fault in faults]
        for number, prefix in here.items():
            entry = sources[number]
            for name, found in facts[prefix].identity.items() if prefix in facts else ():
                wanted = entry[name].item()
                wanted = wanted.decode("ascii") if isinstance(wanted, bytes) else wanted
                if found != wanted:
                    problems.append(
                        f"{prefix}: {name} is {found}, the cache was built from {wanted}; build "
                        "again"
                    )
        if tokens and not problems:
            with needing("--tokens"):
                from distcache.edit.audit import digest_faults  # noqa: PLC0415
            receipts = {prefix: own for prefix in facts if (own := find_receipt(prefix))}
            wrong = digest_faults(communicator, facts, receipts, progress)
            problems += [str(fault) for fault in wrong]
            problems += [
                f"{prefix}: has no receipt, and so no digest of its tokens"
                for prefix in facts
                if prefix not in receipts
            ]
    if problems:
        missing = len(problems) == len(faults) and all(fault.missing for fault in faults)
        raise (NotReady if missing else CorpusError)(*problems)
    return len(prefixes)


def explain_command(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="CONFIG CACHE | CACHE -- COMMAND",
            help="A configuration file, or the training command, and a cache: a file or a URL.",
        ),
    ],
    every: Annotated[
        bool, typer.Option("--all", help="Also show the fields that are equal.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show where a configuration and a cache differ. Exit code 7 if they do.

    Examples
    --------
        distcache explain blend.yaml /shared/caches/pretrain.h5

        distcache explain /shared/caches/pretrain.h5 -- torchrun pretrain_gpt.py ...
    """
    wanted_config, cache = _configuration_and_cache([*words, *context.args])
    opened = read_contents(cache)
    communicator = SerialCommunicator()
    with fetched_indices(communicator, wanted_config.prefixes(), NullProgress()):
        facts = examined(communicator, wanted_config, threads=2)
        corpora = {prefix: Corpus(found) for prefix, found in facts.items()}
        wanted_config = in_numbers(wanted_config, EpochSizes(wanted_config, corpora, {}))
    wanted = identity_of(wanted_config, facts)
    fields = [
        {
            "field": name,
            "equal": canonical_json(wanted.get(name)) == canonical_json(opened.identity.get(name)),
            "configuration": wanted.get(name),
            "cache": opened.identity.get(name),
        }
        for name in dict.fromkeys([*wanted, *opened.identity])
    ]
    names_only = _naming_differences(wanted_config, opened)
    same = key_of(wanted) == opened.key
    if as_json:
        print_json({"same": same, "fields": fields, "names_only": names_only})
    else:
        rows = [_explained(entry) for entry in fields if every or not entry["equal"]]
        if rows:
            print_records("", rows)
        for line in names_only:
            typer.echo(f"names only: {line}")
    if not same:
        differing = ", ".join(str(entry["field"]) for entry in fields if not entry["equal"])
        raise KeyMismatch(f"{cache}: differs from the configuration in: {differing}")
    if not as_json:
        typer.echo(f"{cache} is the cache of this configuration: all fields are the same")


def _configuration_and_cache(words: list[str]) -> tuple[Config, str]:
    """Return what was asked for, of a file or of a training command, and the cache.

    Raises
    ------
    ConfigError
        If the words are neither form, or the cache comes first.
    """
    strange = [word for word in words[:1] if word.startswith("-")]
    if len(words) > 1 and not is_command(words[1:]):
        strange = [word for word in words if word.startswith("-")]
    if strange:
        raise ConfigError(f"unknown option: {' '.join(strange)}")
    if len(words) > 1 and is_command(words[1:]):
        require_command(words[1:])
        return complete(config_from_options(words[1:])), words[0]
    if len(words) != 2:
        raise ConfigError(
            "give a configuration file and a cache; or a cache, --, and a training command"
        )
    if words[0].endswith(".h5"):
        raise ConfigError(f"{words[0]}: is a cache; give the configuration first")
    return load_config(path_only(words[0])), words[1]


def _explained(entry: dict[str, Any]) -> dict[str, str]:
    """Return a row of `explain`: of what differs, the first place at which it does."""
    if entry["equal"]:
        cells = (entry["field"], "same", _short(entry["configuration"]), "")
    else:
        place, wanted, found = _first_difference(entry["configuration"], entry["cache"])
        cells = (f"{entry['field']}{place}", "differs", _short(wanted), _short(found))
    return dict(zip(("field", "is", "configuration", "cache"), cells, strict=True))


def _first_difference(wanted: Any, found: Any) -> tuple[str, Any, Any]:
    """Return the place within two JSON values at which they first differ, and the values there."""
    pairs: Iterable[tuple[str, Any, Any]] = ()
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        numbered = enumerate(zip(wanted, found, strict=True))
        pairs = ((f"[{place}]", one, other) for place, (one, other) in numbered)
    elif isinstance(wanted, dict) and isinstance(found, dict) and wanted.keys() == found.keys():
        pairs = ((f".{name}", wanted[name], found[name]) for name in sorted(wanted))
    for place, one, other in pairs:
        if one != other:
            inner, one, other = _first_difference(one, other)  # noqa: PLW2901
            return f"{place}{inner}", one, other
    return "", wanted, found


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 60 else text[:57] + "..."


def _naming_differences(config: Config, cache: Contents) -> list[str]:
    """List what differs without changing an array: it is part of Megatron's names."""
    lines = []
    if config.prefixes() != cache.prefixes:
        lines.append("paths differ; export with --prefix FROM=TO")
    if config.tokenizer != cache.naming["tokenizer"]:
        lines.append("tokenizers differ; export with --tokenizer FILE")
    if config.fim_data != cache.naming.get("fim_data", False):
        lines.append("fim_data differs; export with --fim-data or --no-fim-data")
    return lines


def export_command(
    context: typer.Context,
    cache: Annotated[str, typer.Argument(help="A cache file.")],
    to: Annotated[
        str, typer.Option("--out", "-o", callback=path_only, help="Directory for the .npy files.")
    ],
    prefix: Annotated[
        list[str] | None,
        typer.Option(help="FROM=TO: training will be given the corpora under another path."),
    ] = None,
    tokenizer: TokenizerOption = None,
    megatron: MegatronOption = None,
    fim_data: FimOption = None,
    deal: DealOption = None,
    threads: Annotated[
        int, typer.Option("--parallel", min=1, help="Arrays written at a time.")
    ] = 4,
    log_format: LogOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Write the files that an unmodified Megatron looks for.

    Prints the options that make training use them; for NeMo Automodel, the YAML.

    Examples
    --------
        distcache export /shared/caches/pretrain.h5 -o /shared/megatron-cache

        distcache export /shared/caches/pretrain.h5 -o DIR --megatron 0.18,0.19

        distcache export CACHE -o DIR --megatron 0.19 -- torchrun pretrain_gpt.py ...

        distcache export CACHE -o DIR --megatron automodel

        distcache export CACHE -o DIR --deal 1024x64x1
    """
    dealt = None if deal is None else Deal.parse(deal)
    rename = prefix_renamer(moves_from(prefix or [], os.environ))
    naming = naming_from(tokenizer, megatron, fim_data=fim_data)
    opened = open_cache(cache)
    if context.args:
        if naming.automodel:
            raise ConfigError("--megatron automodel: a training command is read of Megatron only")
        require_command(context.args)
        naming = _as_trained(opened, context.args, rename, naming)
        if dealt is not None:
            options = run_of_command(context.args, opened.sequence_length)
            if problems := deal_problems(dealt, options):
                raise ConfigError(*problems)
    with make_progress(log_format) as progress:
        progress.phase("writing arrays", 1)
        done = export(
            opened, Path(to), rename, naming, threads, deal=dealt, advance=progress.advance
        )
    if as_json:
        print_json(done)
        return
    typer.echo(f"# {len(done.files)} files in {done.directory}")
    typer.echo(settings_text(done))
    for warning in done.warnings:
        typer.echo(f"# warning: {warning}")
    sizes = ", ".join(f"{split} {_passes_or(count)}" for split, count in done.samples.items())
    typer.echo(f"# and batch size, iterations and evaluations that ask for these samples: {sizes}")


def _as_trained(
    cache: Cache, words: list[str], rename: Callable[[str], str], naming: Naming
) -> Naming:
    """Add a training command's tokenizer to the names; refuse one that asks for other arrays."""
    release = naming.releases[-1] if naming.releases else None
    config = complete(config_from_options(words, release))
    blends = {
        split: [(source.path, source.weight) for source in blend]
        for split, blend in config.blends().items()
    }
    held = {
        split: [(rename(cache.prefixes[source]), weight) for source, weight in blend]
        for split, blend in cache.naming["blends"].items()
    }
    asked = {
        "sequence_length": (config.sequence_length, cache.identity["sequence_length"]),
        "seed": (config.seed, cache.identity["seed"]),
        "split": (config.split, cache.naming["split"]),
        "samples": (
            {split: config.samples_of(split) for split in config.blends()},
            {split: cache.identity["samples"][split] for split in cache.naming["blends"]},
        ),
        "blends": (blends, held),
        **{
            name: (getattr(config, name), cache.identity[name])
            for name in ("mid_level_dataset_surplus", "multiple_validation_sets")
        },
        "blend_arithmetic": (
            config.blend_arithmetic,
            cache.identity.get("blend_arithmetic", "separate"),
        ),
    }
    differing = [
        f"{name}: training asks for {_short(ours)}, the cache has {_short(theirs)}"
        for name, (ours, theirs) in asked.items()
        if ours != theirs
    ]
    if differing:
        raise KeyMismatch(*differing)
    tokenizer = config.tokenizer if naming.tokenizer is None else naming.tokenizer
    fim = config.fim_data if naming.fim is None else naming.fim
    return msgspec.structs.replace(naming, tokenizer=tokenizer, fim=fim)


def _passes_or(count: int | None) -> str:
    return "one pass" if count is None else f"{count:,}"
