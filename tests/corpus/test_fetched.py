"""Indices of corpora in buckets: each byte once per job, shared by all ranks."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from distcache.corpus import open_idx
from distcache.corpus.examine import require_unchanged
from distcache.corpus.fetched import fetched_indices
from distcache.corpus.receipt import find_receipt
from distcache.errors import AccessDenied, CorpusError, DistcacheError, NotReady, ObjectChanged
from distcache.ranks.communicator import Communicator
from distcache.ranks.progress import NullProgress
from tests.support import here
from tests.support.buckets import fresh_process_of_buckets, name_of, put_corpus
from tests.support.scripted_s3 import ScriptedS3
from tests.support.threads import run_ranks

URLS = ["s3://lake/plain", "s3://lake/holes"]


@pytest.fixture
def server(
    corpora: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[ScriptedS3]:
    """A bucket with two corpora."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ScriptedS3() as s3, fresh_process_of_buckets(monkeypatch, s3.environment):
        for url in URLS:
            put_corpus(s3, corpora[url.rpartition("/")[2]], url)
        s3.script()
        yield s3


def test_they_are_examined_as_files_are(server: ScriptedS3, corpora: dict[str, str]) -> None:
    """They are examined as files are with the same facts; the tokens are not fetched."""
    with fetched_indices(here.ALONE, URLS, NullProgress()):
        found = here.facts(URLS, 2)
        for url in URLS:
            prefix = corpora[url.rpartition("/")[2]]
            assert found[url].identity == here.sound(prefix).identity
            assert find_receipt(url) is None
    assert server.bytes_of(".bin") == 0


def test_each_byte_once_per_job(server: ScriptedS3) -> None:
    """However many ranks there are, on however many nodes."""
    size = sum(len(server.objects[name_of(url) + ".idx"]) for url in URLS)

    def read(communicator: Communicator) -> list[int]:
        with fetched_indices(communicator, URLS, NullProgress()):
            return [len(open_idx(url).lengths) for url in URLS]

    assert run_ranks(3, read) == (3 * [[300, 500]], [])
    assert server.bytes_of() == size


def test_nothing_is_left(server: ScriptedS3, tmp_path: Path) -> None:
    """Neither after it, nor of a job that was killed."""
    left = tmp_path / f"distcache-{os.geteuid()}-indices-killed"
    left.mkdir()
    (left / "lock").touch()
    with fetched_indices(here.ALONE, URLS, NullProgress()):
        assert not left.exists()
        assert len(list(tmp_path.glob("distcache-*"))) == 1
    assert not list(tmp_path.glob("distcache-*"))
    with pytest.raises(NotReady):
        open_idx(URLS[0])


def test_what_is_missing(server: ScriptedS3) -> None:
    """What is missing is a fault of its corpus, as of files."""
    urls = [*URLS, "s3://lake/none"]
    with fetched_indices(here.ALONE, urls, NullProgress()):
        facts, faults = here.examine(urls, 2)
    assert list(facts) == URLS
    assert [(fault.path, fault.missing) for fault in faults] == [("s3://lake/none.idx", True)]


def test_what_may_not_be_read(server: ScriptedS3) -> None:
    """It is an error of access, and no fault of a corpus."""
    server.script(always="403")
    with (
        pytest.raises(DistcacheError, match="access is denied"),
        fetched_indices(here.ALONE, URLS, NullProgress()),
    ):
        pass


def test_all_ranks_raise_the_same(server: ScriptedS3) -> None:
    """All ranks raise the same, also of what one of them read."""
    server.script("", "", "", "", always="403")

    def read(communicator: Communicator) -> str:
        try:
            with fetched_indices(communicator, URLS, NullProgress()):
                return ""
        except DistcacheError as error:
            return str(error)

    found, _ = run_ranks(3, read)
    assert isinstance(found[0], str)
    assert "access is denied" in found[0]
    assert found[0] == found[1] == found[2]


def test_a_change_while_they_are_fetched(server: ScriptedS3) -> None:
    """A change while they are fetched is an error that names the object."""
    server.script("", "", "", "", "change")
    with (
        pytest.raises(CorpusError, match=r"\.idx: is another object"),
        fetched_indices(here.ALONE, URLS, NullProgress()),
    ):
        pass


def test_a_change_while_a_cache_is_built(server: ScriptedS3) -> None:
    """A change while a cache is built is noticed at its end, of the tokens, too."""
    with fetched_indices(here.ALONE, URLS, NullProgress()):
        facts = here.facts(URLS)
        require_unchanged(here.ALONE, list(facts.values()))
        name = "lake/plain.bin"
        server.put(name, server.objects[name][::-1])
        with pytest.raises(CorpusError, match=r"s3://lake/plain\.bin"):
            require_unchanged(here.ALONE, list(facts.values()))


def test_the_errors_are_of_their_classes() -> None:
    """So that a caller can tell a store that refuses from a corpus that has changed."""
    assert issubclass(AccessDenied, PermissionError)
    assert issubclass(ObjectChanged, CorpusError)
