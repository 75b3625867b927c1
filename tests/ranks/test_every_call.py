"""Whatever fails on one rank, all ranks end within seconds, and say so once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distcache.builder.configuration import config_from_mapping
from distcache.builder.job import BuildOptions
from distcache.builder.run import build
from distcache.edit.copy_corpora import copy_corpora
from distcache.edit.index_mds import index_mds
from distcache.edit.mds_scan import MdsOptions
from distcache.edit.select import SelectOptions, select
from distcache.edit.selection import Selection
from distcache.errors import DistcacheError
from distcache.ingest.inputs import TokenOptions
from distcache.ingest.pipeline import ingest
from distcache.megatron.names import Naming
from distcache.node.localize import localize
from distcache.node.records import LocalizeOptions
from tests.jobs.every_call import ALLOCATIONS, Site, Striker, striking
from tests.support.large import write_large
from tests.support.mds_writer import write_mds
from tests.support.threads import Ended, ThreadCommunicator, run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.more, pytest.mark.timeout(1500)]

RANKS = 3
Job = Callable[[ThreadCommunicator], Any]


@pytest.fixture(autouse=True)
def _at_once(limit: Callable[..., None]) -> None:
    limit("distcache.ranks.agreement", LAST_WORDS=0.0)


def building(large_config: dict[str, Any], out: Path) -> Job:
    """Build small sections, split ones and blends."""
    config = config_from_mapping(large_config)
    return lambda communicator: build(
        communicator, config, out / "caches", "c", BuildOptions(threads=2)
    )


def ingesting(shards: Path, out: Path) -> Job:
    """Make corpora of token shards, cut by size."""
    options = TokenOptions(shard_size=20_000)
    return lambda communicator: ingest(
        communicator, [str(shards)], str(out / "made"), options, threads=2
    )


def merging(corpora: dict[str, str], out: Path) -> Job:
    """Put corpora together."""
    prefixes = [corpora["plain"], corpora["second"], corpora["holes"]]
    return lambda communicator: copy_corpora(communicator, prefixes, str(out / "all"))


def localizing(cache: Path, out: Path) -> Job:
    """Bring a cache to three nodes."""

    def job(communicator: ThreadCommunicator) -> Any:
        name = f"node{communicator.rank}"
        options = LocalizeOptions(directory=str(out / name), naming=Naming())
        return localize(communicator, cache, options, environment={"DISTCACHE_NODE_NAME": name})

    return job


def indexing(data: Path, out: Path) -> Job:
    """Index compressed MDS shards, and materialize them."""

    def job(communicator: ThreadCommunicator) -> Any:
        index_mds(communicator, [str(data)], str(out / "c"), MdsOptions(column="tokens"))
        return copy_corpora(communicator, [str(out / "c")], str(out / "m"), kind="materialize")

    return job


def selecting(parent: str, out: Path) -> Job:
    """Select some sequences of a corpus, and write them out."""

    def job(communicator: ThreadCommunicator) -> Any:
        options = SelectOptions(Selection(sample=0.5))
        select(communicator, parent, str(out / "v"), options)
        return copy_corpora(communicator, [str(out / "v")], str(out / "m"), kind="materialize")

    return job


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MDS data set."""
    samples = [{"tokens": np.arange(n, 3 * n, dtype="i4")} for n in range(60)]
    directory = tmp_path_factory.mktemp("mds") / "data"
    return write_mds(directory, {"tokens": "ndarray:int32"}, samples, codec="zstd")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some Parquet files of token ids."""
    directory = tmp_path_factory.mktemp("shards")
    for number in range(5):
        rows = [[(number * 7 + i) % 900 for i in range(20 + i % 50)] for i in range(300)]
        pq.write_table(pa.table({"input_ids": rows}), directory / f"{number}.parquet")
    return directory


@pytest.fixture(scope="module")
def split_config(
    large_config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Sections that all ranks build together, and small ones."""
    directory = tmp_path_factory.mktemp("split")
    blends = dict(large_config["blend_per_split"])
    for split, documents in (("train", 150_000), ("valid", 200_000)):
        blends[split] = [write_large(directory / split, documents)]
    samples = {"train": 25_000, "valid": 15_000, "test": 500}
    return large_config | {"samples": samples, "blend_per_split": blends}


