"""The whole story: built and uploaded by one machine, localized and trained from by two others."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from distcache.cache.corpus_places import beside
from distcache.node.ahead.client import fetcher_status
from distcache.node.store import Store
from distcache.node.upkeep import verify_store
from tests.jobs.test_localize import on_nodes
from tests.jobs.train_from_bucket import train
from tests.support.corpora import write_lengths
from tests.support.processes import LIMIT, clean_environment, start
from tests.support.seaweed import READER, WRITER, Seaweed
from tests.support.secrets import MARK

STEPS = 60
BUDGET = 8 << 20  # bytes
EXTENTS = 16 << 10  # bytes of ext4's tree for a file with each second of 2,048 pages


@pytest.fixture
def config(corpora: dict[str, str], tmp_path: Path) -> Path:
    """A blend of three corpora."""
    fields = {
        "sequence_length": 64,
        "seed": 5,
        "split": "1,0,0",
        "samples": {"train": 3000},
        "blend": [
            {"path": corpora[name], "weight": weight}
            for name, weight in (("plain", 0.5), ("third", 0.3), ("long", 0.2))
        ],
        "tokenizer": {"class": "X"},
    }
    path = tmp_path / "blend.json"
    path.write_text(json.dumps(fields))
    return path


def profile_for(seaweed: Seaweed, who: tuple[str, str], directory: Path) -> dict[str, str]:
    """Write a configuration of the Multi-Storage Client, and return the environment for it."""
    options = {"base_path": "lake/by/profile", "endpoint_url": seaweed.endpoint}
    profile = {
        "storage_provider": {"type": "s3", "options": {**options, "region_name": "us-east-1"}},
        "credentials_provider": {
            "type": "S3Credentials",
            "options": {"access_key": "${A_KEY}", "secret_key": "${A_SECRET}"},
        },
    }
    path = directory / "msc.json"
    path.write_text(json.dumps({"profiles": {"mine": profile}}))
    return {"MSC_CONFIG": str(path), "A_KEY": who[0], "A_SECRET": who[1], "HOME": "/nonexistent"}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("directory", "way"),
    [
        ("s3://lake/hosting", "keys"),
        ("s3://public/hosting", "public"),
        ("msc://mine/hosting", "profile"),
    ],
)
def test_from_one_machine_to_two(
    directory: str, way: str, config: Path, seaweed: Seaweed, tmp_path: Path
) -> None:
    """With credentials to write, then only to read, or none; the samples are the same."""
    writer, reader = seaweed.environment(), seaweed.environment(READER)
    if way == "public":
        reader = {"AWS_ENDPOINT_URL": seaweed.endpoint, "AWS_SKIP_SIGNATURE": "true"}
    elif way == "profile":
        writer, reader = (profile_for(seaweed, who, tmp_path) for who in (WRITER, READER))
    built = start(["build", config, "-o", tmp_path / "built", "--name", "c"])
    assert built.returncode == 0, built.stderr
    cache = tmp_path / "built" / "c.h5"
    words = ["upload", cache, "--out", directory, "--corpora", "--tokens", "--json"]
    sent = start(words, environment=writer)
    assert sent.returncode == 0, sent.stderr
    url = json.loads(sent.stdout)["url"]
    (tmp_path / "disk").mkdir()
    words = ["localize", url, "--store", f"{tmp_path}/disk/store", "--json"]
    mount = ["--mount", str(tmp_path / "disk")]
    logs = tmp_path / "logs"
    done = on_nodes(tmp_path / "none", logs, words, 2, 1, before=mount, environment=reader)
    assert done.returncode == 0, done.stderr
    stores = [logs / f"disk-{node}" / "store" for node in range(2)]
    texts = [sent.stdout, sent.stderr, done.stdout, done.stderr]
    for rank, store in enumerate(stores):
        assert verify_store(Store(store)) == []
        found = train(url, store, STEPS, reader, rank, 2, "--workers", str(2 * rank))
        wanted = train(str(cache), None, STEPS, {}, rank, 2)
        assert found["digest"] == wanted["digest"]
        assert found["fetcher"]
        assert not wanted["fetcher"]
        texts.append(json.dumps(found))
    assert MARK not in "".join(texts)


def test_a_job_builds_from_a_bucket(config: Path, seaweed: Seaweed, tmp_path: Path) -> None:
    """The arrays and the key are those of the files, by three ranks on three nodes."""
    fields = json.loads(config.read_text())
    built = start(["build", config, "-o", tmp_path / "built", "--name", "c"])
    assert built.returncode == 0, built.stderr
    cache = tmp_path / "built" / "c.h5"
    words = ["upload", cache, "--out", "s3://lake/source", "--corpora"]
    assert start(words, environment=seaweed.environment()).returncode == 0
    shown = start(["inspect", "s3://lake/source/c.h5", "--json"], environment=seaweed.environment())
    digests = {entry["prefix"]: entry for entry in json.loads(shown.stdout)["sources"]}
    for entry in fields["blend"]:
        digest = digests[entry["path"]]["idx_digest"]
        entry["path"] = beside("s3://lake/source/c.h5", entry["path"], digest)
    remote = tmp_path / "remote.json"
    remote.write_text(json.dumps(fields))
    reader = seaweed.environment(READER)
    words = ["build", remote, "-o", tmp_path / "again", "--name", "c"]
    done = on_nodes(tmp_path / "none", tmp_path / "logs", words, 3, 1, environment=reader)
    assert done.returncode == 0, done.stderr
    ours, theirs = (tmp_path / name / "c.h5" for name in ("again", "built"))
    assert start(["explain", config, ours]).returncode == 0
    sections = [
        json.loads(start(["inspect", path, "--json"]).stdout)["sections"] for path in (ours, theirs)
    ]
    assert [[a["digest"] for a in s["arrays"].values()] for s in sections[0]] == [
        [a["digest"] for a in s["arrays"].values()] for s in sections[1]
    ]


def bytes_ahead(store: Path) -> int:
    """Return the bytes on the disk of the file without a name that a node's fetcher fills."""
    running = fetcher_status(store / "ahead")
    found = 0
    for path in Path(f"/proc/{running.process}/fd").iterdir() if running is not None else ():
        with contextlib.suppress(FileNotFoundError):
            link = os.readlink(path)
            if link.startswith(str(store)) and link.endswith("(deleted)"):
                found += path.stat().st_blocks * 512
    return found


