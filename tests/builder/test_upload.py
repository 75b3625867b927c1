"""Uploading a cache and its corpora: never another under a name, the cache last, gone on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from distcache.builder.upload import Uploaded, UploadOptions, upload
from distcache.cache.contents import read_contents
from distcache.cache.corpus_places import corpus_places
from distcache.corpus import bin_path, idx_path
from distcache.errors import (
    AccessDenied,
    ConfigError,
    CorpusError,
    DistcacheError,
    KeyMismatch,
    StorageError,
)
from distcache.ranks import sending
from distcache.ranks.communicator import Communicator
from tests.support import here
from tests.support.buckets import name_of
from tests.support.scripted_s3 import ScriptedS3
from tests.support.threads import run_ranks

TO = "s3://lake/run"


@pytest.fixture
def cache(own_corpora: dict[str, Any], shared: Path) -> str:
    """A cache of corpora that a test may change."""
    return here.build(own_corpora, shared, "c").path


def send(cache: str, **options: Any) -> Uploaded:
    """Upload with one process."""
    return here.upload(cache, TO, **{"corpora": True, **options})


def puts(server: ScriptedS3) -> list[str]:
    """Return the names that were written, in their order."""
    return [request.name for request in server.requests if request.method == "PUT"]


def test_everything_is_there(server: ScriptedS3, cache: str) -> None:
    """Byte for byte, where whoever opens the cache in the bucket looks for it; the cache last."""
    done = send(cache, readback=True)
    assert done.url == f"{TO}/c.h5"
    assert server.objects["lake/run/c.h5"] == Path(cache).read_bytes()
    contents = read_contents(done.url)
    for prefix, url in zip(contents.prefixes, corpus_places(contents), strict=True):
        for path in (idx_path, bin_path):
            assert server.objects[name_of(path(url))] == Path(path(prefix)).read_bytes()
    assert puts(server)[-1] == "lake/run/c.h5"
    assert done.objects == done.sent == len(server.objects)


def test_again_nothing_is_sent(server: ScriptedS3, cache: str) -> None:
    """What is there is compared."""
    send(cache)
    server.script()
    assert send(cache).sent == 0
    assert puts(server) == []


def test_a_killed_upload(server: ScriptedS3, cache: str) -> None:
    """It is gone on with, by its journal: what was sent is neither sent nor read again."""
    server.script(*7 * [""], always="403")
    with pytest.raises(DistcacheError, match="access is denied"):
        send(cache, threads=1)
    there = set(server.objects)
    assert there
    assert "lake/run/c.h5" not in there
    server.script()
    send(cache)
    assert not there & set(puts(server))
    read = {r.name for r in server.requests if r.method == "GET" and r.name.endswith(".bin")}
    assert not read & there
    assert not list(Path(cache).parent.glob(".*.sent.*"))


def test_ranks_share_the_objects(server: ScriptedS3, cache: str) -> None:
    """Each is sent once."""

    def rank(communicator: Communicator) -> Uploaded:
        return upload(communicator, cache, TO, UploadOptions(corpora=True))

    outcomes, _ = run_ranks(3, rank)
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert len(puts(server)) == len(set(puts(server))) == len(server.objects)


@pytest.mark.parametrize("suffix", [".h5", ".idx", ".bin"])
def test_another_object_has_the_name(server: ScriptedS3, cache: str, suffix: str) -> None:
    """It stays, and the exit code is 7."""
    send(cache)
    name = next(name for name in server.objects if name.endswith(suffix))
    server.objects[name] = other = b"x" * len(server.objects[name])
    with pytest.raises(KeyMismatch, match=name):
        send(cache)
    assert server.objects[name] == other


def test_a_corpus_that_has_changed(server: ScriptedS3, cache: str) -> None:
    """A corpus that has changed is refused before it is sent."""
    prefix = read_contents(cache).prefixes[0]
    content = bytearray(Path(idx_path(prefix)).read_bytes())
    content[40] ^= 1
    Path(idx_path(prefix)).write_bytes(content)
    with pytest.raises(CorpusError, match=r"\.idx: is not the file that the cache was built from"):
        send(cache)
    assert "lake/run/c.h5" not in server.objects


def test_a_file_that_is_written_to_meanwhile(
    server: ScriptedS3, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves no object: sent again, it has its name."""
    path = Path(bin_path(read_contents(cache).prefixes[0]))
    whole, create = path.read_bytes(), sending.create_object

    def torn(url: str, source: Path) -> Any:
        if source == path:
            path.write_bytes(whole[:-4] + b"torn")
        return create(url, source)

    monkeypatch.setattr(sending, "create_object", torn)
    with pytest.raises(CorpusError, match="upload again"):
        send(cache)
    monkeypatch.undo()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    path.write_bytes(whole)
    send(cache, readback=True)
    assert [data for data in server.objects.values() if data.endswith(b"torn")] == []


def test_an_answer_that_was_lost(server: ScriptedS3, cache: str) -> None:
    """The object was written, and the request sent again finds it: that is no conflict."""
    original = server.put
    lost: list[str] = []

    def put_and_fail(name: str, data: bytes) -> None:
        original(name, data)
        if name.endswith(".idx") and not lost:
            lost.append(name)
            server.script("503")

    server.put = put_and_fail  # type: ignore[method-assign]
    send(cache, threads=1)
    assert lost
    assert "lake/run/c.h5" in server.objects


def test_what_cannot_be_uploaded(server: ScriptedS3, cache: str, tmp_path: Path) -> None:
    """What cannot be uploaded says why."""
    with pytest.raises(ConfigError, match="expected a path, and a URL"):
        here.upload(cache, str(tmp_path))
    with pytest.raises(DistcacheError, match="no such cache"):
        here.upload(str(tmp_path / "none.h5"), TO)
    assert server.objects == {}


def test_without_corpora(server: ScriptedS3, cache: str) -> None:
    """Only the cache is sent, and a note says what that means."""
    notes: list[str] = []

    class Progress:
        def phase(self, name: str, total: float = 0) -> None: ...
        def advance(self, amount: float) -> None: ...
        def note(self, message: str) -> None:
            notes.append(message)

    here.upload(cache, TO, progress=Progress())
    assert list(server.objects) == ["lake/run/c.h5"]
    assert "--corpora" in notes[0]


@pytest.mark.parametrize(
    ("suffix", "readback"),
    [(".h5", False), (".h5", True), (".idx", False), (".idx", True), (".bin", True)],
)
def test_a_wrong_byte_is_noticed(
    suffix: str, readback: bool, server: ScriptedS3, cache: str
) -> None:
    """When what was sent is read back: caches and indices always, tokens if that is asked for."""
    original = server.put

    def put_flipped(name: str, data: bytes) -> None:
        flipped = data if not name.endswith(suffix) else data[:5000] + b"\xff\xfe" + data[5002:]
        original(name, flipped)

    server.put = put_flipped  # type: ignore[method-assign]
    with pytest.raises(DistcacheError, match="differs from") as raised:
        send(cache, readback=readback)
    assert f"{suffix}: " in str(raised.value)
    assert ("lake/run/c.h5" in server.objects) == (suffix == ".h5" or not readback)


def test_the_errors_are_of_the_store() -> None:
    """So that scripts can tell them apart."""
    assert AccessDenied("s3://b/k", "no").exit_code == StorageError("s3://b/k", "no").exit_code == 1
