"""Complete the unfinished file: HDF5 front, tables, header."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from distcache.builder.job import Job
from distcache.cache import open_cache
from distcache.cache.digests import blocks_in
from distcache.cache.format import (
    ARRAY_NAMES,
    BLENDS,
    BLOCKS,
    MEMBERS,
    SECTIONS,
    SHARDS,
    SOURCES,
    TABLES,
    TEXT,
    DatasetPlace,
    Header,
    TablePlace,
)
from distcache.corpus.mds.shard_table import TableFacts, read_table
from distcache.errors import CorpusError
from distcache.plan.config import canonical_json
from distcache.plan.layout import ALIGNMENT, ArrayPlace, Layout, align
from distcache.plan.model import Plan
from distcache.storage.unfinished_file import UnfinishedFile

Digests = Mapping[int, Mapping[str, str]]
# Columns of `sources` that are fields of `CorpusFacts`.
FACTS: Final = (
    "idx_digest",
    "idx_size",
    "bin_size",
    "sequences",
    "documents",
    "tokens",
    "empty_sequences",
    "type_code",
    "view",
)


def lay_out(job: Job, scratch: str) -> None:
    """Write HDF5's metadata, and zeros between arrays. Rank 0 only.

    Parameters
    ----------
    job : Job
        The build.
    scratch : str
        Path of a temporary file.
    """
    from distcache.cache.skeleton import front_bytes  # noqa: PLC0415  h5py is rank 0's alone

    front = front_bytes(scratch, job.layout.data_begin, dataset_places(job.plan, job.layout))
    with UnfinishedFile(job.unfinished) as file:
        file.write(0, front)
        for begin, end in _gaps(job.layout):
            file.write(begin, bytes(end - begin))
        file.sync()


def finish(job: Job, blocks: Sequence[int]) -> None:
    """Write the tables and the header, and check that the file opens. Rank 0 only.

    Parameters
    ----------
    job : Job
        All of its items are built.
    blocks : sequence of int
        The digest of every block.
    """
    places = table_places(job.plan, job.layout)
    tables = compose_tables(job.plan, job.layout, job.digests, blocks)
    begin = job.layout.tables_begin
    content = table_bytes(tables, places, begin)
    header = Header(
        key=job.plan.key,
        file_size=file_size(places),
        tables_begin=begin,
        tables_digest=xxhash.xxh3_128_digest(content),
        tables=places,
    )
    with UnfinishedFile(job.unfinished) as file:
        file.write(begin, content)
        file.write(0, header.pack())
        file.truncate(header.file_size)
        file.sync()
    open_cache(job.unfinished)


def dataset_places(plan: Plan, layout: Layout) -> list[DatasetPlace]:
    """Return every HDF5 dataset in the order of the file: arrays by name and unit, then tables."""
    placed = [(str(entry.unit), entry.place) for entry in layout.datasets]
    arrays = [
        DatasetPlace(place.name, unit, place.dtype, place.shape, place.offset)
        for unit, place in placed
    ]
    tables = [
        DatasetPlace("tables", name, "", (place.rows,), place.offset)
        for name, place in table_places(plan, layout).items()
    ]
    return arrays + tables


def _gaps(layout: Layout) -> Iterator[tuple[int, int]]:
    """Yield the bytes [begin, end) between arrays, and between the last one and the tables."""
    end = layout.data_begin
    for place in (entry.place for entry in layout.datasets):
        if place.offset > end:
            yield end, place.offset
        end = place.offset + place.nbytes
    if layout.tables_begin > end:
        yield end, layout.tables_begin


def table_places(plan: Plan, layout: Layout) -> dict[str, TablePlace]:
    """Return the place of each table: after the arrays."""
    rows = {
        "sources": len(plan.sources),
        "sections": len(plan.sections),
        "blends": len(plan.blends),
        "members": len(plan.members),
        "blocks": blocks_in(layout.tables_begin),
        "identity": len(canonical_json(plan.identity)),
        "naming": len(naming_text(plan)),
        "prefixes": sum(len(source.prefix.encode()) for source in plan.sources),
        "shards": sum(known.shards for known in _shard_facts(plan)),
        "shard_texts": sum(known.text + known.columns for known in _shard_facts(plan)),
    }
    places = {}
    offset = layout.tables_begin
    for name, dtype in TABLES.items():
        if not rows[name]:
            places[name] = TablePlace(layout.tables_begin, 0)  # it has no place
            continue
        places[name] = TablePlace(offset, rows[name])
        offset = align(offset + rows[name] * dtype.itemsize, ALIGNMENT)
    return places


def file_size(places: Mapping[str, TablePlace]) -> int:
    """Return the length of the file in bytes: it ends with its last table that is not empty."""
    return max(
        place.offset + place.rows * TABLES[name].itemsize
        for name, place in places.items()
        if place.rows
    )


def naming_text(plan: Plan) -> str:
    """Return the JSON of what is part of Megatron's names only.

    Unlike the identity it keeps the order of keys: that of the tokenizer's is part of a digest.
    """
    return json.dumps(plan.naming, ensure_ascii=True, allow_nan=False)


def compose_tables(
    plan: Plan, layout: Layout, digests: Digests, blocks: Sequence[int]
) -> dict[str, NDArray[Any]]:
    """Fill the tables.

    Parameters
    ----------
    plan : Plan
        Plan that was built.
    layout : Layout
        Layout of the file.
    digests : mapping of int to mapping of str to str
        The digest of each array, by item and name.
    blocks : sequence of int
        The digest of each block.

    Returns
    -------
    dict of str to ndarray
        Each of its dtype in `TABLES`, one-dimensional.
    """
    shards, texts = _shards(plan)
    tables = ["sections"] * len(plan.sections) + ["blends"] * len(plan.blends)
    units = {item: unit for unit, entry in enumerate(layout.units) for item in entry.items}
    columns = [
        [*_array_columns(table, layout.arrays[item], digests[item]), units[item]]
        for item, table in enumerate(tables)
    ]
    count = len(plan.sections)
    return {
        "sources": _sources(plan),
        "sections": _sections(plan, columns[:count]),
        "blends": _blends(plan, columns[count:]),
        "members": _members(plan),
        "blocks": np.array(blocks, BLOCKS),
        "identity": _text(canonical_json(plan.identity)),
        "naming": _text(naming_text(plan)),
        "prefixes": _text("".join(source.prefix for source in plan.sources)),
        "shards": shards,
        "shard_texts": np.frombuffer(texts, TEXT),
    }


def table_bytes(
    tables: Mapping[str, NDArray[Any]], places: Mapping[str, TablePlace], begin: int
) -> bytes:
    """Return everything from the start of the tables to the end of the file."""
    content = bytearray(file_size(places) - begin)
    for name, place in places.items():
        packed = tables[name].tobytes()
        content[place.offset - begin : place.offset - begin + len(packed)] = packed
    return bytes(content)


def _shard_facts(plan: Plan) -> Iterator[TableFacts]:
    return (source.shards for source in plan.sources if source.shards is not None)


def _shards(plan: Plan) -> tuple[NDArray[Any], bytes]:
    """Return the shards of all corpora, and their texts: of each the names, then the columns.

    Raises
    ------
    CorpusError
        If those of a corpus are not the ones that were examined.
    """
    rows = [np.zeros(0, SHARDS)]
    texts = bytearray()
    for source in plan.sources:
        if source.shards is None:
            continue
        table = read_table(source.prefix)
        if table.facts != source.shards:
            raise CorpusError(f"{source.files[1]}: was written to since it was examined")
        own = table.rows.copy()
        own["name_begin"] += len(texts)
        rows.append(own)
        texts += table.text + table.columns
    return np.concatenate(rows), bytes(texts)


def _sources(plan: Plan) -> NDArray[Any]:
    rows: list[tuple[Any, ...]] = []
    end = shards = texts = 0
    for source in plan.sources:
        begin, end = end, end + len(source.prefix.encode())
        first, columns, digest = shards, texts, ""
        if (known := source.shards) is not None:
            digest, shards = known.digest, shards + known.shards
            columns, texts = texts + known.text, texts + known.text + known.columns
        facts = (getattr(source, name) for name in FACTS)
        rows.append((begin, end, *facts, first, shards, digest, columns, texts))
    return np.array(rows, SOURCES)


def _sections(plan: Plan, columns: Sequence[list[str | int]]) -> NDArray[Any]:
    rows = [
        (
            section.key,
            section.source,
            section.begin,
            section.end,
            section.tokens,
            section.size.passes,
            section.size.samples,
            _or_minus_one(section.size.separate_samples),
            *arrays,
            section.order,
        )
        for section, arrays in zip(plan.sections, columns, strict=True)
    ]
    return np.array(rows, SECTIONS)


def _blends(plan: Plan, columns: Sequence[list[str | int]]) -> NDArray[Any]:
    rows = [
        (blend.key, blend.split, blend.size, blend.exhaustive, *arrays)
        for blend, arrays in zip(plan.blends, columns, strict=True)
    ]
    return np.array(rows, BLENDS)


def _members(plan: Plan) -> NDArray[Any]:
    rows = [
        (
            member.split,
            member.source,
            member.section,
            _or_minus_one(member.requested),
            _or_minus_one(member.blend),
            np.nan if member.weight is None else member.weight,
        )
        for member in plan.members
    ]
    return np.array(rows, MEMBERS)


def _array_columns(
    table: str, places: Sequence[ArrayPlace], digests: Mapping[str, str]
) -> list[str | int]:
    """Return the columns of all arrays that an item of a table may have."""
    known = {place.name: place for place in places}
    columns: list[str | int] = []
    for name in ARRAY_NAMES[table]:
        place = known.get(name)
        if place is None:
            columns += ["", 0, 0, ""]
        else:
            columns += [place.dtype, place.shape[0], place.offset, digests[name]]
    return columns


def _or_minus_one(value: int | None) -> int:
    return -1 if value is None else value


def _text(text: str) -> NDArray[Any]:
    return np.frombuffer(text.encode("utf-8"), TEXT)
