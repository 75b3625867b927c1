"""Training from a bucket beside Megatron-Core's own reader, and localizing beside obstore alone.

SeaweedFS serves a corpus on loopback, through links of 0, 25 and 100 ms. Each reader runs in a
process of its own, in turn; its CPU includes the fetcher's, not the server's. Then eight ranks of a
node at the same time, at 64 samples/s together. Then `localize` of cache and tokens beside obstore
alone, which fetches the same objects to the same disk and syncs.

    python benchmarks/buckets.py
    python benchmarks/buckets.py --documents 100000 --rounds 1
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from corpora import generate
from machine import machine
from static_store import StaticStore

from tests.support.seaweed import Seaweed

HERE = Path(__file__).parent
URL = "s3://lake/run/c.h5"
OBSTORE = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
import obstore
from obstore.store import S3Store
store = S3Store("lake", client_options={"allow_http": True})
os.makedirs(sys.argv[1])
pieces, files = [], []
for page in obstore.list(store, prefix="run/"):
    for entry in page:
        if not entry["path"].endswith(".json"):
            out = open(os.path.join(sys.argv[1], entry["path"].replace("/", "-")), "wb")
            out.truncate(entry["size"])
            files.append(out)
            pieces += [(out, entry, begin) for begin in range(0, entry["size"], 8 << 20)]
def fetch(piece):
    out, entry, begin = piece
    options = {"range": (begin, min(begin + (8 << 20), entry["size"])), "if_match": entry["e_tag"]}
    data = obstore.get(store, entry["path"], options=options).bytes()
    os.pwrite(out.fileno(), data, begin)
with ThreadPoolExecutor(int(sys.argv[2])) as pool:
    list(pool.map(fetch, pieces))
for out in files:
    os.fsync(out.fileno())
"""
CONNECTIONS = (4, 16)  # of obstore
RANKS = 8
PACE = 64  # samples/s of all


@contextlib.contextmanager
def link(endpoint: str, milliseconds: int) -> Iterator[str]:
    """Yield an endpoint that is so far away."""
    if not milliseconds:
        yield endpoint
        return
    target = int(endpoint.rpartition(":")[2])
    listen = target + 1000 + milliseconds
    words = [str(HERE / "delay.py"), str(listen), str(target), str(milliseconds)]
    proxy = subprocess.Popen([sys.executable, *words])
    try:
        time.sleep(1.0)
        yield f"http://127.0.0.1:{listen}"
    finally:
        proxy.kill()
        proxy.wait()


