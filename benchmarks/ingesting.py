"""`distcache ingest` and what a user of Megatron-Core would do instead.

Text: a pool of workers that feed one `IndexedDatasetBuilder`, as Megatron's `preprocess_data`, and
gigatoken alone, as its `preprocess_data_fast`. Tokens: a loop over the rows of a Parquet file into
the builder, and only reading it with pyarrow. Files must be equal; whether those of gigatoken alone
are, is said. Whole processes, each after a pause in which the host of a virtual machine takes back
what was freed.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import multiprocessing
import os
import random
import resource
import shutil
import sysconfig
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.corpora import QUIET
from benchmarks.harness import Run, Table, command, factor, process, require_equal

MARKS = ("ingesting",)
JUDGE = "0.16.1"
PAUSE = 4.0  # seconds
WORKERS = 2
VOCABULARY = 32_000
END = "<|endoftext|>"
LARGEST = 8 << 20  # bytes of a text
TEXT = 300_000_000  # bytes
GROUPS, ROWS = 12, 40_000  # row groups, and their rows, of 1,050 tokens each on average


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


def make_text(work: Path, nbytes: int) -> None:
    """Write texts of this machine as JSON lines, and train a tokenizer on some of them."""
    texts = list(dict.fromkeys(text for text in texts_of_machine() if "\0" not in text))
    random.Random(0).shuffle(texts)
    size = 0
    with open(work / "text.jsonl", "w", encoding="utf-8") as stream:
        for text in itertools.cycle(texts):
            line = json.dumps({"text": text}, ensure_ascii=False) + "\n"
            size += len(line.encode())
            stream.write(line)
            if size >= nbytes:
                break
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts[::20], trainer)
    tokenizer.save(str(work / "tokenizer.json"))


def make_tokens(path: Path, rows: int) -> None:
    """Write row groups of documents of 100 to 2,000 tokens, whose ids follow a power law."""
    random = np.random.default_rng(0)
    writer = None
    for _ in range(GROUPS):
        lengths = random.integers(100, 2000, rows)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        values = (random.zipf(1.3, offsets[-1]) % VOCABULARY).astype(np.int32)
        column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
        table = pa.table({"input_ids": column})
        writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table, row_group_size=rows)
    assert writer is not None
    writer.close()


class Encoder:
    """Tokenizes a line of JSON in a worker, as Megatron's `preprocess_data` does."""

    def __init__(self, path: str) -> None:
        self.path = path

    def start(self) -> None:
        """Load the tokenizer of this worker."""
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        Encoder.tokenizer = Tokenizer.from_file(self.path)
        Encoder.end = Encoder.tokenizer.token_to_id(END)

    def encode(self, line: str) -> tuple[list[int], list[int]]:
        """Return the tokens of a document, and the lengths of its sentences."""
        ids = Encoder.tokenizer.encode(json.loads(line)["text"], add_special_tokens=False).ids
        if ids:
            ids.append(Encoder.end)
        return ids, [len(ids)] if ids else []


def builder_of(prefix: str) -> Any:
    """Return Megatron's builder of a corpus."""
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder  # noqa: PLC0415

    return IndexedDatasetBuilder(prefix + ".bin", dtype=np.uint16)


def pooled(work: str) -> dict[str, float]:
    """Tokenize with a pool of workers, which feeds the one builder."""
    encoder, builder = Encoder(f"{work}/tokenizer.json"), builder_of(f"{work}/pool")
    with open(f"{work}/text.jsonl", encoding="utf-8") as lines:
        pool = multiprocessing.Pool(WORKERS, initializer=encoder.start)
        for ids, lengths in pool.imap(encoder.encode, lines, 32):
            if ids:  # distcache drops empty documents, where Megatron repeats a boundary
                builder.add_document(ids, lengths)
        builder.finalize(f"{work}/pool.idx")
    pool.close()
    pool.join()
    largest = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return {"of workers": WORKERS * largest}


def fast(work: str) -> dict[str, float]:
    """Encode a file in one call, and hand all of it to the builder, as `preprocess_data_fast`."""
    import gigatoken  # noqa: PLC0415

    tokenizer, prefix = f"{work}/tokenizer.json", f"{work}/fast"
    end = json.loads(Path(tokenizer).read_bytes())["model"]["vocab"][END]
    source = gigatoken.JsonlFileSource([f"{work}/text.jsonl"], field="text")
    layout = gigatoken.Tokenizer(tokenizer).encode_files(source).layout
    offsets = np.asarray(layout.offsets.data)
    lengths = np.diff(offsets)
    filled = offsets[1:][lengths > 0]
    ids = np.insert(np.asarray(layout.content.data).astype(np.uint16), filled, end)
    builder = builder_of(prefix)
    builder.data_file.write(ids.tobytes())
    builder.sequence_lengths.extend((lengths[lengths > 0] + 1).tolist())
    builder.document_indices.extend(range(1, len(filled) + 1))
    builder.finalize(prefix + ".idx")
    return {}


