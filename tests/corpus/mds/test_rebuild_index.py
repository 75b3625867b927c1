"""A lost index.json is made again from the shards."""

from __future__ import annotations

import bz2
import gzip
import json
from pathlib import Path

import pytest

from distcache.corpus.mds.codecs import MemorySource, unpack
from distcache.corpus.mds.index_json import INDEX, read_index
from distcache.corpus.mds.rebuild_index import rebuild_index
from distcache.errors import ConfigError, CorpusError, NotReady
from tests.support.mds_writer import write_mds
from tests.support.processes import start

CODECS = ["", "zstd", "gz", "bz2", "br", "snappy"]
ROWS = [{"n": n, "text": f"row {n} " * n} for n in range(40)]


def nothing(_: int) -> None:
    """Report no progress."""


@pytest.mark.parametrize("keep_raw", [False, True])
@pytest.mark.parametrize("codec", CODECS)
def test_all_but_the_digests_comes_back(codec: str, keep_raw: bool, tmp_path: Path) -> None:
    """All but the digests comes back in every compression, with and without the raw shards."""
    directory = write_mds(
        tmp_path / "d", {"n": "int", "text": "str"}, ROWS, codec=codec, keep_raw=keep_raw
    )
    before = json.loads((directory / INDEX).read_text())
    (directory / INDEX).unlink()
    with pytest.raises(NotReady, match="`distcache index rebuild` makes it again"):
        read_index(directory)
    assert rebuild_index(str(directory), 2, nothing).shards == len(before["shards"])
    after = json.loads((directory / INDEX).read_text())
    for shard in (*before["shards"], *after["shards"]):
        for form in ("raw_data", "zip_data"):
            if shard[form] is not None:
                shard[form]["hashes"] = {}
        shard["compression"] = (shard["compression"] or "").partition(":")[0]
        shard["hashes"] = []
    assert after == before


def test_what_cannot_be_rebuilt(tmp_path: Path) -> None:
    """An index that is there, no shard, and a shard that is cut."""
    with pytest.raises(NotReady, match="has no file of a shard"):
        rebuild_index(str(tmp_path), 1, nothing)
    directory = write_mds(tmp_path / "d", {"n": "int"}, [{"n": n} for n in range(9)])
    with pytest.raises(ConfigError, match="exists; remove it first"):
        rebuild_index(str(directory), 1, nothing)
    (directory / INDEX).unlink()
    shard = sorted(directory.glob("*.mds"))[0]
    shard.write_bytes(shard.read_bytes()[:10])
    done = start(["index", "rebuild", directory])
    assert done.returncode == 3
    assert "ends within the offsets of its samples" in done.stderr


@pytest.mark.parametrize("change", [-3, 2])
def test_a_shard_of_another_length(change: int, tmp_path: Path) -> None:
    """Its header says how long it is."""
    directory = write_mds(tmp_path / "d", {"n": "int"}, [{"n": n} for n in range(9)])
    (directory / INDEX).unlink()
    shard = directory / "shard.00001.mds"
    content = shard.read_bytes() + bytes(max(change, 0))
    shard.write_bytes(content[: len(content) + min(change, 0)])
    with pytest.raises(CorpusError, match=r"shard\.00001\.mds: has .* bytes, its header says"):
        rebuild_index(str(directory), 1, nothing)


def test_a_shard_that_is_lost(tmp_path: Path) -> None:
    """The numbers of the others say so; of the last one, nothing does."""
    directory = write_mds(tmp_path / "d", {"n": "int"}, [{"n": n} for n in range(20)])
    (directory / INDEX).unlink()
    (directory / "shard.00001.mds").rename(tmp_path / "away")
    with pytest.raises(CorpusError, match="shard 1 is missing, of 3 by the numbers"):
        rebuild_index(str(directory), 1, nothing)
    (tmp_path / "away").rename(directory / "shard.00001.mds")
    assert rebuild_index(str(directory), 1, nothing).shards == 3
    (directory / INDEX).unlink()
    for number, name in enumerate(("20250101", "1700000000", "7")):
        (directory / f"shard.0000{number}.mds").rename(directory / f"shard.{name}.mds")
    assert rebuild_index(str(directory), 1, nothing).shards == 3


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
