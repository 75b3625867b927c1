"""Copy a cache from the shared filesystem to the local storage of every node."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from distcache.cache.contents import Contents, read_version
from distcache.cache.format import Header
from distcache.errors import ConfigError, DistcacheError, NoSpace
from distcache.megatron.arguments import reading_nodes
from distcache.megatron.export import require_readable
from distcache.node.localization import Localization
from distcache.node.lock import exclusive
from distcache.node.manifest import (
    CorpusStat,
    Manifest,
    describe,
    make_manifest,
    stat_corpora,
)
from distcache.node.records import (
    Localized,
    LocalizeOptions,
    NodeReport,
    Request,
    empty_report,
    make_report,
    read_record,
)
from distcache.node.store import Store, cache_name, make_store, required_directory
from distcache.ranks.agreement import (
    aborting_on_error,
    on_all_ranks,
    on_all_ranks_watched,
    on_rank_0,
)
from distcache.ranks.communicator import Communicator
from distcache.ranks.job_environment import NODE_NAME, node_name
from distcache.ranks.progress import NullProgress, Progress
from distcache.storage.files import FileVersion, require_text, temporary_name
from distcache.storage.space import space_at
from distcache.storage.url import is_url, located

Result = TypeVar("Result")
MAX_NAMED: Final = 3  # nodes that a note names

# Exit codes of errors of one node; all others concern files that all nodes share.
LEFT_TO_THE_NODE: Final = (DistcacheError.exit_code, NoSpace.exit_code)

# An agent's report, and the overall result unless its node cannot hold a copy.
_Outcome = tuple[NodeReport, Localized | None]


def localize(
    communicator: Communicator,
    cache: str | Path,
    options: LocalizeOptions = LocalizeOptions(),  # noqa: B008  frozen
    progress: Progress | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Localized:
    """Bring a cache and its `.idx` files to the local storage of every node. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks. The first of each node is its agent, the others wait.
    cache : path
        The shared cache, or its URL.
    options : LocalizeOptions
        The same on all ranks.
    progress : Progress or None
        Receives the progress of rank 0's agent.
    environment : mapping
        Environment of this rank.

    Returns
    -------
    Localized
        The same on all ranks.

    Raises
    ------
    DistcacheError
        On all ranks the same. A copy that is not complete has no ready record; the next run keeps
        its valid blocks.
    """
    source = located(cache)
    with aborting_on_error(communicator):
        on_rank_0(communicator, lambda: require_text(source), None, "the cache's path")
        agents = communicator.agents(environment.get(NODE_NAME, ""))
        done, failed = None, None
        if agents is not None:
            try:
                done = _as_agent(agents, source, options, progress or NullProgress(), environment)
            except DistcacheError as error:
                if not error.is_collective:
                    raise
                failed = error

        def report() -> Localized | None:
            if failed is not None:
                raise failed
            return done

        outcome = on_all_ranks(communicator, report, "the agents of the nodes")
        result: Localized = communicator.broadcast(outcome, Localized, "what was localized")
        return result


def _as_agent(
    agents: Communicator,
    source: str,
    options: LocalizeOptions,
    progress: Progress,
    environment: Mapping[str, str],
) -> Localized:
    """Localize on the nodes that read data; with best effort, on those that can. Collective."""
    group = _reading_agents(agents, options, progress)
    report, whole = empty_report(options.directory, environment, ""), None
    failed: DistcacheError | None = None
    while group is not None and failed is None:
        try:
            report, whole = _localize(group, source, options, progress, environment)
            break
        except DistcacheError as error:
            if not error.is_collective:
                raise
            if options.best_effort and error.failed_ranks and error.exit_code in LEFT_TO_THE_NODE:
                report = empty_report(options.directory, environment, str(error))
                group = group.subgroup(set(range(group.size)).difference(error.failed_ranks))
            else:
                failed = error  # the agents of other groups do not know of it

    def outcome() -> _Outcome:
        if failed is not None:
            raise failed
        return report, whole

    what = "the reports of the agents"
    shares = agents.allgather(on_all_ranks(agents, outcome, what), _Outcome, what)
    nodes = [share for share, _ in shares]
    for node in nodes:
        if node.problem:
            progress.note(f"warning: {node.node} reads the shared file: {node.problem}")
    found = next((whole for _, whole in shares if whole is not None), None)
    return msgspec.structs.replace(found or Localized("", source, [], None), nodes=nodes)


def _reading_agents(
    agents: Communicator, options: LocalizeOptions, progress: Progress
) -> Communicator | None:
    """Return the group of the agents whose nodes read data; None on the others. Collective."""
    layout = options.readers
    if layout is None:
        return agents
    readers = on_all_ranks(
        agents, lambda: sorted(reading_nodes(layout, agents.size)), "nodes that read data"
    )
    progress.note(f"{len(readers)} of {agents.size} nodes read data")
    return agents.subgroup(readers)


def _localize(
    agents: Communicator,
    source: str,
    options: LocalizeOptions,
    progress: Progress,
    environment: Mapping[str, str],
) -> tuple[NodeReport, Localized]:
    """Localize on the nodes of a group of agents. Collective."""
    progress.phase("reading cache metadata")
    readers = _find_readers(agents, source, environment, progress)
    contents, version = _share_contents(agents, readers, source)
    store = on_all_ranks_watched(
        agents, lambda: _prepare(options, progress, environment), "making the store"
    )
    _require_separate(agents, store)
    name = cache_name(contents.header)
    before = read_record(store, name)
    with exclusive(agents, store.lock, progress) as waited:
        now = read_record(store, name)
        asked = on_all_ranks(agents, lambda: options.joined(now), "the copy that is there")
        fulfilled = now != before and options.are_fulfilled_by(now)
        if waited and all(agents.allgather(fulfilled, bool, "another's work")):
            assert now is not None
            record = now
            report = on_all_ranks(agents, lambda: make_report(store, record), "reporting")
        else:
            manifest = _make_manifest(
                agents, readers, store, source, contents, version, options, asked
            )
            run = Localization(agents, readers, store, manifest, options, asked, progress)
            record, report = run.run()
    if any(
        c.bin_version is not None and is_url(c.shared) and not c.bin_version.tag
        for c in record.corpora
    ):
        progress.note("warning: the store has no ETags: changed objects are found by size and time")
    directories = agents.allgather(report.directory, str, "the directories of the stores")
    if record.megatron is not None and len(set(directories)) > 1:
        progress.note("warning: the nodes use different directories, so Megatron's options differ")
    return report, Localized(contents.key, source, [report], record.megatron)


def _find_readers(
    agents: Communicator, source: str, environment: Mapping[str, str], progress: Progress
) -> tuple[int, ...]:
    """Return the agents that see the shared cache, or all if none does. Collective."""
    found = is_url(source) or Path(source).exists()
    seen = agents.allgather((found, node_name(environment)), tuple[bool, str], "who sees the cache")
    readers = tuple(agent for agent, (sees, _) in enumerate(seen) if sees)
    blind = [node for sees, node in seen if not sees]
    if readers and blind:
        progress.note(
            f"{len(blind)} of {agents.size} nodes ({', '.join(blind[:MAX_NAMED])}) do not see "
            f"{source}; the others read it for them"
        )
    return readers or tuple(range(agents.size))


def _on_first(
    agents: Communicator,
    readers: tuple[int, ...],
    action: Callable[[], Result],
    kind: Any,
    what: str,
) -> Result:
    """Run an action on the first reader only, and return its result on all agents. Collective."""

    def act() -> list[Result]:
        return [action()] if agents.rank == readers[0] else []

    found: list[list[Result]] = agents.allgather(
        on_all_ranks(agents, act, what, each=False), list[kind], what
    )
    return found[readers[0]][0]


def _share_contents(
    agents: Communicator, readers: tuple[int, ...], source: str
) -> tuple[Contents, FileVersion]:
    """Read header and tables once, for all agents. Collective."""

    def read() -> tuple[Header, bytes, FileVersion]:
        contents, version = read_version(source)
        return contents.header, bytes(contents.tables), version

    kind = tuple[Header, bytes, FileVersion]
    what = "reading the cache's tables"
    header, tables, version = _on_first(agents, readers, read, kind, what)
    return Contents(source, header, tables), version


def _prepare(options: LocalizeOptions, progress: Progress, environment: Mapping[str, str]) -> Store:
    """Make this node's store."""
    if options.naming is not None and options.tokens == "none":
        raise ConfigError("--megatron needs the links to the .bin files: leave out --bin none")
    store = make_store(required_directory(options.directory, environment))
    if space_at(store.root).in_memory:
        progress.note(
            f"warning: {store.root} is held in memory; the copies take it from the job's own"
        )
    return store