def looped(work: str) -> dict[str, float]:
    """Give the rows of a Parquet file to the builder, one after the other."""
    builder = builder_of(f"{work}/loop")
    for batch in pq.ParquetFile(f"{work}/tokens.parquet").iter_batches(columns=["input_ids"]):
        for row in batch.column(0).to_pylist():
            builder.add_document(row, [len(row)])
    builder.finalize(f"{work}/loop.idx")
    return {}


def only_read(work: str) -> dict[str, float]:
    """Only read the column, row group after row group."""
    file = pq.ParquetFile(f"{work}/tokens.parquet")
    for group in range(file.num_row_groups):
        file.read_row_group(group, columns=["input_ids"], use_threads=False)
    return {}


def contenders(work: Path) -> dict[str, dict[str, Callable[[], dict[str, float]]]]:
    """Return what to run, by kind and name; the first of a kind is the peer."""
    text = ["text", work / "text.jsonl", "--tokenizer", work / "tokenizer.json", "--append-eod"]
    tokens = ["tokens", work / "tokens.parquet", "--vocab-size", VOCABULARY]
    ranks = [shutil.which("mpiexec"), "-n", 2, shutil.which("distcache")]

    def own(words: list[Any], out: str, *more: Any, threads: int = 1, many: bool = False) -> Any:
        launcher = ranks if many else ["distcache"]
        options = ["-o", work / out, "--threads", threads, *more, *QUIET]
        return command(*launcher, "ingest", *words, *options)

    return {
        "text": {
            "text: as `preprocess_data`, a pool of 2 workers": lambda: process(pooled, work),
            "text: as `preprocess_data_fast`, gigatoken alone": lambda: process(fast, work),
            "text: distcache, 1 thread": lambda: own(text, "t1"),
            "text: distcache, 2 threads": lambda: own(text, "t2", threads=2),
            "text: distcache, 2 ranks of 1 thread": lambda: own(text, "r2", many=True),
            "text: distcache, `--engine tokenizers`, 2 threads": lambda: own(
                text, "slow", "--engine", "tokenizers", threads=2
            ),
        },
        "tokens": {
            "tokens: a loop over rows into `add_document`": lambda: process(looped, work),
            "tokens: only reading with pyarrow": lambda: process(only_read, work),
            "tokens: distcache, 1 thread": lambda: own(tokens, "one"),
            "tokens: distcache, 2 ranks of 1 thread": lambda: own(tokens, "two", many=True),
        },
    }


def tables(run: Run) -> Iterator[Table]:
    """Compare the contenders, and what they have written."""
    work, rows = run.directory, []
    make_text(work, run.size(TEXT))
    make_tokens(work / "tokens.parquet", run.size(ROWS))

    def alone(action: Callable[[], dict[str, float]]) -> dict[str, float]:
        for path in (*work.glob("*.receipt.json"), *work.glob("*.bin"), *work.glob("*.idx")):
            path.rename(work / f"before-{path.name}")
        time.sleep(PAUSE)
        return action()

    for cases in contenders(work).values():
        found = run.in_turn({name: partial(alone, do) for name, do in cases.items()})
        base = next(iter(found.values()))
        for name, own in found.items():
            memory = own["memory"] + (own["of workers"] if own is base and "text" in name else 0)
            cells = [own.said("seconds"), own.said("cpu"), factor(base, own)]
            rows.append([name, *cells, f"{memory / 2**20:,.0f} MiB"])
    for names in (("pool", "t1", "t2", "r2", "slow"), ("loop", "one", "two")):
        for suffix in (".bin", ".idx"):
            paths = [next(iter(work.glob(f"*{name}{suffix}"))) for name in names]
            require_equal(suffix, *(path.read_bytes() for path in paths))
    pair = [next(iter(work.glob(f"*{name}.bin"))).read_bytes() for name in ("fast", "pool")]
    rows[1][0] += "" if pair[0] == pair[1] else "; **other tokens** in places"
    head = ["", "seconds", "of CPU", "", "memory of the largest process"]
    yield Table("ingesting", head, rows)
