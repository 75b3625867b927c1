"""The way of a cache from the shared filesystem onto every node."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from distcache.cache.contents import Contents, read_contents
from distcache.cache.format import HEADER_SIZE, Header
from distcache.errors import ConfigError, DistcacheError, NoSpace
from distcache.files import passing_name, require_text
from distcache.node.bring import bring
from distcache.node.local import locally
from distcache.node.lock import changing
from distcache.node.place import NODE_NAME, required_directory
from distcache.node.record import Ready, read_record
from distcache.node.report import (
    Localized,
    LocalizeOptions,
    NodeReport,
    failed_report,
    make_report,
)
from distcache.node.sbcast import require_sbcast
from distcache.node.space import space_at
from distcache.node.store import Store, cache_name, make_store
from distcache.node.wanted import Facts, Wanted, describe, look_at, make_wanted
from distcache.progress import Progress, Silent
from distcache.ranks.agreement import ending_job, from_rank_0, together
from distcache.ranks.communicator import Communicator

__all__ = ["choose_transport", "localize"]

# Exit codes of what may be the matter with one node; all others are of what all nodes share.
OF_A_NODE: Final = (DistcacheError.exit_code, NoSpace.exit_code)

# What an agent did, and what came of it all, unless its node cannot hold a copy.
_Outcome = tuple[NodeReport, Localized | None]


def choose_transport(asked: str, agents: int) -> tuple[str, str]:
    """Return the transport, and in a few words why."""
    if asked != "auto":
        return asked, "asked for"
    if agents > 1:
        return "mpi", f"{agents} nodes, so that each byte is read from the shared filesystem once"
    return "copy", "a single node"


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
        Of all ranks. The first of each node is its agent, the others wait.
    cache : path
        The shared cache.
    options : LocalizeOptions
        The same on all ranks.
    progress : Progress or None
        Told what rank 0's agent does.
    environment : mapping
        Of this rank.

    Returns
    -------
    Localized
        The same on all ranks.

    Raises
    ------
    DistcacheError
        On all ranks the same. A copy that is not complete has no ready record; the next run keeps
        what is right of it.
    """
    source = os.path.abspath(cache)
    with ending_job(communicator):
        from_rank_0(communicator, lambda: require_text(source), None, "the cache's path")
        agents = communicator.agents(environment.get(NODE_NAME, ""))
        done, failed = None, None
        if agents is not None:
            try:
                done = _as_agent(agents, source, options, progress or Silent(), environment)
            except DistcacheError as error:
                if not error.agreed:
                    raise
                failed = error

        def report() -> Localized | None:
            if failed is not None:
                raise failed
            return done

        outcome = together(communicator, report, "the agents of the nodes")
        result: Localized = communicator.broadcast(outcome, Localized, "what was localized")
        return result


def _as_agent(
    agents: Communicator,
    source: str,
    options: LocalizeOptions,
    progress: Progress,
    environment: Mapping[str, str],
) -> Localized:
    """Localize on this agent's node; with best effort, on those that can. Collective."""
    found = _on_able_nodes(agents, source, options, progress, environment)

    def outcome() -> _Outcome:
        if isinstance(found, DistcacheError):
            raise found
        return found

    what = "what the agents did"
    shares = agents.gather_all(together(agents, outcome, what), _Outcome, what)
    nodes = [report for report, _ in shares]
    for node in nodes:
        if node.problem:
            progress.note(f"warning: {node.node} reads the shared file: {node.problem}")
    whole = next((found for _, found in shares if found is not None), None)
    if whole is None:
        return Localized("", source, "none", "no node has a copy", nodes, None)
    return msgspec.structs.replace(whole, nodes=nodes)


