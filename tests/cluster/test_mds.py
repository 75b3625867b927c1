"""A mix of compressed MDS shards on three nodes: indexed, unpacked on each, read under torchrun."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distcache
from distcache.edit.mds_scan import MdsOptions
from distcache.edit.mix_recipe import recipe_from
from tests.cluster.cluster import Cluster
from tests.cluster.daemons import run
from tests.cluster.epoch import digest
from tests.cluster.jobs import Story, command, environment, wait_for
from tests.cluster.node import STORAGE
from tests.cluster.settings import LOCAL, SCRIPTS
from tests.support import here
from tests.support.mds_writer import write_mds
from tests.support.waiting import wait_until

SIZES = {"a": 3000, "b": 1500, "c": 600}  # documents
LENGTH = 512
DEAD_WITHIN = 150.0  # seconds until Slurm takes a node for dead, and some


def write_sets(directory: Path, codec: str) -> dict[str, Any]:
    """Write data sets of tokens, the same whatever the compression, and return their list."""
    train = []
    for number, (name, count) in enumerate(SIZES.items()):
        random = np.random.default_rng(number)
        lengths = random.integers(50, 1500, count)
        samples = [{"tokens": random.integers(0, 50_000, n, np.int32)} for n in lengths]
        data = write_mds(
            directory / name, {"tokens": "ndarray:int32"}, samples, per_shard=100, codec=codec
        )
        train.append({"name": name, "path": str(data), "repeat": number + 1})
    return {"train": train}


def expected_samples(directory: Path) -> list[list[Any]]:
    """Return number and digest of each sample of the mix, made of raw shards by one process."""
    recipe = recipe_from(write_sets(directory / "raw", ""))
    tokens = MdsOptions(column="tokens")
    done = here.mix(recipe, directory / "mix", mds=tokens, sequence_length=LENGTH)
    cache = here.build(json.loads(Path(done.path).read_text()), directory / "caches").path
    dataset = distcache.open(cache).dataset("train")
    return [[i, digest(dataset[i]["tokens"])] for i in range(len(dataset))]


def samples_in(directory: Path) -> list[list[Any]]:
    """Return what all ranks have read."""
    ranks = [json.loads(path.read_text()) for path in directory.iterdir()]
    assert all(rank["local"] for rank in ranks)
    return sorted(sample for rank in ranks for sample in rank["samples"])


@pytest.mark.more
def test_a_node_dies_and_the_samples_stay(cluster: Cluster, shared: Path, tmp_path: Path) -> None:
    """Compressed bytes travel once; a node that was killed while unpacking is mended."""
    run("srun", "-N3", "sh", "-c", f"rm -rf {LOCAL}/distcache-*")
    recipe = shared / "mix.json"
    recipe.write_text(json.dumps(write_sets(shared, "zstd")))
    words = ["srun", "-N3", "--mpi=pmi2", "--ntasks-per-node=2", "distcache", "mix", str(recipe)]
    words += ["-o", str(shared / "mix"), "--sequence-length", str(LENGTH), "--log-format", "none"]
    run(*words, environment=environment())
    story = Story(shared, json.loads((shared / "mix" / "blend.json").read_text()))
    done = command(*story.words("--wait"))
    assert done.returncode == 0, done.stderr

    script = shared / "localize.sh"
    script.write_text(
        "#!/bin/bash\nsrun --mpi=pmi2 --ntasks-per-node=1 --kill-on-bad-exit=1 distcache localize "
        f"{story.cache} --store {LOCAL}/distcache-{os.geteuid()}\n"
    )
    victim, witness = cluster.node("node2"), cluster.node("node1")
    for node in cluster.nodes:
        cluster.shared.forget_on(node)
        node.slow_down(STORAGE, "10mbit")
    try:
        job = story.sbatch(script, options=("--no-requeue", "--nodes=3"))
        wait_until(lambda: ".part" in witness.run("find", LOCAL, "-name", ".*.part"), "a copy")
        before = witness.received()
        wait_until(lambda: witness.received() > before + (1 << 20), "more of the copy")
        victim.kill()
        wait_for(job, "NODE_FAIL", "FAILED", limit=DEAD_WITHIN)
    finally:
        for node in cluster.nodes:
            node.slow_down(STORAGE, "")
        cluster.restart(victim)

    expected = expected_samples(tmp_path)
    for attempt in ("first", "second"):
        out = shared / attempt
        out.mkdir()
        options = (f"--export=ALL,RANKS_PER_NODE=2,DISTCACHE_CACHE={story.cache}",)
        job = story.sbatch(
            SCRIPTS / "train.sbatch", "-m", "tests.cluster.epoch", out, options=options
        )
        assert wait_for(job, "COMPLETED", "FAILED") == "COMPLETED", story.log(job)
        assert samples_in(out) == expected
        victim.kill()  # its disk keeps the copy
        cluster.restart(victim)
    run(
        "srun",
        "-N3",
        "distcache",
        "local",
        "verify",
        "--store",
        LOCAL / f"distcache-{os.geteuid()}",
    )
