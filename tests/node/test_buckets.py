"""Localizing from a bucket: each byte once, of one version, verified and repaired."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distcache.corpus import bin_path, idx_path
from distcache.errors import CorpusError, DistcacheError
from distcache.megatron.arguments import ParallelLayout
from distcache.megatron.names import Naming
from distcache.node.localize import localize
from distcache.node.records import LocalizeOptions, read_records
from distcache.node.store import Store
from distcache.node.upkeep import collect, verify_store
from distcache.ranks.communicator import Communicator
from distcache.ranks.progress import NullProgress
from tests.node.agents import flip, only, run
from tests.support.buckets import name_of, put_cache
from tests.support.scripted_s3 import Request, ScriptedS3
from tests.support.secrets import places_with_secrets
from tests.support.threads import run_ranks


@pytest.fixture
def url(server: ScriptedS3, cache: Path) -> str:
    """A cache in it, with its corpora beside it."""
    found = put_cache(server, cache)
    server.script()
    return found


def store_of(root: Path) -> Store:
    """Return the store of a node."""
    return Store(root)


def test_a_copy_is_the_cache(url: str, server: ScriptedS3, cache: Path, tmp_path: Path) -> None:
    """A copy is the cache with its indices; each byte is fetched once, and none of the tokens."""
    report = only(run(url, tmp_path / "local"))
    assert Path(report.cache).read_bytes() == cache.read_bytes()
    size = sum(len(server.objects[name]) for name in server.objects if not name.endswith(".bin"))
    frame = 4096 + cache.stat().st_size  # header and tables are read before the blocks
    assert server.bytes_of() <= size + frame
    assert server.bytes_of(".bin") == 0
    assert server.bytes_of(".idx") == sum(
        len(data) for name, data in server.objects.items() if name.endswith(".idx")
    )
    record = next(read_records(store_of(tmp_path / "local")))
    assert record.source == url
    assert all(corpus.bin_version is not None for corpus in record.corpora)


def test_again_nothing_is_fetched(url: str, server: ScriptedS3, tmp_path: Path) -> None:
    """But header and tables."""
    run(url, tmp_path / "local")
    server.script()
    assert only(run(url, tmp_path / "local")).read == 0
    assert server.bytes_of(".idx") == 0


def test_each_byte_once_for_all_nodes(url: str, server: ScriptedS3, tmp_path: Path) -> None:
    """Of cache, indices and tokens, with three agents."""

    def agent(communicator: Communicator) -> int:
        options = LocalizeOptions(directory=str(tmp_path / f"{communicator.rank}"), tokens="copy")
        environment = {"DISTCACHE_NODE_NAME": f"node{communicator.rank}"}
        done = localize(communicator, url, options, environment=environment)
        return len(done.nodes)

    assert run_ranks(3, agent) == ([3, 3, 3], [])
    for suffix in (".idx", ".bin"):
        size = sum(len(data) for name, data in server.objects.items() if name.endswith(suffix))
        assert server.bytes_of(suffix) == size
    for rank in range(3):
        assert verify_store(store_of(tmp_path / str(rank))) == []


def test_whole_tokens(url: str, server: ScriptedS3, tmp_path: Path) -> None:
    """They are copied, verified by digests of our own, and repaired, each flipped block alone."""
    run(url, tmp_path / "local", tokens="copy")
    store = store_of(tmp_path / "local")
    record = next(read_records(store))
    for corpus in record.corpora:
        data = server.objects[name_of(bin_path(corpus.shared))]
        assert Path(bin_path(store.prefix(corpus.stem))).read_bytes() == data
    assert verify_store(store) == []
    path = Path(bin_path(store.prefix(record.corpora[1].stem)))
    flip(path, 1000)
    assert verify_store(store) == [
        f"{path}: bytes 0 to {path.stat().st_size} differ from their digest"
    ]
    server.script()
    report = only(run(url, tmp_path / "local"))
    assert report.read == path.stat().st_size
    assert server.bytes_of(".bin") == path.stat().st_size
    assert verify_store(store) == []


def test_whole_tokens_of_a_shared_filesystem(cache: Path, tmp_path: Path) -> None:
    """Whole tokens of a shared filesystem are copied just so."""
    run(cache, tmp_path / "local", tokens="copy")
    store = store_of(tmp_path / "local")
    record = next(read_records(store))
    assert verify_store(store) == []
    for corpus in record.corpora:
        local = Path(bin_path(store.prefix(corpus.stem)))
        assert not local.is_symlink()
        assert local.read_bytes() == Path(bin_path(corpus.shared)).read_bytes()
    assert only(run(cache, tmp_path / "local")).read == 0


def test_a_copy_that_was_interrupted(url: str, server: ScriptedS3, tmp_path: Path) -> None:
    """It goes on: what had arrived is not fetched again."""
    names = [name for name in server.objects if name.endswith(".bin")]
    last = server.objects.pop(names[-1])
    with pytest.raises(DistcacheError):
        run(url, tmp_path / "local", tokens="copy")
    server.objects[names[-1]] = last
    run(url, tmp_path / "local", tokens="copy")
    record = next(read_records(store_of(tmp_path / "local")))
    path = Path(bin_path(store_of(tmp_path / "local").prefix(record.corpora[0].stem)))
    path.rename(path.with_name(f".{path.name}.part"))  # as a killed agent leaves it
    store_of(tmp_path / "local").ready(record.name).unlink()
    server.script()
    run(url, tmp_path / "local", tokens="copy")
    assert server.bytes_of(".bin") == 0


@pytest.mark.parametrize("suffix", [".idx", ".bin"])
def test_a_changed_object(suffix: str, url: str, server: ScriptedS3, tmp_path: Path) -> None:
    """It is an error that names it, and leaves no ready record."""
    name = [name for name in server.objects if name.endswith(suffix)][-1]
    replaced: list[str] = []

    def replace_when_read(request: Request) -> None:
        if request.method == "GET" and request.name.endswith(".idx") and not replaced:
            replaced.append(name)
            server.objects[name] = server.objects[name][::-1]

    server.on_request = replace_when_read
    with pytest.raises(CorpusError, match=f"s3://{name}: is another object"):
        run(url, tmp_path / "local", tokens="copy" if suffix == ".bin" else "link", threads=1)
    assert replaced
    assert list(read_records(store_of(tmp_path / "local"))) == []


def test_a_new_version_of_the_tokens(url: str, server: ScriptedS3, tmp_path: Path) -> None:
    """It is stamped anew by the next run; the copy of the old one is another file."""
    run(url, tmp_path / "local", tokens="copy")
    store = store_of(tmp_path / "local")
    before = next(read_records(store)).corpora
    name = name_of(bin_path(before[0].shared))
    server.put(name, server.objects[name][::-1])
    run(url, tmp_path / "local")
    after = next(read_records(store)).corpora
    assert after[0].bin_version != before[0].bin_version
    assert after[0].stem != before[0].stem
    assert Path(bin_path(store.prefix(after[0].stem))).read_bytes() == server.objects[name]
    assert Path(bin_path(store.prefix(before[0].stem))).exists()
    collect(store, 1 << 40, NullProgress())
    assert not Path(bin_path(store.prefix(before[0].stem))).exists()
    assert verify_store(store) == []


def test_nodes_that_read_nothing(url: str, tmp_path: Path) -> None:
    """Nodes of the middle pipeline stages read nothing and get no store."""

    def agent(communicator: Communicator) -> list[str]:
        options = LocalizeOptions(
            directory=str(tmp_path / f"{communicator.rank}"), readers=ParallelLayout(pp=3, gpus=1)
        )
        environment = {"DISTCACHE_NODE_NAME": f"node{communicator.rank}"}
        done = localize(communicator, url, options, environment=environment)
        return [node.problem or node.cache for node in done.nodes]

    outcomes, _ = run_ranks(3, agent)
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert isinstance(outcomes[0], list)
    assert [bool(cache) for cache in outcomes[0]] == [True, False, True]
    assert not (tmp_path / "1").exists()


def test_megatrons_layout(url: str, server: ScriptedS3, tmp_path: Path) -> None:
    """The indices lie where Megatron looks for what it would download, and are removed again."""
    done = run(url, tmp_path / "local", naming=Naming())
    assert done.megatron is not None
    store = store_of(tmp_path / "local")
    assert f"--object-storage-cache-path {store.objects}" in done.megatron.arguments
    assert "--no-mmap-bin-files" in done.megatron.arguments
    record = next(read_records(store))
    for corpus in record.corpora:
        path = store.objects / f"{name_of(corpus.shared)}.idx"
        assert path.read_bytes() == server.objects[name_of(idx_path(corpus.shared))]
        assert any(corpus.shared in word for word in _words(done.megatron.arguments))
    path.unlink()
    path.write_bytes(b"as Megatron renames its own over it")
    assert verify_store(store) == []
    run(url, tmp_path / "local", naming=Naming())
    assert path.read_bytes() == server.objects[name_of(idx_path(corpus.shared))]
    collect(store, 0, NullProgress())
    assert list(store.objects.iterdir()) == []


def _words(arguments: list[str]) -> list[str]:
    """Return the words of options, and of the file that one names."""
    words = " ".join(arguments).split()
    for word in list(words):
        if word.endswith("-data-args.txt"):
            words += Path(word).read_text().split()
    return words


def test_the_record_has_no_secret(url: str, tmp_path: Path) -> None:
    """Nor has anything else in the store."""
    run(url, tmp_path / "local", tokens="copy", naming=Naming())
    assert places_with_secrets(tmp_path / "local") == []
    records = list((tmp_path / "local" / "caches").glob("*.json"))
    assert json.loads(records[0].read_text())["source"] == url
