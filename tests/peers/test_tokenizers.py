"""What tokenizers call themselves, by the release that is on the path."""

from __future__ import annotations

import importlib
import json
import random
import warnings
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import msgspec
import pytest

from distcache.megatron.tokenizers import (
    RELEASES,
    MegatronTokenizer,
    TokenizerType,
    identifiers,
)
from tests.peers.megatron import RELEASE

KINDS: tuple[TokenizerType, ...] = get_args(TokenizerType)
SPECIAL = ("<unk>", "<s>", "</s>", "it's", 'a "b"', "é")


def options_of(number: int) -> MegatronTokenizer:
    """Return a random set of options; the same for the same number."""
    choose = random.Random(number)
    some = choose.choice((None, (), SPECIAL[: choose.randint(1, 6)]))
    return MegatronTokenizer(
        tokenizer_type=KINDS[number % len(KINDS)],
        tokenizer_model=choose.choice(("/m/tokenizer.model", "meta-llama/Llama-3-8B", "ä b")),
        tokenizer_special_tokens=some,
        vocab_size=choose.choice((None, 0, 32000)),
        vocab_file=choose.choice((None, "/m/vocab.json")),
        merge_file=choose.choice((None, "/m/merges.txt")),
        chat_template=choose.choice((None, "{{ x }}\n")),
        tiktoken_pattern=choose.choice((None, "v1", "v2")),
        tiktoken_num_special_tokens=choose.choice((1000, 7)),
        tokenizer_sentencepiece_legacy=choose.random() < 0.5,
        tokenizer_sentencepiece_ignore_extra_whitespaces=choose.random() < 0.5,
        tokenizer_hf_use_fast=choose.random() < 0.5,
        tokenizer_hf_include_special_tokens=choose.random() < 0.5,
        tokenizer_hf_no_use_fast=choose.random() < 0.5,
        tokenizer_hf_no_include_special_tokens=choose.random() < 0.5,
        trust_remote_code=choose.random() < 0.5,
        null_tokenizer_eod_id=choose.choice((None, 5)),
        null_tokenizer_pad_id=choose.choice((-1, 3)),
    )


def arguments_of(options: MegatronTokenizer) -> Namespace:
    """Return them as the release's parser of the command line does."""
    fields = msgspec.structs.asdict(options)
    special = fields.pop("tokenizer_special_tokens")
    fields["tokenizer_special_tokens"] = None if special is None else list(special)
    fields["special_tokens"] = fields["tokenizer_special_tokens"]  # its name since 0.18
    fields["metadata_path"] = fields["tokenizer_metadata"]
    return Namespace(**fields, rank=1, pad_vocab_size=False, padded_vocab_size=1)


def ask_megatron(options: MegatronTokenizer, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the identifiers that the release's own classes give; no model is loaded."""
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
    return dict(module.build_tokenizer(arguments_of(options)).unique_identifiers)


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_identifiers(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Are those of the release, in its order."""
    for number in range(first, first + 50):
        options = options_of(number)
        theirs = ask_megatron(options, monkeypatch)
        ours = identifiers(options, RELEASE)
        assert json.dumps(ours) == json.dumps(theirs), options


@pytest.mark.parametrize("model", ["gpt", "mamba", "bert", "t5"])
def test_a_class_that_metadata_names(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stands in the identifiers."""
    path = tmp_path / "metadata.json"
    path.write_text(json.dumps({"library": "huggingface", "model_type": model}))
    options = MegatronTokenizer(
        tokenizer_type="HuggingFaceTokenizer", tokenizer_model="m", tokenizer_metadata=str(path)
    )
    assert identifiers(options, RELEASE) == ask_megatron(options, monkeypatch)


def test_releases_differ() -> None:
    """Which is why all names change with an upgrade."""
    options = MegatronTokenizer(tokenizer_type="HuggingFaceTokenizer", tokenizer_model="m")
    found = {release: json.dumps(identifiers(options, release)) for release in RELEASES}
    assert len(set(found.values())) == 3
    assert found["0.18"] == found["0.19"]
