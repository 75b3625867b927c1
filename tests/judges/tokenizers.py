"""What the release that is on the path calls a tokenizer, from its own classes."""

from __future__ import annotations

import importlib
import warnings
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from distcache.megatron.tokenizers import MegatronTokenizer
from tests.judges.megatron import RELEASE


def arguments_of(options: MegatronTokenizer) -> Namespace:
    """Return them as the release's parser of the command line does."""
    fields = msgspec.structs.asdict(options)
    special = fields.pop("tokenizer_special_tokens")
    fields["tokenizer_special_tokens"] = None if special is None else list(special)
    fields["special_tokens"] = fields["tokenizer_special_tokens"]  # its name since 0.18
    fields["metadata_path"] = fields["tokenizer_metadata"]
    return Namespace(**fields, rank=1, pad_vocab_size=False, padded_vocab_size=1)


def build_tokenizer(options: MegatronTokenizer) -> Any:
    """Return the release's own tokenizer, with its model."""
    place = "text.utils" if RELEASE == "0.16" else "utils"
    module = importlib.import_module(f"megatron.core.tokenizers.{place}.build_tokenizer")
    arguments = arguments_of(options)
    arguments.make_vocab_size_divisible_by, arguments.tensor_model_parallel_size = 128, 1
    return module.build_tokenizer(arguments)


def ask_megatron(options: MegatronTokenizer, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the identifiers that the release's own classes give."""
    return ask_megatron_for(arguments_of(options), monkeypatch)


def ask_megatron_for(options: Namespace, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return those of what its parser has read; no model is loaded."""
    place = "text.utils" if RELEASE == "0.16" else "utils"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = importlib.import_module(f"megatron.core.tokenizers.{place}.build_tokenizer")
        texts = importlib.import_module("megatron.core.tokenizers.text.text_tokenizer")
    monkeypatch.setattr(
        texts.MegatronTokenizerText, "_restore_model", lambda *_, **__: SimpleNamespace()
    )
    if hasattr(module, "_set_padded_vocab_size"):
        monkeypatch.setattr(module, "_set_padded_vocab_size", lambda *_: None)
    return dict(module.build_tokenizer(options).unique_identifiers)
