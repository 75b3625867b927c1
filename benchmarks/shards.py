"""Mosaic MDS shards: mosaicml-streaming beside distcache, which reads them without conversion.

Streaming's own writer makes the data: tokens, in records of one length, raw and zstd, and rows of
100 KB. Each reader runs in a process of its own, in turn. Then `index mds` beside `cat` of the same
files, `localize` of zstd shards beside `zstd -d` and `sync`, and the opening of many data sets.

    python -m benchmarks shards -- --gib 2
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine

PEER = Path(__file__).with_name("shards_peer.py")
TOKENS = {"tokens": "ndarray:int32"}
ROW = 100_000  # bytes
SHARDS_OF_EACH = 64  # data set that is opened with many others


def zipf(count: int, random: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return token ids as frequent as words are, which compress as text does."""
    shares = 1.0 / np.arange(1, 50_001) ** 1.05
    ids = np.searchsorted(np.cumsum(shares / shares.sum()), random.random(count))
    return ids.clip(0, 49_999).astype(np.int32)


def write(
    out: Path, columns: dict[str, str], samples: Any, codec: str | None, shard: int = 1 << 26
) -> Path:
    """Write a data set with streaming's writer, in shards of so many bytes."""
    from streaming import MDSWriter  # noqa: PLC0415  not in this project's environment

    with MDSWriter(out=str(out), columns=columns, compression=codec, size_limit=shard) as writer:
        for sample in samples:
            writer.write(sample)
    return out


def run(*words: object) -> str:
    """Run a command, and return what it writes."""
    command = [str(word) for word in words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def build(work: Path, name: str, prefixes: list[Path], length: int, samples: int) -> Path:
    """Build a cache over corpora of shards."""
    fields = {
        "sequence_length": length,
        "split": "1,0,0",
        "order": "megatron" if length > 1 else "passes",
        "samples": {"train": samples, "valid": 0, "test": 0},
        "blend": [{"path": str(prefix), "weight": 1.0} for prefix in prefixes],
    }
    if length > 1:
        fields["add_extra_token"] = False
    config = work / f"{name}.json"
    config.write_text(json.dumps(fields), encoding="utf-8")
    run("distcache", "build", config, "-o", work, "--name", name, "--log-format", "none")
    return work / f"{name}.h5"


def in_turn(repeats: int, **actions: Callable[[], float]) -> dict[str, float]:
    """Run actions in turn, and return the median of what each returns."""
    found: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeats):
        for name, action in actions.items():
            found[name].append(action())
    return {name: statistics.median(values) for name, values in found.items()}


