"""Training from a bucket beside Megatron-Core's own reader, and localizing beside obstore alone.

SeaweedFS serves a corpus of 1 GB on loopback, through links of 0, 25 and 100 ms. The CPU of
training and that of the node's fetcher are told apart; the server's is not counted. A *late* batch
took more than 20 ms after the first second.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import megatron
from benchmarks.corpora import QUIET, build, generate, write_config
from benchmarks.harness import Figures, Run, Table, command, cpu_here, process
from tests.support.seaweed import Seaweed

MARKS = (
    "training from a bucket",
    "ranks of a node",
    "localizing from a bucket",
    "reading over TLS",
)
JUDGE = "0.16.1"
URL = "s3://lake/run/c.h5"
DOCUMENTS = 250_000  # of 2,098 tokens
BATCH = 4
SAMPLE = 2 * 4097  # bytes
SECONDS = 8
RANKS, PACE = 8, 64  # samples/s of all ranks
IDLE = 12  # seconds; a fetcher without clients ends after 10
READERS = {
    "Megatron-Core's S3 reader, chunks of 256 MiB": ("megatron", 0),
    "the same, chunks of 16 KiB": ("megatron", 16384),
    "Megatron's dataset by `distcache.MegatronBinReader`": ("reader", 0),
    "distcache, each batch when it is asked for": ("lazy", 0),
    "distcache, read ahead": ("ahead", 0),
    "distcache, read ahead, 64 samples/s": ("steady", PACE),
}


@contextlib.contextmanager
def link(server: Seaweed, milliseconds: int) -> Iterator[dict[str, str]]:
    """Yield the environment of a client that is so far away."""
    environment = dict(server.environment())
    if not milliseconds:
        yield environment
        return
    target = int(server.endpoint.rpartition(":")[2])
    listen = target + 1000 + milliseconds
    words = [sys.executable, "-m", "benchmarks.delay", listen, target, milliseconds]
    proxy = subprocess.Popen(list(map(str, words)))
    try:
        time.sleep(1.0)
        yield environment | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{listen}"}
    finally:
        proxy.kill()
        proxy.wait()


@contextlib.contextmanager
def encrypted(server: Seaweed, directory: Path) -> Iterator[dict[str, str]]:
    """Yield the environment of a client that reaches the server by TLS, of an authority of ours."""
    for words in (
        "-subj /CN=authority -keyout ca.key -out ca.pem",
        "-subj /CN=localhost -keyout key.pem -out own.pem -CA ca.pem -CAkey ca.key "
        "-addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE",
    ):
        openssl = "openssl req -x509 -newkey rsa:2048 -nodes -days 2"
        subprocess.run(
            [*openssl.split(), *words.split()], cwd=directory, check=True, capture_output=True
        )
    target = int(server.endpoint.rpartition(":")[2])
    listen = target + 1500
    words = [sys.executable, "-m", "benchmarks.delay", str(listen), str(target), "1"]
    proxy = subprocess.Popen([*words, str(directory / "own.pem"), str(directory / "key.pem")])
    try:
        time.sleep(1.0)
        trusted = {"AWS_CA_BUNDLE": str(directory / "ca.pem")}
        where = {"AWS_ENDPOINT_URL": f"https://localhost:{listen}"}
        yield dict(server.environment()) | where | trusted
    finally:
        proxy.kill()
        proxy.wait()


def cpu_of(process_id: int) -> float:
    """Return the seconds of CPU of another process."""
    fields = Path(f"/proc/{process_id}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def distcache_batches(
    kind: str, store: str, rank: int, ranks: int
) -> tuple[Iterator[Any], Callable[[], Any]]:
    """Return batches, and the function that says how the fetcher is."""
    import distcache  # noqa: PLC0415
    from distcache.node.ahead.client import fetcher_status  # noqa: PLC0415

    dataset = distcache.open(URL, store).dataset("train")
    sampler: Any = distcache.ResumableSampler(dataset, BATCH, rank, ranks)
    if kind != "lazy":
        # At a steady pace no more is fetched than is used, but for what is ahead at the end.
        most = {"samples": 512} if kind == "steady" else {}
        sampler = distcache.ReadAhead(sampler, dataset, "4G", **most)
    batches = (dataset.__getitems__(indices) for indices in sampler)
    return batches, lambda: fetcher_status(Path(store) / "ahead")


def megatron_batches(kind: str, corpus: str, store: str, chunk: int) -> Iterator[Any]:
    """Return batches of Megatron's dataset over the bucket, built from localized indices."""
    megatron.start()
    from megatron.core.datasets import gpt_dataset, indexed_dataset  # noqa: PLC0415

    if kind == "reader":
        import distcache  # noqa: PLC0415

        os.environ["DISTCACHE_LOCAL_DIR"] = store
        indexed_dataset.OBJECT_STORAGE_BIN_READERS["s3"] = distcache.MegatronBinReader
    elif chunk:
        usual = gpt_dataset.ObjectStorageConfig
        gpt_dataset.ObjectStorageConfig = lambda **options: usual(bin_chunk_nbytes=chunk, **options)
    config = write_config(Path(store) / f"{os.getpid()}.json", [{"path": corpus}], 1)
    fields = json.loads(config.read_text())
    fields["samples"] = dict.fromkeys(fields["samples"])
    config.write_text(json.dumps(fields))
    where = {"object_storage_cache_path": f"{store}/objects", "mmap_bin_files": False}
    built = megatron.datasets(config, f"{store}/npy-{os.getpid()}", **where)[0]
    return ([built[n + k] for k in range(BATCH)] for n in range(0, len(built), BATCH))


