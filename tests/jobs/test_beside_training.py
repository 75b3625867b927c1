"""A job that trains is never harmed by what other jobs do with the copies on its node."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from distcache.cache import open_cache
from distcache.corpus import idx_path
from distcache.node.store import Store
from tests.node.agents import flip
from tests.support import here
from tests.support.corpora import write_corpora
from tests.support.processes import clean_environment, start

pytestmark = pytest.mark.slow

SECONDS = 20


def not_read(cache: Path) -> tuple[int, int]:
    """Return the bytes of an array that training does not read: one of the split `valid`."""
    opened = open_cache(cache)
    members, sections = opened.table("members"), opened.table("sections")
    train = {int(row["section"]) for row in members if row["split"] == b"train"}
    other = next(row for row in range(len(sections)) if row not in train)
    view = opened.arrays("sections", other)["shuffle_index"]
    return view.offset, view.offset + view.nbytes


@pytest.mark.more
@pytest.mark.timeout(300)
def test_training_beside_localizing(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """Touched indices, damaged blocks, removed records, copies that are recreated, for a while."""
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
    chance, until, rounds = random.Random(3), time.monotonic() + SECONDS, 0
    begin, end = not_read(cache)
    while time.monotonic() < until and trainer.poll() is None:
        rounds += 1
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
    done_epochs = json.loads(output)
    assert rounds > 5
    assert done_epochs["local"] > 3