def _require_separate(agents: Communicator, store: Store) -> None:
    """Refuse a directory that several nodes share: they would wait for each other. Collective."""
    if agents.size == 1:
        return

    probe = temporary_name(store.caches / "probe")

    def make_probe() -> str:
        probe.touch(0o600)
        return probe.name

    what = "comparing the stores"
    probes = agents.allgather(on_all_ranks_watched(agents, make_probe, what), str, what)
    others = any(name != probe.name and (store.caches / name).exists() for name in probes)
    shared = agents.allgather(str(store.root) if others else "", str, what)
    with contextlib.suppress(OSError):  # `sweep` removes it then
        probe.unlink()
    if found := [root for root in shared if root]:
        raise ConfigError(
            f"{found[0]}: is one directory for {len(found)} nodes; name one on the nodes' own "
            "disks with --store"
        ).of_all_ranks()


def _make_manifest(
    agents: Communicator,
    readers: tuple[int, ...],
    store: Store,
    source: str,
    contents: Contents,
    version: FileVersion,
    options: LocalizeOptions,
    asked: Request,
) -> Manifest:
    """Stat every shared corpus once, and list what the cache needs. Collective."""
    contents.moves = options.moves
    corpora = describe(contents)
    place = readers.index(agents.rank) if agents.rank in readers else len(corpora)
    own = corpora[place :: len(readers)]
    mine = on_all_ranks_watched(
        agents, lambda: stat_corpora(own, options.threads), "examining corpora"
    )
    shares = agents.allgather(mine, list[CorpusStat], "examined corpora")
    count = len(readers)
    facts = [shares[readers[i % count]][i // count] for i in range(len(corpora))]

    def make() -> Manifest:
        manifest = make_manifest(store, source, contents, version, facts, asked)
        if asked.naming is not None:
            require_readable(contents, asked.naming)
            bare = next((corpus for corpus in manifest.corpora if not corpus.has_tokens), None)
            if bare is not None:
                raise ConfigError(
                    f"{bare.shared}: consists of MDS shards, and Megatron needs a .bin; "
                    "give --bin copy, or make a corpus of it by `distcache materialize`"
                )
        return manifest

    return on_all_ranks(agents, make, "what the cache needs")
