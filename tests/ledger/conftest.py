"""Texts and tokenizers, as tests of ingesting have them."""

from tests.ingest.conftest import _small_pieces, documents, tokenizers

__all__ = ["_small_pieces", "documents", "tokenizers"]
