"""Datasets open lazily, travel to workers, outlive errors that pass, and hold few files."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

import distcache
from distcache.cache import open_cache
from distcache.errors import CacheCorrupt, ConfigError, CorpusError, DistcacheError, NotReady
from distcache.node.store import Store
from distcache.node.upkeep import list_store
from tests.support import here
from tests.support.corpora import write_corpus, write_lengths

pytestmark = [pytest.mark.slow, pytest.mark.wild]


def as_lists(sample: dict[str, Any]) -> dict[str, list[Any]]:
    """Return a sample in a form that compares."""
    return {name: torch.as_tensor(value).tolist() for name, value in sample.items()}


def test_the_ready_copy_is_read(cache: Path, store: Path) -> None:
    """The ready copy is read, and the shared file where there is none; which one is said."""
    local = distcache.open(cache, local=store)
    assert local.is_local
    assert local.path.is_relative_to(store)
    assert "local copy" in repr(local)
    shared = distcache.open(cache)
    assert (shared.is_local, shared.path) == (False, cache)
    assert "shared file" in repr(shared)
    for i in (0, 17, 3999):
        ours, theirs = (as_lists(c.dataset("train")[i]) for c in (local, shared))
        assert ours == theirs


def test_the_environment_says_where_copies_are(
    cache: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment says where copies are as it does for `distcache localize`."""
    monkeypatch.setenv("DISTCACHE_LOCAL_DIR", str(store))
    assert distcache.open(cache).is_local


@pytest.mark.parametrize("gone", ["record", "cache", "index", "store", "marker", "mode"])
def test_an_incomplete_copy_is_not_read(cache: Path, store: Path, gone: str) -> None:
    """The shared file is, and why is said."""
    paths = Store(store)
    victims = {
        "record": next(paths.caches.glob("*.json")),
        "cache": next(paths.caches.glob("*.h5")),
        "index": next(paths.corpora.glob("*.idx")),
        "marker": store / ".distcache-store",
    }
    if gone == "store":
        shutil.rmtree(store)
    elif gone == "mode":
        store.chmod(0o755)
    else:
        victims[gone].unlink()
    with pytest.warns(distcache.SharedFileWarning):
        opened = distcache.open(cache, local=store)
    assert not opened.is_local
    assert opened.handle.reason
    assert len(opened.dataset("train")) == 4000


def test_a_cache_that_was_built_anew_is_not_taken_for_its_copy(
    blend_config: dict[str, Any], cache: Path, store: Path
) -> None:
    """Under the same name there is another one now."""
    cache.unlink()
    here.build({**blend_config, "seed": 4}, cache.parent, "c")
    with pytest.warns(distcache.SharedFileWarning):
        assert not distcache.open(cache, local=store).is_local


def test_a_shared_cache_that_is_gone(cache: Path, store: Path) -> None:
    """The copy made of it is read; without one, it is not found."""
    cache.unlink()
    assert distcache.open(cache, local=store).is_local
    with pytest.raises(NotReady, match="no such cache"):
        distcache.open(cache)


def test_a_corrupt_copy_is_an_error(cache: Path, store: Path) -> None:
    """Its tables are compared when it is opened."""
    copy = next(Store(store).caches.glob("*.h5"))
    with open(copy, "r+b") as stream:
        stream.seek(-3, os.SEEK_END)
        stream.write(b"\xff\xff\xff")
    with pytest.warns(distcache.SharedFileWarning, match="do not match their digest"):
        opened = distcache.open(cache, local=store)
    assert not opened.is_local
    assert "shared file" in repr(opened)


def test_a_cache_in_use_is_kept(cache: Path, store: Path) -> None:
    """A cache in use is kept by a lock that lasts as long as anything of it is open."""
    opened = distcache.open(cache, local=store)
    assert [held.used for held in list_store(Store(store))] == [True]
    dataset = opened.dataset("train")
    assert len(dataset[0]["tokens"]) == 32
    del opened
    assert [held.used for held in list_store(Store(store))] == [True]
    del dataset
    assert [held.used for held in list_store(Store(store))] == [False]


