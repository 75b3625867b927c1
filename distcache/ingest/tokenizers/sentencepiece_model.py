"""Tokenizers of SentencePiece."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import sentencepiece

from distcache.errors import ConfigError
from distcache.ingest.tokenizers.tokenizer import (
    Encoded,
    TokenizerOptions,
    TokenizerSource,
    encoded_lists,
    eod_of,
    facts_of,
    name_and_version,
    refusing,
)


class SentencePiece:
    """A SentencePiece model.

    Text is encoded as Megatron's ``SentencePieceTokenizer`` does it, without tokens of its own;
    asked for special tokens, it puts the model's first one before each text, as for Llama 2.

    Parameters
    ----------
    name : str
        Name for receipts.
    content : bytes
        Content of the model's file.
    options : TokenizerOptions
        Options of the tokenizer.
    """

    libraries: ClassVar[tuple[str, ...]] = ("sentencepiece",)
    note: str | None = None

    def __init__(self, name: str, content: bytes, options: TokenizerOptions) -> None:
        self.engine = name_and_version("sentencepiece")
        self._model = sentencepiece.SentencePieceProcessor()
        try:
            with refusing():
                self._model.LoadFromSerializedProto(content)
        except ValueError as error:
            raise ConfigError(
                f"--tokenizer {options.name}: is not a SentencePiece model: {error}"
            ) from error
        if not self._model.get_piece_size():
            raise ConfigError(f"--tokenizer {options.name}: is not a SentencePiece model")
        self._begin: list[int] = []
        if options.special_tokens:
            if self._model.bos_id() < 0:
                raise ConfigError(f"--add-special-tokens: {options.name} has no first token")
            self._begin = [self._model.bos_id()]
        choices = {"special_tokens": bool(options.special_tokens)}
        size = self._model.get_piece_size()
        end = int(self._model.eos_id())
        eod = eod_of(options, self._find, end if end >= 0 else None)
        self.facts = facts_of("sentencepiece", name, content, size, eod, choices)

    def _find(self, text: str) -> int | None:
        found = int(self._model.piece_to_id(text))
        return found if self._model.id_to_piece(found) == text else None

    def encode(self, texts: list[str]) -> Encoded:
        """Return the tokens of texts."""
        encode = self._model.encode_as_ids
        with refusing():
            found = [encode(text) for text in texts]
        return encoded_lists([self._begin + ids for ids in found] if self._begin else found)

    def decode(self, tokens: list[int]) -> str:
        """Return the text of tokens."""
        with refusing():
            return str(self._model.decode_ids(tokens))


def source_of_file(path: Path, content: bytes, _options: TokenizerOptions) -> TokenizerSource:
    """Return the tokenizer of a `.model`."""
    return TokenizerSource("sentencepiece", path.name, content)


def load(source: TokenizerSource, options: TokenizerOptions) -> SentencePiece:
    """Make the tokenizer of a model."""
    return SentencePiece(source.name, source.content, options)
