"""Write the index.json that a directory of MDS shards has lost: python mds_index.py DIRECTORY.

The headers of shards say everything but the digests of their files. For raw and zstd shards.
"""

import json
import sys
from pathlib import Path

import zstandard

directory = Path(sys.argv[1])
shards = []
for path in sorted([*directory.glob("*.mds"), *directory.glob("*.mds.zstd")]):
    raw = path.name.removesuffix(".zstd")
    packed = path.with_name(f"{raw}.zstd")
    if shards and shards[-1]["raw_data"]["basename"] == raw:
        continue  # both forms are there
    data = path.read_bytes()
    if path == packed:
        data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    # The number of records, and their offsets to the end of the last; then JSON of the columns.
    records = int.from_bytes(data[:4], "little")
    begin = 4 * (records + 2)
    first, size = (int.from_bytes(data[at : at + 4], "little") for at in (4, begin - 4))
    if not data or len(data) != size:
        sys.exit(f"{path}: has {len(data)} bytes, its header says {size}")
    zipped = {"basename": packed.name, "hashes": {}} if packed.exists() else None
    entry = json.loads(data[begin:first]) | {"samples": records, "hashes": []}
    entry["raw_data"] = {"basename": raw, "bytes": size, "hashes": {}}
    entry["zip_data"] = zipped and zipped | {"bytes": packed.stat().st_size}
    shards.append(entry | {"compression": "zstd" if zipped else None})
if not shards:
    sys.exit(f"{directory}: has no raw and no zstd shards")
with open(directory / "index.json", "x") as file:
    json.dump({"version": 2, "shards": shards}, file)
print(f"{len(shards)} shards, of which the last is {shards[-1]['raw_data']['basename']}")
