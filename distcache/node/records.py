"""What a localization is asked for, what it records when it is complete, and what it reports."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal

import msgspec

from distcache.errors import ConfigError
from distcache.megatron.arguments import ParallelLayout, parse_readers
from distcache.megatron.export import Exported
from distcache.megatron.names import Naming
from distcache.node.store import Store, local_directory
from distcache.option import Option
from distcache.ranks.job_environment import node_name
from distcache.storage.files import FileVersion, atomic_write, read_file
from distcache.storage.space import space_at
from distcache.storage.threads import decodable
from distcache.storage.units import parse_positive_size, parse_size
from distcache.storage.url import is_url, path_only

VERSION: Final = 1
MAX_RECORD_BYTES: Final = 1 << 30  # bytes of a record that is read
TokensChoice = Literal["none", "link", "ahead", "copy"]
AHEAD: Final = "ahead"  # the node's fetcher reads tokens and unpacks shards ahead of training
# from least to most on the node
TOKENS: Final[tuple[TokensChoice, ...]] = ("none", "link", AHEAD, "copy")


class LocalCorpus(msgspec.Struct, frozen=True):
    """A corpus of a localized cache."""

    shared: str  # absolute path on the shared filesystem, or URL, without suffix
    stem: str  # name in the store
    idx_size: int  # bytes of its index; 0 of a corpus that is gone, and is drawn no more
    # bytes of its `.bin` in the store, into which shards were unpacked, or the shared one was
    # copied; 0 without one
    bin_size: int = 0
    # whether there is a `.bin`, here or beside the shared index; else shards are read
    has_tokens: bool = True
    copied: bool = False  # whether the `.bin` in the store is a copy of the shared one
    loss_size: int = 0  # bytes of its loss mask in the store; 0 if it has none, or a shared file
    bin_modified: int = 0  # modification time of that `.bin` in nanoseconds; 0 if unknown
    # version of the shared `.bin`, if it is an object, was copied, or is read by the fetcher
    bin_version: FileVersion | None = None

    @property
    def size(self) -> int:
        """Bytes of its files in the store."""
        return self.idx_size + self.bin_size + self.loss_size

    @property
    def is_linked(self) -> bool:
        """Whether the store can have a link to its shared `.bin`."""
        return not self.bin_size and self.has_tokens and not is_url(self.shared)


class Request(msgspec.Struct, frozen=True):
    """What a node's copy of a cache is to have.

    Attributes
    ----------
    tokens : str
        Place of the tokens that training reads: `link`, the shared `.bin` files and raw shards,
        and compressed shards that were unpacked; `ahead`, what the node's fetcher reads and
        unpacks; `copy`, copies of everything; `none`, as `link`, but without the links and without
        unpacking.
    naming : Naming or None
        Facts that decide the names of Megatron's files; None without such files.
    """

    tokens: TokensChoice = "link"
    naming: Naming | None = None

    def joined(self, before: Request) -> Request:
        """Add what an earlier run was asked for, which its copy continues to have."""
        naming = self.naming or before.naming
        if self.naming is not None and before.naming is not None:
            naming = joined_naming(before.naming, self.naming)
        return Request(max(self.tokens, before.tokens, key=TOKENS.index), naming)


@decodable
class Ready(msgspec.Struct, frozen=True):
    """The ready record: the completion marker of a copy."""

    name: str  # name of the cache in the store
    key: str  # the cache's identity
    source: str  # absolute path, or URL, of the shared cache
    size: int  # bytes of the cache
    corpora: tuple[LocalCorpus, ...]  # corpora in the order of the cache's sources
    request: Request  # what the copy has
    megatron: Exported | None  # Megatron's files and options
    # time (ISO 8601, UTC), node and version of the agent
    when: str
    host: str
    distcache: str
    version: int = VERSION  # version of this record
    modified: int = 0  # modification time of the cache in nanoseconds; 0 if unknown


def write_record(store: Store, record: Ready) -> None:
    """Mark a copy complete. Everything that the record names has been synced."""
    with atomic_write(store.ready(record.name)) as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(record), indent=1))


def read_record(store: Store, name: str) -> Ready | None:
    """Return the record of a copy; None if there is no valid one of this version."""
    try:
        text = read_file(store.ready(name), MAX_RECORD_BYTES, follow=False)
        record = msgspec.json.decode(text, type=Ready)
    except (OSError, ValueError, RecursionError):
        return None
    sound = record.version == VERSION and record.name == name
    sound &= not any("/" in corpus.stem or "\0" in corpus.stem for corpus in record.corpora)
    if not sound:
        return None
    return record


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
    """Return the naming of a run, in which an earlier one says what this one does not."""
    if now == Naming():
        return before
    tokenizer = before.tokenizer if now.tokenizer is None else now.tokenizer
    return msgspec.structs.replace(now, tokenizer=tokenizer)


class LocalizeOptions(msgspec.Struct, frozen=True):
    """How to localize.

    Attributes
    ----------
    naming : Naming or None
        Names of Megatron's files, if the store gets them, too.
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
    tokens: Annotated[
        TokensChoice,
        Option(
            "Place of the tokens that training reads. link: the shared .bin files and MDS shards; "
            "compressed shards are unpacked on the node. ahead: the node's fetcher reads .bin "
            "files and unpacks shards ahead of training, within a budget. copy: verified copies. "
            "none: no links, and nothing is unpacked. A later run keeps what an earlier one has "
            "made.",
            "--bin",
        ),
    ] = "link"
    naming: Naming | None = None
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
        ParallelLayout | None,
        Option(
            "Layout of training: nodes whose ranks read no data, such as middle pipeline stages, "
            "localize nothing.",
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
    threads: Annotated[
        int, Option("Blocks that a node reads at a time.", "--parallel", least=1)
    ] = 4
    moves: tuple[tuple[str, str], ...] = ()

    @property
    def request(self) -> Request:
        """What is asked for."""
        return Request(self.tokens, self.naming)

    def joined(self, before: Ready | None) -> Request:
        """Return what is asked for, with what an earlier run was asked for.

        Raises
        ------
        ConfigError
            If shards are to be unpacked ahead that an earlier run has unpacked.
        """
        if before is None:
            return self.request
        wanted = self.request.joined(before.request)
        unpacked = any(corpus.bin_size and not corpus.copied for corpus in before.corpora)
        if unpacked and wanted.tokens == AHEAD:
            raise ConfigError(
                f"{before.source}: its shards are unpacked on this node already, so nothing is "
                "left to unpack ahead; first remove the copies that no job uses "
                "(`distcache local gc --budget 0`)"
            )
        return wanted

    def are_fulfilled_by(self, record: Ready | None) -> bool:
        """Return whether a copy has all that is asked for, so that nothing is left to do."""
        if record is None or self.budget is not None:
            return False
        return record.request == self.request.joined(record.request)


class NodeReport(msgspec.Struct, frozen=True):
    """What one agent did."""

    # name of the node, its store, and the cache in it
    node: str
    directory: str
    cache: str
    # bytes read from the shared filesystem, written, and already valid
    read: int
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
    nodes : list of NodeReport
        Report of each agent.
    megatron : Exported or None
        Megatron's files and options on the first node; the same on all that use one directory.
    """

    key: str
    source: str
    nodes: list[NodeReport]
    megatron: Exported | None


def empty_report(directory: str | None, environment: Mapping[str, str], problem: str) -> NodeReport:
    """Return the report of a node that has no copy; without a problem, if it needs none."""
    store = str(local_directory(directory, environment))
    return NodeReport(node_name(environment), store, "", 0, 0, 0, 0, problem)


def make_report(
    store: Store,
    record: Ready,
    read: int = 0,
    written: int = 0,
    kept: int = 0,
    beyond: int = 0,
) -> NodeReport:
    """Return the report of an agent."""
    sizes = {corpus.stem: corpus.size for corpus in record.corpora}
    size = record.size + sum(sizes.values())
    return NodeReport(
        node=node_name(os.environ),
        directory=str(store.root),
        cache=str(store.cache(record.name)),
        read=read,
        written=written,
        kept=kept,
        memory=size if space_at(store.root).in_memory else 0,
        beyond=beyond,
    )
