"""Run by `buckets.py` in processes of their own: read samples from a bucket for some seconds.

    python benchmarks/buckets_peer.py KIND URL STORE SECONDS [CHUNK | PACE [RANK RANKS]]

KIND is ``ahead`` (the read-ahead), ``lazy`` (each batch when it is asked for), ``steady`` (the
read-ahead, at PACE samples/s), ``megatron`` (its own reader, with chunks of CHUNK bytes) or
``reader`` (Megatron's dataset by distcache.MegatronBinReader). Writes one line of JSON.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")
BATCH = 4


def cpu() -> float:
    """Return the seconds of CPU of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def cpu_of(process: int) -> float:
    """Return the seconds of CPU of another process."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def distcache_batches(
    kind: str, url: str, store: str, rank: int = 0, ranks: int = 1
) -> tuple[Iterator[Any], Callable[[], Any]]:
    """Return batches, and the function that says how the fetcher is."""
    import distcache  # noqa: PLC0415
    from distcache.node.ahead.client import fetcher_status  # noqa: PLC0415

    dataset = distcache.open(url, store or None).dataset("train")
    sampler: Any = distcache.ResumableSampler(dataset, BATCH, rank, ranks)
    if kind != "lazy":
        # At a steady pace no more is fetched than is used, but for what is ahead at the end.
        most = {"samples": 512} if kind == "steady" else {}
        sampler = distcache.ReadAhead(sampler, dataset, "4G", **most)
    batches = (dataset.__getitems__(indices) for indices in sampler)
    return batches, lambda: fetcher_status(Path(store) / "ahead") if store else None


def megatron_batches(kind: str, url: str, store: str, chunk: int) -> Iterator[Any]:
    """Return batches of Megatron's dataset over the bucket, built from localized indices."""
    import torch  # noqa: PLC0415
    from megatron.core.datasets import gpt_dataset, indexed_dataset  # noqa: PLC0415
    from megatron.core.datasets.blended_megatron_dataset_builder import (  # noqa: PLC0415
        BlendedMegatronDatasetBuilder,
    )
    from peer import Tokenizer  # noqa: PLC0415

    if kind == "reader":
        import distcache  # noqa: PLC0415

        os.environ["DISTCACHE_LOCAL_DIR"] = store
        indexed_dataset.OBJECT_STORAGE_BIN_READERS["s3"] = distcache.MegatronBinReader
    elif chunk:
        usual = gpt_dataset.ObjectStorageConfig
        gpt_dataset.ObjectStorageConfig = lambda **options: usual(bin_chunk_nbytes=chunk, **options)
    meeting = Path(store) / f"meeting-{os.getpid()}"
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=0, world_size=1
    )
    config = gpt_dataset.GPTDatasetConfig(
        random_seed=1234,
        sequence_length=4096,
        blend=([url], None),
        split="1,0,0",
        path_to_cache=f"{store}/npy-{os.getpid()}",
        object_storage_cache_path=f"{store}/objects",
        mmap_bin_files=False,
        tokenizer=Tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    built = BlendedMegatronDatasetBuilder(
        gpt_dataset.GPTDataset, [None, None, None], lambda: True, config
    ).build()[0]
    return ([built[n + k] for k in range(BATCH)] for n in range(0, len(built), BATCH))


def main() -> None:
    """Read, and tell."""
    kind, url, store, seconds, *more = sys.argv[1:]
    number = int(more[0]) if more else 0
    status: Callable[[], Any] = lambda: None  # noqa: E731
    if kind in ("megatron", "reader"):
        batches = megatron_batches(kind, url, store, number)
    else:
        batches, status = distcache_batches(kind, url, store, *map(int, more[1:]))
    waits, samples = [], 0
    next(batches)
    before, used = status(), cpu()
    fetcher = 0.0 if before is None else cpu_of(before.process)
    begin = time.perf_counter()
    while (now := time.perf_counter()) < begin + float(seconds):
        next(batches)
        waits.append(time.perf_counter() - now)
        samples += BATCH
        if kind == "steady":
            time.sleep(max(begin + samples / number - time.perf_counter(), 0))
    elapsed = time.perf_counter() - begin
    late = [wait for n, wait in enumerate(waits) if n * BATCH / (number or 1) > 1] or waits
    found = {"samples/s": samples / elapsed, "cpu": cpu() - used, "samples": samples}
    found |= {"late": sum(wait > 0.02 for wait in late), "longest": max(late)}
    after = status()
    if after is not None:
        found["fetcher"] = cpu_of(after.process) - fetcher
        found["cpu"] += found["fetcher"]
        found["used"] = after.used
        found["fetched"] = after.fetched
    print(json.dumps(found))
    os._exit(0)


if __name__ == "__main__":
    main()
