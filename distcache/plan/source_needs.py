"""What training asks of buckets and of shards, and how a node had best read them."""

from __future__ import annotations

import collections
from collections.abc import Set
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from distcache.corpus.idx import ITEM_TYPES
from distcache.corpus.mds.shard_table import read_table
from distcache.option import Option
from distcache.plan.model import Plan, SectionPlan
from distcache.storage.place import PIECE_BYTES
from distcache.storage.units import counted, parse_positive_size
from distcache.storage.url import is_url


class ShardNeeds(msgspec.Struct, frozen=True):
    """Space and opens."""

    # number of corpora that consist of shards, of these shards, and of those that are compressed
    corpora: int
    shards: int
    compressed: int
    stored_bytes: int  # bytes of the files
    # bytes that `localize` unpacks onto each node: the raw bytes of compressed shards
    node_bytes: int
    files_per_sample: float  # mean number of shards that have a part of a sample of these corpora


def shard_needs(plan: Plan) -> ShardNeeds | None:
    """Return what the shards need, or None if no corpus consists of any.

    Raises
    ------
    NotReady, CorpusError
        If a `.shards` file has gone, or is damaged.
    """
    prefixes = [source.prefix for source in plan.sources if source.shards is not None]
    if not prefixes:
        return None
    tables = [read_table(prefix).rows for prefix in prefixes]
    packed = [rows["codec"] > 0 for rows in tables]
    stored = [
        int(rows["zip_size"][zipped].sum() + rows["raw_size"][~zipped].sum())
        for rows, zipped in zip(tables, packed, strict=True)
    ]
    raw = [int(rows["raw_size"][zipped].sum()) for rows, zipped in zip(tables, packed, strict=True)]
    return ShardNeeds(
        corpora=len(tables),
        shards=sum(map(len, tables)),
        compressed=sum(int(zipped.sum()) for zipped in packed),
        stored_bytes=sum(stored),
        node_bytes=sum(raw),
        files_per_sample=_files_per_sample(plan),
    )


def _files_per_sample(plan: Plan) -> float:
    """Return the parts of a sample, in the mean over all samples."""
    known = [section for section in plan.sections if plan.sources[section.source].shards]
    samples = sum(section.size.samples for section in known)
    # A sample has a part, and one more at each end of a document within it.
    documents = sum(section.documents for section in known if not section.rows)
    return (samples + documents) / samples if samples else 0.0


PREFIX_RATE: Final = 5500  # requests a second that S3 serves for a prefix
LOW_RATE: Final = 1000  # samples a second, below which a plan warns of the prefixes
Way = Literal["ranges", "copy"]


class BucketOptions(msgspec.Struct, frozen=True):
    """What training from a bucket is planned for."""

    bucket: Annotated[
        bool, Option("Also estimate bucket reads for corpora that are not in a bucket yet.")
    ] = False
    training_nodes: Annotated[
        int, Option("Nodes that read data in training, from a bucket.", least=1)
    ] = 1
    node_disk: Annotated[
        int | None,
        Option("Space for data on a node, for example 2T.", parse=parse_positive_size),
    ] = None


class WayNeeds(msgspec.Struct, frozen=True):
    """What one way to read costs all nodes together."""

    way: Way
    requests: int
    nbytes: int
    node_disk: int  # bytes of a node's disk; of ranges, the budget decides
    fits: bool  # whether a node's disk holds it


class BucketNeeds(msgspec.Struct, frozen=True):
    """What training asks of buckets."""

    # number of corpora in buckets, and bytes of their tokens
    corpora: int
    nbytes: int
    samples: int  # samples of training of these corpora
    # mean of a sample: ranges, which are as many requests, and bytes
    requests_per_sample: float
    bytes_per_sample: float
    passes: float  # bytes that training reads, by bytes of the corpora
    prefixes: int  # number of prefixes of these corpora
    samples_per_second: float  # that all nodes together can read by ranges from these prefixes
    ways: list[WayNeeds]
    best: Way
    reason: str  # reason why it is the best, in a few words