def test_a_budget_far_below_the_corpus(seaweed: Seaweed, tmp_path: Path) -> None:
    """8 MiB under 128 MiB: never exceeded on the disk, and each byte is fetched about once."""
    lengths = np.random.default_rng(2).lognormal(8.5, 1.0, 9_000).astype(np.int64) + 1
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), 1 << 26))]
    prefix = write_lengths(tmp_path / "large", lengths)
    fields = {
        "sequence_length": 16_384,
        "split": "1,0,0",
        "samples": {"train": None},
        "blend": [prefix],
        "tokenizer": {"class": "X"},
    }
    (tmp_path / "c.json").write_text(json.dumps(fields))
    assert start(["build", tmp_path / "c.json", "-o", tmp_path, "--name", "c"]).returncode == 0
    words = ["upload", tmp_path / "c.h5", "--out", "s3://lake/large", "--corpora"]
    sent = start(words, environment=seaweed.environment())
    assert sent.returncode == 0, sent.stderr
    store = tmp_path / "store"
    words = ["localize", "s3://lake/large/c.h5", "--store", store]
    assert start(words, environment=seaweed.environment()).returncode == 0
    words = ["-m", "tests.jobs.bucket_trainer", "s3://lake/large/c.h5", str(store), "0", "1", "600"]
    trainer = subprocess.Popen(
        [sys.executable, *words, "--budget", "8M", "--until", str(7 << 20)],
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(seaweed.environment()),
    )
    most = 0
    while trainer.poll() is None:
        most = max(most, bytes_ahead(store))
        try:
            trainer.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
    out, _ = trainer.communicate(timeout=LIMIT)
    found = json.loads(out)
    assert 6 << 20 < most <= BUDGET + EXTENTS
    assert found["used"] > 4 * BUDGET
    assert found["fetched"] <= 1.02 * found["used"] + BUDGET
