"""Negative tokens are found by `check`, `plan` and loaders, without a vocabulary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import distcache
from distcache.corpus.sampled_tokens import negative_token
from distcache.errors import CorpusError
from tests.support import here
from tests.support.corpora import write_corpus
from tests.support.processes import start


def masked(prefix: Path, kind: str, every: int) -> str:
    """Write a corpus of which each so many-th document has tokens with the highest bit."""
    documents = [np.arange(1, 60, dtype=kind) for _ in range(50)]
    for document in documents[::every]:
        document[5::7] |= np.array(np.iinfo(kind).min, kind)
    write_corpus(str(prefix), documents, kind)
    return str(prefix)


@pytest.mark.parametrize("kind", ["i1", "i2", "i4", "i8"])
def test_negative_tokens_of_every_type(kind: str, tmp_path: Path) -> None:
    """Some sequences all over the corpus are looked at, also through a view."""
    prefix = masked(tmp_path / "c", kind, 1)
    said = negative_token(here.sound(prefix), 4)
    assert said is not None
    assert said.startswith("document 0 has token -")
    here.select(prefix, tmp_path / "view", documents=(20, 30))
    assert "document 0 has token -" in str(negative_token(here.sound(tmp_path / "view"), 4))
    done = start(["check", prefix])
    assert done.returncode == 3
    assert "document 0 has token -" in done.stdout


def test_other_corpora_have_none(corpora: dict[str, str]) -> None:
    """Of any type, with empty documents, and with one document."""
    for name in ("long", "plain", "hollow", "single"):
        assert negative_token(here.sound(corpora[name]), 16) is None


def test_plan_warns_and_a_loader_names_the_document(tmp_path: Path) -> None:
    """The loader compares all that it serves."""
    prefix = masked(tmp_path / "c", "i4", 3)
    fields = {"sequence_length": 16, "split": "1,0,0", "blend": [prefix]}
    config = tmp_path / "c.json"
    config.write_text(str(fields).replace("'", '"'))
    assert f"{prefix}: document 0 has token -" in start(["plan", config]).stderr
    train = distcache.open(here.build(fields, tmp_path / "caches").path).numpy_dataset("train")
    with pytest.raises(CorpusError, match=r"c: document \d+ has token -\d+, and no token is"):
        train.batch(range(len(train)))


def test_a_corpus_without_sequences(tmp_path: Path) -> None:
    """It has no tokens to look at."""
    write_corpus(str(tmp_path / "none"), [], "i4")
    assert negative_token(here.sound(tmp_path / "none"), 4) is None
    assert start(["check", tmp_path / "none"]).returncode == 0
