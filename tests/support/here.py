"""The commands of all ranks in this process alone, with options as keywords.

Whoever tests what a command makes writes ``here.build(fields, directory)``, and knows neither
communicators nor the modules of a command.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distcache.builder.configuration import config_from_mapping
from distcache.builder.job import BuildOptions
from distcache.builder.prepare import agree_on_plan
from distcache.builder.run import BuildOutcome
from distcache.builder.run import build as build_cache
from distcache.builder.upload import Uploaded, UploadOptions
from distcache.builder.upload import upload as upload_cache
from distcache.corpus import CorpusFacts
from distcache.corpus.examine import examine as examine_corpora
from distcache.corpus.examine import require_sound
from distcache.corpus.receipt import Receipt
from distcache.corpus.soundness import Fault
from distcache.edit.copy_corpora import copy_corpora
from distcache.edit.index_mds import index_mds
from distcache.edit.mds_scan import MdsOptions
from distcache.edit.mix import Mixed, MixOptions
from distcache.edit.mix import mix as mix_sets
from distcache.edit.mix_recipe import Recipe
from distcache.edit.select import SelectOptions
from distcache.edit.select import select as select_documents
from distcache.edit.selection import Selection
from distcache.ingest.inputs import TextOptions, TokenOptions
from distcache.ingest.pipeline import IngestOutcome, ingest
from distcache.ingest.tokenizers.tokenizer import TokenizerOptions
from distcache.node.localize import localize as localize_cache
from distcache.node.records import Localized, LocalizeOptions
from distcache.plan.config import Config
from distcache.plan.model import Plan
from distcache.ranks.communicator import SerialCommunicator
from distcache.ranks.progress import NullProgress, Progress

ALONE = SerialCommunicator()
File = str | Path


def plan(config: Config | dict[str, Any]) -> Plan:
    """Plan a configuration."""
    decoded = config if isinstance(config, Config) else config_from_mapping(config)
    return agree_on_plan(ALONE, decoded, 1, NullProgress())


def build(
    fields: dict[str, Any],
    directory: Path,
    name: str | None = None,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> BuildOutcome:
    """Build a cache; options are the fields of `BuildOptions`."""
    config = config_from_mapping(fields)
    return build_cache(ALONE, config, directory, name, BuildOptions(**options), progress)


def upload(cache: str, to: str, *, progress: Progress | None = None, **options: Any) -> Uploaded:
    """Upload a cache; options are the fields of `UploadOptions`."""
    return upload_cache(ALONE, cache, to, UploadOptions(**options), progress)


def localize(
    cache: File, directory: File, *, environment: Mapping[str, str] = os.environ, **options: Any
) -> Localized:
    """Localize a cache; options are the fields of `LocalizeOptions`."""
    wanted = LocalizeOptions(directory=str(directory), **options)
    return localize_cache(ALONE, cache, wanted, environment=environment)


def ingest_text(
    words: Sequence[File],
    tokenizer: TokenizerOptions,
    out: File,
    threads: int = 2,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> IngestOutcome:
    """Ingest text; options are the fields of `TextOptions`."""
    files = [str(word) for word in words]
    return ingest(ALONE, files, str(out), TextOptions(**options), tokenizer, threads, progress)


def ingest_tokens(
    words: Sequence[File], out: File, threads: int = 2, **options: Any
) -> IngestOutcome:
    """Ingest tokens; options are the fields of `TokenOptions`."""
    files = [str(word) for word in words]
    return ingest(ALONE, files, str(out), TokenOptions(**options), None, threads)


def merge(prefixes: Iterable[File], out: File, *, mixed: bool = False) -> Receipt:
    """Merge corpora."""
    return copy_corpora(ALONE, [str(prefix) for prefix in prefixes], str(out), mixed=mixed)


def convert(prefix: File, out: File, *, drop_modes: bool = False) -> Receipt:
    """Convert a corpus, or repair it."""
    return copy_corpora(ALONE, [str(prefix)], str(out), kind="convert", drop_modes=drop_modes)


def materialize(prefix: File, out: File, **options: Any) -> Receipt:
    """Copy the tokens of a view, or of shards."""
    return copy_corpora(ALONE, [str(prefix)], str(out), kind="materialize", **options)


def select(
    prefix: File,
    out: File,
    *,
    rows: str | None = None,
    drop: str | None = None,
    absolute: bool = False,
    **selection: Any,
) -> Receipt:
    """Select from a corpus; what is not named here are the fields of `Selection`."""
    options = SelectOptions(Selection(**selection), rows, drop, absolute)
    return select_documents(ALONE, str(prefix), str(out), options)


def index(directory: File | Sequence[File], out: File, **options: Any) -> Receipt:
    """Index MDS data sets; options are the fields of `MdsOptions`."""
    some = [directory] if isinstance(directory, str | Path) else directory
    return index_mds(ALONE, [str(one) for one in some], str(out), MdsOptions(**options))


def mix(recipe: Recipe, directory: File, **options: Any) -> Mixed:
    """Mix data sets; options are the fields of `MixOptions`."""
    return mix_sets(ALONE, recipe, str(directory), MixOptions(**options))


def facts(prefixes: Iterable[File], threads: int = 1) -> dict[str, CorpusFacts]:
    """Return the facts of corpora, which must be sound."""
    return require_sound(ALONE, [str(prefix) for prefix in prefixes], threads)


def sound(prefix: File) -> CorpusFacts:
    """Return the facts of a corpus, which must be sound."""
    return facts([prefix])[str(prefix)]


def examine(
    prefixes: Iterable[File], threads: int = 1
) -> tuple[dict[str, CorpusFacts], tuple[Fault, ...]]:
    """Return the facts of corpora that are sound, and the faults of the others."""
    return examine_corpora(ALONE, [str(prefix) for prefix in prefixes], threads)


def faults(prefixes: Iterable[File]) -> tuple[Fault, ...]:
    """Return what is wrong with corpora."""
    return examine(prefixes)[1]


def audit(
    corpora: Mapping[str, CorpusFacts], receipts: Mapping[str, Receipt], **options: Any
) -> list[Fault]:
    """Audit corpora against their receipts; options are those of `audit`."""
    from distcache.edit.audit import audit as audit_corpora  # noqa: PLC0415  it needs pyarrow

    return audit_corpora(ALONE, corpora, receipts, **options)
