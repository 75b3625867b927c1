"""What one agent does: copies that count only when they are whole and right, and heal."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcache.cache import open_cache
from distcache.cache.contents import read_contents
from distcache.cache.format import BLOCK_SIZE
from distcache.corpus import bin_path, idx_path
from distcache.errors import CacheCorrupt, ConfigError, CorpusError, DistcacheError, NoSpace
from distcache.megatron.names import Naming
from distcache.node.arriving import cut_chunks
from distcache.node.localization import Localization
from distcache.node.manifest import Block
from distcache.node.records import read_records
from distcache.node.store import Store, make_store, part_of
from distcache.node.upkeep import verify_store
from tests.node.agents import flip, only, run, run_on
from tests.support import here
from tests.support.processes import start

NODES = (1, 2)


@pytest.mark.parametrize("nodes", NODES)
def test_everything_is_brought(cache: Path, tmp_path: Path, nodes: int) -> None:
    """The cache to the byte, every index to the byte, and a link to the shared tokens."""
    done = run_on(nodes, cache, tmp_path / "local")
    report = done.nodes[0]
    assert Path(report.cache).read_bytes() == cache.read_bytes()
    record = next(read_records(Store(tmp_path / "local")))
    store = Store(tmp_path / "local")
    for corpus in record.corpora:
        local = store.prefix(corpus.stem)
        assert Path(idx_path(local)).read_bytes() == Path(idx_path(corpus.shared)).read_bytes()
        assert os.readlink(bin_path(local)) == bin_path(corpus.shared)
    header = read_contents(cache).header
    indices = sum(corpus.idx_size for corpus in record.corpora)
    assert sum(node.read for node in done.nodes) == header.tables_begin - 4096 + indices
    assert not list((tmp_path / "local").rglob("*.part"))


def test_a_second_run_reads_nothing(cache: Path, tmp_path: Path) -> None:
    """What is right is kept."""
    first = only(run(cache, tmp_path / "local"))
    again = only(run(cache, tmp_path / "local"))
    assert (again.read, again.written) == (0, 0)
    assert again.kept == first.read


@pytest.mark.parametrize("nodes", NODES)
def test_only_what_differs_is_fetched(cache: Path, tmp_path: Path, nodes: int) -> None:
    """A flipped bit in the cache costs its block, one in an index the index."""
    report = only(run(cache, tmp_path / "local"))
    store = Store(tmp_path / "local")
    record = next(read_records(store))
    flip(Path(report.cache), read_contents(cache).header.tables_begin - 10)
    index = Path(idx_path(store.prefix(record.corpora[1].stem)))
    modified = index.stat().st_mtime_ns
    flip(index, 50)
    os.utime(index, ns=(modified, modified))
    assert len(verify_store(store)) == 2
    repaired = run_on(nodes, cache, tmp_path / "local").nodes
    assert repaired[0].read < report.read
    assert sum(node.read for node in repaired) >= record.corpora[1].idx_size
    assert verify_store(store) == []


def test_a_flipped_header_or_table_is_mended(cache: Path, tmp_path: Path) -> None:
    """They are in no block, and come with what the cache says of itself."""
    report = only(run(cache, tmp_path / "local"))
    for offset in (100, read_contents(cache).header.tables_begin + 7):
        flip(Path(report.cache), offset)
        assert verify_store(Store(tmp_path / "local"))
        run(cache, tmp_path / "local")
        assert Path(report.cache).read_bytes() == cache.read_bytes()


def test_what_was_taken_away_comes_back(cache: Path, tmp_path: Path) -> None:
    """A node's cleaner may remove any file."""
    run(cache, tmp_path / "local", naming=Naming())
    store = Store(tmp_path / "local")
    files = [path for path in store.root.rglob("*") if path.is_file() or path.is_symlink()]
    whole = {path for path in files if path.name != "lock"}
    for path in sorted(whole):
        if path.name == ".distcache-store":
            continue
        path.unlink()
        run(cache, store.root, naming=Naming())
        assert verify_store(store) == []
        assert os.path.lexists(path)


def test_a_shorter_and_a_longer_file_are_mended(cache: Path, tmp_path: Path) -> None:
    """A shorter and a longer file are repaired, whatever length they have."""
    report = only(run(cache, tmp_path / "local"))
    for size in (0, 4000, 100_000, 50_000_000):
        os.truncate(report.cache, size)
        run(cache, tmp_path / "local")
        assert Path(report.cache).read_bytes() == cache.read_bytes()


