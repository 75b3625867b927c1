"""What the shards of a plan's corpora ask of disks and filesystems."""

from __future__ import annotations

import msgspec

from distcache.corpus.mds.shard_table import read_table
from distcache.plan.model import Plan


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
