"""Building with up to a thousand ranks: the project's own plan and assignment, and a cost model.

What every rank works is what `assign` gives it; beside that stand what rank 0 does alone, what
the filesystem takes to write and read, and the collectives, whose latency grows with the ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from distcache.builder.configuration import config_from_mapping
from distcache.corpus import Corpus, CorpusFacts
from distcache.plan.assignment import INDEX_READS, JOIN, PER_CORPUS, PER_ITEM, START, assign
from distcache.plan.config import Config
from distcache.plan.costs import READ, TOUCHED
from distcache.plan.layout import Layout, make_layout
from distcache.plan.make import make_plan
from distcache.plan.memory import BASE_MEMORY
from distcache.plan.model import Plan

MEAN_TOKENS = 600
COLLECTIVES = 40  # of a build, beside those of sections that all ranks build
LINK_COLLECTIVES = 160  # of a section that all ranks build by links: four shuffles


@dataclass(frozen=True)
class Filesystem:
    """Bytes per second of all nodes and of one, ranks per node, and seconds per message."""

    total: float
    node: float
    ranks_per_node: int
    latency: float

    def rate(self, ranks: int) -> float:
        """Return what so many ranks get."""
        return min(self.total, self.node * math.ceil(ranks / self.ranks_per_node))


@dataclass(frozen=True)
class Phases:
    """Seconds of a build: of rank 0 alone, examining, the longest rank, the disk, messages."""

    alone: float
    examine: float
    longest: float
    write: float
    messages: float

    @property
    def total(self) -> float:
        """Of all phases."""
        return self.alone + self.examine + self.longest + self.write + self.messages


class MadeUp(Corpus):
    """A corpus without files: sequences of the same length."""

    def tokens_in(self, begin: int, end: int) -> int:
        """Return the tokens of a range of sequences."""
        return (end - begin) * MEAN_TOKENS


def corpus(prefix: str, documents: int) -> Corpus:
    """Return a corpus of so many documents."""
    tokens = documents * MEAN_TOKENS
    return MadeUp(
        CorpusFacts(
            prefix=prefix,
            idx_digest=prefix,
            idx_size=34 + 20 * documents,
            bin_size=2 * tokens,
            type_code=8,
            sequences=documents,
            documents=documents,
            tokens=tokens,
            empty_sequences=0,
        )
    )


CASES = {
    "one corpus, 1 billion documents, 4 epochs": (1, 1_000_000_000, 4),
    "800 corpora, 1 million documents each": (800, 1_000_000, 1),
    "20 corpora, 50 million documents each": (20, 50_000_000, 1),
}


def plan_case(corpora: int, documents: int, epochs: int) -> tuple[Plan, Layout]:
    """Plan a blend of equal corpora, from which so many epochs are drawn."""
    prefixes = [f"corpus-{number}" for number in range(corpora)]
    samples = int(corpora * documents * MEAN_TOKENS * (epochs - 0.1) / 4096)
    config: Config = config_from_mapping(
        {
            "sequence_length": 4096,
            "split": "99,1,0",
            "samples": {"train": samples, "valid": 10_000, "test": 0},
            "blend": [{"path": prefix, "weight": 1} for prefix in prefixes],
        }
    )
    plan = make_plan(config, {prefix: corpus(prefix, documents) for prefix in prefixes})
    return plan, make_layout(plan.items)


def build_phases(plan: Plan, layout: Layout, ranks: int, filesystem: Filesystem) -> Phases:
    """Return the seconds of a build with so many ranks of one thread each."""
    work = assign(plan.items, layout, ranks)
    index_bytes = sum(source.idx_size for source in plan.sources)
    rate = filesystem.rate(ranks)
    read = 1e-9 * READ  # seconds of a byte
    examining = max(read * INDEX_READS * index_bytes / ranks, INDEX_READS * index_bytes / rate)
    reading = max(read * layout.tables_begin / ranks, layout.tables_begin / rate)
    touched = TOUCHED * (max(work.memory) - BASE_MEMORY)
    rounds = COLLECTIVES + LINK_COLLECTIVES * len(work.linked)
    return Phases(
        alone=START + (JOIN if ranks > 1 else 0) + PER_ITEM * len(plan.items),
        examine=examining + PER_CORPUS * len(plan.sources) / ranks,
        longest=1e-9 * (max(work.busy) + touched),
        write=layout.tables_begin / rate + reading,
        messages=rounds * math.ceil(math.log2(max(ranks, 2))) * filesystem.latency,
    )
