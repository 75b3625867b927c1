"""Many corpora where a process may have few files open."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import DISTCACHE, clean_environment, start

CORPORA = 700
LIMITED = ("sh", "-c", 'ulimit -n 256 && exec "$@"', "sh")
TRAIN = """
import sys, distcache
train = distcache.open(sys.argv[1], local=sys.argv[2]).dataset("train")
batches = [train.__getitems__(list(range(i, i + 64))) for i in range(0, 2048, 64)]
print(sum(int(sample["tokens"].sum()) for batch in batches for sample in batch))
"""


@pytest.mark.more
def test_256_open_files_are_enough(tmp_path: Path) -> None:
    """For every command, and for training: with 700 corpora, twice as many files and more."""
    made = start(
        ["mock", "--corpora", str(CORPORA), "--documents", "70000", "--fill", "-o", tmp_path / "d"]
    )
    assert made.returncode == 0, made.stderr
    fields = json.loads((tmp_path / "d/blend.json").read_text())
    fields |= {"samples": {"train": 20000}, "tokenizer": {"class": "Made"}}
    config, cache, store = (tmp_path / name for name in ("c.json", "out/c.h5", "store"))
    config.write_text(json.dumps(fields))
    prefixes = [entry["path"] if isinstance(entry, dict) else entry for entry in fields["blend"]]
    build = ["build", config, "-o", cache.parent, "--name", "c", "--threads", "2"]
    commands = [
        (["check", *prefixes], 1),
        (["plan", config], 1),
        (build, 2),
        (["verify", cache, "--corpora"], 1),
        (["export", cache, "-o", tmp_path / "npy"], 1),
        (["localize", cache, "--store", store, "--megatron"], 1),
        (["local", "verify", "--store", store], 1),
        (["merge", *prefixes, "-o", tmp_path / "merged"], 2),
    ]
    for words, ranks in commands:
        done = start(words, ranks, program=(*LIMITED, DISTCACHE))
        assert done.returncode == 0, (words[0], done.stderr)
    sums = [
        subprocess.run(
            [*before, sys.executable, "-c", TRAIN, str(cache), str(store)],
            env=clean_environment(),
            capture_output=True,
            check=True,
        ).stdout
        for before in (LIMITED, ())
    ]
    assert sums[0] == sums[1]