def read(
    kind: str, number: int, store: str, corpus: str, seconds: float, rank: int, ranks: int
) -> dict[str, float]:
    """Read for some seconds; a number is the pace, or the size of Megatron's chunks."""
    status: Callable[[], Any] = lambda: None  # noqa: E731
    if kind in ("megatron", "reader"):
        batches = megatron_batches(kind, corpus, store, number)
    else:
        batches, status = distcache_batches(kind, store, rank, ranks)
    next(batches)
    before, used = status(), cpu_here()
    fetcher = 0.0 if before is None else cpu_of(before.process)
    waits: list[float] = []
    begin = time.perf_counter()
    while (now := time.perf_counter()) < begin + seconds:
        next(batches)
        waits.append(time.perf_counter() - now)
        if kind == "steady":
            time.sleep(max(begin + BATCH * len(waits) / number - time.perf_counter(), 0))
    elapsed = time.perf_counter() - begin
    late = [wait for n, wait in enumerate(waits) if n * BATCH / (number or 1) > 1] or waits
    count = BATCH * len(waits)
    found = {"samples/s": count / elapsed, "late": sum(wait > 0.02 for wait in late)}
    found |= {"samples": count, "longest": max(late)}
    found["of training"] = (cpu_here() - used) / (count * SAMPLE) * 1e9
    after = status()
    found["of the fetcher"] = 0.0
    if after is not None and after.fetched:
        found["of the fetcher"] = (cpu_of(after.process) - fetcher) / after.fetched * 1e9
    return found


