"""`distcache ingest` and what a user of Megatron-Core would do instead, in turn, in one run.

- text: Megatron's `preprocess_data`, a pool of workers with a tokenizer each that feed one
  `IndexedDatasetBuilder`, and its `preprocess_data_fast`, one process in which gigatoken reads and
  encodes with all cores, against distcache with as many threads, with one and two ranks, and with
  the library tokenizers. The files must be equal; whether those of gigatoken alone are, is said.
  The seconds are those of whole processes.
- tokens: a loop over the rows of a Parquet file into an `IndexedDatasetBuilder`, by each of its
  methods, and only reading the file with pyarrow, by row groups and by batches, against one rank
  with one thread, and two ranks.
- idx: Megatron's `_IndexWriter` against `distcache.corpus.write_idx`, which also syncs.

All other times are without imports; those of several ranks are the slowest rank's. Every contender
begins with the input in the page cache, after a pause in which the host of a virtual machine takes
back what was freed.

    python benchmarks/ingesting.py
    python benchmarks/ingesting.py --megabytes 32 --rounds 1
    python benchmarks/ingesting.py --only "text: " --easy --megabytes 150    texts of ASCII alone
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import gzip
import itertools
import json
import math
import random
import resource
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from machine import machine
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).parent
PAUSE = 4.0  # seconds
WORKERS = 2
VOCABULARY = 32_000
LARGEST = 8 << 20  # bytes of a text
ROWS = 40_000  # of a row group, of 1,050 tokens each on average


def texts_of_machine() -> Iterator[str]:
    """Yield what is installed here and is text: sources, documentation, HTML in many languages."""
    roots = [sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")]
    roots += ["/usr/share/doc", "/usr/share/i18n", "/usr/share/perl", "/usr/include"]
    for root in roots:
        for path in sorted(Path(root).rglob("*")):
            if path.is_file() and not path.is_symlink() and path.stat().st_size < LARGEST:
                content = path.read_bytes()
                with contextlib.suppress(UnicodeDecodeError, OSError, EOFError):
                    if path.suffix == ".gz":
                        content = gzip.decompress(content)
                    yield content.decode("utf-8")


def make_text(work: Path, megabytes: int, *, easy: bool) -> None:
    """Write texts of this machine as JSON lines, and train a tokenizer on some of them."""
    wanted = (text for text in texts_of_machine() if "\0" not in text)
    texts = list(dict.fromkeys(text for text in wanted if text.isascii() or not easy))
    random.Random(0).shuffle(texts)
    size = 0
    with open(work / "text.jsonl", "w", encoding="utf-8") as stream:
        for text in itertools.cycle(texts):
            line = json.dumps({"text": text}, ensure_ascii=False) + "\n"
            size += len(line.encode())
            stream.write(line)
            if size >= megabytes * 1_000_000:
                break
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts[::20], trainer)
    tokenizer.save(str(work / "tokenizer.json"))


def make_tokens(work: Path, groups: int) -> None:
    """Write row groups of documents of 100 to 2,000 tokens, whose ids follow a power law."""
    random = np.random.default_rng(0)
    writer = None
    for _ in range(groups):
        lengths = random.integers(100, 2000, ROWS)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        values = (random.zipf(1.3, offsets[-1]) % VOCABULARY).astype(np.int32)
        column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
        table = pa.table({"input_ids": column})
        writer = writer or pq.ParquetWriter(work / "s.parquet", table.schema, compression="zstd")
        writer.write_table(table, row_group_size=ROWS)
    assert writer is not None
    writer.close()


def peer(work: Path, *words: object, whole: bool = False) -> dict[str, float]:
    """Run a peer, and return its seconds, or the whole process's, and its peak memory."""
    done, taken = run([sys.executable, HERE / "ingesting_peer.py", *words], work)
    found: dict[str, float] = json.loads(done.splitlines()[-1])
    return found | taken if whole else found


def own(work: Path, ranks: int, *words: object, whole: bool = False) -> dict[str, float]:
    """Run distcache, and return its seconds and the peak memory of all its processes."""
    notes = work / "notes"
    shutil.rmtree(notes, ignore_errors=True)
    notes.mkdir()
    launcher = ["mpiexec", "-n", ranks] if ranks > 1 else []
    _, taken = run([*launcher, sys.executable, HERE / "ingesting_own.py", notes, *words], work)
    if not whole:
        taken = {"seconds": max(float(path.read_text()) for path in notes.glob("seconds.*"))}
    return taken | {"memory": sum(int(path.read_text()) for path in notes.glob("memory.*"))}


