"""Shards on a node: unpacked once, verified, mended shard by shard, and trained from."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

import distcache
from distcache.corpus import bin_path
from distcache.edit.unpack import unpack_shards
from distcache.errors import ConfigError, CorpusError, NoSpace, NotReady
from distcache.node.records import LocalizeOptions, read_records
from distcache.node.store import Store
from distcache.node.upkeep import collect, verify_store
from distcache.ranks.communicator import SerialCommunicator
from distcache.ranks.progress import NullProgress
from distcache.storage import space
from tests.node.agents import flip, only, run
from tests.support.caches import build_here
from tests.support.corpora import write_corpus
from tests.support.mds_corpora import DOCUMENTS, fields_of, index, virtual_bin, write_tokens
from tests.support.mds_writer import write_mds
from tests.support.samples import tokens_of

TRANSPORTS = ("copy", "mpi")


def local_samples(cache: str | Path, root: Path) -> list[list[int]]:
    """Return the tokens of all samples, read from the copy."""
    opened = distcache.open(cache, local=root)
    assert opened.is_local
    return tokens_of(opened)


def local_bin(root: Path) -> Path:
    """Return the `.bin` of the only corpus of a store."""
    (record,) = read_records(Store(root))
    return Path(bin_path(Store(root).prefix(record.corpora[0].stem)))


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A cache of a corpus of compressed shards."""
    index(write_tokens(tmp_path / "data", codec="zstd"), tmp_path / "c")
    return Path(build_here(fields_of(str(tmp_path / "c")), tmp_path / "caches").path)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("codec", ["zstd", "br", "snappy", ""])
def test_shards_become_a_bin(codec: str, transport: str, tmp_path: Path) -> None:
    """Of which training reads the samples of the tokens; only compressed bytes are read."""
    data = write_tokens(tmp_path / "data", codec=codec)
    index(data, tmp_path / "c")
    cache = Path(build_here(fields_of(str(tmp_path / "c")), tmp_path / "caches").path)
    root = tmp_path / "local"
    way = "compressed" if codec else "all"
    report = only(run(cache, root, transport=transport, shards=way))
    assert local_bin(root).read_bytes() == virtual_bin(tmp_path / "c").tobytes()
    stored = sum(path.stat().st_size for path in data.glob("shard*"))
    idx = (tmp_path / "c.idx").stat().st_size
    assert report.read == stored + idx + distcache.open(cache).cache.header.tables_begin - 4096
    write_corpus(str(tmp_path / "plain"), DOCUMENTS, "i4")
    plain = build_here(fields_of(str(tmp_path / "plain")), tmp_path / "caches")
    assert local_samples(cache, root) == tokens_of(distcache.open(plain.path))
    assert verify_store(Store(root)) == []
    again = only(run(cache, root, transport=transport, shards=way))
    assert (again.read, again.written) == (0, 0)
    quick = only(run(cache, root, transport=transport, quick=True))
    assert (quick.read, quick.written) == (0, 0)


def test_raw_shards_stay_shared(tmp_path: Path) -> None:
    """Raw shards stay shared unless they are asked for; later runs keep what there is."""
    index(write_tokens(tmp_path / "data"), tmp_path / "c")
    cache = Path(build_here(fields_of(str(tmp_path / "c")), tmp_path / "caches").path)
    root = tmp_path / "local"
    run(cache, root)
    assert not local_bin(root).exists()
    assert len(local_samples(cache, root)) >= 300
    with pytest.raises(ConfigError, match="give --shards all"):
        run(cache, root, megatron=True)
    run(cache, root, shards="all")
    run(cache, root)
    assert local_bin(root).exists()
    shutil.rmtree(tmp_path / "data")
    assert len(local_samples(cache, root)) >= 300


