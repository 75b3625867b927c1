"""Read batches, and ask and kill the fetcher that serves them."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import distcache
from distcache.node.ahead.client import fetcher_status
from distcache.node.ahead.protocol import Status
from tests.support.waiting import wait_until

Batches = list[Any]  # of tensors; torch is not everywhere where the conftest is


def status(root: Path) -> Status:
    """Return how the fetcher is."""
    found = fetcher_status(root / "ahead")
    assert found is not None
    return found


def reached(root: Path) -> Any:
    """Return the samples of a bucket, after the fetcher has read one."""
    dataset = distcache.open("s3://lake/run/c.h5", root).dataset("train")
    assert dataset[0]
    return dataset


def end_fetcher(root: Path) -> None:
    """Kill the fetcher, if there is one, and wait until it is gone."""
    found = fetcher_status(root / "ahead")
    if found is not None:
        with contextlib.suppress(ProcessLookupError):  # it may just have ended by itself
            os.kill(found.process, signal.SIGKILL)
        wait_until(lambda: fetcher_status(root / "ahead") is None, "the fetcher's end")


def batches(
    dataset: Any,
    workers: int = 0,
    way: str | None = None,
    *,
    budget: str | None = None,
    ranks: tuple[int, int] = (0, 1),
    consumed: int = 0,
    most: int = 200,
) -> Batches:
    """Return the first batches of a rank."""
    from torch.utils.data import DataLoader  # noqa: PLC0415

    sampler: Any = distcache.ResumableSampler(dataset, 4, *ranks, consumed_samples=consumed)
    if budget is not None:
        sampler = distcache.ReadAhead(sampler, dataset, budget, samples=200)
    loader = DataLoader(
        dataset, batch_sampler=sampler, num_workers=workers, multiprocessing_context=way
    )
    found = []
    for batch in loader:
        found.append(batch["tokens"].clone())
        if len(found) == most:
            break
    return found


def equal(one: Batches, other: Batches) -> bool:
    """Return whether batches are the same, in the same order."""
    import torch  # noqa: PLC0415

    return len(one) == len(other) and all(map(torch.equal, one, other))
