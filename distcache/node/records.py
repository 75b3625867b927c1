"""What a localization is asked for, what it records when it is complete, and what it reports."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from distcache.corpus import bin_path
from distcache.errors import ConfigError
from distcache.megatron.arguments import Readers, parse_readers
from distcache.megatron.export import Exported
from distcache.megatron.names import Naming
from distcache.megatron.tokenizers import Release
from distcache.node.store import Store, local_directory, part_of
from distcache.option import Option
from distcache.ranks.job_environment import node_name
from distcache.storage.files import FileVersion, atomic_write, is_plain_file_of, read_file
from distcache.storage.space import allocated, space_at
from distcache.storage.threads import decodable
from distcache.storage.units import parse_positive_size, parse_share, parse_size
from distcache.storage.url import path_only

VERSION: Final = 1
LARGEST: Final = 1 << 30  # bytes of a record that is read
DEFAULT_SHARDS: Final = "compressed"  # corpora whose shards are unpacked by default
AHEAD: Final = "ahead"  # the node's fetcher unpacks shards ahead of training
SHARD_CHOICES: Final = ("none", AHEAD, "compressed", "all")  # from least to most unpacked


class LocalCorpus(msgspec.Struct, frozen=True):
    """A corpus of a localized cache."""

    shared: str  # absolute path on the shared filesystem, or URL, without suffix
    stem: str  # name in the store
    idx_size: int  # bytes of its index
    # bytes of its `.bin` in the store, into which shards were unpacked, or the shared one was
    # copied; 0 without one
    bin_size: int = 0
    # whether there is a `.bin`, here or beside the shared index; else shards are read
    has_tokens: bool = True
    copied: bool = False  # whether the `.bin` in the store is a copy of the shared one
    # version of the shared `.bin`, if it is an object, was copied, or is read by the fetcher
    bin_version: FileVersion | None = None
    behind: bool = False  # whether the fetcher copies the shared `.bin` here, behind training


@decodable
class Ready(msgspec.Struct, frozen=True):
    """The ready record: the completion marker of a copy."""

    name: str  # name of the cache in the store
    key: str  # the cache's identity
    source: str  # absolute path, or URL, of the shared cache
    size: int  # bytes of the cache
    corpora: tuple[LocalCorpus, ...]  # corpora in the order of the cache's sources
    linked: bool  # whether the store has links to the `.bin` files
    megatron: Exported | None  # Megatron's files and options
    # parts of the names of Megatron's files: see `naming`
    tokenizer: dict[str, Any] | None
    # time (ISO 8601, UTC), node and version of the agent
    when: str
    host: str
    distcache: str
    version: int = VERSION  # version of this record
    modified: int = 0  # modification time of the cache in nanoseconds; 0 if unknown
    releases: tuple[Release, ...] = ()
    fim: bool | None = None
    shards: str = "none"  # value of `LocalizeOptions.shards`
    copied: bool = False  # value of `LocalizeOptions.copy`
    read_ahead: bool = False  # value of `LocalizeOptions.read_ahead`
    # values of `LocalizeOptions.behind`, `LocalizeOptions.share` and `LocalizeOptions.reserve`
    behind: bool = False
    share: float = 0.0
    reserve: int = 0

    @property
    def naming(self) -> Naming:
        """What decides the names of Megatron's files, beside the cache."""
        framework = None if self.megatron is None else self.megatron.framework
        return Naming(self.tokenizer, self.releases, self.fim, framework)


def write_record(store: Store, record: Ready) -> None:
    """Mark a copy complete. Everything that the record names has been synced."""
    with atomic_write(store.ready(record.name)) as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(record), indent=1))


def read_record(store: Store, name: str) -> Ready | None:
    """Return the record of a copy; None if there is no valid one of this version."""
    try:
        text = read_file(store.ready(name), LARGEST, follow=False)
        record = msgspec.json.decode(text, type=Ready)
    except (OSError, ValueError, RecursionError):
        return None
    sound = record.version == VERSION and record.name == name
    sound &= not any("/" in corpus.stem or "\0" in corpus.stem for corpus in record.corpora)
    if not sound:
        return None
    corpora = tuple(_with_copy(store, corpus) for corpus in record.corpora)
    return msgspec.structs.replace(record, corpora=corpora)


