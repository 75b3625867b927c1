"""The preparation of a build: the plan, the cache's name, and the claimed workspace."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from distcache.builder.continued import RecordedCorpus, require_sections
from distcache.builder.finish import file_size, table_places
from distcache.cache import open_cache
from distcache.cache.contents import read_contents
from distcache.cache.corpus_places import Moves, moves_between
from distcache.corpus import Corpus, CorpusFacts
from distcache.corpus.examine import require_sound
from distcache.corpus.receipt import require_one_tokenizer, tokenizers_of
from distcache.errors import ConfigError, DistcacheError, KeyMismatch
from distcache.plan.config import Config
from distcache.plan.layout import Layout
from distcache.plan.make import make_plan
from distcache.plan.model import Plan
from distcache.plan.orders import ORDERS
from distcache.plan.packing import GroupKey, PackedGroup, count_group, groups_of, rules_of
from distcache.plan.problems import packing_problems
from distcache.ranks.agreement import on_rank_0, spread
from distcache.ranks.communicator import Communicator
from distcache.ranks.progress import Progress
from distcache.ranks.workspace import Workspace
from distcache.storage.space import require_space
from distcache.storage.unfinished_file import UnfinishedFile

# Leaves room for prefixes and suffixes: file names may have 255 bytes.
MAX_NAME_BYTES: Final = 200


def require_name(name: str | None) -> None:
    """Refuse a name that is not a plain file name.

    Raises
    ------
    ConfigError
        If it is empty, hidden, or leads elsewhere.
    """
    if name is not None and len(os.fsencode(name)) > MAX_NAME_BYTES:
        raise ConfigError(f"--name: has more than {MAX_NAME_BYTES} bytes")
    if name is not None and not name.isprintable():
        raise ConfigError(f"--name {name!r}: expected a file name of printable text")
    if name is not None and (not name or "/" in name or "\0" in name or name.startswith(".")):
        raise ConfigError(f"--name {name!r}: expected a file name without directories")


def cache_path(directory: str | Path, name: str | None, plan: Plan) -> Path:
    """Return the path of a cache, whose name has been checked, with ``.h5`` or without."""
    stem = plan.key[:16] if name is None else name.removesuffix(".h5")
    return Path(directory).absolute() / f"{stem}.h5"


def examined(communicator: Communicator, config: Config, threads: int) -> dict[str, CorpusFacts]:
    """Return the facts of the corpora of a configuration, by prefix. Collective.

    The facts of corpora that may lack files are those of the cache that is continued.

    Raises
    ------
    CorpusError, NotReady
        If a corpus is not sound, or missing.
    """
    gone = config.continued.gone if config.continued is not None else {}
    prefixes = config.prefixes()
    sound = require_sound(communicator, [name for name in prefixes if name not in gone], threads)
    return {name: gone[name].facts if name in gone else sound[name] for name in prefixes}


def agree_on_plan(
    communicator: Communicator, config: Config, threads: int, progress: Progress
) -> Plan:
    """Examine the corpora of a configuration and make its plan. Collective.

    Raises
    ------
    CorpusError
        With every fault of every corpus.
    ConfigError
        With all problems of the configuration.
    """
    progress.phase("examining corpora")
    gone = config.continued.gone if config.continued is not None else {}
    facts = examined(communicator, config, threads)
    progress.phase("planning")
    groups = _count_groups(communicator, config, facts)

    def decide() -> Plan:
        tokenizers = tokenizers_of(facts)
        if not config.mixed_tokenizers:
            require_one_tokenizer(tokenizers, "give mixed_tokenizers: true if that is meant")
        corpora = {
            name: RecordedCorpus(gone[name]) if name in gone else Corpus(found)
            for name, found in facts.items()
        }
        plan = make_plan(config, corpora, tokenizers, groups)
        require_sections(plan, gone)
        return plan

    return on_rank_0(communicator, decide, Plan, "planning")


def _count_groups(
    communicator: Communicator, config: Config, facts: Mapping[str, CorpusFacts]
) -> dict[GroupKey, PackedGroup]:
    """Count the rows of the groups of packed sections. Collective."""
    if not ORDERS[config.order].is_packed:
        return {}

    def decide() -> list[GroupKey]:
        if problems := packing_problems(config):
            raise ConfigError(*problems)
        return groups_of(config, facts)

    keys = on_rank_0(communicator, decide, list[GroupKey], "planning")
    rules = rules_of(config)

    def count(own: list[GroupKey]) -> list[PackedGroup]:
        return [count_group(facts[prefix], begin, end, rules) for prefix, begin, end in own]

    sizes = [float(end - begin) for _, begin, end in keys]
    found = spread(communicator, keys, count, PackedGroup, "counting rows", sizes)
    return dict(zip(keys, found, strict=True))


def is_finished(final: Path, key: str) -> bool:
    """Return whether a cache exists and can be opened.

    Raises
    ------
    CacheCorrupt
        If the file is not a whole cache.
    KeyMismatch
        If it is another cache.
    """
    if not os.path.lexists(final):
        return False
    if not final.exists():
        raise DistcacheError(f"{final}: is a dangling symbolic link; remove it")
    if not final.is_file():
        raise DistcacheError(f"{final}: is not a file; move it away, or build under another --name")
    found = open_cache(final).key
    if found != key:
        raise KeyMismatch(
            f"{final}: has key {found}, this configuration has {key}; `distcache explain` says "
            "what differs. Build under another --name, or move the file away"
        )
    return True


def moves_of(final: Path, prefixes: Sequence[str]) -> Moves:
    """Return how the paths of a finished cache's corpora differ from the given ones."""
    before = read_contents(final).prefixes
    return () if len(before) != len(prefixes) else moves_between(before, prefixes)


def data_path(workspace: Workspace) -> str:
    """Return the path of the unfinished cache."""
    return str(workspace.path / "data")


def journals(workspace: Workspace) -> Iterator[Path]:
    """Yield the journals of all attempts and ranks so far, the last written last."""
    found = workspace.path.glob("journal.*.jsonl")
    yield from sorted(found, key=lambda path: (path.lstat().st_mtime, path))


def journal_path(workspace: Workspace, attempt: str, rank: int) -> Path:
    """Return the path of a rank's journal in one attempt."""
    return workspace.path / f"journal.{attempt}.{rank}.jsonl"


def make_ready(workspace: Workspace, plan: Plan, layout: Layout) -> str:
    """Prepare a claimed workspace for a plan, and return a name for this attempt. Rank 0 only.

    Raises
    ------
    NoSpace
        If there is no space for it.
    """
    size = file_size(table_places(plan, layout))
    workspace.prepare(f"{plan.key} {size}")
    with UnfinishedFile(data_path(workspace), make=True) as file:
        file.truncate(size)  # takes no space
    written = 512 * os.stat(data_path(workspace)).st_blocks
    advice = "free space, or build with -o on another filesystem"
    require_space(workspace.path, size, advice, written=written)
    return secrets.token_hex(4)
