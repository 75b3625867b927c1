"""A build: what it leaves, what it resumes, what it takes over."""

from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from distcache.cache import open_cache
from distcache.cache.digests import array_digest, leaves_of, verify_cache
from distcache.errors import (
    CacheCorrupt,
    ConfigError,
    CorpusError,
    DistcacheError,
    KeyMismatch,
    NoSpace,
    NotReady,
)
from tests.kernels.truth import weighted_blend
from tests.support import here
from tests.support.caches import Dying, workspace_of
from tests.support.corpora import LENGTHS, write_lengths

PHASES = ["laying out", "looking for an earlier run", "building", "reading back", "publishing"]


def visible(directory: Path) -> list[str]:
    """Return the names in a directory that are not hidden."""
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))


def test_a_cache_and_its_record(blend_config: dict[str, Any], shared: Path) -> None:
    """Nothing else is left, and the cache is read-only."""
    outcome = here.build(blend_config, shared, "pretrain")
    assert visible(shared) == ["pretrain.h5", "pretrain.h5.build.json"]
    assert not list(shared.glob(".*"))
    assert stat.S_IMODE(os.stat(outcome.path).st_mode) & 0o222 == 0
    record = json.loads((shared / "pretrain.h5.build.json").read_text())
    assert record["key"] == outcome.key == open_cache(outcome.path).key
    assert record["ranks"][0]["peak_memory"] > 0
    assert outcome.built == 12


def test_errors_that_are_rounded_once(blend_config: dict[str, Any], shared: Path) -> None:
    """Errors that are rounded once make another blend, under another key."""
    shares = [5.0, 3.0, 8.0, 8.0, 1.0]
    entries = [blend_config["blend"][place % 3] for place in range(5)]
    blend_config["blend"] = [
        entry | {"weight": share} for entry, share in zip(entries, shares, strict=True)
    ]
    twice = here.build(blend_config, shared, "twice")
    once = here.build(blend_config | {"blend_arithmetic": "fused"}, shared, "once")
    assert once.key != twice.key
    weights = np.array(shares) / sum(shares)
    found = []
    for outcome, fused in ((twice, False), (once, True)):
        cache = open_cache(outcome.path)
        view = cache.arrays("blends", 0)["dataset_index"]
        found.append(cache.read(view).tolist())
        assert found[-1] == weighted_blend(weights, len(found[-1]), fused=fused)[0]
    assert found[0] != found[1]


def test_every_byte_is_verified(blend_config: dict[str, Any], shared: Path) -> None:
    """Blocks and arrays have the digests that the cache gives."""
    cache = open_cache(here.build(blend_config, shared).path)
    verify_cache(cache)
    for table in ("sections", "blends"):
        for row in range(len(cache.table(table))):
            for view in cache.arrays(table, row).values():
                assert array_digest(leaves_of(cache.read(view))) == view.digest


def test_hdf5_tools_see_what_the_mapping_sees(blend_config: dict[str, Any], shared: Path) -> None:
    """The same arrays at the same offsets, and the same tables."""
    cache = open_cache(here.build(blend_config, shared).path)
    with h5py.File(cache.path) as file:
        for row, unit in enumerate(file["tables/sections"]["unit"].tolist()):
            for name, view in cache.arrays("sections", row).items():
                dataset = file[name][str(unit)]
                row_bytes = dataset.dtype.itemsize * math.prod(dataset.shape[1:])
                first = (view.offset - dataset.id.get_offset()) // row_bytes
                found = dataset[first : first + view.shape[0]]
                np.testing.assert_array_equal(found, cache.read(view))
        for name in cache.header.tables:
            assert file["tables"][name][()].tobytes() == cache.table(name).tobytes()


def test_a_finished_cache_is_found(blend_config: dict[str, Any], shared: Path) -> None:
    """The second build does nothing and says so."""
    first = here.build(blend_config, shared)
    written = os.stat(first.path)
    second = here.build(blend_config, shared)
    assert (first.reused, second.reused) == (False, True)
    assert os.stat(second.path).st_mtime_ns == written.st_mtime_ns


