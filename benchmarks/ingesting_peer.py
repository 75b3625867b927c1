"""Run by `ingesting.py` in a process of its own: what a user of Megatron-Core would do instead.

    ingesting_peer.py text  INPUT.jsonl TOKENIZER PREFIX WORKERS
    ingesting_peer.py fast  INPUT.jsonl TOKENIZER PREFIX
    ingesting_peer.py encode INPUT.jsonl TOKENIZER
    ingesting_peer.py tokens INPUT.parquet COLUMN PREFIX
    ingesting_peer.py items  INPUT.parquet COLUMN PREFIX
    ingesting_peer.py read  INPUT.parquet COLUMN
    ingesting_peer.py batches INPUT.parquet COLUMN
    ingesting_peer.py idx   DOCUMENTS PREFIX

Writes one line of JSON: seconds without imports, and peak memory in bytes of all its processes.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import resource
import sys
import time
import warnings
from pathlib import Path

import numpy as np

END = "<|endoftext|>"


class Encoder:
    """Tokenizes a line of JSON in a worker, as Megatron's `preprocess_data` does."""

    def __init__(self, path: str) -> None:
        self.path = path

    def start(self) -> None:
        """Load the tokenizer of this worker."""
        from tokenizers import Tokenizer  # noqa: PLC0415

        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        Encoder.tokenizer = Tokenizer.from_file(self.path)
        Encoder.end = Encoder.tokenizer.token_to_id(END)

    def encode(self, line: str) -> tuple[list[int], list[int]]:
        """Return the tokens of a document, and the lengths of its sentences."""
        ids = Encoder.tokenizer.encode(json.loads(line)["text"], add_special_tokens=False).ids
        if ids:
            ids.append(Encoder.end)
        return ids, [len(ids)] if ids else []


def text(source: str, tokenizer: str, prefix: str, workers: str) -> None:
    """Tokenize with a pool of workers, which feeds the one builder."""
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder  # noqa: PLC0415

    encoder = Encoder(tokenizer)
    with open(source, encoding="utf-8") as lines:
        pool = multiprocessing.Pool(int(workers), initializer=encoder.start)
        builder = IndexedDatasetBuilder(prefix + ".bin", dtype=np.uint16)
        for ids, lengths in pool.imap(encoder.encode, lines, 32):
            if ids:  # distcache drops empty documents, where Megatron repeats a boundary
                builder.add_document(ids, lengths)
        builder.finalize(prefix + ".idx")
    pool.close()
    pool.join()


def fast(source: str, tokenizer: str, prefix: str) -> None:
    """Encode a file in one call, and hand all of it to the builder, as `preprocess_data_fast`."""
    import gigatoken  # noqa: PLC0415
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder  # noqa: PLC0415

    end = json.loads(Path(tokenizer).read_bytes())["model"]["vocab"][END]
    engine = gigatoken.Tokenizer(tokenizer)
    layout = engine.encode_files(gigatoken.JsonlFileSource([source], field="text")).layout
    offsets = np.asarray(layout.offsets.data)
    lengths = np.diff(offsets)
    filled = offsets[1:][lengths > 0]
    ids = np.insert(np.asarray(layout.content.data).astype(np.uint16), filled, end)
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=np.uint16)
    builder.data_file.write(ids.tobytes())
    builder.sequence_lengths.extend((lengths[lengths > 0] + 1).tolist())
    builder.document_indices.extend(range(1, len(filled) + 1))
    builder.finalize(prefix + ".idx")


def encode(source: str, tokenizer: str) -> None:
    """Only encode a file in one call, with one thread, and write nothing."""
    os.environ["RAYON_NUM_THREADS"] = "1"
    import gigatoken  # noqa: PLC0415

    engine = gigatoken.Tokenizer(tokenizer)
    engine.encode_files(gigatoken.JsonlFileSource([source], field="text"), parallel=False)


def tokens(source: str, column: str, prefix: str) -> None:
    """Give the rows of a Parquet file to the builder, one after the other."""
    import pyarrow.parquet as pq  # noqa: PLC0415
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder  # noqa: PLC0415

    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=np.uint16)
    for batch in pq.ParquetFile(source).iter_batches(columns=[column]):
        for row in batch.column(0).to_pylist():
            builder.add_document(row, [len(row)])
    builder.finalize(prefix + ".idx")


def items(source: str, column: str, prefix: str) -> None:
    """The same with the builder's other method, which takes a tensor."""
    import pyarrow.parquet as pq  # noqa: PLC0415
    import torch  # noqa: PLC0415
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder  # noqa: PLC0415

    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=np.uint16)
    for batch in pq.ParquetFile(source).iter_batches(columns=[column]):
        for row in batch.column(0).to_pylist():
            builder.add_item(torch.tensor(row))
            builder.end_document()
    builder.finalize(prefix + ".idx")


def read(source: str, column: str) -> None:
    """Only read the column, row group after row group."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    file = pq.ParquetFile(source)
    for group in range(file.num_row_groups):
        file.read_row_group(group, columns=[column], use_threads=False)


def batches(source: str, column: str) -> None:
    """Only read the column, in batches that stay in a cache."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    for _ in pq.ParquetFile(source).iter_batches(1024, columns=[column], use_threads=False):
        pass


def idx(documents: str, prefix: str) -> None:
    """Write an `.idx` from the lists that the builder keeps."""
    from megatron.core.datasets.indexed_dataset import _IndexWriter  # noqa: PLC0415

    count = int(documents)
    lengths = np.random.default_rng(0).integers(1, 2000, count).tolist()
    bounds = list(range(count + 1))
    begin_clock()
    with _IndexWriter(prefix + ".idx", np.uint16) as writer:
        writer.write(lengths, None, bounds)


def begin_clock() -> None:
    """Leave what came before out of the time."""
    global began  # noqa: PLW0603
    began = time.perf_counter()


began = 0.0


def main() -> None:
    """Do what the first argument says."""
    warnings.simplefilter("ignore")
    known = (text, fast, encode, tokens, items, read, batches, idx)
    actions = {action.__name__: action for action in known}
    needed = [] if sys.argv[1] == "encode" else ["pyarrow.parquet"]
    if sys.argv[1] not in ("encode", "read", "batches"):
        needed.append("megatron.core.datasets.indexed_dataset")
    for module in needed:
        importlib.import_module(module)
    begin_clock()
    actions[sys.argv[1]](*sys.argv[2:])
    seconds = time.perf_counter() - began
    status = Path("/proc/self/status").read_text(encoding="ascii")
    own = 1024 * int(status.partition("VmHWM:")[2].split()[0])
    workers = int(sys.argv[5]) if sys.argv[1] == "text" else 0
    largest = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(json.dumps({"seconds": seconds, "memory": own + workers * largest}))


if __name__ == "__main__":
    main()