def test_an_unfinished_copy_is_taken_up(cache: Path, tmp_path: Path) -> None:
    """Its right blocks are kept."""
    report = only(run(cache, tmp_path / "local"))
    done = Path(report.cache)
    done.rename(done.with_name(f".{done.name}.part"))
    Store(tmp_path / "local").ready(done.stem).unlink()
    again = only(run(cache, tmp_path / "local"))
    assert again.read == 0
    assert done.read_bytes() == cache.read_bytes()


def test_a_second_cache_shares_what_it_can(
    own_corpora: dict[str, Any], cache: Path, shared: Path, tmp_path: Path
) -> None:
    """Indices are not copied twice."""
    run(cache, tmp_path / "local")
    other = Path(here.build({**own_corpora, "seed": 5}, shared, "other").path)
    report = only(run(other, tmp_path / "local"))
    header = read_contents(other).header
    assert report.read == header.tables_begin - 4096  # the blocks, and no index
    assert len(list(read_records(Store(tmp_path / "local")))) == 2


def test_megatrons_view_needs_the_links(cache: Path, tmp_path: Path) -> None:
    """Megatron's view needs the links, since it finds corpora by local paths."""
    with pytest.raises(ConfigError, match="leave out --bin none"):
        run(cache, tmp_path / "local", naming=Naming(), tokens="none")


def test_without_links(cache: Path, tmp_path: Path) -> None:
    """Loaders of distcache need none."""
    run(cache, tmp_path / "local", tokens="none")
    store = Store(tmp_path / "local")
    assert not list(store.corpora.glob("*.bin"))
    assert verify_store(store) == []
    run(cache, tmp_path / "local")
    assert list(store.corpora.glob("*.bin"))
    run(cache, tmp_path / "local", tokens="none")
    assert next(read_records(store)).request.tokens == "link"


