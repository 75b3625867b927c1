"""CPU of reading ahead from a bucket, for a GB of tokens; beside local files.

SeaweedFS, or nginx, serves a corpus on loopback; one process reads batches of 4 samples of 4,096
tokens, at a steady 64 samples/s and as fast as it can. The CPU of the process and that of the
node's fetcher are told apart, for a GB that was used and a GB that was fetched; the server's is not
counted. `--python` compares another installation, in turn; each localizes for itself.

    python benchmarks/reading_ahead.py
    python benchmarks/reading_ahead.py --tokens 300 --documents 200000 --python OTHER/bin/python
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from buckets import HERE, URL, prepare, run
from machine import machine
from static_store import StaticStore

from tests.support.seaweed import Seaweed

PACE = 64  # samples/s
SAMPLE = 2 * 4097  # bytes


def read(
    python: str, kind: str, work: Path, store: Any, environment: dict[str, str], seconds: int
) -> Any:
    """Run a reader; return its CPU for a GB used, the fetcher's for a GB fetched, and samples/s."""
    source, store = (work / "c.h5", "") if kind == "files" else (URL, store)
    how = "steady" if kind == "files" else kind
    words = [python, HERE / "buckets_peer.py", how, source, store, seconds]
    found = json.loads(run([*words, PACE] if how == "steady" else words, environment).strip())
    if store:
        time.sleep(12)  # a fetcher without clients ends after 10 s
    used = SAMPLE * found["samples"]
    of_fetcher = found.get("fetcher", 0.0)
    fetched = found.get("fetched", used)
    return (found["cpu"] - of_fetcher) / used * 1e9, of_fetcher / fetched * 1e9, found["samples/s"]


def main() -> None:
    """Compare, and write a line for each reader."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=40_000)
    parser.add_argument("--tokens", type=float, default=2098, help="Mean length of a document.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--python", action="append", default=[], help="Of another installation.")
    parser.add_argument("--nginx", action="store_true", help="A faster server (nginx-light).")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        print(json.dumps(machine(work)))
        server = (StaticStore if options.nginx else Seaweed)(work / "server")
        try:
            environment = server.environment()
            prepare(work, options.documents, server, options.tokens)
            pythons = [sys.executable, *options.python]
            stores = {python: work / f"store-{place}" for place, python in enumerate(pythons)}
            for python, store in stores.items():
                command = Path(python).parent / "distcache"
                run(
                    [command, "localize", URL, "--store", store, "--log-format", "none"],
                    environment,
                )
            kinds = [(python, kind) for kind in ("files", "steady", "ahead") for python in pythons]
            found: dict[tuple[str, str], list[Any]] = {key: [] for key in kinds}
            for _ in range(options.rounds):
                for key, rows in found.items():
                    rows.append(read(*key, work, stores[key[0]], environment, options.seconds))
            for (python, kind), rows in found.items():
                own, fetcher, speed = map(statistics.median, zip(*rows, strict=True))
                what = f"{kind}, installation {pythons.index(python)}"
                print(f"{what}: {own:.1f} s of training and {fetcher:.1f} s of the fetcher a GB, "
                      f"{speed:.0f} samples/s", flush=True)  # fmt: skip
        finally:
            server.close()


if __name__ == "__main__":
    main()