def run(words: list[Any], environment: dict[str, str]) -> str:
    """Run a program, and return what it writes."""
    done = subprocess.run(
        list(map(str, words)),
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def prepare(
    work: Path, documents: int, server: Seaweed | StaticStore, tokens: float = 2098
) -> dict[str, Any]:
    """Build a cache of one corpus, put it into a bucket, localize it; return its record."""
    environment = server.environment()
    prefix = generate(work / "corpus", documents, tokens, seed=1, real=True)
    fields = {
        "sequence_length": 4096,
        "split": "1,0,0",
        "blend": [prefix],
        "tokenizer": {"class": "NullTokenizer"},
    }
    (work / "c.json").write_text(json.dumps(fields))
    quiet = ["--log-format", "none"]
    run(["distcache", "build", work / "c.json", "-o", work, "--name", "c", *quiet], {})
    if isinstance(server, StaticStore):
        server.put_cache(work / "c.h5", URL)
    else:
        words = ["distcache", "upload", work / "c.h5", "-o", "s3://lake/run", "--corpora", *quiet]
        run(words, environment)
    words = ["distcache", "localize", URL, "--store", work / "store", "--megatron", *quiet]
    run(words, environment)
    record = next((work / "store" / "caches").glob("*.json"))
    found: dict[str, Any] = json.loads(record.read_text())
    return found


def read(kind: str, work: Path, corpus: str, environment: dict[str, str], *more: Any) -> Any:
    """Run a reader for some seconds, and return what it tells; the next one finds no fetcher."""
    url = corpus if kind in ("megatron", "reader") else URL
    words = [sys.executable, HERE / "buckets_peer.py", kind, url, work / "store", *more]
    found = json.loads(run(words, environment).splitlines()[-1])
    if kind != "megatron":
        time.sleep(12)  # a fetcher without clients ends after 10 s
    return found


def samples(work: Path, corpus: str, seaweed: Seaweed, rounds: int, seconds: int) -> None:
    """Compare the readers through each link."""
    readers: list[tuple[str, int]] = [
        ("megatron", 0), ("megatron", 16384), ("reader", 0), ("lazy", 0), ("ahead", 0),
        ("steady", 64),
    ]  # fmt: skip
    for milliseconds in (0, 25, 100):
        with link(seaweed.endpoint, milliseconds) as endpoint:
            environment = {**seaweed.environment(), "AWS_ENDPOINT_URL": endpoint}
            found: dict[tuple[str, int], list[Any]] = {reader: [] for reader in readers}
            for _ in range(rounds):
                for kind, chunk in readers:
                    one = read(kind, work, corpus, environment, seconds, chunk)
                    found[kind, chunk].append(one)
            for (kind, chunk), rows in found.items():
                show(f"{milliseconds} ms, {kind}{f' {chunk}' if chunk else ''}", rows)


def show(what: str, rows: list[Any]) -> None:
    """Write the medians of one reader."""
    middle = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    each = 1e3 * middle["cpu"] / middle["samples"]
    text = f"{what}: {middle['samples/s']:.2f} samples/s, {each:.2f} ms CPU each"
    text += f", {middle['late']:.0f} late batches, the longest {1e3 * middle['longest']:.1f} ms"
    if middle.get("used"):
        # With what is ahead at the end, which is most of it where training is slower.
        text += f", {middle['fetched'] / middle['used']:.3f} bytes fetched per byte used"
        text += f", {1e9 * middle['cpu'] / middle['fetched']:.1f} s CPU per GB fetched"
    print(text, flush=True)


def ranks_together(work: Path, seaweed: Seaweed, seconds: int) -> None:
    """Read as all ranks of a node at the same time, and tell how many batches were waited for."""
    for milliseconds in (25, 100):
        with link(seaweed.endpoint, milliseconds) as endpoint:
            environment = {**os.environ, **seaweed.environment(), "AWS_ENDPOINT_URL": endpoint}
            words = [sys.executable, HERE / "buckets_peer.py", "steady", URL, work / "store"]
            readers = [
                subprocess.Popen(
                    [str(word) for word in (*words, seconds, PACE // RANKS, rank, RANKS)],
                    env=environment,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for rank in range(RANKS)
            ]
            found = [json.loads(reader.communicate()[0].splitlines()[-1]) for reader in readers]
            samples = sum(row["samples"] for row in found)
            print(
                f"{milliseconds} ms, {RANKS} ranks at {PACE} samples/s: {samples} samples, "
                f"{sum(row['late'] for row in found)} late batches, the longest "
                f"{1e3 * max(row['longest'] for row in found):.1f} ms",
                flush=True,
            )
            time.sleep(12)  # a fetcher without clients ends after 10 s


def localizing(work: Path, seaweed: Seaweed, rounds: int) -> None:
    """Compare localize with obstore alone, by few and by many connections."""
    ways = ["localize", *(f"obstore {count}" for count in CONNECTIONS)]
    for milliseconds in (0, 25):
        with link(seaweed.endpoint, milliseconds) as endpoint:
            environment = {**seaweed.environment(), "AWS_ENDPOINT_URL": endpoint}
            seconds: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(rounds):
                for way, times in seconds.items():
                    times.append(fetch_all(way, work / "target", environment))
        middle = {way: statistics.median(times) for way, times in seconds.items()}
        told = ", ".join(f"{way} {value:.2f} s" for way, value in middle.items())
        best = min(value for way, value in middle.items() if way != "localize")
        print(f"{milliseconds} ms, {told}: {best / middle['localize']:.2f} of the best's speed")


def fetch_all(way: str, target: Path, environment: dict[str, str]) -> float:
    """Fetch everything, and return how long it took."""
    shutil.rmtree(target, ignore_errors=True)
    os.sync()
    time.sleep(2)
    words: list[Any] = [sys.executable, "-c", OBSTORE, target, way.partition(" ")[2]]
    if way == "localize":
        words = ["distcache", "localize", URL, "--store", target, "--bin", "copy"]
        words += ["--log-format", "none"]
    begin = time.perf_counter()
    run(words, environment)
    return time.perf_counter() - begin


def main() -> None:
    """Do it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=250_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        print(json.dumps(machine(work)))
        seaweed = Seaweed(work / "seaweed")
        try:
            record = prepare(work, options.documents, seaweed)
            corpus = record["corpora"][0]["shared"]
            localizing(work, seaweed, options.rounds)
            ranks_together(work, seaweed, options.seconds)
            samples(work, corpus, seaweed, options.rounds, options.seconds)
        finally:
            seaweed.close()


if __name__ == "__main__":
    main()
