"""A rank of a job of Megatron-Core over corpora in a bucket, on a node of its own.

python -m tests.judges.bucket_rank RANK RANKS STORE READER FLAGS...: prints a digest of its samples.
READER is "stock", or "ours" for the two lines of docs/buckets.md, then in workers that are forked.
"""

from __future__ import annotations

import hashlib
import sys
import warnings
from datetime import timedelta

import torch
from torch.utils.data import DataLoader

warnings.simplefilter("ignore")


def main() -> None:
    """Do it."""
    rank, ranks, store, reader, *flags = sys.argv[1:]
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=int(rank),
        world_size=int(ranks),
        timeout=timedelta(seconds=60),
    )
    from tests.judges.options import datasets_of  # noqa: PLC0415

    if reader == "ours":
        from megatron.core.datasets import indexed_dataset  # noqa: PLC0415

        import distcache  # noqa: PLC0415

        indexed_dataset.OBJECT_STORAGE_BIN_READERS["s3"] = distcache.MegatronBinReader
    tokenizer = {"class": "NullTokenizer", "vocab_size": 30000}
    train = datasets_of(flags, [400, 40, 4], tokenizer, 30000)[0]
    digest = hashlib.sha256()
    assert train[0]["tokens"].numel()  # before workers are forked
    own = range(int(rank), len(train), int(ranks))
    workers = 2 if reader == "ours" else 0
    for row in DataLoader(train, batch_size=None, sampler=own, num_workers=workers):
        digest.update(row["tokens"].numpy().tobytes())
    sys.stdout.write(f"{digest.hexdigest()}\n")
    sys.stdout.flush()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
