"""Run by `against_megatron.py` in a process of its own: open a cache and look up all of its arrays.

Writes one line of JSON with the seconds beyond imports, and how often the file is open and mapped.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from distcache.cache import open_cache


def main() -> None:
    """Open the cache in the first argument."""
    path = Path(sys.argv[1]).resolve()
    begin = time.perf_counter()
    cache = open_cache(path)
    opened = time.perf_counter() - begin
    arrays = [
        cache.read(view)
        for table in ("sections", "blends")
        for row in range(len(cache.table(table)))
        for view in cache.arrays(table, row).values()
    ]
    viewed = time.perf_counter() - begin
    descriptors = [entry.resolve() for entry in Path("/proc/self/fd").iterdir() if entry.exists()]
    found = {
        "open": opened,
        "all arrays": viewed,
        "arrays": len(arrays),
        "open files": descriptors.count(path),
        "mappings": Path("/proc/self/maps").read_text(encoding="utf-8").count(str(path)),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
