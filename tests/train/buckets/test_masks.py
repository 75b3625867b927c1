"""A loss mask in a bucket goes to the node whole, and is as one of files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distcache
from distcache.cache import open_cache
from distcache.corpus import Fault
from distcache.corpus.fetched import fetched_indices
from distcache.corpus.idx import ITEM_TYPES, bin_path, open_idx
from distcache.corpus.loss import LossFacts, loss_path
from distcache.errors import CorpusError, KeyMismatch, NotReady
from distcache.node.records import read_records
from distcache.node.store import Store
from distcache.node.upkeep import collect, verify_store
from distcache.ranks.progress import NullProgress
from tests.node.agents import flip
from tests.support import here
from tests.support.buckets import put_corpus
from tests.support.scripted_s3 import ScriptedS3
from tests.train.buckets.reading import end_fetcher

pytestmark = pytest.mark.slow

URL = "s3://lake/run/c.h5"


@pytest.fixture
def masked(own_corpora: dict[str, Any]) -> dict[str, Any]:
    """A configuration of corpora, of which the first has a mask: 1 for odd tokens."""
    prefix = own_corpora["blend"][0]["path"]
    tokens = np.fromfile(bin_path(prefix), ITEM_TYPES[open_idx(prefix).type_code])
    Path(loss_path(prefix)).write_bytes((tokens % 2).astype("u1").tobytes())
    return own_corpora


@pytest.fixture
def cache(masked: dict[str, Any], shared: Path) -> str:
    """A cache of them."""
    return here.build(masked, shared, "c").path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A node's store."""
    yield Store(tmp_path / "local")
    end_fetcher(tmp_path / "local")


def examined(url: str) -> tuple[LossFacts | None, tuple[Fault, ...]]:
    """Return the facts of the mask of a corpus in the bucket, and the corpus's faults."""
    with fetched_indices(here.ALONE, [url], NullProgress()):
        facts, faults = here.examine([url])
    return facts[url].loss if url in facts else None, faults


def mask_of(server: ScriptedS3) -> str:
    """Return the name of the mask's object."""
    (name,) = [name for name in server.objects if name.endswith(".loss")]
    return name


@pytest.mark.parametrize("tokens", ["link", "copy"])
def test_samples_are_those_of_files(
    tokens: str, server: ScriptedS3, cache: str, store: Store
) -> None:
    """Uploaded, localized and read; each byte of the mask is fetched once."""
    here.upload(cache, "s3://lake/run", corpora=True)
    server.script()
    here.localize(URL, store.root, tokens=tokens)
    assert server.bytes_of(".loss") == len(server.objects[mask_of(server)])
    ours = distcache.open(URL, store.root).numpy_dataset("train")
    files = distcache.open(cache).numpy_dataset("train")
    every = range(0, len(files), 7)
    batch, expected = ours.batch(every), files.batch(every)
    assert {n: v.tobytes() for n, v in batch.items()} == {
        n: v.tobytes() for n, v in expected.items()
    }
    assert 0 < batch["loss_mask"].mean() < 1
    server.script()
    here.localize(URL, store.root, tokens=tokens)
    assert server.bytes_of(".loss") == 0


def test_a_copy_is_verified_repaired_and_collected(
    server: ScriptedS3, cache: str, store: Store
) -> None:
    """`local verify` names a damaged copy, `localize` repairs it, and `collect` removes it."""
    here.upload(cache, "s3://lake/run", corpora=True)
    here.localize(URL, store.root)
    (path,) = store.corpora.glob("*.loss")
    flip(path, 10)
    assert verify_store(store) == [
        f"{path}: bytes 0 to {path.stat().st_size} differ from their digest"
    ]
    here.localize(URL, store.root)
    assert verify_store(store) == []
    path.unlink()
    with pytest.raises(NotReady):
        distcache.open(URL, store.root)
    here.localize(URL, store.root)
    (record,) = read_records(store)
    assert sum(corpus.loss_size for corpus in record.corpora) == path.stat().st_size
    collect(store, 0, NullProgress())
    assert not list(store.corpora.glob("*.loss"))


def test_a_mask_that_was_replaced_or_is_gone(server: ScriptedS3, cache: str, store: Store) -> None:
    """It is an error of the localization; another mask is not uploaded over it."""
    here.upload(cache, "s3://lake/run", corpora=True)
    name = mask_of(server)
    content = server.objects[name]
    server.put(name, content[::-1])
    with pytest.raises(CorpusError, match=r"\.loss"):
        here.localize(URL, store.root)
    server.put(name, content[:-1])
    with pytest.raises(CorpusError, match=rf"\.loss: has {len(content) - 1} bytes"):
        here.localize(URL, store.root)
    del server.objects[name]
    with pytest.raises(NotReady, match=r"\.loss"):
        here.localize(URL, store.root)
    server.put(name, content[::-1])
    with pytest.raises(KeyMismatch, match=r"\.loss"):
        here.upload(cache, "s3://lake/run", corpora=True)
    Path(loss_path(open_cache(cache).prefixes[0])).unlink()
    with pytest.raises(NotReady, match=r"\.loss: no such file"):
        here.upload(cache, "s3://lake/run", corpora=True)


def test_corpora_in_the_bucket_are_planned_with_their_masks(
    server: ScriptedS3, masked: dict[str, Any], cache: str, tmp_path: Path
) -> None:
    """The mask is that of files; one of another length is a fault."""
    blend = [
        {**entry, "path": put_corpus(server, entry["path"], f"s3://lake/{number}")}
        for number, entry in enumerate(masked["blend"])
    ]
    remote = masked | {"blend": blend}
    built = here.build(remote, tmp_path / "remote")
    assert open_cache(built.path).identity["loss"] == open_cache(cache).identity["loss"]
    loss = here.sound(masked["blend"][0]["path"]).loss
    found, _ = examined("s3://lake/0")
    assert found is not None
    assert loss is not None
    assert (found.digest, found.tokens) == (loss.digest, loss.tokens)
    server.put("lake/0.loss", server.objects["lake/0.loss"] + b"\1")
    _, (fault,) = examined("s3://lake/0")
    assert fault.path == "s3://lake/0.loss"
    assert fault.message.startswith(f"has {len(server.objects['lake/0.loss'])} bytes")


def test_a_refused_mask_counts_as_missing(server: ScriptedS3, masked: dict[str, Any]) -> None:
    """A store then refuses what is not there, such as most masks."""
    server.on_request = lambda request: None if request.name in server.objects else "403"
    for number, has_mask in ((0, True), (1, False)):
        put_corpus(server, masked["blend"][number]["path"], f"s3://lake/{number}")
        assert (examined(f"s3://lake/{number}")[0] is not None) == has_mask
