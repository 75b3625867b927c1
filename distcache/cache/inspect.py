"""What a cache holds, as a document of plain values; docs/commands.md describes it."""

from __future__ import annotations

import math
from typing import Any

from distcache.cache.contents import Contents
from distcache.cache.format import ARRAY_NAMES


def inspect_document(cache: Contents) -> dict[str, Any]:
    """Return everything about a cache but its arrays, ready for JSON."""
    return {
        "path": str(cache.path),
        "key": cache.key,
        "file_bytes": cache.header.file_size,
        "identity": cache.identity,
        "naming": cache.naming,
        "sources": _sources(cache),
        "sections": _with_arrays(cache, "sections"),
        "blends": _with_arrays(cache, "blends"),
        "members": [_member(cache, _row(entry)) for entry in cache.table("members")],
    }


def _sources(cache: Contents) -> list[dict[str, Any]]:
    sources = []
    for entry, prefix in zip(cache.table("sources"), cache.prefixes, strict=True):
        fields = _row(entry)
        for name in ("prefix_begin", "prefix_end", "columns_begin", "columns_end"):
            del fields[name]
        fields["view"] = bool(fields["view"])
        sources.append({"prefix": prefix, **fields})
    return sources


def _with_arrays(cache: Contents, table: str) -> list[dict[str, Any]]:
    return [
        {
            **{name: value for name, value in _row(entry).items() if not _is_array_column(name)},
            "arrays": _arrays(cache, table, row),
        }
        for row, entry in enumerate(cache.table(table))
    ]


def _member(cache: Contents, fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "split": fields["split"],
        "corpus": cache.prefixes[fields["source"]],
        "section": fields["section"],
        "requested": None if fields["requested"] < 0 else fields["requested"],
        "blend": None if fields["blend"] < 0 else fields["blend"],
        "weight": None if math.isnan(fields["weight"]) else fields["weight"],
    }


def _row(entry: Any) -> dict[str, Any]:
    values = {name: entry[name].item() for name in entry.dtype.names}
    if "exhaustive" in values:
        values["exhaustive"] = bool(values["exhaustive"])
    return {
        name: value.decode("ascii") if isinstance(value, bytes) else value
        for name, value in values.items()
    }


def _is_array_column(name: str) -> bool:
    return any(name.startswith(f"{array}_") for names in ARRAY_NAMES.values() for array in names)


def _arrays(cache: Contents, table: str, row: int) -> dict[str, Any]:
    return {
        name: {
            "dtype": view.dtype.name,
            "shape": list(view.shape),
            "offset": view.offset,
            "digest": view.digest,
        }
        for name, view in cache.arrays(table, row).items()
    }
