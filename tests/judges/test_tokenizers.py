"""What tokenizers call themselves, by the release that is on the path."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from distcache.megatron.tokenizers import (
    RELEASES,
    MegatronTokenizer,
    TokenizerType,
    checked_tokenizer,
    identifiers,
    identifiers_of,
)
from tests.judges.megatron import RELEASE
from tests.judges.tokenizers import ask_megatron

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


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_identifiers(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Identifiers are those of the release, in its order."""
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
    fields = {
        "tokenizer_type": "HuggingFaceTokenizer",
        "tokenizer_model": "m",
        "tokenizer_metadata": str(path),
    }
    theirs = ask_megatron(msgspec.convert(fields, MegatronTokenizer), monkeypatch)
    assert identifiers_of(checked_tokenizer(fields), [RELEASE]) == [theirs]


def test_releases_differ() -> None:
    """Releases differ, which is why all names change with an upgrade."""
    options = MegatronTokenizer(tokenizer_type="HuggingFaceTokenizer", tokenizer_model="m")
    found = {release: json.dumps(identifiers(options, release)) for release in RELEASES}
    assert len(set(found.values())) == 3
    assert found["0.18"] == found["0.19"]