def seconds_of(*steps: list[object]) -> float:
    """Return the seconds of commands one after the other."""
    begin = time.perf_counter()
    for words in steps:
        subprocess.run(list(map(str, words)), check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def read_in_turn(repeats: int, ours: list[object], theirs: list[object]) -> dict[str, Any]:
    """Read by both in processes of their own, in turn; return the medians of all figures."""
    found: dict[str, list[dict[str, float]]] = {"distcache": [], "streaming": []}
    for _ in range(repeats):
        for name, words in (("distcache", ours), ("streaming", theirs)):
            said = json.loads(run(sys.executable, PEER, name, *words).splitlines()[-1])
            found[name].append(said)
    return {
        name: {key: statistics.median(said[key] for said in all_said) for key in all_said[0]}
        for name, all_said in found.items()
    }


def show(title: str, figures: dict[str, Any], ratio: float) -> None:
    """Print a line of JSON."""
    print(json.dumps({"what": title, **figures, "ratio": round(ratio, 2)}), flush=True)


def reading(work: Path, gib: float, repeats: int) -> None:
    """Compare samples per second, memory, descriptors and segments."""
    random = np.random.default_rng(1)
    pool = zipf(1 << 22, random)
    for length in (2048, 4096):
        count = int(gib * 2**30 / 4 / length)
        starts = random.integers(0, len(pool) - length, count)
        for codec in (None, "zstd"):
            name = f"{length}-{codec}"
            samples = ({"tokens": pool[at : at + length]} for at in starts)
            data = write(work / name, TOKENS, samples, codec)
            run("distcache", "index", "mds", data, "--out", work / f"c{name}")
            cache = build(work, f"h{name}", [work / f"c{name}"], length, count)
            run("distcache", "localize", cache, "--store", work / "store")
            for workers in (0, 2):
                found = read_in_turn(
                    repeats, [cache, work / "store", workers, count], [data, length, workers, count]
                )
                ratio = found["distcache"]["samples/s"] / found["streaming"]["samples/s"]
                show(f"{length} tokens, {codec or 'raw'}, {workers} workers", found, ratio)
            if codec:
                for path in data.glob("*.mds"):
                    path.unlink()  # streaming has unpacked them
            if length == 4096:
                indexing(work, data, codec or "mds", repeats)
            if codec and length == 4096:
                unpacking(work, data, cache, repeats)
            shutil.rmtree(work / "store")
            shutil.rmtree(data)


def indexing(work: Path, data: Path, suffix: str, repeats: int) -> None:
    """Compare indexing with `cat` of the same files, in the page cache and not."""
    files = sorted(data.glob(f"*.{suffix}"))

    def seconds(*words: object, cold: bool) -> float:
        for path in work.glob("again.*"):
            path.unlink()
        os.sync()
        for path in files:
            with path.open("rb") as stream:
                if cold:
                    os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                else:
                    while stream.read(1 << 22):
                        pass
        return seconds_of(list(words))

    index = ["distcache", "index", "mds", data, "--out", work / "again"]
    for cold in (True, False):
        found = in_turn(
            repeats,
            cat=functools.partial(seconds, "cat", *files, cold=cold),
            index=functools.partial(seconds, *index, cold=cold),
        )
        kind = f"{suffix}, {'from the disk' if cold else 'in the page cache'}"
        show(f"index mds beside cat, {kind}, seconds", found, found["cat"] / found["index"])


def unpacking(work: Path, data: Path, cache: Path, repeats: int) -> None:
    """Compare localizing with `zstd -d`."""
    files = sorted(map(str, data.glob("*.zstd")))

    def unpacked() -> float:
        shutil.rmtree(work / "flat", ignore_errors=True)
        (work / "flat").mkdir()
        os.sync()
        return seconds_of(
            ["zstd", "-q", "-d", "--output-dir-flat", work / "flat", *files], ["sync"]
        )

    def localized() -> float:
        shutil.rmtree(work / "fresh", ignore_errors=True)
        os.sync()
        return seconds_of(["distcache", "localize", cache, "--store", work / "fresh"], ["sync"])

    found = in_turn(repeats, zstd=unpacked, localize=localized)
    show("localize beside zstd -d and sync, seconds", found, found["zstd"] / found["localize"])
    shutil.rmtree(work / "fresh")
    shutil.rmtree(work / "flat")


def rows(work: Path, repeats: int) -> None:
    """Compare rows of 100 KB: a column of bytes, and a text."""
    random = np.random.default_rng(2)
    samples = ({"audio": random.bytes(ROW), "text": f"row {n}"} for n in range(8000))
    data = write(work / "rows", {"audio": "bytes", "text": "str"}, samples, None)
    run("distcache", "index", "mds", data, "--rows", "--out", work / "crows")
    cache = build(work, "hrows", [work / "crows"], 1, 8000)
    for workers in (0, 2):
        found = read_in_turn(repeats, [cache, "-", workers, 8000], [data, 1, workers, 8000])
        ratio = found["distcache"]["samples/s"] / found["streaming"]["samples/s"]
        show(f"rows of {ROW} bytes, {workers} workers", found, ratio)


def opening(work: Path, sets: int, repeats: int) -> None:
    """Compare opening many data sets, until the first batch."""
    random = np.random.default_rng(3)
    pool = zipf(1 << 20, random)
    starts = random.integers(0, len(pool) - 512, SHARDS_OF_EACH)
    samples = ({"tokens": pool[at : at + 512]} for at in starts)
    first = write(work / "many" / "s0000", TOKENS, samples, None, shard=3000)
    for number in range(1, sets):  # copies: streaming's writer takes 10 ms for each shard
        shutil.copytree(first, work / "many" / f"s{number:04}")
    recipe = {"train": [{"path": str(path)} for path in sorted((work / "many").iterdir())]}
    (work / "mix.json").write_text(json.dumps(recipe), encoding="utf-8")
    words = ["distcache", "mix", work / "mix.json", "-o", work / "mix", "--sequence-length", 512]
    run(*words, "--log-format", "none")
    words = ["distcache", "build", work / "mix" / "blend.json", "-o", work, "--name", "hmany"]
    run(*words, "--log-format", "none")
    count = 8
    found = read_in_turn(
        repeats, [work / "hmany.h5", "-", 0, count], [work / "many", 512, 0, count]
    )
    ratio = found["streaming"]["first batch"] / found["distcache"]["first batch"]
    show(f"first batch of {sets} data sets of {SHARDS_OF_EACH} shards", found, ratio)


def main() -> None:
    """Run all, and print a line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=2.0, help="of tokens, for each kind")
    parser.add_argument("--sets", type=int, default=800)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as directory:
        work = Path(directory).resolve()
        print(json.dumps(machine(work)))
        opening(work, arguments.sets, arguments.repeats)
        rows(work, arguments.repeats)
        reading(work, arguments.gib, arguments.repeats)


if __name__ == "__main__":
    main()