def test_what_is_resumed_is_verified(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """An array that was spoilt after it was recorded is built again."""
    whole = Path(here.build(blend_config, tmp_path / "whole").path)
    view = open_cache(whole).arrays("sections", 0)["document_index"]
    with pytest.raises(RuntimeError):
        here.build(blend_config, shared, "x", progress=Dying("publishing"))
    workspace = workspace_of(shared / "x.h5")
    with open(workspace.path / "data", "r+b") as stream:
        stream.seek(view.offset + 5)
        stream.write(b"\xff\xfe")
    for journal in workspace.path.glob("journal.*"):
        with open(journal, "ab") as stream:
            stream.write(b'{"item": 999, "digests": {}}\nnot json\n{"item": 1, "dig')
    outcome = here.build(blend_config, shared, "x")
    assert (outcome.resumed, outcome.built) == (11, 1)
    assert Path(outcome.path).read_bytes() == whole.read_bytes()


def test_what_lies_between_arrays_is_written_anew(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """What lies between arrays is written again, whatever an earlier build has left there."""
    whole = Path(here.build(blend_config, tmp_path / "whole").path).read_bytes()
    with pytest.raises(RuntimeError):
        here.build(blend_config, shared, "x", progress=Dying("reading back"))
    with open(workspace_of(shared / "x.h5").path / "data", "r+b") as stream:
        stream.write(b"\xff" * (3 << 20))
    assert Path(here.build(blend_config, shared, "x").path).read_bytes() == whole


@pytest.mark.parametrize("name", ["stamp", "data", "layout", "progress.json", "progress.json.part"])
@pytest.mark.parametrize("kind", ["directory", "pipe", "link"])
def test_a_workspace_that_somebody_has_spoilt(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path, name: str, kind: str
) -> None:
    """What is no file in it is removed or refused, and a link is never followed."""
    with pytest.raises(RuntimeError):
        here.build(blend_config, shared, "x", progress=Dying("reading back"))
    (tmp_path / "precious").write_text("precious")
    entry = workspace_of(shared / "x.h5").path / name
    entry.unlink(missing_ok=True)
    if kind == "directory":
        entry.mkdir()
    elif kind == "pipe":
        os.mkfifo(entry)
    else:
        entry.symlink_to(tmp_path / "precious")
    verify_cache(open_cache(here.build({**blend_config, "seed": 7}, shared, "x").path))
    assert (tmp_path / "precious").read_text() == "precious"
    assert not list(shared.glob(".*"))


def test_a_workspace_of_another_plan_is_not_resumed(
    blend_config: dict[str, Any], shared: Path
) -> None:
    """Its arrays lie elsewhere and are others."""
    with pytest.raises(RuntimeError):
        here.build(blend_config, shared, "x", progress=Dying("publishing"))
    outcome = here.build({**blend_config, "seed": 3}, shared, "x")
    assert outcome.resumed == 0
    verify_cache(open_cache(outcome.path))


def test_another_cache_under_the_name(blend_config: dict[str, Any], shared: Path) -> None:
    """It is left alone, and the message says how to find out what differs."""
    first = Path(here.build(blend_config, shared, "x").path)
    content = first.read_bytes()
    with pytest.raises(KeyMismatch, match="distcache explain"):
        here.build({**blend_config, "seed": 3}, shared, "x")
    assert first.read_bytes() == content


def test_a_name_that_is_a_dangling_link(blend_config: dict[str, Any], shared: Path) -> None:
    """It is not treated as a cache, before anything is built."""
    (shared / "x.h5").symlink_to(shared / "nothing")
    with pytest.raises(DistcacheError, match="dangling symbolic link"):
        here.build(blend_config, shared, "x")
    assert [path.name for path in shared.iterdir()] == ["x.h5"]


def test_a_name_that_is_a_directory(blend_config: dict[str, Any], shared: Path) -> None:
    """It is said so, with what to do."""
    (shared / "x.h5").mkdir()
    with pytest.raises(DistcacheError, match="is not a file; move it away"):
        here.build(blend_config, shared, "x")


def test_a_torn_cache_is_no_hit(blend_config: dict[str, Any], shared: Path) -> None:
    """A file that exists but not whole is an error, and is not overwritten."""
    path = Path(here.build(blend_config, shared, "x").path)
    path.chmod(0o644)
    os.truncate(path, 5000)
    with pytest.raises(CacheCorrupt):
        here.build(blend_config, shared, "x")
    assert path.stat().st_size == 5000


def test_adding_a_corpus_builds_that_corpus_only(
    blend_config: dict[str, Any], corpora: dict[str, str], shared: Path, tmp_path: Path
) -> None:
    """Sections with equal keys are taken over, the new one and the blends are built."""
    by_size = {**blend_config, "samples": None}
    by_size["blend"] = [{"path": source["path"]} for source in blend_config["blend"]]
    first = here.build(by_size, shared)
    more = {**by_size, "blend": [*by_size["blend"], {"path": corpora["third"]}]}
    second = here.build(more, shared, reuse=(Path(first.path),))
    assert (second.reused_items, second.built) == (9, 6)
    fresh = here.build(more, tmp_path / "fresh")
    assert Path(second.path).read_bytes() == Path(fresh.path).read_bytes()


def test_a_spoilt_cache_is_not_reused(blend_config: dict[str, Any], shared: Path) -> None:
    """Every array is compared with its digest on the way."""
    first = Path(here.build(blend_config, shared).path)
    view = open_cache(first).arrays("sections", 2)["shuffle_index"]
    first.chmod(0o644)
    with open(first, "r+b") as stream:
        stream.seek(view.offset)
        stream.write(b"\xff")
    with pytest.raises(CacheCorrupt, match="cannot be reused"):
        here.build(blend_config, shared, "second", reuse=(first,))
    with pytest.raises(NotReady):
        here.build(blend_config, shared, "second", reuse=(shared / "none.h5",))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_change_nothing(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path, threads: int
) -> None:
    """The file is the same to the byte."""
    one = Path(here.build(blend_config, tmp_path / "one").path).read_bytes()
    assert Path(here.build(blend_config, shared, threads=threads).path).read_bytes() == one


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a\0b"])
def test_names_that_are_no_names(blend_config: dict[str, Any], shared: Path, name: str) -> None:
    """A cache never leaves its directory."""
    with pytest.raises(ConfigError, match="file name"):
        here.build(blend_config, shared, name)


def test_a_memory_limit_that_cannot_be_kept(blend_config: dict[str, Any], shared: Path) -> None:
    """It is told before anything is made."""
    with pytest.raises(NoSpace, match="--memory-limit"):
        here.build(blend_config, shared, memory_limit=1 << 20)
    assert list(shared.iterdir()) == []


def test_unsound_corpora_stop_a_build(tmp_path: Path, shared: Path) -> None:
    """Unsound corpora stop a build before anything is made, with every fault."""
    prefixes = [write_lengths(tmp_path / name, LENGTHS["tiny"]) for name in ("a", "b")]
    for prefix in prefixes:
        os.truncate(f"{prefix}.bin", 1)
    fields = {"sequence_length": 4, "split": "1", "blend": prefixes}
    with pytest.raises(CorpusError) as caught:
        here.build(fields, shared)
    assert len(caught.value.problems) == 2
    assert list(shared.iterdir()) == []


def test_a_corpus_that_changes_while_it_is_built_from(tmp_path: Path, shared: Path) -> None:
    """Its length is compared again when it is opened for building."""
    prefix = write_lengths(tmp_path / "a", LENGTHS["plain"])

    class Rewriting(Dying):
        def phase(self, name: str, total: float = 0) -> None:
            if name == "building":
                write_lengths(tmp_path / "a", LENGTHS["second"])

    fields = {"sequence_length": 4, "split": "1", "blend": [prefix]}
    with pytest.raises(CorpusError, match="do not write to a corpus"):
        here.build(fields, shared, progress=Rewriting(""))


def test_a_workspace_that_is_a_link_is_refused(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """Nothing is written through a link out of the directory."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (shared / ".x.h5.building").symlink_to(elsewhere)
    with pytest.raises(DistcacheError, match="is not a directory; remove it"):
        here.build(blend_config, shared, "x")
    assert list(elsewhere.iterdir()) == []
