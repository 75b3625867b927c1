"""Put caches and corpora into a scripted bucket, and lead this process to it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from distcache.cache.contents import read_contents
from distcache.cache.corpus_places import beside
from distcache.corpus import bin_path, idx_path
from distcache.corpus.loss import loss_path
from distcache.storage.bucket import forget_buckets
from tests.support.scripted_s3 import ScriptedS3

CORPORA = "s3://lake/corpora"


def name_of(url: str) -> str:
    """Return how a server names an object."""
    return url.removeprefix("s3://")


def put_corpus(server: ScriptedS3, prefix: str, url: str) -> str:
    """Put the files of a corpus under a prefix, and return that."""
    for path in (idx_path, bin_path, loss_path):
        if (file := Path(path(prefix))).exists():
            server.put(name_of(path(url)), file.read_bytes())
    return url


def put_cache(server: ScriptedS3, cache: str | Path, directory: str = "s3://lake/run") -> str:
    """Put a cache and its corpora into a directory, and return the cache's URL."""
    contents = read_contents(cache)
    url = f"{directory}/{Path(cache).name}"
    digests = contents.table("sources")["idx_digest"].tolist()
    for prefix, digest in zip(contents.prefixes, digests, strict=True):
        put_corpus(server, prefix, beside(url, prefix, digest.decode("ascii")))
    server.put(name_of(url), Path(cache).read_bytes())
    return url


def config_of(server: ScriptedS3, blend_config: dict[str, Any], directory: Path) -> Path:
    """Put the corpora of a configuration into the bucket, and write one that names them there."""
    sources = [
        {**source, "path": put_corpus(server, source["path"], f"{CORPORA}/{_stem(source)}")}
        for source in blend_config["blend"]
    ]
    path = directory / "remote.json"
    path.write_text(json.dumps({**blend_config, "blend": sources}))
    return path


def _stem(source: dict[str, Any]) -> str:
    return Path(source["path"]).name


OURS = ("AWS_", "MSC_")


@contextlib.contextmanager
def fresh_process_of_buckets(
    monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]
) -> Iterator[None]:
    """Set the environment, and forget all buckets before and after."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", "/nonexistent")
    forget_buckets()
    yield
    forget_buckets()
