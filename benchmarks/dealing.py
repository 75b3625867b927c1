"""Dealing steps: what it costs, and how long ranks wait without it, by arithmetic.

*Cost*: 10^8 samples of 512 tokens of five corpora (60 million documents of 600 tokens), steps of
1,024 samples. *Waits*: packed samples of a blend of web text, code, PDF and books, and of real
lengths: the source files of this environment's Python packages, at four bytes a token.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.corpora import build, write_config
from benchmarks.harness import Run, Table, command, process, timed
from distcache.cache import open_cache
from distcache.cache.deal import CHUNK_SAMPLES, Deal, DealtSplit
from distcache.corpus import write_idx
from distcache.ledger.trace import trace
from distcache.ledger.waits import waits_of
from distcache.megatron.export import export

MARKS = ("dealing", "waits")
WEIGHTS = (0.45, 0.12, 0.2, 0.13, 0.1)
DOCUMENTS, SAMPLES = 60_000_000, 100_000_000
DEAL = Deal(1024, 64, 1)
# Medians and sigmas of lengths in tokens, and shares of the tokens.
BLEND: Final = {
    "web": (550, 1.15, 0.70),
    "code": (700, 1.45, 0.18),
    "PDF": (7_000, 1.0, 0.08),
    "books": (90_000, 0.8, 0.04),
}
TOKENS: Final = 400_000_000  # of each corpus
# Model, tokens of a sample, ranks, and micro batches of one sample.
RUNS: Final = (
    ("8B", 8192, 128, 4),
    ("8B", 8192, 512, 1),
    ("70B", 8192, 64, 32),
    ("30B-A3B", 8192, 128, 16),
    ("8B", 32768, 64, 8),
    ("30B-A3B", 32768, 64, 8),
    ("70B", 131072, 8, 16),
    ("8B", 131072, 16, 8),
    ("30B-A3B", 131072, 16, 8),
)


def deal_all(cache: str, _: str) -> dict[str, float]:
    """Deal all steps, twice: the first time touches the files."""
    opened = trace(cache)
    dealt = DealtSplit(opened, DEAL, opened.section)
    each = CHUNK_SAMPLES // DEAL.batch

    def act() -> None:
        for first in range(0, dealt.steps, each):
            dealt.deal_steps(first, min(first + each, dealt.steps))

    act()
    found = timed(act)
    return found | {"of a step": found["cpu"] / dealt.steps}


def deal_one_by_one(cache: str, _: str) -> dict[str, float]:
    """Deal steps as a loader meets them."""
    opened = trace(cache)
    dealt = DealtSplit(opened, DEAL, opened.section)
    steps = np.linspace(0, dealt.steps - 1, 1000).astype(int).tolist()
    for step in steps:
        dealt.deal_steps(step, step + 1)
    found = timed(lambda: [dealt.deal_steps(step, step + 1) for step in steps])
    return found | {"of a step": found["cpu"] / len(steps)}


def export_all(cache: str, directory: str, dealt: bool) -> dict[str, float]:
    """Export, and say what the dealing adds."""
    opened, deal = open_cache(cache), DEAL if dealt else None
    found = timed(lambda: export(opened, Path(directory) / f"out-{deal}", deal=deal))
    return found | {"of a step": found["cpu"] / (int(opened.table("blends")["size"][0]) / 1024)}


def costs(run: Run) -> Table:
    """Measure dealing all steps, some of them, and an export."""
    work = run.directory
    words = ["--count", len(WEIGHTS), "--documents", run.size(DOCUMENTS), "-o", work / "corpora"]
    command("distcache", "mock", *words)
    prefixes = sorted(str(path.with_suffix("")) for path in (work / "corpora").glob("*.idx"))
    blend = [{"path": path, "weight": w} for path, w in zip(prefixes, WEIGHTS, strict=True)]
    config = write_config(work / "c.json", blend, run.size(SAMPLES), sequence_length=512)
    cache = build(config, work)
    cases = {
        "all steps": partial(process, deal_all, cache, work),
        "1,000 steps, one by one": partial(process, deal_one_by_one, cache, work),
        "export": partial(process, export_all, cache, work, False),
        "export, dealt": partial(process, export_all, cache, work, True),
    }
    rows = [
        [name, own.said("cpu"), own.said("of a step", "ms", 1e-3)]
        for name, own in run.in_turn(cases).items()
    ]
    return Table("dealing", ["", "of CPU", "a step"], rows)


def write_blend(run: Run) -> list[dict[str, Any]]:
    """Write corpora of log-normal lengths without tokens."""
    random = np.random.default_rng(5)
    blend = []
    for name, (median, sigma, share) in BLEND.items():
        count = int(run.size(TOKENS) / (median * np.exp(sigma**2 / 2))) + 1
        drawn = np.clip(random.lognormal(np.log(median), sigma, count), 1, 1 << 24)
        blend.append({"path": write_lengths(run.directory / name, drawn), "weight": share})
    return blend


def write_lengths(prefix: Path, lengths: Any) -> str:
    """Write a corpus without tokens, and return its prefix."""
    lengths = lengths.astype(np.int32)
    write_idx(str(prefix), lengths, "u2")
    with open(f"{prefix}.bin", "wb") as stream:
        stream.truncate(2 * int(lengths.sum(dtype=np.int64)))
    return str(prefix)


def sources_of_packages() -> Any:
    """Return the lengths of real source files, at four bytes a token, in an order of chance."""
    files = Path(sysconfig.get_path("purelib")).rglob("*.py")
    sizes = np.array(sorted(path.stat().st_size for path in files))
    return np.random.default_rng(5).permutation(np.maximum(sizes // 4, 1))


def waits(run: Run) -> Table:
    """Say how long ranks wait in runs of usual sizes."""
    blends = {"blend": write_blend(run)}
    sources = write_lengths(run.directory / "sources", sources_of_packages())
    blends["source files"] = [{"path": sources, "weight": 1.0}]
    rows = []
    for name, blend in blends.items():
        for model, length, ranks, turns in RUNS:
            samples = max(run.size(TOKENS) // length, 4096)
            path = run.directory / f"{name}-{length}.h5".replace(" ", "-")
            if not path.exists():
                config = write_config(
                    run.directory / "waits.json",
                    blend,
                    samples,
                    sequence_length=length,
                    pack=True,
                )
                build(config, run.directory, path.stem)
            opened = trace(str(path))
            deal = Deal(ranks * turns, ranks, 1)
            found = waits_of(opened, deal, model, len(opened))
            saved = 1 - (1 - found.in_order) / (1 - found.dealt)
            apart = 1 - (1 - found.in_order_by_micro_batch) / (1 - found.dealt_by_micro_batch)
            rows.append(
                [
                    name,
                    model,
                    f"{length:,}",
                    f"{ranks} x {turns}",
                    f"{found.in_order:.1%} to {found.dealt:.1%}",
                    f"{saved:.1%}",
                    f"{found.in_order_by_micro_batch:.1%} to {found.dealt_by_micro_batch:.1%}",
                    f"{apart:.1%}",
                ]
            )
    columns = ["lengths", "model", "tokens", "ranks x micro batches", "ranks wait", "saved"]
    return Table("waits", [*columns, "in each micro batch", "saved"], rows)


def tables(run: Run) -> Iterator[Table]:
    """Measure the cost, and compute the gain."""
    yield costs(run)
    yield waits(run)
