"""Texts and tokenizers, made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import texts


@pytest.fixture(scope="session")
def documents() -> list[str]:
    """A few hundred texts."""
    return texts.documents(300)


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Path:
    """A directory with a tokenizer of each kind."""
    directory = tmp_path_factory.mktemp("tokenizers")
    texts.train_bpe(directory / "tokenizer.json", documents)
    texts.train_sentencepiece(directory / "pieces.model", documents)
    texts.write_ranks(directory / "ranks.tiktoken")
    return directory


@pytest.fixture(autouse=True)
def _small_pieces(limit: Callable[..., None]) -> None:
    """Cut small inputs into many pieces."""
    limit("distcache.ingest.pieces", MIN_PIECE_BYTES=20_000)
    limit("distcache.ingest.pieces", ROUND_BYTES=40_000)