def bucket_needs(
    plan: Plan,
    options: BucketOptions = BucketOptions(),  # noqa: B008  frozen
) -> BucketNeeds | None:
    """Return what training asks of buckets, or None if no corpus is in one.

    Parameters
    ----------
    plan : Plan
        The plan.
    options : BucketOptions
        Nodes and disks.
    """
    remote = {
        number
        for number, source in enumerate(plan.sources)
        if is_url(source.prefix) or (options.bucket and source.shards is None)
    }
    if not remote:
        return None
    nbytes = sum(plan.sources[source].bin_size for source in remote)
    totals = _totals(plan, remote)
    names = [plan.sources[source].prefix for source in remote]
    # `distcache upload` lays all that are not in a bucket below one.
    prefixes = len({name.rpartition("/")[0] if is_url(name) else "" for name in names})
    each = totals.requests / totals.samples if totals.samples else 0.0
    passes = totals.nbytes / nbytes if nbytes else 0.0
    best, reason = _choose(passes / options.training_nodes, nbytes, options.node_disk)
    return BucketNeeds(
        corpora=len(remote),
        nbytes=nbytes,
        samples=round(totals.samples),
        requests_per_sample=each,
        bytes_per_sample=totals.nbytes / totals.samples if totals.samples else 0.0,
        passes=passes,
        prefixes=prefixes,
        samples_per_second=PREFIX_RATE * prefixes / each if each else 0.0,
        ways=_ways(plan, remote, totals, options),
        best=best,
        reason=reason,
    )


class _Totals(NamedTuple):
    """What training reads by ranges, of corpora in buckets."""

    samples: float
    requests: float
    nbytes: float


def _totals(plan: Plan, remote: Set[int]) -> _Totals:
    samples = requests = nbytes = 0.0
    for section, taken in _taken(plan):
        if section.source in remote and section.tokens:
            # Tokens and sequences of a sample, in the mean.
            tokens = section.tokens * section.size.passes / max(section.size.samples, 1)
            sequences = tokens * (section.end - section.begin) / section.tokens
            samples += taken
            requests += taken * (1.0 + sequences)
            nbytes += taken * tokens * ITEM_TYPES[plan.sources[section.source].type_code].itemsize
    return _Totals(samples, requests, nbytes)


def _ways(plan: Plan, remote: Set[int], totals: _Totals, options: BucketOptions) -> list[WayNeeds]:
    nodes, sizes = options.training_nodes, [plan.sources[source].bin_size for source in remote]
    on_each = sum(sizes)
    whole = nodes * sum(-(-size // PIECE_BYTES) for size in sizes)

    def way(name: Way, requests: float, nbytes: float, node_disk: int) -> WayNeeds:
        fits = options.node_disk is None or node_disk <= options.node_disk
        return WayNeeds(name, round(requests), round(nbytes), node_disk, fits)

    return [
        way("ranges", totals.requests, totals.nbytes, 0),
        way("copy", whole, nodes * on_each, on_each),
    ]


def prefix_warnings(needs: BucketNeeds | None) -> list[str]:
    """Return a warning if prefixes do not serve many samples a second."""
    if needs is None or not 0 < needs.samples_per_second < LOW_RATE:
        return []
    return [
        f"the corpora are below {counted(needs.prefixes, 'prefix', 'prefixes')}; S3 serves some "
        f"{PREFIX_RATE:,} requests a second for each, and so {needs.samples_per_second:,.0f} "
        "samples a second for all nodes, if they are read by ranges; put corpora below several "
        "prefixes, or localize with --bin copy"
    ]


def _taken(plan: Plan) -> list[tuple[SectionPlan, float]]:
    """Return the sections of training, and how many samples of each it takes."""
    members = [member for member in plan.members if member.split == "train"]
    counts = collections.Counter(member.blend for member in members)
    found = []
    for member in members:
        section = plan.sections[member.section]
        taken = float(section.size.samples)
        if member.blend is not None and member.weight is not None:
            taken = member.weight * plan.blends[member.blend].size
        elif member.requested is not None and counts[member.blend] == 1:
            taken = min(taken, member.requested)
        found.append((section, taken))
    return found


def _choose(passes: float, nbytes: int, disk: int | None) -> tuple[Way, str]:
    """Return the best way for a node that reads the corpora so many times, and why."""
    if passes < 1:
        return "ranges", f"a node reads {100 * passes:.0f} % of the corpora"
    if disk is not None and nbytes > disk:
        return "ranges", "a node's disk does not hold the corpora"
    return "copy", f"a node reads the corpora {passes:.1f} times"