@pytest.mark.parametrize("nodes", NODES)
def test_a_shared_filesystem_that_vanishes(
    cache: Path, tmp_path: Path, nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle: one clear error, no record, and the next run continues."""
    root = tmp_path / "local"
    hidden = tmp_path / "hidden.h5"

    original = Localization.run

    def vanish(run: Localization) -> Any:
        with contextlib.suppress(FileNotFoundError):  # the other agent was first
            cache.rename(hidden)
        return original(run)

    monkeypatch.setattr(Localization, "run", vanish)
    with pytest.raises(DistcacheError, match="cannot be read"):
        run_on(nodes, cache, root)
    assert not list(read_records(Store(root)))
    monkeypatch.undo()
    hidden.rename(cache)
    run_on(nodes, cache, root)
    assert verify_store(Store(root)) == []


def test_a_copy_of_a_cache_with_relative_paths(
    own_corpora: dict[str, Any], shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are taken from where the agent runs, as those of a build are."""
    monkeypatch.chdir(tmp_path)
    for source in own_corpora["blend"]:
        source["path"] = os.path.basename(source["path"])
    cache = Path(here.build(own_corpora, shared, "relative").path)
    run(cache, tmp_path / "local", naming=Naming())
    record = next(read_records(Store(tmp_path / "local")))
    assert all(corpus.shared.startswith(str(tmp_path)) for corpus in record.corpora)
    assert open_cache(Store(tmp_path / "local").cache(record.name)).key == record.key


def test_the_store_is_made_once(tmp_path: Path) -> None:
    """The store is made once with mode 0700 and a marker; making it again changes nothing."""
    store = make_store(tmp_path / "a" / "b")
    assert store.root.stat().st_mode & 0o777 == 0o700
    assert make_store(store.root).root == store.root


def test_links_in_a_store_are_not_followed(cache: Path, tmp_path: Path) -> None:
    """One instead of a file is replaced, one in that of an unfinished file is an error."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    report = only(run(cache, tmp_path / "local"))
    store = Store(tmp_path / "local")
    copy = Path(report.cache)
    index = next(store.corpora.glob("*.idx"))
    for path in (copy, index, store.ready(copy.stem)):
        path.unlink()
        path.symlink_to(victim)
        run(cache, store.root)
        assert not path.is_symlink()
        assert verify_store(store) == []
    copy.unlink()
    part = part_of(copy)
    part.symlink_to(victim)
    with pytest.raises(DistcacheError, match="is not a file that distcache has made"):
        run(cache, store.root)
    part.unlink()
    run(cache, store.root)
    assert victim.read_text() == "mine"


def test_names_of_another_release(
    own_corpora: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """The names of the last run count; where it says nothing, those of the run before it."""
    own_corpora["tokenizer"] = {"megatron": "0.16", "tokenizer_type": "TikTokenizer"}
    own_corpora["tokenizer"]["tokenizer_model"] = "m"
    cache = Path(here.build(own_corpora, shared, "named").path)
    words = ["localize", cache, "--store", tmp_path / "local", "--json", "--megatron"]
    counts = []
    for value in ([], ["0.17"], ["0.17,0.19.2"], [], ["0.19", "--fim-data"]):
        done = start([*words, *value])
        assert done.returncode == 0, done.stderr
        counts.append(len(json.loads(done.stdout)["megatron"]["files"]))
        assert verify_store(Store(tmp_path / "local")) == []
    assert counts == [counts[0] * factor for factor in (1, 1, 2, 2, 1)]
    record = next(read_records(Store(tmp_path / "local")))
    assert record.request.naming == Naming(None, ("0.19",), True)
    names = list((tmp_path / "local").glob("megatron/*/*.npy"))
    assert len({path.stat().st_ino for path in names}) < len(names)  # hard links
    done = start(["localize", "--megatron", cache, "--store", tmp_path / "local", "--quick"])
    assert done.returncode == 0, done.stderr
    done = start([*words, "0.3"])
    assert done.returncode == 2
    assert "'0.3' is not a known release" in done.stderr


blocks = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 300)), max_size=8).map(
    lambda ranges: tuple(
        Block(i, begin, begin + size, "0" * 16) for i, (begin, size) in enumerate(ranges)
    )
)


@given(blocks=blocks, size=st.integers(1, 64), data=st.data())
def test_chunks_cover_blocks_in_order(
    blocks: tuple[Block, ...], size: int, data: st.DataObject
) -> None:
    """Each byte of those that are asked for once, in chunks that are not too long."""
    numbers = sorted(
        data.draw(st.sets(st.integers(0, max(len(blocks) - 1, 0)))) if blocks else set()
    )
    chunks = cut_chunks(blocks, numbers, size)
    assert all(0 < chunk.end - chunk.begin <= size for chunk in chunks)
    found = [(chunk.block, byte) for chunk in chunks for byte in range(chunk.begin, chunk.end)]
    wanted = [(n, byte) for n in numbers for byte in range(blocks[n].begin, blocks[n].end)]
    assert found == wanted


@pytest.mark.parametrize("nodes", NODES)
def test_a_corrupt_cache_is_refused(cache: Path, tmp_path: Path, nodes: int) -> None:
    """A corrupt cache is refused, and leaves no record."""
    flip(cache, BLOCK_SIZE if cache.stat().st_size > BLOCK_SIZE else 9000)
    with pytest.raises(CacheCorrupt, match="differ from their digest"):
        run_on(nodes, cache, tmp_path / "local")
    assert not list(read_records(Store(tmp_path / "local")))
    assert not list((tmp_path / "local" / "caches").glob("*.h5"))


@pytest.mark.parametrize("nodes", NODES)
def test_a_changed_corpus_is_refused(
    own_corpora: dict[str, Any], cache: Path, tmp_path: Path, nodes: int
) -> None:
    """By the digest of its index, also where an earlier copy of it is here."""
    run(cache, tmp_path / "before")
    flip(Path(own_corpora["blend"][0]["path"] + ".idx"), 60)
    for root in ("local", "before"):
        with pytest.raises(CorpusError, match="not the file that the cache was built from"):
            run_on(nodes, cache, tmp_path / root)
        assert not list(read_records(Store(tmp_path / root)))


def test_a_corpus_of_another_size_is_refused(
    own_corpora: dict[str, Any], cache: Path, tmp_path: Path
) -> None:
    """All of them are named, and what was here stays ready."""
    run(cache, tmp_path / "local")
    with open(own_corpora["blend"][0]["path"] + ".bin", "ab") as stream:
        stream.write(b"x")
    os.truncate(own_corpora["blend"][1]["path"] + ".idx", 70)
    with pytest.raises(CorpusError) as caught:
        run(cache, tmp_path / "local")
    assert len(caught.value.problems) == 2
    assert list(read_records(Store(tmp_path / "local")))


def test_too_little_space(cache: Path, tmp_path: Path) -> None:
    """It says the numbers, and leaves everything as it was."""
    run(cache, tmp_path / "local")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "local").rglob("*")}
    other = tmp_path / "other.h5"
    shutil.copy(cache, other)
    with pytest.raises(NoSpace, match=r"\d+ bytes are needed and \d+ are to stay free"):
        run(cache, tmp_path / "fresh", reserve=1 << 60)
    assert not [path for path in (tmp_path / "fresh").rglob("*") if path.suffix == ".part"]
    run(cache, tmp_path / "local", reserve=1 << 60)  # nothing is needed
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "local").rglob("*")}
    assert after.keys() == before.keys()


def test_a_store_in_a_bucket(cache: Path) -> None:
    """It is refused: no directory is made of its name."""
    with pytest.raises(ConfigError, match="cannot be in a bucket"):
        here.localize(cache, "s3://lake/store")
