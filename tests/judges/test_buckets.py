"""An unmodified Megatron-Core trains from a bucket, each rank on a node of its own."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import distcache
from distcache.storage.place import GAP_BYTES
from tests.judges.options import flags_in
from tests.support import here
from tests.support.buckets import put_cache
from tests.support.corpora import LENGTHS, write_lengths
from tests.support.processes import LIMIT, clean_environment, start
from tests.support.scripted_s3 import ScriptedS3

pytestmark = pytest.mark.once

RANKS = 2
SAMPLES = {"train": 400, "valid": 40, "test": 4}


@pytest.fixture(scope="module")
def fields(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A blend."""
    directory = tmp_path_factory.mktemp("data")
    prefixes = [write_lengths(directory / name, LENGTHS[name]) for name in ("plain", "second")]
    return {
        "sequence_length": 32,
        "seed": 7,
        "split": "90,8,2",
        "samples": SAMPLES,
        "tokenizer": {"class": "NullTokenizer", "vocab_size": 30000},
        "blend": [
            {"path": prefix, "weight": w} for prefix, w in zip(prefixes, (1, 3), strict=True)
        ],
    }


@pytest.fixture(scope="module")
def cache(fields: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache."""
    return Path(here.build(fields, tmp_path_factory.mktemp("shared"), "c").path)


@pytest.fixture(scope="module")
def server(cache: Path) -> Iterator[ScriptedS3]:
    """A bucket with the cache."""
    with ScriptedS3() as s3:
        put_cache(s3, cache)
        yield s3


def wanted(cache: Path) -> list[str]:
    """Return the digest of each rank's samples, as files have them."""
    train = distcache.open(cache).dataset("train")
    digests = [hashlib.sha256() for _ in range(RANKS)]
    for number in range(len(train)):
        digests[number % RANKS].update(train[number]["tokens"].numpy().tobytes())
    return [digest.hexdigest() for digest in digests]


def train(
    reader: str, tmp_path: Path, server: ScriptedS3, flags: list[list[str]]
) -> list[subprocess.CompletedProcess[str]]:
    """Run Megatron's builder on all ranks."""
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.judges.bucket_rank",
                str(rank),
                str(RANKS),
                str(tmp_path / "meeting"),
                reader,
                *flags[rank],
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(
                {**server.environment, "DISTCACHE_LOCAL_DIR": str(tmp_path / f"node{rank}")}
            ),
        )
        for rank in range(RANKS)
    ]
    done = []
    for process in processes:
        out, err = process.communicate(timeout=LIMIT)
        done.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return done


def localize(tmp_path: Path, server: ScriptedS3, *options: str) -> list[list[str]]:
    """Localize on the node of each rank, and return the flags that are printed."""
    flags = []
    for rank in range(RANKS):
        words = ["localize", "s3://lake/run/c.h5", "--store", str(tmp_path / f"node{rank}")]
        done = start([*words, "--megatron", *options], environment=server.environment)
        assert done.returncode == 0, done.stderr
        flags.append(flags_in(done.stdout))
    return flags


@pytest.mark.few(1)
@pytest.mark.parametrize("reader", ["stock", "ours"])
def test_it_reads_the_bucket(reader: str, cache: Path, server: ScriptedS3, tmp_path: Path) -> None:
    """With the indices that localize has laid out, which alone it fails without on other nodes."""
    flags = localize(tmp_path, server)
    assert "--object-storage-cache-path" in flags[0]
    server.script()
    done = train(reader, tmp_path, server, flags)
    assert [found.returncode for found in done] == [0, 0], done[0].stderr + done[1].stderr
    assert [found.stdout.split()[-1] for found in done] == wanted(cache)
    fetched = server.bytes_of(".bin")
    size = sum(len(data) for name, data in server.objects.items() if name.endswith(".bin"))
    if reader == "ours":  # each part of each sample, once
        # Parts that workers wait for at the same time, at most `GAP_BYTES` apart, are one request.
        parts = (400 + RANKS) * 33 * 2
        assert fetched <= parts + 8 * GAP_BYTES
    else:
        assert fetched >= 2 * size


@pytest.mark.more
def test_alone_it_fails(server: ScriptedS3, tmp_path: Path) -> None:
    """Alone it fails on every node but that of rank 0: the reason for the layout."""
    flags = localize(tmp_path, server)
    for rank in range(RANKS):
        shutil.rmtree(tmp_path / f"node{rank}" / "objects")
    done = train("stock", tmp_path, server, flags)
    assert done[1].returncode != 0
    assert "AssertionError" in done[1].stderr


@pytest.mark.more
def test_copies_on_the_node(cache: Path, server: ScriptedS3, tmp_path: Path) -> None:
    """They are local paths for Megatron: it never asks the bucket."""
    flags = localize(tmp_path, server, "--bin", "copy")
    assert "--object-storage-cache-path" not in flags[0]
    server.script()
    done = train("stock", tmp_path, server, flags)
    assert [found.stdout.split()[-1] for found in done] == wanted(cache)
    assert server.requests == []
