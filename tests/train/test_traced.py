"""What loaders serve is what a trace says; the examples of docs/ledger.md run as they stand."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import distcache
from distcache.ledger.steps import Sampling, Steps
from distcache.ledger.trace import trace
from distcache.ledger.traced_run import TracedRun
from tests.orders.orders import ORDERS, Tokens, build_numbered
from tests.support import here
from tests.support.processes import LIMIT, clean_environment, start
from tests.train.test_rows import fields_of, write_rows

SAMPLINGS: dict[str, dict[str, Any]] = {
    "single": {},
    "cyclic": {"order": "cyclic"},
    "sharded": {"order": "cyclic", "data_sharding": True},
}


@pytest.mark.parametrize("case", ORDERS)
def test_samples_know_their_position(case: str, tmp_path: Path) -> None:
    """In batches and alone; a sample without loss has none."""
    path = build_numbered(tmp_path, case)
    dataset = distcache.open(path).dataset("train", position=True)
    loader = DataLoader(dataset, batch_sampler=[[5, 0, 77], [3, None]], num_workers=2)  # type: ignore[list-item]
    positions = [batch["position"].tolist() for batch in loader]
    assert positions == [[5, 0, 77], [3, -1]]
    assert dataset[9]["position"].dtype == torch.int64
    assert "position" not in distcache.open(path).dataset("train")[9]


@pytest.mark.parametrize("kind", SAMPLINGS)
@pytest.mark.parametrize("case", ["megatron", "packed", "phases"])
def test_planted_documents_are_found_at_the_steps_that_loaders_gave(
    kind: Any, case: str, tmp_path: Path
) -> None:
    """Step, micro batch, rank, slot and tokens of each sample of all ranks, over epochs."""
    path = build_numbered(tmp_path, case)
    micro, ranks, accumulate, steps = 2, 3, 2, 45
    dataset = distcache.open(path).dataset("train", position=True)
    served: dict[tuple[int, int, int, int], tuple[int, set[int]]] = {}
    for rank in range(ranks):
        batches = distcache.Batches(dataset, micro, rank, ranks, **SAMPLINGS[kind])
        for number, batch in enumerate(itertools.islice(batches, steps * accumulate)):
            for slot in range(micro):
                place = (number // accumulate + 1, number % accumulate, rank, slot)
                tokens = set(batch["tokens"][slot].tolist())
                served[place] = (int(batch["position"][slot]), tokens)
        batches.close()
    count = len(served) // (micro * ranks * accumulate)
    assert count == steps or kind == "single"
    numbers = np.arange(1, count + 1)
    size = micro * ranks * accumulate
    taken = Steps.of(numbers, numbers * size, np.full(count, size))
    found = trace(path)
    run = TracedRun(found, Sampling(kind, micro, ranks), taken)
    dealt = {}
    for some in run.of_steps(taken):
        assert some.ranks is not None
        for row, position, *place in zip(
            some.rows.tolist(), some.traced.positions.tolist(), *some.ranks, strict=True
        ):
            dealt[(row + 1, *map(int, place))] = position
    served = {place: what for place, what in served.items() if place[0] <= count}
    assert dealt == {place: position for place, (position, _) in served.items()}
    truth = Tokens(path)
    wanted = np.array([3, 8, 17])  # documents of the long corpus
    starts, ends = truth.starts[2][wanted], truth.starts[2][wanted + 1]
    planted = set(np.concatenate(list(map(np.arange, starts, ends))).tolist())
    expected = set()
    for place, (position, tokens) in served.items():
        corpus, sample = truth.of(position)
        # The last one is a label; where a row is padded, it is an input without loss, too.
        inputs = set(sample[:-1].tolist())
        assert inputs <= tokens
        if corpus == 2 and inputs & planted:
            expected.add(place)
    have = set()
    for some in run.find({2: wanted}):
        assert some.ranks is not None
        inputs = np.add.reduceat(
            some.traced.ends - some.traced.begins - some.traced.label_only,
            some.traced.bounds[:-1],
        )
        places = zip((some.rows + 1).tolist(), *some.ranks, strict=True)
        have |= {tuple(map(int, p)) for p, tokens in zip(places, inputs, strict=True) if tokens}
    assert have == expected
    assert have


def test_rows_of_shards_are_traced(tmp_path: Path) -> None:
    """A sample of rows is one whole row, and its source a record of a shard."""
    fields = fields_of(write_rows(tmp_path, "rows"), samples={"train": 70, "valid": 0, "test": 0})
    path = here.build(fields, tmp_path / "caches", "rows").path
    dataset = distcache.open(path).rows("train")
    found = trace(path)
    assert len(found) == len(dataset) == 70
    traced = found.samples(np.arange(70))
    assert traced.bounds.tolist() == list(range(71))
    sources = found.sources(0, traced.sequences)
    for position in range(70):
        row = dataset[position]
        assert row["n"] == traced.sequences[position]
        shard = Path(sources.paths[sources.files[position]]).name
        assert shard == f"shard.{row['n'] // 7:05}.mds"
        assert sources.rows[position] == row["n"] % 7
    for sequence in (0, 59):
        positions = [p for p in range(70) if traced.sequences[p] == sequence]
        assert found.positions(0, sequence).tolist() == positions


PAGE = Path(__file__).parents[2] / "docs/ledger.md"


def run(number: int, directory: Path) -> list[str]:
    """Run the script of a number in a directory, and return its lines."""
    scripts = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(scripts) == 2
    (directory / "script.py").write_text(scripts[number])
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=directory,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_losses_are_joined_with_documents(tmp_path: Path) -> None:
    """The script prints the worst positions with their documents."""
    path = build_numbered(tmp_path)
    os.symlink(path, tmp_path / "pretrain.h5")
    lines = run(0, tmp_path)
    assert len(lines) == 10
    assert all("/corpora/" in line for line in lines)


def test_two_tables_say_which_samples_differ(tmp_path: Path) -> None:
    """The script prints the first positions that only one table has."""
    path = build_numbered(tmp_path)
    for name, positions in (("a", "3:40"), ("b", "13:40")):
        words = ["trace", path, "--positions", positions, "-o", tmp_path / f"{name}.parquet"]
        done = start(words)
        assert done.returncode == 0, done.stderr
    assert run(1, tmp_path) == [str(list(range(3, 13)))]
