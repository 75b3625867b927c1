"""Write two corpora from the Python installation: its sources, and their documentation strings.

A token is a byte. `make demo` runs this; your own corpora come from Megatron's preprocessing.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from distcache.corpus import write_corpus

END_OF_DOCUMENT = 256


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


def tokens(text: str) -> np.ndarray:
    """Return the bytes of a text and an end of document, as unsigned 16-bit numbers."""
    return np.append(np.frombuffer(text.encode("utf-8"), np.uint8), END_OF_DOCUMENT).astype("u2")


def main() -> None:
    """Write both corpora into the directory of the first argument."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    texts = list(sources())
    for name, documents in {"sources": texts, "docstrings": list(docstrings(texts))}.items():
        write_corpus(str(directory / name), map(tokens, documents), "u2")
        total = sum(len(text.encode("utf-8")) + 1 for text in documents)
        print(f"{directory / name}: {len(documents):,} documents, {total:,} tokens")


if __name__ == "__main__":
    main()