def test_indices_count_from_both_ends(cache: Path) -> None:
    """Indices count from both ends, and those beyond are errors, which ends a plain loop."""
    dataset = distcache.open(cache).dataset("test")
    assert as_lists(dataset[-1]) == as_lists(dataset[len(dataset) - 1])
    for index in (len(dataset), -len(dataset) - 1):
        with pytest.raises(IndexError):
            dataset[index]
    assert sum(1 for _ in dataset) == len(dataset)
    assert dataset.__getitems__([]) == []


@pytest.mark.parametrize(
    ("split", "options", "message"),
    [
        ("training", {}, "has splits train, valid, test"),
        ("train", {"number": 1}, "has 1 dataset"),
        ("train", {"pad_token": 3}, "pad_token"),
        ("train", {"eod": "x"}, "eod"),
        ("train", {"eod": 2**63}, "eod"),
        ("train", {"pad": -(2**63)}, "pad"),
        ("träin", {}, "has splits train, valid"),
        ("train\0", {}, "has splits train, valid"),
        ("train", {"eod_mask_loss": True}, "give the end-of-document token"),
    ],
)
def test_what_is_asked_for_must_be_there(
    cache: Path, split: str, options: dict[str, Any], message: str
) -> None:
    """A clear error before any sample is read."""
    with pytest.raises(ConfigError, match=message):
        distcache.open(cache).dataset(split, **options)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_workers_of_both_kinds(cache: Path, store: Path, method: str) -> None:
    """Read what this process reads, before and after it has read itself."""
    dataset = distcache.open(cache, local=store).dataset("train")
    assert len(pickle.dumps(dataset)) < 1000
    assert len(pickle.dumps(dataset)) == len(pickle.dumps((dataset, dataset[3])[0]))
    first = Subset(dataset, range(300))  # all: torch aborts workers of spawn that still send
    loader = DataLoader(
        first,
        batch_size=50,
        num_workers=2,
        multiprocessing_context=multiprocessing.get_context(method),
    )
    for found, expected in zip(loader, DataLoader(first, batch_size=50), strict=True):
        assert as_lists(found) == as_lists(expected)


def test_threads_share_a_dataset(cache: Path) -> None:
    """Threads share a dataset without mixing their samples up."""
    dataset = distcache.open(cache).dataset("train")
    expected = [as_lists(dataset[i]) for i in range(40)]
    wrong: list[int] = []

    def read() -> None:
        wrong.extend(i for i in range(40) if as_lists(dataset[i]) != expected[i])

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_rows_of_a_batch_can_be_mixed(cache: Path) -> None:
    """Whole batches are taken as they are, others are put together."""
    dataset = distcache.open(cache).dataset("train")
    rows = dataset.__getitems__([5, 6, 7])
    whole = torch.utils.data.default_collate(rows)
    assert whole["tokens"] is rows[0].batch["tokens"]
    mixed = torch.utils.data.default_collate([rows[2], rows[0]])
    assert mixed["tokens"].tolist() == [
        dataset[7]["tokens"].tolist(),
        dataset[5]["tokens"].tolist(),
    ]
    assert len(torch.utils.data.default_collate(rows[:2])["tokens"]) == 2