def _with_copy(store: Store, corpus: LocalCorpus) -> LocalCorpus:
    """Return a corpus with the copy that was made of it behind training, if it is complete."""
    if not corpus.behind or corpus.bin_version is None or corpus.bin_size:
        return corpus
    if not is_plain_file_of(bin_path(store.prefix(corpus.stem)), corpus.bin_version.size):
        return corpus
    return msgspec.structs.replace(corpus, bin_size=corpus.bin_version.size, copied=True)


def bytes_to_copy(store: Store, corpora: Iterable[LocalCorpus]) -> int:
    """Return the bytes of the copies that training has still to make of corpora."""
    left = {
        corpus.stem: corpus.bin_version.size
        for corpus in corpora
        if corpus.behind and corpus.bin_version is not None and not corpus.bin_size
    }
    paths = {stem: Path(bin_path(store.prefix(stem))) for stem in left}
    return sum(max(size - allocated(part_of(paths[stem])), 0) for stem, size in left.items())


def read_records(store: Store) -> Iterator[Ready]:
    """Yield the records of a store, in the order of their names."""
    try:
        names = sorted(os.listdir(store.caches))
    except OSError:
        return
    for name in names:
        if name.endswith(".json") and not name.startswith("."):
            record = read_record(store, name.removesuffix(".json"))
            if record is not None:
                yield record


def invalidate(store: Store, name: str) -> None:
    """Mark a copy incomplete."""
    store.ready(name).unlink(missing_ok=True)


def joined_naming(before: Naming, now: Naming) -> Naming:
    """Return the naming of a run, in which an earlier one says what this one does not.

    Releases belong to a framework: another one keeps the tokenizer only.
    """
    tokenizer = before.tokenizer if now.tokenizer is None else now.tokenizer
    framework = now.framework or before.framework
    says_nothing = now == Naming(framework=now.framework)
    if says_nothing and framework == before.framework:
        return before
    return Naming(tokenizer, now.releases, now.fim, framework)


