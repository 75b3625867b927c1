"""Engines of Hugging Face's tokenizers on hard text: whether their tokens are equal, and how fast.

With a tokenizer of each kind, all texts are encoded as `--engine auto` does it, and by the library
tokenizers. The texts are every block of Unicode, sequences of emoji, long runs, all kinds of files
of this machine, and binary ones dressed as text. Nothing may differ.

    python -m benchmarks.engines --megabytes 300
    python -m benchmarks.engines --megabytes 30 --kinds gpt2 qwen
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from distcache.ingest.tokenizers.find import find_tokenizer, make_tokenizer
from distcache.ingest.tokenizers.tokenizer import EnginesDiffer, TokenizerOptions
from tests.support.hard_texts import ALL, KINDS, hard_texts, train

TRAINED_ON = 500  # texts
BATCH = 1 << 20  # bytes


def compare(path: Path, megabytes: float) -> tuple[str, int]:
    """Encode hard text in both ways; return a row of the table, and how many texts differ."""
    options = [TokenizerOptions(str(path), engine=name) for name in ("auto", "tokenizers")]
    engines = [make_tokenizer(find_tokenizer(entry), entry) for entry in options]
    seconds = [0.0, 0.0]
    texts = differing = by_library = size = 0
    for batch in batches(hard_texts(roots=ALL), megabytes):
        encoded = []
        for place, engine in enumerate(engines):
            begin = time.perf_counter()
            try:
                encoded.append(engine.encode(batch))
            except EnginesDiffer as error:
                return f"{engines[0].engine}: {batch[error.place][:60]!r} differs", 1
            seconds[place] += time.perf_counter() - begin
        pairs = zip(encoded[0].split(), encoded[1].split(), strict=True)
        differing += sum(first.tolist() != second.tolist() for first, second in pairs)
        texts += len(batch)
        by_library += encoded[0].by_library
        size += sum(len(text.encode()) for text in batch)
    row = (
        f"{engines[0].engine} | {size / 1e6:,.0f} MB | {texts:,} | {by_library:,} | {differing} | "
        f"{seconds[0]:.0f} s | {seconds[1]:.0f} s |"
    )
    return row, differing


def batches(texts: Iterator[str], megabytes: float) -> Iterator[list[str]]:
    """Yield so much text, a megabyte at a time."""
    left = int(megabytes * 1e6)
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text.encode())
        if size >= min(BATCH, left):
            yield batch
            left -= size
            batch, size = [], 0
            if left <= 0:
                return


def main() -> None:
    """Compare, and print a table; the exit code says whether anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=300)
    parser.add_argument(
        "--kinds", nargs="+", default=KINDS[:-2], help="by default those that gigatoken has"
    )
    options = parser.parse_args()
    failed = False
    print("| | engine | text | texts | by the library | differ | auto | tokenizers |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as directory:
        for kind in options.kinds:
            some = itertools.islice(hard_texts(1, ALL), TRAINED_ON)
            row, differing = compare(
                train(Path(directory) / f"{kind}.json", kind, some), options.megabytes
            )
            print(f"| {kind} | {row}", flush=True)
            failed |= differing > 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
