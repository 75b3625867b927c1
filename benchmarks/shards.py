"""Mosaic MDS shards: mosaicml-streaming beside distcache, which reads them without conversion.

Streaming's own writer makes the data: tokens in records of one length, raw and zstd, and rows of
100 KB. Then `index mds` beside `cat` of the same files, `localize` of zstd shards beside `zstd -d`
and `sync`, and the opening of many data sets.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.corpora import QUIET, build
from benchmarks.harness import Figures, Run, Table, command, factor, process

MARKS = ("shards", "commands for shards")
JUDGE = "streaming"
TOKENS = {"tokens": "ndarray:int32"}
GIB = 1.5  # of tokens, for each kind
ROW, ROWS = 100_000, 8000  # bytes of a row, and rows
SETS, SHARDS_OF_EACH = 800, 64  # data sets that are opened together
BATCH = 8
SECONDS = 5


def zipf(count: int, random: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return token ids as frequent as words are, which compress as text does."""
    shares = 1.0 / np.arange(1, 50_001) ** 1.05
    ids = np.searchsorted(np.cumsum(shares / shares.sum()), random.random(count))
    return ids.clip(0, 49_999).astype(np.int32)


def write(out: str, kind: str, count: int, length: int, codec: str) -> dict[str, float]:
    """Write a data set with streaming's writer: of tokens, or of rows."""
    from streaming import MDSWriter  # noqa: PLC0415

    random = np.random.default_rng(1)
    columns = TOKENS if kind == "tokens" else {"audio": "bytes", "text": "str"}
    shard = 3000 if length == 512 else 1 << 26
    pool = zipf(1 << 22, random)
    starts = random.integers(0, len(pool) - length, count)
    options = {"compression": codec or None, "size_limit": shard}
    with MDSWriter(out=out, columns=columns, **options) as writer:
        for number, at in enumerate(starts):
            if kind == "tokens":
                writer.write({"tokens": pool[at : at + length]})
            else:
                writer.write({"audio": random.bytes(ROW), "text": f"row {number}"})
    return {}


def streaming_loader(data: str, length: int, workers: int) -> Any:
    """Return a loader as llm-foundry makes it; a directory without index is one of data sets."""
    import torch  # noqa: PLC0415
    from streaming import Stream, StreamingDataset  # noqa: PLC0415
    from torch.utils.data import DataLoader  # noqa: PLC0415

    class Tokens(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, at: int) -> Any:
            sample = super().__getitem__(at)
            if "tokens" not in sample:
                return sample
            return torch.from_numpy(sample["tokens"].copy()).to(torch.int64)

    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "num_canonical_nodes": 1}
    if (Path(data) / "index.json").exists():
        options["local"] = data
    else:
        options["streams"] = [Stream(local=str(path)) for path in sorted(Path(data).iterdir())]
    collate = None if length > 1 else list
    return DataLoader(
        Tokens(**options), BATCH, num_workers=workers, drop_last=True, collate_fn=collate
    )


def distcache_loader(cache: str, store: str, workers: int) -> Any:
    """Return a loader of all samples in the order of the cache."""
    from torch.utils.data import DataLoader  # noqa: PLC0415

    import distcache  # noqa: PLC0415

    opened = distcache.open(cache, local=store or None)
    options: dict[str, Any] = {"num_workers": workers, "drop_last": True}
    if opened.cache.sequence_length > 1:
        return DataLoader(opened.dataset("train"), BATCH, **options)
    return DataLoader(opened.rows("train", map=dict), BATCH, collate_fn=list, **options)


def memory_of_all() -> float:
    """Return the PSS of this process and of its children, in bytes."""
    children = Path("/proc/self/task").glob("*/children")
    some = ["self", *(child for path in children for child in path.read_text("ascii").split())]
    total = 0
    for one in some:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # a worker that has ended
            text = Path(f"/proc/{one}/smaps_rollup").read_text("ascii")
            total += int(text.partition("\nPss:")[2].split()[0])
    return total * 1024


def read(kind: str, source: str, extra: Any, workers: int, samples: int) -> dict[str, float]:
    """Read batches for some seconds."""
    warnings.simplefilter("ignore")
    import torch  # noqa: F401, PLC0415

    if kind == "streaming":
        import streaming  # noqa: F401, PLC0415
    else:
        import distcache  # noqa: F401, PLC0415
    begin = time.perf_counter()
    make = streaming_loader if kind == "streaming" else distcache_loader
    loader = iter(make(source, extra, workers))
    next(loader)
    first = time.perf_counter() - begin
    seen, begin = 0, time.perf_counter()
    while seen < samples - 2 * BATCH and time.perf_counter() < begin + SECONDS:
        next(loader)
        seen += BATCH
    speed = seen / (time.perf_counter() - begin)
    return {"samples/s": speed, "first batch": first, "held": memory_of_all()}


def compared(run: Run, ours: list[Any], theirs: list[Any]) -> dict[str, Figures]:
    """Read by both."""
    return run.in_turn(
        {
            "streaming": lambda: process(read, "streaming", *theirs),
            "distcache": lambda: process(read, "distcache", *ours),
        }
    )


