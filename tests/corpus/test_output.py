"""The directory of unfinished corpora: who may write in it, publish from it and remove it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from distcache.corpus.claim import claim_output
from distcache.corpus.output import Output
from distcache.corpus.receipt import Origin
from distcache.errors import ConfigError, DistcacheError, KeyMismatch
from distcache.owner import OWNER


def test_a_directory_that_was_taken_over(tmp_path: Path) -> None:
    """By a process to which this one seemed dead: nothing is published, nor removed."""
    output = Output(str(tmp_path / "c"))
    output.claim()
    output.begin("stamp")
    (output.directory / OWNER).write_bytes(b"another\n")
    with pytest.raises(DistcacheError, match="taken it over"):
        output.publish(1)
    output.remove()
    assert (output.directory / "stamp").exists()


def test_a_private_directory_is_its_makers(tmp_path: Path) -> None:
    """Other ranks write in it, and leave it as it is."""
    maker, other = Output(str(tmp_path / "c")), Output(str(tmp_path / "c"))
    maker.use("0123abcd")
    maker.claim()
    other.use("0123abcd")
    other.leave()
    assert maker.directory.exists()
    maker.leave()
    assert not maker.directory.exists()


def test_abandoned_private_directories_are_swept(tmp_path: Path) -> None:
    """When the same corpus is written again, after an hour without life."""
    left = Output(str(tmp_path / "c"))
    left.use("0123abcd")
    left.claim()
    left.begin("stamp")
    with Output(str(tmp_path / "c")) as output:
        output.claim()
    assert left.directory.exists()
    os.utime(left.directory, (1, 1))
    with Output(str(tmp_path / "c")) as output:
        output.claim()
        output.begin("stamp")
    assert not left.directory.exists()


def test_a_filesystem_that_has_no_locks_for_this_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another node makes there meanwhile is left alone."""

    def refused(path: Path) -> int:
        (path.parent / OWNER).write_bytes(b"another\n")
        path.write_bytes(b"")
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("distcache.corpus.output.try_lock", refused)
    with Output(str(tmp_path / "c")) as output:
        output.claim()
        assert output.private
    assert (tmp_path / ".c.ingest" / OWNER).exists()


@pytest.mark.parametrize("name", ["a\nb", "\udcff"])
def test_names_that_are_no_text(tmp_path: Path, name: str) -> None:
    """Are refused before anything is made."""
    with pytest.raises(ConfigError, match="expected printable text"):
        Output(str(tmp_path / name)).claim()
    assert list(tmp_path.iterdir()) == []


def test_a_receipt_that_is_none(tmp_path: Path) -> None:
    """Its name is taken, as that of any other file."""
    (tmp_path / "c.receipt.json").mkdir()
    origin = Origin(kind="merge", made_from="0", tokenizer=None, options={}, versions={})
    with Output(str(tmp_path / "c")) as output, pytest.raises(KeyMismatch, match="already exists"):
        claim_output(output, origin)
