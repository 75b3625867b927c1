"""Write text from the Python installation, and a tokenizer that is trained on it.

`make demo` runs this: the sources of the standard library as compressed JSON lines, their
documentation strings as a Parquet file, and a byte-level BPE in `tokenizer.json`.
"""

from __future__ import annotations

import ast
import gzip
import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 8000
TRAINED_ON = 200  # sources; more take longer, and make a better tokenizer
DOCUMENTED = 3  # every so many sources give their documentation strings; parsing takes long


def sources() -> Iterator[str]:
    """Yield the text of every module of the standard library."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" not in path.parts:
            yield path.read_text(encoding="utf-8", errors="replace")


def docstrings(texts: list[str]) -> Iterator[str]:
    """Yield every documentation string of sources."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for text in texts:
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, kinds) and (found := ast.get_docstring(node)):
                yield found


def train(texts: list[str], path: Path) -> None:
    """Train a byte-level BPE, and write its file."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts[:: max(len(texts) // TRAINED_ON, 1)], trainer)
    tokenizer.save(str(path))


def main() -> None:
    """Write everything into the directory of the first argument."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    texts = list(sources())
    with gzip.open(directory / "sources.jsonl.gz", "wt", encoding="utf-8", compresslevel=1) as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    strings = list(docstrings(texts[::DOCUMENTED]))
    pq.write_table(pa.table({"text": strings}), directory / "docstrings.parquet")
    train(texts, directory / "tokenizer.json")
    print(f"{len(texts):,} sources, {len(strings):,} documentation strings, {VOCABULARY:,} tokens")


if __name__ == "__main__":
    main()
