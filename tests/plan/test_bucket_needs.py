"""What training from a bucket asks for, and which way to read is the best."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from distcache.builder.configuration import config_from_mapping
from distcache.plan.model import Plan
from distcache.plan.source_needs import BucketNeeds, BucketOptions, bucket_needs, prefix_warnings
from tests.plan.test_make import plan_of
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