def prepare(run: Run, server: Seaweed) -> str:
    """Put a cache of a corpus into a bucket, and localize it; return the corpus's URL."""
    work, environment = run.directory, server.environment()
    prefix = generate(work / "corpus", run.size(DOCUMENTS), 2098, seed=1, real=True)
    samples = max(run.size(DOCUMENTS) * 2098 // 4096 - 1, 1)
    cache = build(write_config(work / "c.json", [{"path": prefix, "weight": 1.0}], samples), work)
    words = ["distcache", "upload", cache, "-o", "s3://lake/run", "--corpora", *QUIET]
    command(*words, environment=environment)
    words = ["distcache", "localize", URL, "--store", work / "store", "--megatron", *QUIET]
    command(*words, environment=environment)
    record = next((work / "store" / "caches").glob("*.json"))
    return str(json.loads(record.read_text())["corpora"][0]["shared"])


def training(run: Run, server: Seaweed, corpus: str) -> Table:
    """Compare the readers through each link."""
    rows = [[name] for name in READERS]
    for milliseconds in (0, 25, 100):
        with link(server, milliseconds) as environment:

            def one(
                kind: str, number: int, where: dict[str, str] = environment
            ) -> dict[str, float]:
                words = [kind, number, run.directory / "store", corpus, SECONDS, 0, 1]
                found = process(read, *words, environment=where)
                if kind != "megatron":
                    time.sleep(IDLE)
                return found

            found = run.in_turn({name: partial(one, *reader) for name, reader in READERS.items()})
        for row, own in zip(rows, found.values(), strict=True):
            row += [own.said("samples/s", ""), said_cpu(own), f"{own['late']:.0f}"]
    names = [
        f"{m} ms: {what}"
        for m in (0, 25, 100)
        for what in ("samples/s", "s of CPU a GB: training, fetcher", "late")
    ]
    return Table("training from a bucket", ["", *names], rows)


def over_tls(run: Run, server: Seaweed) -> Table:
    """Read through a link that encrypts, and through one that does not."""
    keys = run.directory / "keys"
    keys.mkdir(exist_ok=True)
    rows = []
    with link(server, 1) as plain, encrypted(server, keys) as secret:
        for name in ("distcache, each batch when it is asked for", "distcache, read ahead"):
            kind, number = READERS[name]

            def one(
                where: dict[str, str], kind: str = kind, number: int = number
            ) -> dict[str, float]:
                words = [kind, number, run.directory / "store", "", SECONDS, 0, 1]
                found = process(read, *words, environment=where)
                time.sleep(IDLE)
                return found

            ways = {"http": partial(one, plain), "https": partial(one, secret)}
            found = run.in_turn(ways)
            own = [found[way] for way in ways]
            cells = [cell for each in own for cell in (each.said("samples/s", ""), said_cpu(each))]
            rows.append([name, *cells])
    names = [f"`{w}://`: {f}" for w in ("http", "https") for f in ("samples/s", "s of CPU a GB")]
    return Table("reading over TLS", ["training, fetcher", *names], rows)


def said_cpu(found: Figures) -> str:
    """Return the CPU of training and of the fetcher for a GB."""
    return f"{found['of training']:.0f}, {found['of the fetcher']:.0f}"


def together(run: Run, server: Seaweed) -> Table:
    """Read as all ranks of a node at the same time."""
    rows = []
    for milliseconds in (25, 100):
        with link(server, milliseconds) as environment, ThreadPoolExecutor(RANKS) as pool:
            store = run.directory / "store"
            words = [("steady", PACE // RANKS, store, "", SECONDS, n, RANKS) for n in range(RANKS)]
            found = list(pool.map(lambda own: process(read, *own, environment=environment), words))
            time.sleep(IDLE)
        longest = 1e3 * max(own["longest"] for own in found)
        cells = [sum(own[name] for own in found) for name in ("samples", "late")]
        rows.append([f"{milliseconds} ms", *(f"{n:,.0f}" for n in cells), f"{longest:.1f} ms"])
    head = [f"{RANKS} ranks at {PACE} samples/s", "samples", "late batches", "the longest"]
    return Table("ranks of a node", head, rows, rounds=1)


def by_obstore(directory: str, connections: int) -> dict[str, float]:
    """Fetch the same objects by obstore alone, and sync them."""
    import obstore  # noqa: PLC0415
    from obstore.store import S3Store  # noqa: PLC0415

    store = S3Store("lake", client_options={"allow_http": True})
    entries = [entry for page in obstore.list(store, prefix="run/") for entry in page]
    pieces, files = [], []
    for entry in entries:
        if not entry["path"].endswith(".json"):
            files.append((Path(directory) / entry["path"].replace("/", "-")).open("wb"))
            files[-1].truncate(entry["size"])
            pieces += [(files[-1], entry, at) for at in range(0, entry["size"], 8 << 20)]

    def fetch(piece: Any) -> None:
        out, entry, begin = piece
        span = (begin, min(begin + (8 << 20), entry["size"]))
        options = {"range": span, "if_match": entry["e_tag"]}
        data = obstore.get(store, entry["path"], options=options).bytes()
        os.pwrite(out.fileno(), data, begin)

    with ThreadPoolExecutor(connections) as pool:
        list(pool.map(fetch, pieces))
    for out in files:
        os.fsync(out.fileno())
    return {}


def localizing(run: Run, server: Seaweed) -> Table:
    """Compare localize with obstore alone, by few and by many connections."""
    target = run.directory / "target"
    ways = {
        "`distcache localize --bin copy`": 0,
        "obstore alone, 4 at a time": 4,
        "16 at a time": 16,
    }
    rows = [[way] for way in ways]
    for milliseconds in (0, 25):
        with link(server, milliseconds) as environment:

            def one(connections: int, where: dict[str, str] = environment) -> dict[str, float]:
                shutil.rmtree(target, ignore_errors=True)
                target.mkdir(mode=0o700)
                os.sync()
                time.sleep(2)
                if connections:
                    return process(by_obstore, target, connections, environment=where)
                words = ["localize", URL, "--store", target / "store", "--bin", "copy", *QUIET]
                return command("distcache", *words, environment=where)

            found = run.in_turn({way: partial(one, count) for way, count in ways.items()})
        for row, own in zip(rows, found.values(), strict=True):
            row.append(own.said("seconds"))
    return Table("localizing from a bucket", ["", "0 ms", "25 ms"], rows)


def tables(run: Run) -> Iterator[Table]:
    """Serve a bucket, and compare."""
    server = Seaweed(run.directory / "seaweed")
    try:
        corpus = prepare(run, server)
        yield localizing(run, server)
        yield together(run, server)
        yield over_tls(run, server)
        yield training(run, server, corpus)
    finally:
        server.close()