def _on_able_nodes(
    agents: Communicator,
    source: str,
    options: LocalizeOptions,
    progress: Progress,
    environment: Mapping[str, str],
) -> _Outcome | DistcacheError:
    """Localize, with best effort without the nodes that cannot. Collective.

    An error of those that went on is returned: the others have not heard of it.
    """
    group = agents
    while True:
        try:
            return _localize(group, source, options, progress, environment)
        except DistcacheError as error:
            if not error.agreed:
                raise
            if not (options.best_effort and error.failed_ranks and error.exit_code in OF_A_NODE):
                return error
            able = group.subgroup(set(range(group.size)).difference(error.failed_ranks))
            if able is None:
                return failed_report(options, environment, str(error)), None
            group = able


def _localize(
    agents: Communicator,
    source: str,
    options: LocalizeOptions,
    progress: Progress,
    environment: Mapping[str, str],
) -> tuple[NodeReport, Localized]:
    """Localize on the nodes of a group of agents. Collective."""
    transport, reason = choose_transport(options.transport, agents.size)
    if transport == "sbcast":
        require_sbcast(agents, environment)
    progress.note(f"transport {transport}: {reason}")
    progress.phase("reading cache metadata")
    contents = _share_contents(agents, source)
    store = locally(agents, lambda: _prepare(options, progress, environment), "making the store")
    _require_separate(agents, store)
    name = cache_name(contents.header)
    before = read_record(store, name)
    with changing(agents, store.lock, progress) as waited:
        now = read_record(store, name)
        if waited and all(
            agents.gather_all(now != before and _fulfils(now, options), bool, "another's work")
        ):
            assert now is not None
            record = now
            report = together(agents, lambda: make_report(store, record), "reporting")
        else:
            wanted = _look(agents, store, source, contents)
            record, report = bring(agents, store, wanted, options, transport, progress)
    directories = agents.gather_all(report.directory, str, "the directories of the stores")
    if record.megatron is not None and len(set(directories)) > 1:
        progress.note("warning: the nodes use different directories, so Megatron's options differ")
    return report, Localized(contents.key, source, transport, reason, [report], record.megatron)


def _share_contents(agents: Communicator, source: str) -> Contents:
    """Read header and tables once, for all agents. Collective."""

    def read() -> tuple[bytes, bytes]:
        contents = read_contents(source)
        return contents.header.pack(), bytes(contents.tables)

    page, tables = from_rank_0(agents, read, tuple[bytes, bytes], "reading the cache's tables")
    size = Header.length_in(page)
    assert len(page) == HEADER_SIZE
    return Contents(Path(source), Header.unpack(page, source, size), tables)


def _prepare(options: LocalizeOptions, progress: Progress, environment: Mapping[str, str]) -> Store:
    """Make this node's store."""
    if options.megatron and not options.link:
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

    def leave_sign() -> str:
        sign = passing_name(store.caches / "sign")
        sign.touch(0o600)
        return sign.name

    sign = store.caches / from_rank_0(agents, leave_sign, str, "looking at the stores")
    seen = agents.gather_all(agents.rank > 0 and sign.exists(), bool, "looking at the stores")
    if agents.rank == 0:
        with contextlib.suppress(OSError):  # `sweep` removes it then
            sign.unlink()
    if any(seen):
        error = ConfigError(
            f"{store.root}: is one directory for several nodes; name one on the nodes' own disks "
            "with --to"
        )
        error.agreed = True
        raise error


def _fulfils(record: Ready | None, options: LocalizeOptions) -> bool:
    if record is None:
        return False
    named = options.tokenizer is None or options.tokenizer == record.tokenizer
    viewed = not options.megatron or (record.megatron is not None and named)
    return record.linked >= options.link and viewed and options.budget is None


def _look(agents: Communicator, store: Store, source: str, contents: Contents) -> Wanted:
    """Look at every shared corpus once, and say what is wanted. Collective."""
    corpora = describe(contents)
    own = corpora[agents.rank :: agents.size]
    mine = locally(agents, lambda: [look_at(*corpus[:3]) for corpus in own], "looking at corpora")
    shares = agents.gather_all(mine, list[Facts], "a look at the corpora")
    facts = [shares[i % agents.size][i // agents.size] for i in range(len(corpora))]
    return together(
        agents, lambda: make_wanted(store, source, contents, facts), "what the cache needs"
    )