def run(words: Sequence[object], work: Path) -> tuple[str, dict[str, float]]:
    """Run a command; return its output, and the seconds and seconds of CPU of all its processes."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        list(map(str, words)),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=work,
        stdin=subprocess.DEVNULL,
    )
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return done.stdout, {"seconds": seconds, "cpu": cpu}


def contenders(work: Path, documents: int) -> dict[str, Callable[[], dict[str, float]]]:
    """Return what to run, by name."""
    quiet = ["--threads", 1, "--log-format", "none"]
    text = ["ingest", "text", "text.jsonl", "--tokenizer", "tokenizer.json", "--append-eod"]

    def text_run(ranks: int, threads: int, out: str, *words: object) -> dict[str, float]:
        options = ["--log-format", "none", "--threads", threads, "-o", out, *words]
        return own(work, ranks, *text, *options, whole=True)

    tokens = ["ingest", "tokens", "s.parquet", "--vocab-size", VOCABULARY]
    shard = ("s.parquet", "input_ids")
    peer_fast = ("fast", "text.jsonl", "tokenizer.json", "fast")
    peer_text = ("text", "text.jsonl", "tokenizer.json", "peer", WORKERS)
    return {
        "text: pool of workers": lambda: peer(work, *peer_text, whole=True),
        "text: gigatoken alone": lambda: peer(work, *peer_fast, whole=True),
        "text: gigatoken, only encoding, 1 thread": lambda: peer(
            work, "encode", *peer_fast[1:3], whole=True
        ),
        "text: distcache, 2 threads": lambda: text_run(1, 2, "own"),
        "text: distcache, 1 thread": lambda: text_run(1, 1, "single"),
        "text: distcache, 2 ranks": lambda: text_run(2, 1, "ranks"),
        "text: distcache, tokenizers, 2 threads": lambda: text_run(
            1, 2, "slow", "--engine", "tokenizers"
        ),
        "tokens: loop, add_item": lambda: peer(work, "items", *shard, "loop"),
        "tokens: loop, add_document": lambda: peer(work, "tokens", *shard, "loop"),
        "tokens: pyarrow, row groups": lambda: peer(work, "read", *shard),
        "tokens: pyarrow, batches": lambda: peer(work, "batches", *shard),
        "tokens: distcache, 1 rank": lambda: own(work, 1, *tokens, "-o", "one", *quiet),
        "tokens: distcache, 2 ranks": lambda: own(work, 2, *tokens, "-o", "two", *quiet),
        "idx: Megatron-Core": lambda: peer(work, "idx", documents, "idx-peer"),
        "idx: distcache": lambda: own(work, 1, "idx", documents, "idx-own"),
    }


def require_equal(work: Path) -> None:
    """Compare what the contenders have written."""
    for first, second, suffixes in (
        ("peer", "own", (".bin", ".idx")),
        ("own", "single", (".bin", ".idx")),
        ("own", "ranks", (".bin", ".idx")),
        ("own", "slow", (".bin", ".idx")),
        ("loop", "one", (".bin", ".idx")),
        ("one", "two", (".bin", ".idx")),
        ("idx-peer", "idx-own", (".idx",)),
    ):
        for suffix in suffixes:
            files = [str(work / (name + suffix)) for name in (first, second)]
            if Path(files[0]).exists():
                subprocess.run(["cmp", *files], check=True)
    if (work / "fast.bin").exists():
        alike = filecmp.cmp(work / "fast.bin", work / "own.bin", shallow=False)
        print(f"gigatoken alone: {'equal' if alike else 'other tokens'}", file=sys.stderr)


def measure(work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the median seconds, and the largest memory, of each."""
    runs: dict[str, list[dict[str, float]]] = {}
    for _ in range(options.rounds):
        for name, run in contenders(work, options.documents).items():
            if not name.startswith(options.only):
                continue
            time.sleep(PAUSE)
            runs.setdefault(name, []).append(run())
            print(f"{name}: {runs[name][-1]['seconds']:.2f} s", file=sys.stderr)
        require_equal(work)
        for pattern in ("*.receipt.json", "*.bin", "*.idx"):
            for path in work.glob(pattern):
                path.unlink()
    return {
        name: {
            "seconds": statistics.median(entry["seconds"] for entry in found),
            # Of whole processes alone; it is not the span of other seconds.
            "cpu": statistics.median(entry.get("cpu", math.nan) for entry in found),
            "memory": max(entry["memory"] for entry in found),
            "runs": [entry["seconds"] for entry in found],
        }
        for name, found in runs.items()
    }


def report(found: dict[str, Any]) -> None:
    """Print a table, and how the contenders compare."""
    print("| | seconds | of CPU | peak memory |\n|---|--:|--:|--:|")
    for name, entry in found.items():
        cpu = "" if math.isnan(entry["cpu"]) else f"{entry['cpu']:.2f}"
        cells = [f"{entry['seconds']:.2f}", cpu]
        print(f"| {name} | {' | '.join(cells)} | {entry['memory'] / 2**20:,.0f} MiB |")
    seconds = {name: entry["seconds"] for name, entry in found.items()}
    print()
    for name, base in (
        ("text: distcache, 2 threads", "text: pool of workers"),
        ("text: distcache, 2 threads", "text: gigatoken alone"),
        ("text: distcache, 2 threads", "text: distcache, tokenizers, 2 threads"),
        ("text: distcache, 2 ranks", "text: distcache, 1 thread"),
        ("tokens: distcache, 1 rank", "tokens: loop, add_item"),
        ("tokens: distcache, 2 ranks", "tokens: loop, add_item"),
        ("tokens: distcache, 2 ranks", "tokens: loop, add_document"),
        ("tokens: distcache, 1 rank", "tokens: pyarrow, row groups"),
        ("tokens: distcache, 1 rank", "tokens: pyarrow, batches"),
        ("idx: distcache", "idx: Megatron-Core"),
    ):
        if name in seconds:
            print(f"{name} against {base}: {seconds[base] / seconds[name]:.2f} times as fast")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=300, help="of text")
    parser.add_argument("--easy", action="store_true", help="only texts of ASCII alone")
    parser.add_argument("--groups", type=int, default=12, help="row groups of 42 million tokens")
    parser.add_argument("--documents", type=int, default=20_000_000, help="of the .idx")
    parser.add_argument("--only", default="", help="text, tokens or idx")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="where to work; by default a temporary one")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        work = Path(directory)
        if not options.only or options.only.startswith("text"):
            make_text(work, options.megabytes, easy=options.easy)
        if not options.only or options.only.startswith("tokens"):
            make_tokens(work, options.groups)
        found = measure(work, options)
        if options.json:
            print(json.dumps({"machine": machine(work), "results": found}, indent=2))
        else:
            print(machine(work))
            report(found)


if __name__ == "__main__":
    main()
