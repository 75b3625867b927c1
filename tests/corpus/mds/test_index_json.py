"""The list of the shards of a data set, and the streams that they are compressed as."""

from __future__ import annotations

import bz2
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from distcache.corpus.mds.codecs import MemorySource, unpack
from distcache.corpus.mds.index_json import INDEX, ShardEntry, read_index
from distcache.errors import CorpusError, NotReady
from tests.support.mds_writer import write_mds

ROWS = [{"n": n, "text": f"row {n} " * n} for n in range(40)]
EXAMPLE = Path(__file__).parents[3] / "examples" / "mds_index.py"


@pytest.mark.parametrize("keep_raw", [False, True])
@pytest.mark.parametrize("codec", ["", "zstd"])
def test_the_example_that_makes_it_again(codec: str, keep_raw: bool, tmp_path: Path) -> None:
    """All but the digests comes back; a shard that is cut is named."""
    directory = write_mds(
        tmp_path / "d", {"n": "int", "text": "str"}, ROWS, codec=codec, keep_raw=keep_raw
    )
    before = read_index(directory).shards
    (directory / INDEX).unlink()
    with pytest.raises(NotReady, match=r"examples/mds_index\.py"):
        read_index(directory)
    words = [sys.executable, EXAMPLE, directory]
    subprocess.run(words, check=True, timeout=60)
    after = read_index(directory).shards
    assert [comparable(shard) for shard in after] == [comparable(shard) for shard in before]
    (directory / INDEX).unlink()
    shard = sorted(directory.glob("*.mds*"))[0]
    shard.write_bytes(shard.read_bytes()[:-3])
    done = subprocess.run(words, check=False, timeout=60, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"{shard}: has " in done.stderr


def comparable(shard: ShardEntry) -> dict[str, Any]:
    """Return what headers say of a shard."""
    found = msgspec.to_builtins(shard) | {"hashes": [], "compression": shard.codec}
    for form in ("raw_data", "zip_data"):
        found[form] = found[form] and found[form] | {"hashes": {}}
    return found


@pytest.mark.parametrize(("codec", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress)])
def test_streams_that_follow_one_another(codec: str, compress: object, tmp_path: Path) -> None:
    """They are one, as for Python, which streaming uses; a cut one is damage."""
    assert callable(compress)
    parts = [bytes(range(256)) * 5_000, b"", b"end"]
    data = b"".join(compress(part) for part in parts)
    whole = b"".join(parts)
    found = unpack(codec, MemorySource(data), len(whole), "x")
    assert b"".join(piece.tobytes() for piece in found) == whole
    with pytest.raises(CorpusError, match=r"does not decompress|decompresses to"):
        list(unpack(codec, MemorySource(data[:-6]), len(whole), "x"))


def test_more_fields_of_the_whole_index_are_passed_over(tmp_path: Path) -> None:
    """As streaming does; those of a shard are not."""
    directory = write_mds(tmp_path / "d", {"n": "int"}, [{"n": 1}])
    document = json.loads((directory / INDEX).read_text())
    (directory / INDEX).write_text(json.dumps({**document, "made_by": "us"}))
    assert len(read_index(directory).shards) == 1
