"""Tokenizers of Hugging Face: `tokenizer.json`, by the library tokenizers."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import socket
import urllib.request
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import urlsplit

import huggingface_hub
import tokenizers

from distcache.errors import ConfigError, NotReady
from distcache.extras import how_to_install
from distcache.ingest.tokenizers.directory import (
    CHAT_TEMPLATE,
    FILES,
    source_of_directory,
    stated_end,
)
from distcache.ingest.tokenizers.tokenizer import (
    Encoded,
    Tokenizer,
    TokenizerOptions,
    TokenizerSource,
    encoded_lists,
    eod_of,
    facts_of,
    name_and_version,
    read_tokenizer_file,
    refusing,
)
from distcache.storage.interruption import require_uninterrupted

HUB: Final = os.environ.get("HF_ENDPOINT", "https://huggingface.co")


def load(source: TokenizerSource, options: TokenizerOptions) -> Tokenizer:
    """Make a tokenizer of Hugging Face, with the engine that is asked for."""
    library = HuggingFace(source.name, source.content, options, source.end)
    if options.engine == "tokenizers":
        return library
    try:
        from distcache.ingest.tokenizers.gigatoken.engine import Gigatoken  # noqa: PLC0415

        return Gigatoken(library, source.content)
    except ImportError as error:  # missing, or built for another system
        reason = f"gigatoken cannot be imported ({error}): {how_to_install('fast')}"
    except ValueError as error:  # it needs what gigatoken does not have
        reason = str(error)
    require_uninterrupted()
    if options.engine == "gigatoken":
        raise ConfigError(f"--engine gigatoken: {options.name}: {reason}")
    library.note = reason
    return library


GPT2: Final = re.compile(rb'\{\s*"(?:[^"\\]|\\.)*"\s*:\s*\d')  # how a vocabulary of GPT-2 begins
# End-of-document tokens of common models, if no file names one.
KNOWN_ENDS: Final = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|eos|>",
    "<EOD>",
    "<|end▁of▁sentence|>",
)


class HuggingFace:
    """A tokenizer of Hugging Face.

    Text is encoded as Megatron's ``HuggingFaceTokenizer`` does it: since 0.17 with the tokens that
    a model expects around a text, if nothing else is asked for; and neither cut nor padded,
    whatever the file says.

    Parameters
    ----------
    name : str
        Name for receipts.
    content : bytes
        Content of `tokenizer.json`.
    options : TokenizerOptions
        Options of the tokenizer.
    stated_end : str or None
        End of a document according to the files beside it.
    """

    libraries: ClassVar[tuple[str, ...]] = ("tokenizers",)
    note: str | None = None

    def __init__(
        self, name: str, content: bytes, options: TokenizerOptions, stated_end: str | None = None
    ) -> None:
        self.engine = name_and_version("tokenizers")
        # Each worker is a thread; the library would start as many again for each.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        try:
            self._tokenizer = tokenizers.Tokenizer.from_buffer(content)
        except Exception as error:
            raise ConfigError(f"--tokenizer {options.name}: is not a tokenizer: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._special = _adds_special_tokens(options)
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        size = max(vocabulary.values(), default=-1) + 1
        eod = eod_of(options, vocabulary.get, _usual_end(vocabulary, stated_end))
        choices = {"special_tokens": self._special}
        self.facts = facts_of("huggingface", name, content, size, eod, choices)

    def encode(self, texts: list[str]) -> Encoded:
        """Return the tokens of texts."""
        with refusing():
            found = self._tokenizer.encode_batch_fast(texts, add_special_tokens=self._special)
        return encoded_lists([encoding.ids for encoding in found])

    def encode_bare(self, text: str) -> list[int]:
        """Return the tokens of a text, without any around it."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, tokens: list[int]) -> str:
        """Return the text of tokens, which may not be whole."""
        with refusing():
            text: str = self._tokenizer.decode(tokens, skip_special_tokens=False)
        return text


def download(options: TokenizerOptions) -> TokenizerSource:
    """Download a tokenizer of the hub, or find it in the cache of this machine."""
    offline = not _hub_is_known()
    get = functools.partial(huggingface_hub.hf_hub_download, options.name, local_files_only=offline)
    try:
        with refusing():
            path = Path(get("tokenizer.json"))
    except ValueError as error:
        where = (
            f"this machine, which cannot reach {HUB}, has no copy of it"
            if offline
            else f"the hub of Hugging Face does not provide it: {error}"
        )
        raise NotReady(f"--tokenizer {options.name}: no such file, and {where}") from error
    for name in (*FILES, CHAT_TEMPLATE):
        with contextlib.suppress(ValueError), refusing():
            get(name)
    if any((path.parent / name).is_file() for name in FILES):
        return source_of_directory(path.parent, options, options.name)
    return TokenizerSource("huggingface", options.name, read_tokenizer_file(path))


def _hub_is_known() -> bool:
    """Return whether the hub's name can be resolved: without, its library tries for 20 seconds."""
    if urllib.request.getproxies():  # which know it
        return True
    try:
        return bool(socket.getaddrinfo(urlsplit(HUB).hostname, None))
    except OSError:
        return False


def _adds_special_tokens(options: TokenizerOptions) -> bool:
    """Return whether the tokens that belong around a text are added, as Megatron's release does."""
    since = options.megatron is not None and options.megatron >= "0.17"
    return since if options.special_tokens is None else options.special_tokens


def _usual_end(vocabulary: dict[str, int], stated: str | None) -> int | None:
    if stated in vocabulary:
        return vocabulary[stated]
    known = [token for token in KNOWN_ENDS if token in vocabulary]
    return vocabulary[known[0]] if len(known) == 1 else None


def gpt2_description(path: Path, vocabulary: bytes, merges: bytes) -> bytes:
    """Return the `tokenizer.json` of the two files of GPT-2, as its tokenizer in transformers.

    Raises
    ------
    ConfigError
        If they are no such files.
    """
    try:
        lines = merges.decode("utf-8").split("\n")
        pairs = [
            (first, second)
            for first, _, second in (line.rstrip("\r").partition(" ") for line in lines)
            if second and first != "#version:"
        ]
        numbers = json.loads(vocabulary)
        with refusing():
            made = tokenizers.Tokenizer(tokenizers.models.BPE(numbers, pairs))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"--tokenizer {path}: vocabulary and merges: {error}") from error
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    if "<|endoftext|>" in numbers:
        made.add_special_tokens(["<|endoftext|>"])
    return made.to_str().encode()


def source_of_file(path: Path, content: bytes, options: TokenizerOptions) -> TokenizerSource:
    """Return the tokenizer of a `tokenizer.json`, or of the vocabulary and merges of GPT-2."""
    if GPT2.match(content[:4096].lstrip()) is not None:
        return _of_vocabulary_and_merges(path, content, options)
    return TokenizerSource("huggingface", path.name, content, stated_end(path.parent, options))


def _of_vocabulary_and_merges(
    path: Path, content: bytes, options: TokenizerOptions
) -> TokenizerSource:
    """Return the tokenizer of GPT-2's two files, as a `tokenizer.json`.

    Raises
    ------
    NotReady
        If there is no file of merges beside the vocabulary.
    """
    merges = path.with_name(path.name.replace("vocab.json", "merges.txt"))
    if merges == path or not merges.is_file():
        raise NotReady(
            f"--tokenizer {options.name}: is a vocabulary of GPT-2; its merges are expected beside "
            "it, in a file of that name with merges.txt for vocab.json"
        )
    made = gpt2_description(path, content, read_tokenizer_file(merges))
    return TokenizerSource("huggingface", path.name, made, "<|endoftext|>")
