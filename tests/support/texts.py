"""Real text to ingest, and tokenizers that are trained on it on the spot."""

from __future__ import annotations

import base64
import io
import itertools
import json
import random
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import sentencepiece
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from distcache.corpus import open_idx
from distcache.corpus.idx import ITEM_TYPES

END = "<|endoftext|>"


def documents(count: int, seed: int = 1) -> list[str]:
    """Return pieces of the sources of Python's library, and some that are odd."""
    chosen = random.Random(seed)
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    texts = []
    while len(texts) < count:
        text = chosen.choice(paths).read_text(encoding="utf-8", errors="replace")
        begin = chosen.randrange(max(len(text) - 400, 1))
        texts.append(text[begin : begin + chosen.randrange(20, 3000)])
    for place, odd in enumerate(["", "naïve ☃ 例え 🙂", "\n", " ", END, "a" * 5000, "\u2028line"]):
        texts[place * 7 % count] = odd
    return texts


def write_jsonl(path: Path, texts: Sequence[object], key: str = "text") -> Path:
    """Write lines of JSON, with a field besides that is not wanted."""
    lines = (json.dumps({"id": place, key: text}) for place, text in enumerate(texts))
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def train_bpe(path: Path, texts: Sequence[str], size: int = 600) -> Path:
    """Train a byte-level BPE, whose file also asks for cutting, padding and a first token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END, "<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(path))
    return path


def train_sentencepiece(path: Path, texts: Sequence[str]) -> Path:
    """Train a SentencePiece model with bytes to fall back on."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in texts for line in text.splitlines()]),
        model_writer=model,
        vocab_size=500,
        byte_fallback=True,
        character_coverage=0.99,
        minloglevel=2,
    )
    path.write_bytes(model.getvalue())
    return path


def write_ranks(path: Path) -> Path:
    """Write a small encoding of tiktoken: all bytes, and some words."""
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [b"in", b"th", b"the", b" the", b"re", b"self", b" self"]
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens)]
    path.write_text("\n".join(lines) + "\n", encoding="ascii")
    return path


def write_shard(
    path: Path,
    rows: Sequence[Sequence[int] | None],
    kind: pa.DataType | None = None,
    groups: int = 3,
    column: str = "input_ids",
    **extra: Sequence[object],
) -> Path:
    """Write rows of token ids as a Parquet file of several row groups."""
    kind = pa.list_(pa.int32()) if kind is None else kind
    table = pa.table({column: pa.array(rows, kind), **extra})
    size = max(-(-len(rows) // groups), 1)
    pq.write_table(table, path, row_group_size=size, compression="zstd")
    return path


def read_corpus(prefix: str | Path) -> list[list[NDArray[np.generic]]]:
    """Read a corpus in the plainest way: a list of sequences for each document."""
    idx = open_idx(str(prefix))
    tokens = np.fromfile(f"{prefix}.bin", ITEM_TYPES[idx.type_code])
    ends = np.cumsum(idx.lengths)
    sequences = np.split(tokens, ends[:-1]) if len(ends) else []
    bounds = idx.bounds.tolist()
    return [sequences[begin:end] for begin, end in itertools.pairwise(bounds)]
