"""The directory of unfinished corpora: who may write in it, publish from it and remove it."""

from __future__ import annotations

from pathlib import Path

import pytest

from distcache.corpus.receipt import Origin, Receipt
from distcache.errors import ConfigError, KeyMismatch
from distcache.ingest.output import Output
from distcache.progress import NullProgress
from distcache.ranks.communicator import SerialCommunicator


def claim(output: Output, made_from: str = "0") -> list[Receipt]:
    """Claim an output by one process."""
    origin = Origin(kind="merge", made_from=made_from, tokenizer=None, options={}, versions={})
    return output.claim(SerialCommunicator(), origin, NullProgress())


@pytest.mark.parametrize("name", ["a\nb", "\udcff"])
def test_names_that_are_no_text(tmp_path: Path, name: str) -> None:
    """Are refused before anything is made."""
    with pytest.raises(ConfigError, match="expected printable text"):
        claim(Output(str(tmp_path / name)))
    assert list(tmp_path.iterdir()) == []


def test_a_receipt_that_is_none(tmp_path: Path) -> None:
    """Its name is taken, as that of any other file."""
    (tmp_path / "c.receipt.json").mkdir()
    with Output(str(tmp_path / "c")) as output, pytest.raises(KeyMismatch, match="already exists"):
        claim(output)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.receipt.json"]
