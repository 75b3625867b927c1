"""Real torchrun, four processes: training starts at once from what was built beforehand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distcache.corpus import write_idx
from tests.support import here
from tests.support.processes import clean_environment, start

RANKS = 4


def torchrun(
    *words: object, timeout: float, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the training under torchrun to its end."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(RANKS), "-m", "tests.jobs.training", str(timeout)]
    return subprocess.run(
        [*command, *map(str, words)],
        env=clean_environment(
            {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", **(environment or {})}
        ),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """Return what the ranks said, in their order."""
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(found, key=lambda line: line["rank"])


def localize(cache: Path, root: Path) -> dict[str, str]:
    """Localize, and return the environment by which training finds it."""
    done = start(["localize", cache, "--store", root])
    assert done.returncode == 0, done.stderr
    return {"DISTCACHE_LOCAL_DIR": str(root)}


def test_a_model_trains(blend_config: dict[str, Any], shared: Path, tmp_path: Path) -> None:
    """All ranks from the local copy, in one global order; the loss falls."""
    cache = Path(here.build(blend_config, shared, "c").path)
    environment = localize(cache, tmp_path / "local")
    done = torchrun("distcache", cache, 30, timeout=20, environment=environment)
    assert done.returncode == 0, done.stderr
    ranks = lines(done)
    assert [line["rank"] for line in ranks] == list(range(RANKS))
    assert all(line["local"] for line in ranks)
    assert all(line["state"] == ranks[0]["state"] for line in ranks)
    assert len({line["weights"] for line in ranks}) == 1
    assert len({tuple(line["losses"]) for line in ranks}) == RANKS  # each had samples of its own
    first, last = (sum(line["losses"][i] for line in ranks) for i in (0, -1))
    assert last < 0.96 * first


@pytest.mark.more
def test_ranks_that_read_another_cache_are_named(
    blend_config: dict[str, Any], shared: Path
) -> None:
    """Ranks that read another cache are named on all ranks, in one small collective."""
    cache = here.build(blend_config, shared, "c").path
    other = here.build({**blend_config, "seed": 1}, shared, "other").path
    ranks = lines(torchrun("agree", cache, other, 2, timeout=20))
    assert len(ranks) == RANKS
    assert not any(line["agreed"] for line in ranks)
    assert all("rank(s) 2 read the cache with key" in line["problem"] for line in ranks)
    assert all(line["agreed"] for line in lines(torchrun("agree", cache, cache, 2, timeout=20)))


@pytest.mark.more
def test_a_rank_that_cannot_open_the_cache(blend_config: dict[str, Any], shared: Path) -> None:
    """It says why; the others name it, and none waits for it."""
    cache = here.build(blend_config, shared, "c").path
    ranks = lines(torchrun("open", cache, shared / "none.h5", 1, timeout=20))
    assert [line["key"] for line in ranks] == [None] * RANKS
    problems = [line["problem"] for line in ranks]
    assert "none.h5" in problems.pop(1)
    assert all("rank(s) 1 could not open it" in problem for problem in problems)


def write_long_corpus(prefix: Path) -> None:
    """Write a corpus whose indices take long to build; its tokens are zeros."""
    documents = 12_000_000
    lengths = np.random.default_rng(0).integers(300, 900, documents).astype(np.int32)
    write_idx(str(prefix), lengths, "u2")
    with open(f"{prefix}.bin", "wb") as stream:
        stream.truncate(2 * int(lengths.sum(dtype=np.int64)))


@pytest.mark.more
def test_the_disease_and_the_cure(tmp_path: Path) -> None:
    """Rank 0 builds for longer than the others wait; what was built before is trained from."""
    timeout = 2.5
    write_long_corpus(tmp_path / "long")
    fields = {
        "sequence_length": 1024,
        "split": "1,0,0",
        "samples": {"train": 25_000_000, "valid": 0, "test": 0},
        "blend": [{"path": str(tmp_path / "long"), "weight": 1.0}],
        "tokenizer": {"class": "X"},
    }
    config = tmp_path / "c.json"
    config.write_text(json.dumps(fields))
    done = torchrun("megatron", config, tmp_path / "theirs", 2, timeout=timeout)
    assert done.returncode != 0
    assert not lines(done)
    assert "imed out" in done.stderr or "imeout" in done.stderr
    cache = start(["build", config, "-o", tmp_path / "shared"]).stdout.strip()
    assert start(["ready", cache]).returncode == 0
    environment = localize(Path(cache), tmp_path / "local")
    done = torchrun("distcache", cache, 2, timeout=timeout, environment=environment)
    assert done.returncode == 0, done.stderr
    ranks = lines(done)
    assert len(ranks) == RANKS
    assert all(line["local"] and len(line["losses"]) == 2 for line in ranks)