@pytest.fixture
def make_job(
    request: pytest.FixtureRequest,
    corpora: dict[str, str],
    shards: Path,
    data: Path,
    blend_config: dict[str, Any],
    split_config: dict[str, Any],
    tmp_path: Path,
    limit: Callable[..., None],
) -> Callable[[Path], Job]:
    """Return what makes a job that writes into a directory."""
    kind = request.param
    if kind in ("split", "linked"):
        limit("distcache.plan.layout", SPLITTABLE_FROM=1 << 19)
        limit("distcache.plan.costs", SMALL=2000.0)
        limit("distcache.plan.costs", LINK_SHARE=0.0 if kind == "linked" else 1e9)
    if kind == "localize":
        config = config_from_mapping(blend_config)
        found, _ = run_ranks(1, lambda alone: build(alone, config, tmp_path / "shared", "c"))
        path = Path(found[0].path)  # type: ignore[union-attr]
    jobs: dict[str, Callable[[Path], Job]] = {
        "build": lambda out: building(blend_config, out),
        "split": lambda out: building(split_config, out),
        "linked": lambda out: building(split_config, out),
        "ingest": lambda out: ingesting(shards, out),
        "merge": lambda out: merging(corpora, out),
        "localize": lambda out: localizing(path, out),
        "index": lambda out: indexing(data, out),
        "select": lambda out: selecting(corpora["plain"], out),
    }
    return jobs[kind]


def errors_at(site: Site) -> list[str]:
    """Return what may go wrong with a call."""
    return ["MemoryError"] if site.name in ALLOCATIONS else ["EIO", "ENOSPC"]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "make_job",
    ["build", "split", "linked", "ingest", "merge", "localize", "index", "select"],
    indirect=True,
)
def test_every_call_may_fail(
    make_job: Callable[[Path], Job], rank: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the filesystem with EIO and ENOSPC, of memory with MemoryError, at every place."""
    noting = Striker(rank)
    out = tmp_path / "noted"
    with striking(noting):
        outcomes, aborted = run_ranks(RANKS, make_job(out))
    assert not aborted
    assert not [outcome for outcome in outcomes if isinstance(outcome, BaseException)], outcomes
    assert len(noting.sites) > 10
    shutil.rmtree(out)
    struck = 0
    for site, count in noting.sites.items():
        for error in errors_at(site):
            striker = Striker(rank, site, error, last=count > 1 and error == "ENOSPC")
            capsys.readouterr()
            with striking(striker):
                outcomes, aborted = run_ranks(RANKS, make_job(tmp_path / "out"), limit=20)
            check(outcomes, aborted, capsys.readouterr().err, f"{site} {error}")
            shutil.rmtree(tmp_path / "out", ignore_errors=True)
            struck += striker.struck
    assert struck > 0.9 * len(noting.sites)


def check(outcomes: list[Any], aborted: list[tuple[int, int]], said: str, where: str) -> None:
    """See that all ranks have ended alike, with one message."""
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if aborted:
        assert len(aborted) == 1, (where, aborted)
        assert all(isinstance(error, Ended) for error in errors), (where, outcomes)
        assert said.count("has ended all ranks") == 1, (where, said)
        assert "Traceback" not in said, (where, said)
        assert f"rank {aborted[0][0]} on " in said, (where, said)
    elif errors:
        assert len(errors) == RANKS, (where, outcomes)
        assert all(isinstance(error, DistcacheError) for error in errors), (where, outcomes)
        assert all(error.is_collective for error in errors), (where, outcomes)
        assert len({str(error) for error in errors}) == 1, (where, outcomes)
