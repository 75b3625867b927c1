"""How to localize, and what came of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from distcache.cache.export import Exported
from distcache.node.place import local_directory, node_name
from distcache.node.record import Ready
from distcache.node.space import space_at
from distcache.node.store import Store

__all__ = ["LocalizeOptions", "Localized", "NodeReport", "failed_report", "make_report"]


class LocalizeOptions(msgspec.Struct, frozen=True):
    """How to localize.

    Attributes
    ----------
    directory : str or None
        The store; by default the environment says it.
    link : bool
        Whether the store gets links to the `.bin` files.
    megatron : bool
        Whether it gets Megatron's files too.
    tokenizer : dict or None
        For Megatron's names, instead of the cache's.
    transport : str
        "auto", "mpi", "copy" or "sbcast".
    reserve : int
        Bytes to leave free on the store's filesystem.
    threads : int
        Units that an agent reads at a time.
    quick : bool
        Whether a copy that has its record, sizes and times is taken for right, without digests.
    best_effort : bool
        Whether nodes that cannot hold a copy are reported, and the others go on.
    budget : int or None
        Bytes that the store may take; older copies make room for this one.
    """

    directory: str | None = None
    link: bool = True
    megatron: bool = False
    tokenizer: dict[str, Any] | None = None
    transport: str = "auto"
    reserve: int = 0
    threads: int = 4
    quick: bool = False
    best_effort: bool = False
    budget: int | None = None


class NodeReport(msgspec.Struct, frozen=True):
    """What one agent did.

    Attributes
    ----------
    node, directory, cache : str
        Its name, its store, and the cache in it.
    read, reused, written, kept : int
        Bytes read from the shared filesystem, copied from other caches of the store, written, and
        found right already.
    memory : int
        Bytes of the copy that are held in memory, because the store is.
    problem : str
        Why the node has no copy, and reads the shared file; empty if it has.
    beyond : int
        Bytes that the store takes beyond the budget: this copy and those in use stay.
    """

    node: str
    directory: str
    cache: str
    read: int
    reused: int
    written: int
    kept: int
    memory: int
    problem: str = ""
    beyond: int = 0


class Localized(msgspec.Struct, frozen=True):
    """What a localization came to.

    Attributes
    ----------
    key, source : str
        The cache's identity and its absolute path.
    transport, reason : str
        How it was brought, and why so.
    nodes : list of NodeReport
        What each agent did.
    megatron : Exported or None
        Megatron's files and options on the first node; the same on all that use one directory.
    """

    key: str
    source: str
    transport: str
    reason: str
    nodes: list[NodeReport]
    megatron: Exported | None


def failed_report(
    options: LocalizeOptions, environment: Mapping[str, str], problem: str
) -> NodeReport:
    """Say why a node has no copy."""
    directory = local_directory(options.directory, environment)
    return NodeReport(node_name(environment), str(directory), "", 0, 0, 0, 0, 0, problem)


def make_report(
    store: Store,
    record: Ready,
    read: int = 0,
    reused: int = 0,
    written: int = 0,
    kept: int = 0,
    beyond: int = 0,
) -> NodeReport:
    """Put together what an agent did."""
    size = record.size + sum({corpus.stem: corpus.idx_size for corpus in record.corpora}.values())
    return NodeReport(
        node=node_name(os.environ),
        directory=str(store.root),
        cache=str(store.cache(record.name)),
        read=read,
        reused=reused,
        written=written,
        kept=kept,
        memory=size if space_at(store.root).in_memory else 0,
        beyond=beyond,
    )
