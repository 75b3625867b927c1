"""Objects under every fault of a store: right bytes, or one clear error, by a bounded number."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import obstore
import pytest

from distcache.errors import (
    AccessDenied,
    ConfigError,
    DistcacheError,
    ObjectChanged,
    ObjectMissing,
    StorageError,
)
from distcache.storage.bucket import RETRIES, find_bucket
from distcache.storage.place import read_place, version_at
from distcache.storage.url import address_of
from tests.support.bucket_clients import fresh_process_of_buckets
from tests.support.scripted_s3 import ScriptedS3

pytestmark = pytest.mark.slow

URL = "s3://bucket/object"
CONTENT = bytes(np.random.default_rng(8).integers(0, 256, 300_000, dtype=np.uint8))
Scale = Callable[[float], None]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, scale_time: Scale) -> Iterator[ScriptedS3]:
    """A server, with time limits of seconds."""
    scale_time(0.05)
    with (
        ScriptedS3({"bucket/object": CONTENT}) as s3,
        fresh_process_of_buckets(monkeypatch, s3.environment),
    ):
        yield s3


@pytest.mark.parametrize(
    ("faults", "requests"),
    [
        (["503", "503"], 3),
        (["429"], 2),
        (["500"], 2),
        (["refuse", "refuse"], 3),
        (["truncate:1000"], 2),
        (["reset:1000"], 2),
        (["reset:1000", "reset:1000", "reset:1000"], 4),
        (["stall:1000:3"], 2),
        ((RETRIES + 1) * ["503"], RETRIES + 2),
        ((RETRIES + 1) * ["refuse"], RETRIES + 2),
    ],
)
def test_what_passes(server: ScriptedS3, faults: list[str], requests: int) -> None:
    """It is right in the end, and takes no more requests than faults."""
    version = version_at(URL)
    server.script(*faults)
    assert read_place(URL, 100, 250_000, version) == CONTENT[100:250_000]
    assert len(server.requests) == requests


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("403", AccessDenied, "AccessDenied.*AWS_ACCESS_KEY_ID of the environment"),
        ("403:RequestTimeTooSkewed", AccessDenied, "clock"),
        ("400", AccessDenied, "expired"),
        ("404", ObjectMissing, "no such object"),
        ("412", ObjectChanged, "another object"),
        ("301", StorageError, "region"),
        ("whole", StorageError, "non-partial"),
        ("short:10", StorageError, "Requested"),
        ("other:10", StorageError, "Requested"),
    ],
)
def test_what_does_not(
    server: ScriptedS3, fault: str, kind: type[DistcacheError], words: str
) -> None:
    """It is an error after one request, which names the object."""
    version = version_at(URL)
    server.script(always=fault)
    with pytest.raises(kind, match=words) as raised:
        read_place(URL, 0, 1000, version)
    assert len(server.requests) == 1
    assert URL in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.few(2)
@pytest.mark.parametrize("always", ["503", "refuse", "truncate:10", "reset:10", "stall:10:9"])
def test_a_store_that_stays_away(always: str, server: ScriptedS3, scale_time: Scale) -> None:
    """It ends with an error that says how long it was waited for, by few requests."""
    version = version_at(URL)
    scale_time(0.005)
    find_bucket(address_of(URL))._client(again=True)
    server.script(always=always)
    words = "status 503 SlowDown" if always == "503" else ""
    with pytest.raises(StorageError, match=rf"no answer in . s: {words}"):
        read_place(URL, 0, 1000, version)
    assert len(server.requests) <= 6 * (RETRIES + 1)


def test_a_change_under_a_reset(server: ScriptedS3) -> None:
    """Never continues with the other object."""
    version = version_at(URL)
    server.script("reset:1000", "change")
    with pytest.raises((ObjectChanged, StorageError)):
        read_place(URL, 0, 100_000, version)
    assert len(server.requests) == 2


def test_a_store_that_ignores_the_condition(server: ScriptedS3) -> None:
    """It is not believed: the tag of its answer is compared."""
    version = version_at(URL)
    server.put("bucket/object", CONTENT[::-1])
    server.script(always="ignore")
    with pytest.raises(ObjectChanged):
        read_place(URL, 0, 1000, version)
    assert len(server.requests) == 1


@pytest.fixture
def large(tmp_path: Path, limit: Callable[..., None]) -> Path:
    """A file that is sent in three parts."""
    limit("distcache.storage.bucket", PIECE_BYTES=100_000)
    path = tmp_path / "large"
    path.write_bytes(CONTENT)
    return path


@pytest.mark.parametrize("fault", ["503", "500", "refuse"])
@pytest.mark.parametrize("number", range(5))
def test_parts_under_faults(number: int, fault: str, server: ScriptedS3, large: Path) -> None:
    """Of any of the requests: sent again, and the object is whole."""
    server.script(*number * [""], fault)
    find_bucket(address_of(URL)).put_parts("s3://bucket/parts", large)
    assert server.objects["bucket/parts"] == CONTENT
    assert len(server.requests) == 6  # it begins, three parts, it ends; and one again
    assert server.parts == {}


def test_parts_that_are_refused(server: ScriptedS3, large: Path) -> None:
    """Leave no object."""
    server.script("", "", "403")
    with pytest.raises(AccessDenied, match="access is denied"):
        find_bucket(address_of(URL)).put_parts("s3://bucket/parts", large)
    assert "bucket/parts" not in server.objects


def test_a_profile_whose_keys_are_renewed(
    server: ScriptedS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile whose keys are renewed is read again when they have expired."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id = some\naws_secret_access_key = body\n"
    )
    version = version_at(URL)
    server.script("400")
    assert read_place(URL, 100, 900, version) == CONTENT[100:900]
    assert len(server.requests) == 2
    server.script(always="400")
    with pytest.raises(AccessDenied, match="the credentials have expired"):
        read_place(URL, 100, 900, version)
    assert len(server.requests) == 2


def test_slowing_down(server: ScriptedS3) -> None:
    """Halves the number of requests at a time, and answers raise it again."""
    bucket, version = find_bucket(address_of(URL)), version_at(URL)
    before = bucket.pace
    server.script(*(RETRIES + 1) * ["503"])
    read_place(URL, 0, 10, version)
    slow = bucket.pace
    assert slow <= before // 2 + 1
    for _ in range(4 * slow):
        read_place(URL, 0, 10, version)
    assert bucket.pace > slow


def test_the_pace_bounds_threads(server: ScriptedS3) -> None:
    """However many read."""
    bucket, version = find_bucket(address_of(URL)), version_at(URL)
    server.latency = 0.02
    most = bucket.pace
    threads = [
        threading.Thread(target=read_place, args=(URL, 0, 10, version)) for _ in range(3 * most)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.most_at_once <= most + 3


def _read_in_child(queue: multiprocessing.Queue[str]) -> None:
    try:
        read_place(URL, 0, 10)
        queue.put("read")
    except StorageError as error:
        queue.put(str(error))


def test_a_forked_child(server: ScriptedS3) -> None:
    """Raises, instead of hanging; a spawned one reads."""
    read_place(URL, 0, 10)
    found = {}
    for way in ("fork", "spawn"):
        context = multiprocessing.get_context(way)
        queue = context.Queue()
        child = context.Process(target=_read_in_child, args=(queue,))
        child.start()
        found[way] = queue.get(timeout=60)
        child.join(60)
    assert "forked" in found["fork"]
    assert found["spawn"] == "read"


def test_no_secret_is_told(server: ScriptedS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by errors, nor by what stands for a bucket; it cannot be pickled."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "MARKED-SECRET")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "MARKED-TOKEN")
    version = version_at(URL)
    bucket = find_bucket(address_of(URL))
    texts = [repr(bucket), repr(bucket._access)]
    for fault in ("403", "400", "404", "412", "301", "whole"):
        server.script(always=fault)
        with pytest.raises(DistcacheError) as raised:
            read_place(URL, 0, 10, version)
        texts += [str(raised.value), repr(raised.value), repr(raised.value.__cause__)]
        assert raised.value.__suppress_context__
    assert "MARKED" not in "".join(texts)
    for secret in (bucket, bucket._access):
        with pytest.raises(TypeError, match="never pickled"):
            pickle.dumps(secret)


def test_what_lies_below(server: ScriptedS3) -> None:
    """By the whole listing; objects that stand for directories are left out."""
    for name in ("d/a", "d/sub/x", "e/a"):
        server.put(f"bucket/{name}", b"content")
    server.put("bucket/d/sub", b"")
    assert list(find_bucket(address_of(URL)).objects_below("s3://bucket/d/")) == [
        "s3://bucket/d/a",
        "s3://bucket/d/sub/x",
    ]
    server.put("bucket/d/what?", b"content")
    with pytest.raises(StorageError, match=r"what\?"):
        find_bucket(address_of(URL)).objects_below("s3://bucket/d/")


@pytest.mark.parametrize("weak", [True, False])
def test_other_tags(server: ScriptedS3, weak: bool) -> None:
    """Weak ones are compared, too; without any, size and time are."""
    server.tag = lambda name: f'W/"{hash(server.objects[name])}"' if weak else ""  # type: ignore[method-assign]
    version = version_at(URL)
    assert read_place(URL, 5, 900, version) == CONTENT[5:900]
    server.objects["bucket/object"] = CONTENT[::-1]
    server.modified["bucket/object"] += 0 if weak else 10
    with pytest.raises(ObjectChanged):
        read_place(URL, 5, 900, version)


def test_a_client_that_panics(server: ScriptedS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error of its object, and no end of a thread."""

    class PanicException(BaseException):
        pass

    def panic(*_: object, **__: object) -> None:
        raise PanicException("in the client")

    monkeypatch.setattr(obstore, "head", panic)
    with pytest.raises(StorageError, match="the client failed"):
        version_at(URL)


@pytest.mark.parametrize(
    "url",
    [
        "s3://user:MARKED@bucket/key",
        "s3://bucket/key?X-Amz-Signature=MARKED",
        "s3://bucket/key#MARKED",
        "https://MARKED/key",
        "gs://MARKED/key",
    ],
)
def test_urls_with_more(url: str) -> None:
    """They are refused without being shown, since it could be a secret."""
    with pytest.raises(ConfigError) as raised:
        address_of(url)
    assert "MARKED" not in str(raised.value)


@pytest.mark.parametrize("url", ["s3://", "s3:///key", "s3://b//k", "s3://b/../k", "s3://b/./k"])
def test_urls_that_name_nothing(url: str) -> None:
    """URLs that name nothing are refused."""
    with pytest.raises(ConfigError):
        address_of(url)


def test_urls() -> None:
    """URLs have one spelling."""
    assert str(address_of("s3://bucket/a/b/")) == "s3://bucket/a/b"
    assert address_of("msc://profile/a b/c") == ("msc", "profile", "a b/c")
    assert str(address_of("s3://bucket")) == "s3://bucket"
