"""What comes before a build: the plan, the name, and the right to build."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

import msgspec

from distcache.build.claim import claim
from distcache.build.tables import file_size, table_places
from distcache.build.workspace import Workspace
from distcache.corpus import Corpus
from distcache.corpus.examine import require_sound
from distcache.corpus.provenance import require_one_tokenizer, tokenizers_of
from distcache.errors import ConfigError, NoSpace
from distcache.plan.config import Config
from distcache.plan.layout import Layout
from distcache.plan.make import make_plan
from distcache.plan.model import Plan
from distcache.progress import Progress
from distcache.ranks.agreement import from_rank_0
from distcache.ranks.communicator import Communicator

__all__ = [
    "Attempt",
    "cache_path",
    "claim_together",
    "make_plan_together",
    "make_ready",
    "require_name",
]

# Leaves room for what is put around it: the names of files may have 255 bytes.
LONGEST_NAME: Final = 200


class Attempt(msgspec.Struct, frozen=True):
    """What rank 0 tells all of a claimed build.

    Attributes
    ----------
    private : str
        What makes the workspace private, if anything does.
    token : str
        Names this attempt's journals.
    """

    private: str
    token: str


def require_name(name: str | None) -> None:
    """Refuse a name that is not that of a file in a directory.

    Raises
    ------
    ConfigError
        If it is empty, hidden, or leads elsewhere.
    """
    if name is not None and len(os.fsencode(name)) > LONGEST_NAME:
        raise ConfigError(f"--name: has more than {LONGEST_NAME} bytes")
    if name is not None and not name.isprintable():
        raise ConfigError(f"--name {name!r}: expected a file name of printable text")
    if name is not None and (not name or "/" in name or "\0" in name or name.startswith(".")):
        raise ConfigError(f"--name {name!r}: expected a file name without directories")


def cache_path(directory: str | Path, name: str | None, plan: Plan) -> Path:
    """Return the path of a cache, whose name has been checked."""
    return Path(directory).absolute() / f"{name or plan.key[:16]}.h5"


def make_plan_together(
    communicator: Communicator, config: Config, threads: int, progress: Progress
) -> Plan:
    """Examine the corpora of a configuration and make its plan. Collective.

    Raises
    ------
    CorpusError
        With every fault of every corpus.
    ConfigError
        With everything that speaks against the configuration.
    """
    progress.phase("examining corpora")
    facts = require_sound(communicator, config.prefixes(), threads)
    progress.phase("planning")

    def decide() -> Plan:
        tokenizers = tokenizers_of(facts)
        if not config.mixed_tokenizers:
            require_one_tokenizer(tokenizers, "give mixed_tokenizers: true if that is meant")
        corpora = {prefix: Corpus(found) for prefix, found in facts.items()}
        return make_plan(config, corpora, tokenizers)

    return from_rank_0(communicator, decide, Plan, "planning")


def claim_together(
    communicator: Communicator, key: str, final: Path, progress: Progress
) -> tuple[Workspace, Attempt | None]:
    """Become the builder, or find the cache; None for the attempt says the latter. Collective."""
    progress.phase("claiming")
    held: list[Workspace] = []

    def decide() -> Attempt | None:
        workspace = claim(final, key, progress)
        if workspace is None:
            return None
        held.append(workspace)
        return Attempt(workspace.private, secrets.token_hex(4))

    attempt = from_rank_0(communicator, decide, Attempt | None, "claiming the build")
    private = "" if attempt is None else attempt.private
    return held[0] if held else Workspace(final, private), attempt


def make_ready(workspace: Workspace, plan: Plan, layout: Layout) -> None:
    """Make a claimed workspace ready for a plan. Rank 0 only.

    Raises
    ------
    ConfigError
        If the finished file could not get its name.
    NoSpace
        If there is no space for it.
    """
    size = file_size(table_places(plan, layout))
    workspace.prepare(plan.key, size)
    _require_space(size, workspace)


def _require_space(needed: int, workspace: Workspace) -> None:
    free = os.statvfs(workspace.path)
    if not free.f_blocks:
        return  # of a filesystem that does not say
    available = free.f_bavail * free.f_frsize + 512 * os.stat(workspace.data).st_blocks
    if needed > available:
        raise NoSpace(
            f"{workspace.path.parent}: has {available} bytes for a cache of {needed}; free space, "
            "or build with -o on another filesystem"
        )
