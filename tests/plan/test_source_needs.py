"""What shards take, and when samples can be sequences as they are, is said by `plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distcache.builder.configuration import config_from_mapping
from distcache.plan.problems import plan_warnings
from distcache.plan.source_needs import shard_needs
from tests.plan.test_make import plan_of
from tests.support import here
from tests.support.mds_corpora import fields_of, write_tokens
from tests.support.mds_writer import write_mds
from tests.support.processes import start


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
