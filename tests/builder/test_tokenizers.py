"""A cache says which tokenizers its corpora came from, and is not built from two by mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from distcache.cache import open_cache
from distcache.corpus.receipt import (
    FORMAT,
    Receipt,
    TokenizerFacts,
    read_receipt,
    receipt_path,
    write_receipt,
)
from distcache.errors import ConfigError, CorpusError
from distcache.megatron.options import config_from_options
from tests.support import here
from tests.support.corpora import LENGTHS, write_lengths
from tests.support.processes import start


def write_with_receipt(prefix: Path, name: str, tokenizer: str | None) -> str:
    """Write a corpus with a receipt that names a tokenizer."""
    write_lengths(prefix, LENGTHS[name])
    facts = here.sound(prefix)
    made = TokenizerFacts("huggingface", f"{tokenizer}.json", f"digest-{tokenizer}", 30_000, 0)
    fields = {
        key: getattr(facts, key)
        for key in (
            "idx_digest",
            "idx_size",
            "bin_size",
            "type_code",
            "sequences",
            "documents",
            "tokens",
        )
    }
    receipt = Receipt(
        format=FORMAT,
        kind="text",
        corpus=prefix.name,
        made_from="",
        tokenizer=made if tokenizer else None,
        options={},
        versions={},
        corpora=1,
        inputs=(),
        **fields,
    )
    write_receipt(str(prefix), receipt)
    return str(prefix)


@pytest.fixture
def mixed(tmp_path: Path) -> dict[str, Any]:
    """A configuration over corpora of two tokenizers, and one without a receipt."""
    prefixes = [
        write_with_receipt(tmp_path / "one", "plain", "first"),
        write_with_receipt(tmp_path / "two", "second", "other"),
        write_lengths(tmp_path / "three", LENGTHS["third"]),
    ]
    blend = [{"path": prefix, "weight": 1.0} for prefix in prefixes]
    samples = {"train": 100, "valid": 0, "test": 0}
    return {"sequence_length": 16, "split": "1", "samples": samples, "blend": blend}


def test_two_tokenizers_are_refused(mixed: dict[str, Any], tmp_path: Path, shared: Path) -> None:
    """By build and by plan, unless that is meant; the key does not depend on it."""
    with pytest.raises(ConfigError, match=r"one: first\.json, digest digest-first; .*two: other"):
        here.build(mixed, shared)
    config = tmp_path / "blend.json"
    config.write_text(json.dumps(mixed))
    done = start(["plan", config])
    assert (done.returncode, "mixed_tokenizers: true if that is meant" in done.stderr) == (2, True)
    outcome = here.build(mixed | {"mixed_tokenizers": True}, shared)
    known = open_cache(outcome.path).naming["corpus_tokenizers"]
    assert known == [
        {"name": "first.json", "digest": "digest-first"},
        {"name": "other.json", "digest": "digest-other"},
        None,
    ]
    for prefix in (tmp_path / "one", tmp_path / "two"):
        Path(receipt_path(str(prefix))).unlink()
    assert here.build(mixed, tmp_path / "without").key == outcome.key


def test_megatrons_options_can_mix_too() -> None:
    """A flag allows a build from Megatron's options to mix tokenizers."""
    words = ["--data-path", "a", "--seq-length", "8", "--train-samples", "1"]
    words += ["--global-batch-size", "1", "--mixed-tokenizers"]
    assert config_from_options(words).mixed_tokenizers


def test_the_receipt_of_another_corpus(mixed: dict[str, Any], tmp_path: Path, shared: Path) -> None:
    """It is an error: the corpus was recreated, or the receipt belongs elsewhere."""
    write_lengths(tmp_path / "one", LENGTHS["tiny"])
    with pytest.raises(CorpusError, match=r"one\.receipt\.json: is not the receipt of the corpus"):
        here.build(mixed, shared)
    Path(receipt_path(str(tmp_path / "two"))).write_text("nonsense")
    with pytest.raises(CorpusError, match=r"two\.receipt\.json: is not a receipt"):
        here.build(mixed, shared)


def test_merging_keeps_the_tokenizer(mixed: dict[str, Any], tmp_path: Path) -> None:
    """Merging keeps the tokenizer if all corpora have it; and refuses two, unless that is meant."""
    one, two, three = (source["path"] for source in mixed["blend"])
    with pytest.raises(ConfigError, match="corpora of different tokenizers"):
        here.merge([one, two], tmp_path / "all")
    assert here.merge([one, two], tmp_path / "all", mixed=True).tokenizer is None
    assert here.merge([one, three], tmp_path / "some").tokenizer is None
    merged = here.merge([one, one], tmp_path / "twice")
    assert merged.tokenizer == read_receipt(receipt_path(one)).tokenizer


@pytest.mark.more
def test_receipts_of_other_formats_and_sizes(tmp_path: Path) -> None:
    """Receipts of other formats and sizes are refused."""
    prefix = write_with_receipt(tmp_path / "one", "plain", "first")
    receipt = read_receipt(receipt_path(prefix))
    write_receipt(prefix, msgspec.structs.replace(receipt, format=2))
    with pytest.raises(CorpusError, match="has format 2, expected 1"):
        read_receipt(receipt_path(prefix))
    with open(receipt_path(prefix), "ab") as stream:
        stream.truncate((1 << 30) + 1)
    with pytest.raises(CorpusError, match="too many for a receipt"):
        read_receipt(receipt_path(prefix))