def test_a_file_of_another_length_is_an_error(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """When it is opened, and when it is cut while it is read."""
    own = str(tmp_path / "own")
    for suffix in (".idx", ".bin"):
        shutil.copy(blend_config["blend"][0]["path"] + suffix, own + suffix)
    fields = {**blend_config, "blend": [{"path": own, "weight": 1.0}]}
    cache = distcache.open(here.build(fields, shared).path)
    reading_on = cache.dataset("train")
    assert len(reading_on[0]["tokens"]) == 32
    size = os.stat(own + ".bin").st_size
    os.truncate(own + ".bin", 20)
    with pytest.raises(CorpusError, match="was cut short while open"):
        reading_on.__getitems__(list(range(50)))
    with pytest.raises(CorpusError, match=f"has 20 bytes, the cache was built from {size}"):
        cache.dataset("train")[0]


def test_arrays_that_lead_outside_are_an_error(blend_config: dict[str, Any], shared: Path) -> None:
    """Not a crash: no number of a file is trusted."""
    path = Path(here.build(blend_config, shared).path)
    view = open_cache(path).arrays("sections", 0)["document_index"]
    path.chmod(0o644)
    with open(path, "r+b") as stream:
        stream.seek(view.offset)
        stream.write(np.full(view.shape, 2**31 - 1, "<i4").tobytes())
    dataset = distcache.open(path).dataset("train")
    with pytest.raises(CacheCorrupt, match="leads outside of the corpus"):
        dataset.__getitems__(list(range(200)))


@pytest.mark.parametrize("member", [3, -1, 32767])
def test_a_dataset_that_is_not_there_is_an_error(
    blend_config: dict[str, Any], shared: Path, member: int
) -> None:
    """Nor is a negative number treated as one counted from the end."""
    path = Path(here.build(blend_config, shared).path)
    view = open_cache(path).arrays("blends", 0)["dataset_index"]
    path.chmod(0o644)
    with open(path, "r+b") as stream:
        stream.seek(view.offset)
        stream.write(np.full(view.shape, member, "<i2").tobytes())
    with pytest.raises(CacheCorrupt, match=f"names dataset {member} of 3"):
        distcache.open(path).dataset("train")[7]


def test_tokens_of_another_type_are_refused(shared: Path, tmp_path: Path) -> None:
    """Megatron-Core cannot make samples of them either: nothing is built."""
    prefix = str(tmp_path / "floats")
    write_corpus(prefix, [np.arange(90)], "i4")
    with open(f"{prefix}.idx", "r+b") as stream:
        stream.seek(17)
        stream.write(b"\x07")
    fields = {"sequence_length": 8, "split": "1,0,0", "blend": [prefix], "tokenizer": {}}
    with pytest.raises(CorpusError, match=r"type code is 7 \(floating point\), expected"):
        here.build(fields, shared)


@pytest.mark.parametrize("what", ["idx", "cache"])
def test_a_mapped_file_that_shrinks(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path, what: str
) -> None:
    """Raises an exception that names it; the process continues."""
    (tmp_path / "own").mkdir()
    lengths = np.full(20_000, 5)
    prefix = write_lengths(tmp_path / "own" / "corpus", lengths)
    fields = {**blend_config, "blend": [prefix], "samples": {"train": 20_000}}
    cache = Path(here.build(fields, shared, "c").path)
    opened = distcache.open(cache)
    train = opened.dataset("train")
    assert train[0]["tokens"].shape == (32,)
    victim = f"{prefix}.idx" if what == "idx" else str(cache)
    os.truncate(victim, 4096)
    with pytest.raises(DistcacheError, match=os.path.basename(victim)):
        train.__getitems__(range(len(train)))
    if what == "cache":  # another reader of what is damaged already
        with pytest.raises(DistcacheError, match=os.path.basename(victim)):
            opened.dataset("train").__getitems__(range(len(train)))


def test_who_forgets_a_damaged_index_first(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """A reader does not return what it has mapped, though the split has forgotten that index."""
    (tmp_path / "own").mkdir()
    prefix = write_lengths(tmp_path / "own" / "corpus", np.full(20_000, 5))
    fields = {**blend_config, "blend": [prefix], "samples": {"train": 20_000}}
    train = distcache.open(Path(here.build(fields, shared, "c").path)).dataset("train")
    for index in range(2):  # the first read examines what it has opened, and opens it again
        assert train[index]["tokens"].shape == (32,)
    split = train._here().split
    whole = Path(f"{prefix}.idx").read_bytes()
    os.truncate(f"{prefix}.idx", 4096)
    assert split.member(0).idx.lengths[19_999] == 0  # as a page of zeros
    with pytest.raises(DistcacheError, match=r"corpus\.idx"):
        split.require_intact()
    Path(f"{prefix}.new").write_bytes(whole)
    os.replace(f"{prefix}.new", f"{prefix}.idx")
    with pytest.raises(DistcacheError, match=r"corpus\.idx"):
        train.__getitems__(range(len(train)))
    assert train[len(train) - 1]["tokens"].shape == (32,)