def cache_of(run: Run, name: str, length: int, samples: int) -> Path:
    """Build a cache over a corpus of shards."""
    fields = {
        "sequence_length": length,
        "split": "1,0,0",
        "shuffle": "megatron" if length > 1 else "passes",
        "samples": {"train": samples, "valid": 0, "test": 0},
        "blend": [str(run.directory / f"c-{name}")],
    }
    if length > 1:
        fields["add_extra_token"] = False
    config = run.directory / f"{name}.json"
    config.write_text(json.dumps(fields), encoding="utf-8")
    return build(config, run.directory, name)


def samples(run: Run, others: list[list[str]]) -> Table:
    """Compare samples per second, of tokens and of rows."""
    rows = []
    work = run.directory
    cases = [(f"{length:,} tokens, {codec or 'raw'}", "tokens", length, codec)
             for length in (2048, 4096) for codec in ("", "zstd")]  # fmt: skip
    for name, kind, length, codec in [*cases, ("rows of 100 KB, raw", "rows", 1, "")]:
        count = run.size(GIB * 2**30 / 4 / length if kind == "tokens" else ROWS)
        count = max(count, 8 * BATCH)
        data, store, label = work / "data", work / "store", f"{length}{codec}"
        process(write, data, kind, count, length, codec)
        words = ["--rows"] if kind == "rows" else []
        command("distcache", "index", "mds", data, *words, "-o", work / f"c-{label}")
        cache = cache_of(run, label, length, count)
        command("distcache", "localize", cache, "--store", store, *QUIET)
        row = [name]
        for workers in (0, 2):
            found = compared(run, [cache, store, workers, count], [data, length, workers, count])
            row += [own.said("samples/s", "") for own in found.values()]
            row.append(factor(found["distcache"], found["streaming"], "samples/s"))
        rows.append(row)
        if length == 4096:
            others += beside_commands(run, data, cache, codec)
        shutil.rmtree(store)
        shutil.rmtree(data)
    head = ["", "streaming", "distcache", "", "2 workers: streaming", "distcache", ""]
    return Table("shards", head, rows)


def beside_commands(run: Run, data: Path, cache: Path, codec: str) -> Iterator[list[str]]:
    """Compare indexing with `cat`, and localizing with `zstd -d`, of files in the page cache."""
    work = run.directory
    files = sorted(data.glob(f"*.{codec or 'mds'}"))

    def index() -> dict[str, float]:
        for path in work.glob("again.*"):
            path.unlink()
        return command("distcache", "index", "mds", data, "-o", work / "again")

    found = run.in_turn({"cat": lambda: command("cat", *files), "index": index})
    yield row_of(f"`index mds` of {codec or 'raw'} shards, beside `cat`", *found.values())
    if codec:

        def unpack() -> dict[str, float]:
            shutil.rmtree(work / "flat", ignore_errors=True)
            (work / "flat").mkdir()
            words = f"zstd -q -d --output-dir-flat {work / 'flat'} {data}/*.zstd && sync"
            return command("sh", "-c", words)

        def localize() -> dict[str, float]:
            shutil.rmtree(work / "fresh", ignore_errors=True)
            found = command("distcache", "localize", cache, "--store", work / "fresh", *QUIET)
            found["seconds"] += command("sync")["seconds"]
            return found

        found = run.in_turn({"zstd": unpack, "localize": localize})
        yield row_of("`localize` of zstd shards, beside `zstd -d` and `sync`", *found.values())


def row_of(what: str, other: Figures, own: Figures, name: str = "seconds") -> list[str]:
    """Return the row of a comparison."""
    return [what, other.said(name), own.said(name), factor(other, own, name)]


def opened(run: Run) -> list[str]:
    """Compare opening many data sets, until the first batch."""
    work, sets = run.directory, max(run.size(SETS), 2)
    process(write, work / "many" / "s0000", "tokens", SHARDS_OF_EACH, 512, "")
    for number in range(1, sets):  # copies: streaming's writer takes 10 ms for each shard
        shutil.copytree(work / "many" / "s0000", work / "many" / f"s{number:04}")
    recipe = {"train": [{"path": str(path)} for path in sorted((work / "many").iterdir())]}
    (work / "mix.json").write_text(json.dumps(recipe), encoding="utf-8")
    words = ["mix", work / "mix.json", "-o", work / "mix", "--sequence-length", 512, *QUIET]
    command("distcache", *words)
    cache = build(work / "mix" / "blend.json", work, "many")
    found = compared(run, [cache, "", 0, BATCH], [work / "many", 512, 0, BATCH])
    what = f"first batch of {sets} data sets of {SHARDS_OF_EACH} shards, beside streaming"
    return row_of(what, found["streaming"], found["distcache"], "first batch")


def tables(run: Run) -> Iterator[Table]:
    """Compare reading, opening, and commands."""
    others = [opened(run)]
    yield samples(run, others)
    yield Table("commands for shards", ["", "the other", "distcache", ""], others)