def test_nothing_is_unpacked_if_that_is_asked(packed: Path, tmp_path: Path) -> None:
    """Training then says what to do."""
    run(packed, tmp_path / "local", shards="none")
    with pytest.raises(NotReady, match="is compressed, and training decompresses nothing"):
        local_samples(packed, tmp_path / "local")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_only_the_shard_that_differs_is_fetched(
    packed: Path, transport: str, tmp_path: Path
) -> None:
    """Only the shard that differs is fetched in place, while training reads the others."""
    root = tmp_path / "local"
    run(packed, root, transport=transport)
    expected = local_samples(packed, root)
    opened = distcache.open(packed, local=root)
    place = int(opened.cache.table("shards")["base"][2]) + 300
    flip(local_bin(root), place)
    problems = verify_store(Store(root))
    assert len(problems) == 1
    assert f"{local_bin(root)}: bytes {place - 300} to" in problems[0]
    inode = local_bin(root).stat().st_ino
    report = only(run(packed, root, transport=transport))
    shard = tmp_path / "data" / "shard.00002.mds.zstd"
    assert report.read == shard.stat().st_size
    assert local_bin(root).stat().st_ino == inode
    assert verify_store(Store(root)) == []
    assert tokens_of(opened) == expected
    local_bin(root).unlink()
    with pytest.raises(NotReady):
        tokens_of(distcache.open(packed))
    run(packed, root, transport=transport)
    assert local_samples(packed, root) == expected


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_shard_that_was_exchanged(packed: Path, transport: str, tmp_path: Path) -> None:
    """Is refused with its path, and the copy is not ready; what is right stays for the next run."""
    shard = tmp_path / "data" / "shard.00003.mds.zstd"
    content = shard.read_bytes()
    flip(shard, len(content) // 2)
    with pytest.raises(CorpusError, match=r"shard\.00003\.mds\.zstd: "):
        run(packed, tmp_path / "local", transport=transport)
    assert not list(read_records(Store(tmp_path / "local")))
    shard.write_bytes(content)
    report = only(run(packed, tmp_path / "local", transport=transport))
    assert report.kept > 0
    shard.write_bytes(content[:-20])
    local_bin(tmp_path / "local").unlink()
    with pytest.raises(CorpusError, match=r"shard\.00003\.mds\.zstd: "):
        run(packed, tmp_path / "local", transport=transport)


def test_space_is_foreseen(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Space for the unpacked shards is checked before anything is changed."""
    size = virtual_bin(tmp_path / "c").size
    monkeypatch.setattr(space, "space_at", lambda _: space.Space(size, in_memory=False))
    with pytest.raises(NoSpace, match="bytes are needed"):
        run(packed, tmp_path / "local")
    assert not list((tmp_path / "local" / "corpora").iterdir())


def test_shards_without_digests_are_not_unpacked(tmp_path: Path) -> None:
    """Nothing could be compared with."""
    samples = [{"tokens": document.astype("i4")} for document in DOCUMENTS]
    data = write_mds(tmp_path / "data", {"tokens": "ndarray:int32"}, samples, codec="zstd")
    index(data, tmp_path / "c", headers_only=True)
    cache = Path(build_here(fields_of(str(tmp_path / "c")), tmp_path / "caches").path)
    with pytest.raises(CorpusError, match="indexed with --headers-only"):
        run(cache, tmp_path / "local")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_shard_that_is_gone(transport: str, tmp_path: Path, packed: Path) -> None:
    """It is said with its path, and what to do."""
    (tmp_path / "data" / "shard.00003.mds.zstd").unlink()
    with pytest.raises(
        CorpusError, match=r"shard\.00003\.mds\.zstd: cannot be read: No such.*; put it back"
    ):
        run(packed, tmp_path / "local", transport=transport)


def test_another_data_set_with_the_same_index(tmp_path: Path, packed: Path) -> None:
    """It gets a `.bin` of its own: who reads the old copy goes on with the old tokens."""
    root = tmp_path / "local"
    run(packed, root)
    before = local_samples(packed, root)
    shutil.rmtree(tmp_path / "data")
    samples = [
        {"a": "x" * (n % 5), "tokens": document.astype("i4")[::-1], "z": n}
        for n, document in enumerate(DOCUMENTS)
    ]
    columns = {"a": "str", "tokens": "ndarray:int32", "z": "int"}
    write_mds(tmp_path / "data", columns, samples, codec="zstd")
    first = (tmp_path / "c.idx").read_bytes()
    for suffix in ("idx", "shards", "receipt.json"):
        (tmp_path / f"c.{suffix}").unlink()
    index(tmp_path / "data", tmp_path / "c")
    assert (tmp_path / "c.idx").read_bytes() == first
    again = Path(build_here(fields_of(str(tmp_path / "c")), tmp_path / "caches").path)
    assert again != packed
    opened = distcache.open(packed, local=root)
    run(again, root)
    assert tokens_of(opened) == local_samples(packed, root) == before
    assert local_samples(again, root) != before
    assert verify_store(Store(root)) == []


def test_a_bin_that_comes_later_beside_the_shards(tmp_path: Path, packed: Path) -> None:
    """It is linked by caches that are localized then; those before keep what they have unpacked."""
    root = tmp_path / "local"
    run(packed, root)
    expected = local_samples(packed, root)
    unpack_shards(SerialCommunicator(), str(tmp_path / "c"))
    fields = fields_of(str(tmp_path / "c")) | {"seed": 8}
    other = Path(build_here(fields, tmp_path / "caches").path)
    run(other, root)
    assert local_samples(packed, root) == expected
    assert len(local_samples(other, root)) >= 300
    assert verify_store(Store(root)) == []


@pytest.mark.parametrize("name", ["ahead", "windows"])
def test_what_is_unpacked_ahead_stays_so(name: str, tmp_path: Path, packed: Path) -> None:
    """Until something else is asked for. Windows are its former name, also in records."""
    root = tmp_path / "local"
    run(packed, root, shards=name)
    run(packed, root)
    (record,) = read_records(Store(root))
    assert record.shards == "ahead"
    assert not record.corpora[0].bin_size
    former = msgspec.structs.replace(record, shards="windows")
    assert LocalizeOptions().joined(former).shards == "ahead"
    assert LocalizeOptions(directory=str(root)).are_fulfilled_by(former)
    run(packed, root, shards="compressed")
    (record,) = read_records(Store(root))
    assert (record.shards, record.corpora[0].bin_size > 0) == ("compressed", True)


def test_windows_of_earlier_versions_are_removed(tmp_path: Path, packed: Path) -> None:
    """Once nobody reads the copy."""
    root = tmp_path / "local"
    run(packed, root, shards="ahead")
    store = Store(root)
    (record,) = read_records(store)
    windows = store.windows / record.name
    windows.mkdir(parents=True)
    for name in ("0.bin", "0.state", "feeder.lock", "position.12.0123abcd"):
        (windows / name).write_bytes(b"x")
    opened = distcache.open(packed, local=root)
    collect(store, 1 << 40, NullProgress())
    assert windows.exists()
    del opened
    collect(store, 1 << 40, NullProgress())
    assert not windows.exists()
    assert local_samples(packed, root)


def test_unpacking_ahead_needs_digests(tmp_path: Path) -> None:
    """Which is said before anything is copied."""
    samples = [{"tokens": document.astype("i4")} for document in DOCUMENTS]
    data = write_mds(tmp_path / "data", {"tokens": "ndarray:int32"}, samples, codec="zstd")
    index(data, tmp_path / "c", headers_only=True)
    cache = build_here(fields_of(str(tmp_path / "c")), tmp_path / "caches").path
    with pytest.raises(CorpusError, match="indexed with --headers-only"):
        run(Path(cache), tmp_path / "local", shards="ahead")
    assert not list(Path(tmp_path / "local" / "caches").glob("*.h5"))
