"""What a cache has, of which documents a sample consists, and its text."""

from __future__ import annotations

import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer

import distcache
from distcache.corpus import bin_path, open_idx
from distcache.corpus.idx import ITEM_TYPES
from distcache.errors import ConfigError
from distcache.train.provider import padding_of
from distcache.train.sample_arrays import SampleFields, SampleOptions, SamplePart
from tests.support import here
from tests.support.processes import start
from tests.support.texts import documents, train_bpe, write_jsonl


def tokens_of(part: SamplePart) -> list[int]:
    """Read the tokens of a part of a document from its corpus."""
    idx = open_idx(part.corpus)
    first = int(idx.bounds[part.document])
    sequences = range(first, int(idx.bounds[part.document + 1]))
    dtype = ITEM_TYPES[idx.type_code]
    content = Path(bin_path(part.corpus)).read_bytes()
    pieces = [
        np.frombuffer(content, dtype, int(idx.lengths[s]), int(idx.offsets[s])) for s in sequences
    ]
    document: list[int] = np.concatenate(pieces).tolist()
    return document[part.begin : part.begin + part.tokens]


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_the_parts_are_the_sample(cache: Path, split: str) -> None:
    """Token for token, with the last label."""
    train = distcache.open(cache).dataset(split)
    for i in [*range(0, len(train), max(1, len(train) // 200)), -1]:
        sample, parts = train[i], train.document_of(i)
        found = [token for part in parts for token in tokens_of(part)]
        wanted = [*sample["tokens"].tolist(), sample["labels"][-1].item()]
        assert found[: len(wanted)] == [max(token, 0) for token in wanted]
        assert {part.corpus for part in parts} == {train.corpus_of(i)}


def test_samples_of_a_blend_are_of_their_corpus(cache: Path, blend_config: dict[str, Any]) -> None:
    """The one that the blend has at their place."""
    train = distcache.open(cache).dataset("train")
    paths = [entry["path"] for entry in blend_config["blend"]]
    assert all(train.corpus_of(i) == paths[int(train[i]["dataset_id"])] for i in range(50))
    with pytest.raises(IndexError):
        train.corpus_of(len(train))


def test_corpora_and_summary(cache: Path, blend_config: dict[str, Any]) -> None:
    """A line for each corpus of each split, as text and as a table of HTML."""
    opened = distcache.open(cache)
    uses = opened.corpora
    train = [use for use in uses if use.split == "train"]
    assert [use.corpus for use in train] == [entry["path"] for entry in blend_config["blend"]]
    assert [use.weight for use in train] == [0.5, 0.3, 0.2]
    assert sum(use.samples for use in train) >= 4000
    assert all(use.passes >= 1 and use.tokens > 0 for use in uses)
    text = str(opened)
    assert text == str(opened.summary()) == repr(opened.summary())
    assert text.startswith(repr(opened))
    assert "train 4,000, valid 300, test 40" in text
    assert len(text.splitlines()) == 1 + 5 + 1 + 1 + len(uses)
    html = opened._repr_html_()
    assert html.count("<tr>") == 5 + 1 + len(uses)
    assert "<cache" not in html


def test_the_text_of_a_sample(tmp_path: Path) -> None:
    """By the tokenizer that the receipt names, or another one."""
    sources = documents(40)
    tokenizer = train_bpe(tmp_path / "tokenizer.json", sources)
    shard = write_jsonl(tmp_path / "shard.jsonl", sources)
    corpus = str(tmp_path / "web")
    done = start(["ingest", "text", shard, "--tokenizer", tokenizer, "-o", corpus])
    assert done.returncode == 0, done.stderr
    fields = {"sequence_length": 8, "split": "1,0,0", "blend": [corpus]}
    train = distcache.open(here.build(fields, tmp_path).path).dataset("train")
    text = train.text_of(0)
    library = Tokenizer.from_file(str(tokenizer))
    assert text == library.decode(train[0]["tokens"].tolist(), skip_special_tokens=False)
    assert train.text_of(0, tokenizer=str(tokenizer)) == text
    Path(corpus + ".receipt.json").unlink()
    with pytest.raises(ConfigError, match="no receipt beside it names a tokenizer"):
        train.text_of(0)


def test_typed_options_are_those_of_samples() -> None:
    """The keywords that an editor completes."""
    fields = {field.name for field in msgspec.structs.fields(SampleOptions)}
    assert typing.get_type_hints(SampleFields).keys() == fields


def test_no_end_of_documents_is_negative(cache: Path) -> None:
    """A tokenizer has no such token."""
    with pytest.raises(ConfigError, match=r"eod"):
        distcache.open(cache).dataset("train", eod=-5)


def test_the_megatron_module_needs_no_import() -> None:
    """An attribute like the others."""
    assert "provider" in dir(distcache.megatron)


def test_everything_says_what_it_is(cache: Path) -> None:
    """Everything says what it is in a notebook, without addresses."""
    opened = distcache.open(cache)
    train = opened.dataset("train")
    sampler = distcache.ResumableSampler(train, micro_batch_size=4)
    things = [opened.cache, distcache.Batches(train, 4), distcache.ReadAhead(sampler, train)]
    assert not [text for text in map(repr, things) if " at 0x" in text]


class Wordless:
    """A tokenizer that raises for what it does not have, as Megatron's do."""

    @property
    def pad(self) -> int:
        """Not there."""
        raise NotImplementedError

    eos = pad
    eod = 3


@pytest.mark.parametrize(
    ("tokenizer", "padding", "ambiguous"),
    [
        (SimpleNamespace(pad=5, eod=7), 5, 5),
        (SimpleNamespace(pad=7, eod=7), -1, 7),
        (SimpleNamespace(pad=6, eos=6, eod=7), -1, 6),
        (SimpleNamespace(pad=7, eod=7, special_tokens_dict={"bos_token": 1}), 7, 7),
        (SimpleNamespace(pad=7, eod=7, special_tokens_dict={"pad_token": 7}), -1, 7),
        (SimpleNamespace(pad=4, eod=7, special_tokens_dict={"sep": 4}), -1, 4),
        (SimpleNamespace(pad=None, eod=7), -1, -1),
        (SimpleNamespace(eod=7), -1, -1),
        (Wordless(), -1, -1),
    ],
)
def test_padding(tokenizer: Any, padding: int, ambiguous: int) -> None:
    """None but where the tokenizer has one that is no other special token."""
    assert padding_of(tokenizer, allow_ambiguous=False) == padding
    assert padding_of(tokenizer, allow_ambiguous=True) == ambiguous
