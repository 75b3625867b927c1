"""Training under torchrun, and beside a job that localizes: it starts at once, unharmed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from distcache.cache import open_cache
from distcache.corpus import idx_path
from distcache.node.store import Store
from tests.jobs.trainer import LOCAL_EPOCHS
from tests.node.agents import flip
from tests.support import here
from tests.support.corpora import write_corpora
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


ROUNDS = 15


def not_read(cache: Path) -> tuple[int, int]:
    """Return the bytes of an array that training does not read: one of the split `valid`."""
    opened = open_cache(cache)
    members, sections = opened.table("members"), opened.table("sections")
    train = {int(row["section"]) for row in members if row["split"] == b"train"}
    other = next(row for row in range(len(sections)) if row not in train)
    view = opened.arrays("sections", other)["shuffle_index"]
    return view.offset, view.offset + view.nbytes


@pytest.mark.slow
@pytest.mark.more
@pytest.mark.timeout(300)
def test_training_beside_localizing(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """Touched indices, damaged blocks, removed records, recreated copies, again and again."""
    (tmp_path / "own").mkdir()
    corpora = write_corpora(tmp_path / "own")
    names = ("plain", "second", "holes")
    blend = [{"path": corpora[name], "weight": 1.0} for name in names]
    cache = Path(here.build({**blend_config, "blend": blend}, shared, "c").path)
    store, stop = Store(tmp_path / "local"), tmp_path / "stop"
    assert start(["localize", cache, "--store", store.root]).returncode == 0
    trainer = subprocess.Popen(
        [sys.executable, "-m", "tests.jobs.trainer", str(cache), str(store.root), str(stop)],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    chance = random.Random(3)
    begin, end = not_read(cache)
    for _ in range(ROUNDS):
        what = chance.randrange(3)
        copy = next(store.caches.glob("*.h5"))
        if what == 0:
            os.utime(idx_path(corpora[chance.choice(names)]))
        elif what == 1:
            flip(copy, chance.randrange(begin, end))
        else:
            next(store.caches.glob("*.json")).unlink()
        done = start(["localize", cache, "--store", store.root])
        assert done.returncode == 0, done.stderr
        assert next(store.caches.glob("*.h5")).read_bytes() == cache.read_bytes()
    stop.touch()
    output, errors = trainer.communicate(timeout=120)
    assert trainer.returncode == 0, errors
    assert json.loads(output)["local"] >= LOCAL_EPOCHS
