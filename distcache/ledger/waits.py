"""How long the ranks of a step wait for the one with the longest documents; what a deal leaves.

A rank's time of computing grows with its tokens, of which all ranks have equally many, and with the
squares of its documents: at the *balance* of a model, a length in tokens, attention within a
document costs as much as everything else. It is the model's parameters of a layer, with its share
of the output layer, divided by its hidden size.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from distcache.cache.deal import WORK, Deal, DealtSplit
from distcache.errors import ConfigError
from distcache.ledger.report_document import WaitsReport
from distcache.ledger.trace import Trace

# Balances of models of the Llama 3 family, and of Qwen3 30B-A3B, by arithmetic.
BALANCES: Final = {"1B": 38_000, "8B": 57_000, "70B": 106_000, "405B": 196_000, "30B-A3B": 16_700}
MAX_PIECES: Final = 64  # stretches of steps that are sampled
PIECE_SAMPLES: Final = 1 << 16  # samples of a stretch


def balance_of(model: str) -> int:
    """Return the balance of a model that is named by its size, or by its balance in tokens.

    Raises
    ------
    ConfigError
        If it is neither.
    """
    if model in BALANCES:
        return BALANCES[model]
    if model.isascii() and model.isdecimal() and 0 < int(model) < 1 << 40:
        return int(model)
    raise ConfigError(
        f"--model {model}: expected {', '.join(BALANCES)}, or the length in tokens at which "
        "attention costs as much as everything else"
    )


def waits_of(trace: Trace, deal: Deal, model: str, total: int) -> WaitsReport:
    """Return how long ranks wait, in order and dealt, in stretches of the first samples.

    Raises
    ------
    ConfigError
        If there is no step, or no such model.
    CacheCorrupt, CorpusError, NotReady
        If the cache or the index of a corpus is damaged or missing.
    """
    balance = balance_of(model)
    dealt = DealtSplit(trace, deal, trace.section)
    steps = min(dealt.steps, (total - deal.begin) // deal.batch)
    if steps < 1:
        raise ConfigError(f"deal {deal}: the {total} samples have no whole step")
    each = max(PIECE_SAMPLES // deal.batch, 1)
    pieces = min(MAX_PIECES, -(-steps // each))
    firsts = np.linspace(0, max(steps - each, 0), pieces).astype(int).tolist()
    work = np.concatenate([dealt.deal_steps(i, min(i + each, steps))[1] for i in firsts])
    alike = balance * trace.cache.sequence_length * deal.batch / deal.ranks
    mean = (work[:, WORK.index("total")] / deal.ranks + alike).sum()
    heaviest = {name: (work[:, WORK.index(name)] + alike).sum() for name in WORK[1:]}
    waits = {name: max(float(1 - mean / most), 0.0) for name, most in heaviest.items()}
    return WaitsReport(deal=str(deal), model=model, balance=balance, steps=len(work), **waits)
