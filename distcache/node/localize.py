"""The way of a cache from the shared filesystem onto every node."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from distcache.cache.contents import Contents, read_contents
from distcache.cache.format import HEADER_SIZE, Header
from distcache.errors import ConfigError
from distcache.files import passing_name
from distcache.node.bring import bring
from distcache.node.lock import changing
from distcache.node.place import NODE_NAME, require_text, required_directory
from distcache.node.record import Ready, read_record
from distcache.node.report import Localized, LocalizeOptions, NodeReport, make_report
from distcache.node.sbcast import require_sbcast
from distcache.node.space import space_at
from distcache.node.store import Store, cache_name, make_store
from distcache.node.wanted import Facts, Wanted, describe, look_at, make_wanted
from distcache.progress import Progress, Silent
from distcache.ranks.agreement import from_rank_0, together
from distcache.ranks.communicator import Communicator

__all__ = ["choose_transport", "localize"]


def choose_transport(asked: str, agents: int) -> tuple[str, str]:
    """Return the transport, and in a few words why."""
    if asked != "auto":
        return asked, "asked for"
    if agents > 1:
        return "mpi", f"{agents} nodes, so that each byte is read from the shared filesystem once"
    return "copy", "one agent, which has nobody to share with"


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
    agents = communicator.agents(environment.get(NODE_NAME, ""))
    source = os.path.abspath(cache)

    def act() -> Localized | None:
        require_text(source)
        if agents is None:
            return None
        return _as_agent(agents, source, options, progress or Silent(), environment)

    done = together(communicator, act, "the agents of the nodes")
    result: Localized = communicator.broadcast(done, Localized, "what was localized")
    return result


def _as_agent(
    agents: Communicator,
    source: str,
    options: LocalizeOptions,
    progress: Progress,
    environment: Mapping[str, str],
) -> Localized:
    """Localize on this agent's node. Collective over the agents."""
    transport, reason = choose_transport(options.transport, agents.size)
    if transport == "sbcast":
        require_sbcast(agents, environment)
    progress.note(f"transport {transport}: {reason}")
    progress.phase("reading what the cache says")
    contents = _share_contents(agents, source)
    store = together(agents, lambda: _prepare(options, progress, environment), "the stores")
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
    nodes = agents.gather_all(report, NodeReport, "what the agents did")
    if record.megatron is not None and len({node.directory for node in nodes}) > 1:
        progress.note("warning: the nodes use different directories, so Megatron's options differ")
    return Localized(contents.key, source, transport, reason, nodes, record.megatron)


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

    def look() -> None:
        if agents.rank > 0 and sign.exists():
            raise ConfigError(
                f"{store.root}: is one directory for several nodes; name one on the nodes' own "
                "disks with --to"
            )

    try:
        together(agents, look, "looking at the stores")
    finally:
        if agents.rank == 0:
            sign.unlink(missing_ok=True)


def _fulfils(record: Ready | None, options: LocalizeOptions) -> bool:
    if record is None:
        return False
    named = options.tokenizer is None or options.tokenizer == record.tokenizer
    viewed = not options.megatron or (record.megatron is not None and named)
    return record.linked >= options.link and viewed


def _look(agents: Communicator, store: Store, source: str, contents: Contents) -> Wanted:
    """Look at every shared corpus once, and say what is wanted. Collective."""
    corpora = describe(contents)
    mine = [look_at(*corpus[:3]) for corpus in corpora[agents.rank :: agents.size]]
    shares = agents.gather_all(mine, list[Facts], "a look at the corpora")
    facts = [shares[i % agents.size][i // agents.size] for i in range(len(corpora))]
    return together(
        agents, lambda: make_wanted(store, source, contents, facts), "what the cache needs"
    )
