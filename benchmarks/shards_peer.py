"""Run by `shards.py` in processes of their own: read samples of MDS shards in batches of 8.

    python benchmarks/shards_peer.py streaming DATA LENGTH WORKERS SAMPLES
    python benchmarks/shards_peer.py distcache CACHE STORE WORKERS SAMPLES     # STORE is - for none

Writes one line of JSON: samples per second after the first batch, seconds to that with imports left
out, memory of all processes (PSS) in MiB, descriptors of this one, and segments of shared memory.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

BATCH = 8

warnings.simplefilter("ignore")


def streaming_loader(directory: Path, length: int, workers: int) -> Any:
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
    if (directory / "index.json").exists():
        options["local"] = str(directory)
    else:
        options["streams"] = [Stream(local=str(path)) for path in sorted(directory.iterdir())]
    dataset = Tokens(**options)
    collate = None if length > 1 else list
    return DataLoader(dataset, BATCH, num_workers=workers, drop_last=True, collate_fn=collate)


def distcache_loader(cache: Path, store: str, workers: int) -> Any:
    """Return a loader of all samples in the order of the cache."""
    from torch.utils.data import DataLoader  # noqa: PLC0415

    import distcache  # noqa: PLC0415

    opened = distcache.open(cache, local=None if store == "-" else store)
    if opened.cache.sequence_length > 1:
        return DataLoader(opened.dataset("train"), BATCH, num_workers=workers, drop_last=True)
    rows = opened.rows("train", map=dict)
    return DataLoader(rows, BATCH, num_workers=workers, drop_last=True, collate_fn=list)


def memory_of_all() -> float:
    """Return the PSS of this process and of its children, in MiB."""
    children = Path("/proc/self/task").glob("*/children")
    some = ["self", *(child for path in children for child in path.read_text("ascii").split())]
    total = 0
    for process in some:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # a worker that has ended
            text = Path(f"/proc/{process}/smaps_rollup").read_text("ascii")
            total += int(text.partition("\nPss:")[2].split()[0])
    return total / 1024


def main() -> None:
    """Read what the words say."""
    kind, where, extra, workers, samples = sys.argv[1:]
    import torch  # noqa: F401, PLC0415

    segments = len(list(Path("/dev/shm").iterdir()))
    if kind == "streaming":
        import streaming  # noqa: F401, PLC0415
    else:
        import distcache  # noqa: F401, PLC0415
    begin = time.perf_counter()
    if kind == "streaming":
        loader = iter(streaming_loader(Path(where), int(extra), int(workers)))
    else:
        loader = iter(distcache_loader(Path(where), extra, int(workers)))
    next(loader)
    first = time.perf_counter() - begin
    seen = 0
    begin = time.perf_counter()
    while seen < int(samples) - 2 * BATCH and time.perf_counter() < begin + 5:
        next(loader)
        seen += BATCH
    seconds = time.perf_counter() - begin
    found = {
        "samples/s": seen / seconds,
        "first batch": first,
        "MiB": memory_of_all(),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "segments": len(list(Path("/dev/shm").iterdir())) - segments,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
