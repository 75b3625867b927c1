"""What version 0.1.0 has written is read, verified, localized, built again and trained from."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

import distcache
from distcache.builder.configuration import load_config
from distcache.cache import open_cache
from distcache.cache.digests import verify_cache
from distcache.cache.inspect import inspect_document
from distcache.corpus.examine import require_sound
from distcache.corpus.receipt import read_receipt
from distcache.errors import StateWarning
from distcache.ledger.report import make_report
from distcache.node.localize import localize
from distcache.node.records import LocalizeOptions
from distcache.ranks.communicator import SerialCommunicator
from distcache.train.open import OpenCache
from tests.support.caches import build_here

# Corpora, a cache, and what that version read of them.
WRITTEN = Path(__file__).parents[1] / "fixtures" / "written_by_0.1.0.tar.xz"
ALONE = SerialCommunicator()


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that it has written, which is the working directory."""
    with tarfile.open(WRITTEN) as archive:
        # Python has the filter from 3.11.4 on.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path)
    monkeypatch.chdir(tmp_path / "shared")
    return tmp_path / "shared"


@pytest.fixture
def expected(shared: Path) -> dict[str, Any]:
    """The key, sizes, digests of all samples, and a sampler's state."""
    found: dict[str, Any] = json.loads((shared / "expected.json").read_text())
    return found


def samples_of(cache: OpenCache, split: str) -> list[Any]:
    """Return how many samples a split has, and the digest of all their tensors."""
    dataset = cache.dataset(split, eod=0, reset_position_ids=True)
    digest = hashlib.sha256()
    for index in range(len(dataset)):
        sample = dataset[index]
        for name in sorted(sample):
            digest.update(sample[name].numpy().tobytes())
    return [len(dataset), digest.hexdigest()]


def test_a_cache(shared: Path, expected: dict[str, Any]) -> None:
    """Opens, has all of its digests, and gives the same samples, here and from a local copy."""
    verify_cache(open_cache("caches/old.h5"))
    localize(ALONE, "caches/old.h5", LocalizeOptions(directory=str(shared.parent / "store")))
    for local in (None, shared.parent / "store"):
        cache = distcache.open("caches/old.h5", local=local)
        assert (cache.key, cache.is_local) == (expected["key"], local is not None)
        for split in ("train", "valid", "test"):
            assert samples_of(cache, split) == expected[split]


def test_corpora(shared: Path, expected: dict[str, Any]) -> None:
    """They are sound, have receipts, and give the same arrays, in a file of today's format."""
    facts = require_sound(ALONE, ["data/web", "data/code"], 1)
    for prefix, found in facts.items():
        assert read_receipt(f"{prefix}.receipt.json").idx_digest == found.idx_digest
    assert load_config(Path("blend.json")).seed == 5
    built = build_here(json.loads(Path("blend.json").read_text()), shared / "again")
    assert built.key == expected["key"]
    old, new = (inspect_document(open_cache(path)) for path in ("caches/old.h5", built.path))
    for table in ("sections", "blends"):
        for before, after in zip(old[table], new[table], strict=True):
            for name, array in before.pop("arrays").items():
                now = after["arrays"][name]
                assert all(now[field] == array[field] for field in ("dtype", "shape", "digest"))
            assert {field: after[field] for field in before} == {**before, "unit": after["unit"]}
    assert build_here(json.loads(Path("blend.json").read_text()), shared / "caches", "old").reused


def test_a_sampler(shared: Path, expected: dict[str, Any]) -> None:
    """It goes on where it was saved, with a warning: its state does not say what it belongs to."""
    train = distcache.open("caches/old.h5").dataset("train", eod=0)
    sampler = distcache.ResumableSampler(train, 4, 1, 2)
    with pytest.warns(StateWarning):
        sampler.load_state_dict(expected["sampler"]["state"])
    coming = iter(sampler)
    assert [next(coming) for _ in range(3)] == expected["sampler"]["next"]


def test_it_is_traced_and_reported(shared: Path, expected: dict[str, Any]) -> None:
    """A trace of the cache has the documents of each sample; a report counts its tokens."""
    (path,) = shared.rglob("*.h5")
    dataset = distcache.open(path).dataset("train")
    found = distcache.trace(path)
    traced = found.samples(range(len(found)))
    for position in range(0, len(found), 7):
        own = slice(*traced.bounds[position : position + 2].tolist())
        parts = dataset.document_of(position)
        assert [part.tokens for part in parts] == (traced.ends[own] - traced.begins[own]).tolist()
        assert {part.corpus for part in parts} == {found.corpora[traced.corpora[position]]}
    report = make_report(found)
    length = found.cache.sequence_length
    assert sum(one.trained_tokens for one in report.corpora) == len(found) * length