class LocalizeOptions(msgspec.Struct, frozen=True):
    """How to localize.

    Attributes
    ----------
    link, copy, behind : bool
        Whether the store gets links to the `.bin` files, or verified copies, now or while training
        runs.
    megatron : bool
        Whether the store gets the files of Megatron or another framework, too.
    naming : Naming
        Framework, tokenizer and releases, which decide the names of these files.
    moves : tuple of (str, str)
        Directories of corpora, at the time of the build and now.
    """

    directory: Annotated[
        str | None,
        Option(
            "The store, a directory of the node; by default DISTCACHE_LOCAL_DIR, or distcache-UID "
            "in SLURM_TMPDIR or TMPDIR.",
            "--store",
            path_only,
        ),
    ] = None
    link: bool = True
    copy: bool = False
    behind: bool = False
    share: Annotated[
        float,
        Option(
            "Share of the time, and so of the link, in which --bin behind copies.",
            parse=parse_share,
            shown="25%",
            metavar="PERCENT",
        ),
    ] = 0.25
    read_ahead: Annotated[
        bool,
        Option(
            "Let the node's fetcher read .bin files of a slow shared filesystem ahead of "
            "training, as it does those of a bucket."
        ),
    ] = False
    megatron: bool = False
    shards: Annotated[
        Literal["compressed", "all", "ahead", "none"] | None,
        Option(
            "MDS corpora to unpack on the node: those with compressed shards, or all; or let the "
            "node's fetcher unpack them ahead of training, within a budget; or none. By default as "
            "before, at first compressed."
        ),
    ] = None
    naming: Naming = Naming()
    transport: Annotated[
        Literal["auto", "mpi", "copy"],
        Option("mpi: each byte is read once for all nodes; copy: by each node."),
    ] = "auto"
    reserve: Annotated[
        int, Option("Space to leave free, for example 50G.", parse=parse_size, shown="0")
    ] = 0
    budget: Annotated[
        int | None,
        Option(
            "Bytes that the store may take, for example 200G; older copies go.",
            parse=parse_positive_size,
        ),
    ] = None
    readers: Annotated[
        Readers | None,
        Option(
            "The layout of training: nodes of which no rank reads data, such as those of pipeline "
            "stages in the middle, localize nothing.",
            parse=parse_readers,
            metavar="tp=N,pp=N,cp=N,gpus=N",
        ),
    ] = None
    quick: Annotated[
        bool, Option("Trust a copy by its record, sizes and times; read none of its bytes.")
    ] = False
    best_effort: Annotated[
        bool,
        Option("Report nodes that cannot hold a copy, and continue: they read the shared file."),
    ] = False
    threads: Annotated[int, Option("Blocks that a node reads at a time.", least=1)] = 4
    moves: tuple[tuple[str, str], ...] = ()

    def joined(self, before: Ready | None) -> LocalizeOptions:
        """Add what an earlier run was asked for, which its copy continues to have."""
        if before is None:
            return msgspec.structs.replace(self, shards=self._joined_shards(""))
        naming = joined_naming(before.naming, self.naming)
        return msgspec.structs.replace(
            self,
            link=self.link or before.linked,
            copy=self.copy or before.copied,
            behind=(self.behind or before.behind) and not (self.copy or before.copied),
            share=self.share if self.behind else before.share or self.share,
            reserve=self.reserve if self.behind else before.reserve,
            read_ahead=self.read_ahead or before.read_ahead,
            megatron=self.megatron or before.megatron is not None,
            shards=self._joined_shards(before.shards),
            naming=naming,
        )

    def _joined_shards(self, before: str) -> str:
        """Return which shards are unpacked: as before, or not fewer."""
        earlier = SHARD_CHOICES.index(before) if before in SHARD_CHOICES else None
        if self.shards is None:
            return DEFAULT_SHARDS if earlier is None else before
        wanted = SHARD_CHOICES.index(self.shards)
        return SHARD_CHOICES[max(earlier or 0, wanted)]

    def are_fulfilled_by(self, record: Ready | None) -> bool:
        """Return whether a copy has all that is asked for, so that nothing is left to do."""
        if record is None or self.budget is not None:
            return False
        wanted = self.joined(record)
        has_view = record.megatron is not None and wanted.naming == record.naming
        return (
            record.linked >= self.link
            and record.copied >= self.copy
            and (record.behind or record.copied) >= self.behind
            and (
                (record.share, record.reserve) == (wanted.share, wanted.reserve)
                or not wanted.behind
            )
            and record.read_ahead >= self.read_ahead
            and record.shards == wanted.shards
            and (has_view or not self.megatron)
        )

    def require_possible(self, before: Ready | None) -> None:
        """Refuse to unpack ahead what an earlier run has unpacked.

        Raises
        ------
        ConfigError
            If an earlier run has unpacked them; the message says what to do.
        """
        unpacked = before is not None and any(
            corpus.bin_size and not corpus.copied for corpus in before.corpora
        )
        if before is not None and unpacked and self.shards == AHEAD:
            raise ConfigError(
                f"{before.source}: its shards are unpacked on this node already, so that nothing "
                "is left to unpack ahead; remove the copy first (`distcache local gc`)"
            )


class NodeReport(msgspec.Struct, frozen=True):
    """What one agent did."""

    # name of the node, its store, and the cache in it
    node: str
    directory: str
    cache: str
    # bytes read from the shared filesystem, copied from other caches of the store, written, and
    # already valid
    read: int
    reused: int
    written: int
    kept: int
    memory: int  # bytes of the copy that take memory, because the store is a tmpfs
    problem: str = ""  # why the node has no copy and reads the shared file; empty if it has one
    beyond: int = 0  # bytes beyond the budget: this copy and those in use are never removed


class Localized(msgspec.Struct, frozen=True):
    """The result of a localization.

    Attributes
    ----------
    key, source : str
        The cache's identity and its absolute path.
    transport, reason : str
        Transport of the copy, and why it was chosen.
    nodes : list of NodeReport
        Report of each agent.
    megatron : Exported or None
        Megatron's files and options on the first node; the same on all that use one directory.
    """

    key: str
    source: str
    transport: str
    reason: str
    nodes: list[NodeReport]
    megatron: Exported | None


def empty_report(directory: str | None, environment: Mapping[str, str], problem: str) -> NodeReport:
    """Return the report of a node that has no copy; without a problem, if it needs none."""
    store = str(local_directory(directory, environment))
    return NodeReport(node_name(environment), store, "", 0, 0, 0, 0, 0, problem)


def make_report(
    store: Store,
    record: Ready,
    read: int = 0,
    reused: int = 0,
    written: int = 0,
    kept: int = 0,
    beyond: int = 0,
) -> NodeReport:
    """Return the report of an agent."""
    sizes = {corpus.stem: corpus.idx_size + corpus.bin_size for corpus in record.corpora}
    size = record.size + sum(sizes.values())
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
