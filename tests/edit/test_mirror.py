"""MDS sets in a bucket are indexed, mixed and localized: nobody copies them by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distcache.corpus import idx_path
from distcache.edit.mirror import Mirrored, mirror
from distcache.errors import ConfigError, NotReady
from distcache.ranks.communicator import Communicator
from distcache.ranks.progress import NullProgress
from distcache.storage.locks import LOCK
from tests.support import here
from tests.support.mds_writer import write_mds
from tests.support.processes import start
from tests.support.scripted_s3 import ScriptedS3
from tests.support.threads import run_ranks

pytestmark = pytest.mark.slow

TOKENS = [{"tokens": np.arange(n, n + 9, dtype=np.int32)} for n in range(60)]


def put(server: ScriptedS3, directory: Path, name: str) -> None:
    """Upload a directory."""
    for path in directory.rglob("*"):
        if path.is_file():
            server.put(f"lake/{name}/{path.relative_to(directory)}", path.read_bytes())


@pytest.mark.few(1)
@pytest.mark.parametrize("codec", ["", "zstd"])
def test_a_set_is_indexed_by_its_url(server: ScriptedS3, codec: str, tmp_path: Path) -> None:
    """A set is indexed by its URL with the same index, and the same tokens in a localized copy."""
    data = write_mds(tmp_path / "own" / "train", {"tokens": "ndarray:int32"}, TOKENS, codec=codec)
    put(server, tmp_path / "own", "c4")
    done = start(
        ["index", "mds", "s3://lake/c4", "--subdirectory", "train", "-o", tmp_path / "remote"],
        environment=server.environment,
    )
    assert done.returncode == 0, done.stderr
    own = start(["index", "mds", data, "-o", tmp_path / "local"])
    assert own.returncode == 0, own.stderr
    first, second = (Path(idx_path(str(tmp_path / n))).read_bytes() for n in ("remote", "local"))
    assert first == second
    fields = {"sequence_length": 8, "split": "1,0,0"}
    found: list[Any] = []
    for name in ("remote", "local"):
        blend = {"blend": [str(tmp_path / name)]}
        cache = here.build(fields | blend, tmp_path, name).path
        store = tmp_path / f"store-{name}"
        copied = start(["localize", cache, "--store", store, "--bin", "copy"])
        assert copied.returncode == 0, copied.stderr
        found.append([path.read_bytes() for path in sorted(store.rglob("*.bin"))])
    assert found[0] == found[1] != []


def test_a_mix_brings_what_is_remote(server: ScriptedS3, tmp_path: Path) -> None:
    """To streaming's `local`, or beside the corpora; what is there is left alone."""
    sizes = {"a": 20, "b": 30, "c": 10}
    for name, size in sizes.items():
        own = write_mds(tmp_path / "own" / name, {"n": "int"}, [{"n": n} for n in range(size)])
        put(server, own, name)
    streams = {
        "a": {"remote": "s3://lake/a", "local": str(tmp_path / "cache-a")},
        "b": {"remote": "s3://lake/b"},
        "c": {"remote": "s3://lake/none", "local": str(tmp_path / "own" / "c")},
        "again": {"remote": "s3://lake/b/", "local": str(tmp_path / "part")},
    }
    (tmp_path / "part").mkdir()  # streaming's cache, with the index and none of its shards
    (tmp_path / "part/index.json").write_bytes((tmp_path / "own/b/index.json").read_bytes())
    recipe = tmp_path / "mix.yaml"
    recipe.write_text(json.dumps({"streams": streams}))
    words = ["mix", recipe, "--rows", "-o", tmp_path / "mix"]
    done = start(words, environment=server.environment)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "mix/blend.json").read_text())["samples"]["train"] == 90
    assert (tmp_path / "cache-a/index.json").is_file()
    assert (tmp_path / "mix/mds/b/index.json").is_file()
    server.script()
    assert start(words, environment=server.environment).returncode == 0
    assert not [request for request in server.requests if request.method == "GET"]


def test_ranks_share_the_objects_and_continue(server: ScriptedS3, tmp_path: Path) -> None:
    """Each object once, also after a run that was killed; a changed one again."""
    own = write_mds(tmp_path / "own", {"tokens": "ndarray:int32"}, TOKENS, per_shard=2)
    put(server, own, "c4")
    sets = [Mirrored("s3://lake/c4", str(tmp_path / "mirror"))]

    def bring(communicator: Communicator) -> None:
        mirror(communicator, sets, NullProgress())

    run_ranks(3, bring)
    names = {path.name for path in own.iterdir()}
    gets = [request.name for request in server.requests if request.method == "GET"]
    assert len(gets) == len(names)
    (tmp_path / "mirror" / "shard.00003.mds").unlink()
    server.put("lake/c4/shard.00004.mds", b"other")
    server.script()
    bring(here.ALONE)
    gets = [request.name for request in server.requests if request.method == "GET"]
    assert sorted(name.rpartition("/")[2] for name in gets) == [
        "shard.00003.mds",
        "shard.00004.mds",
    ]
    found = {path.name for path in (tmp_path / "mirror").iterdir() if path.suffix != ".version"}
    assert found == {*names, LOCK}
    (tmp_path / "mirror" / "shard.00005.mds").write_bytes(b"cut")
    bring(here.ALONE)
    assert (tmp_path / "mirror" / "shard.00005.mds").stat().st_size > 3
    twice = [Mirrored(f"s3://lake/{name}", str(tmp_path / "y")) for name in ("c4", "other")]
    with pytest.raises(ConfigError, match="is the place of both"):
        mirror(here.ALONE, twice, NullProgress())
    assert not (tmp_path / "y").exists()
    with pytest.raises(NotReady, match="no objects below"):
        mirror(here.ALONE, [Mirrored("s3://lake/none", str(tmp_path / "x"))], NullProgress())
