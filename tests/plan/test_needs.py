"""What training needs of buckets and shards, and when rows are whole samples: the plan says it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from distcache.builder.configuration import config_from_mapping
from distcache.plan.model import Plan
from distcache.plan.problems import plan_warnings
from distcache.plan.source_needs import (
    BucketNeeds,
    BucketOptions,
    bucket_needs,
    prefix_warnings,
    shard_needs,
)
from tests.plan.test_make import plan_of
from tests.support import here
from tests.support.corpora import write_lengths
from tests.support.mds_corpora import fields_of, write_tokens
from tests.support.mds_writer import write_mds
from tests.support.processes import start


@pytest.fixture
def plan(blend_config: dict[str, Any]) -> Plan:
    """A plan over corpora of files."""
    return plan_of(config_from_mapping(blend_config))


def needs_of(plan: Plan, **options: Any) -> BucketNeeds:
    """Return what the plan needs if its corpora were in a bucket."""
    found = bucket_needs(plan, BucketOptions(bucket=True, **options))
    assert found is not None
    return found


def test_corpora_of_files_need_no_bucket(plan: Plan) -> None:
    """Unless somebody asks; corpora in a bucket are known by their names."""
    assert bucket_needs(plan) is None
    sources = tuple(
        msgspec.structs.replace(source, prefix=f"s3://lake/{number}/x")
        for number, source in enumerate(plan.sources)
    )
    remote = msgspec.structs.replace(plan, sources=sources)
    found = bucket_needs(remote)
    assert found is not None
    assert found.prefixes == len(sources)
    assert found.requests_per_sample == needs_of(plan).requests_per_sample


def test_it_is_what_the_arrays_say(plan: Plan, blend_config: dict[str, Any]) -> None:
    """A request for each part of a sample, the bytes of its tokens."""
    found = needs_of(plan)
    (blend,) = (blend for blend in plan.blends if blend.split == "train")
    assert found.samples == blend.size
    assert found.corpora == len(plan.sources)
    assert found.nbytes == sum(source.bin_size for source in plan.sources)
    length = blend_config["sequence_length"]
    assert length <= found.bytes_per_sample / 2 <= 2.2 * length
    assert found.requests_per_sample > 1
    ranges, copy = found.ways
    assert ranges.requests == pytest.approx(found.samples * found.requests_per_sample, rel=0.01)
    assert copy.nbytes == found.nbytes == copy.node_disk


def test_ranges_and_nodes(plan: Plan) -> None:
    """Ranges cost the same on any number of nodes, copies as often as there are nodes."""
    one, many = needs_of(plan), needs_of(plan, training_nodes=10)
    assert one.ways[0] == many.ways[0]
    assert many.ways[1].nbytes == 10 * one.ways[1].nbytes


@pytest.mark.parametrize(
    ("nodes", "disk", "best"),
    [(1, None, "copy"), (1, 10, "ranges"), (100_000, None, "ranges"), (1, 1 << 40, "copy")],
)
def test_the_best_way(plan: Plan, nodes: int, disk: int | None, best: str) -> None:
    """Copies, if the disk holds them and a node reads the corpora more than once."""
    found = needs_of(plan, training_nodes=nodes, node_disk=disk)
    assert found.passes > 1
    assert found.best == best
    assert [way.fits for way in found.ways] == [True, disk != 10]


def test_few_prefixes_are_a_warning(plan: Plan, limit: Callable[..., None]) -> None:
    """Where they serve few samples a second."""
    found = needs_of(plan)
    assert found.samples_per_second == pytest.approx(5500 / found.requests_per_sample)
    limit("distcache.plan.source_needs", LOW_RATE=found.samples_per_second + 1)
    (warning,) = prefix_warnings(found)
    assert "below 1 prefix; S3 serves some 5,500 requests a second" in warning
    limit("distcache.plan.source_needs", LOW_RATE=found.samples_per_second - 1)
    assert prefix_warnings(found) == []
    assert prefix_warnings(None) == []


def test_the_command(blend_config: dict[str, Any], tmp_path: Any) -> None:
    """It shows the ways, and which is the best."""
    config = tmp_path / "blend.json"
    config.write_text(json.dumps(blend_config))
    words = ["plan", config, "--bucket", "--training-nodes", "2", "--node-disk", "1T"]
    shown = start(words)
    assert shown.returncode == 0, shown.stderr
    assert "best     " in shown.stdout
    found = json.loads(start([*words, "--json"]).stdout)["buckets"]
    assert [way["way"] for way in found["ways"]] == ["ranges", "copy"]
    assert json.loads(start(["plan", config, "--json"]).stdout)["buckets"] is None


def test_needs_of_shards(tmp_path: Path) -> None:
    """Compressed ones take their raw bytes on a node, raw ones none; files are those of samples."""
    packed = write_tokens(tmp_path / "packed", codec="zstd")
    raw = write_tokens(tmp_path / "raw")
    here.index(packed, tmp_path / "a")
    here.index(raw, tmp_path / "b")
    fields = fields_of(str(tmp_path / "a"), str(tmp_path / "b"))
    needs = shard_needs(plan_of(config_from_mapping(fields)))
    assert needs is not None
    shards = json.loads((packed / "index.json").read_text())["shards"]
    size = sum(shard["raw_data"]["bytes"] for shard in shards)
    assert (needs.corpora, needs.shards, needs.compressed) == (2, 2 * len(shards), len(shards))
    assert needs.node_bytes == size
    files = [*packed.glob("shard.*"), *raw.glob("shard.*")]
    assert needs.stored_bytes == sum(path.stat().st_size for path in files)
    assert needs.files_per_sample > 1
    (tmp_path / "blend.json").write_text(json.dumps(fields))
    shown = start(["plan", tmp_path / "blend.json"]).stdout
    assert f"{needs.compressed} shards are compressed" in shown
    assert f"files    {needs.files_per_sample:.1f} for each sample" in shown
    said = json.loads(start(["plan", tmp_path / "blend.json", "--json"]).stdout)
    assert said["shards"]["node_bytes"] == size


def test_no_shards_need_nothing(blend_config: dict[str, Any]) -> None:
    """No shards need nothing, and nothing is shown."""
    assert shard_needs(plan_of(config_from_mapping(blend_config))) is None


@pytest.mark.parametrize(
    ("length", "more", "hinted"),
    [(64, {}, True), (64, {"add_extra_token": False}, False), (32, {}, False)],
)
def test_sequences_of_one_length(
    length: int, more: dict[str, Any], hinted: bool, tmp_path: Path
) -> None:
    """They are samples one to one without the extra token, if samples are as long."""
    samples = [{"tokens": np.arange(64, dtype=np.int32)} for _ in range(20)]
    here.index(write_mds(tmp_path / "mds", {"tokens": "ndarray:int32"}, samples), tmp_path / "c")
    fields = {
        "sequence_length": length,
        "split": "1,0,0",
        "samples": {"train": 20},
        "blend": [{"path": str(tmp_path / "c"), "weight": 1.0}],
    }
    config = config_from_mapping(fields | more)
    plan = plan_of(config)
    hints = [text for text in plan_warnings(config, plan) if "add_extra_token: false" in text]
    assert len(hints) == hinted
    assert all("all of its sequences have 64 tokens" in text for text in hints)
    needs = shard_needs(plan)
    assert needs is not None
    assert needs.files_per_sample >= 1


def hints(fields: dict[str, Any]) -> list[str]:
    """Return the warnings that name the extra token."""
    config = config_from_mapping(fields)
    plan = here.plan(config)
    return [text for text in plan_warnings(config, plan) if "add_extra_token" in text]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([65] * 40, "`sequence_length: 65` and `add_extra_token: false`"),
        ([64] * 40, "with `add_extra_token: false` each is one sample"),
        ([63] * 40, None),
        ([65] * 39 + [64, 66], None),
        ([64] * 39 + [63, 65], None),
    ],
)
def test_rows(lengths: list[int], expected: str | None, tmp_path: Path) -> None:
    """Of as many tokens as a sample, or of one more, all of them."""
    prefix = write_lengths(tmp_path / "rows", np.array(lengths))
    fields = {"sequence_length": 64, "split": "100,0,0", "blend": [prefix]}
    found = hints(fields)
    assert len(found) == (expected is not None)
    assert expected is None or expected in found[0]
    assert hints({**fields, "add_extra_token": False}) == []
