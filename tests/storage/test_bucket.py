"""Objects under every fault of a store: right bytes, or one clear error, by a bounded number."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import pickle
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import obstore
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distcache.errors import (
    AccessDenied,
    ConfigError,
    DistcacheError,
    ObjectChanged,
    ObjectMissing,
    StorageError,
)
from distcache.storage.access import Access
from distcache.storage.bucket import ODD_ANSWERS, RETRIES, Bucket, find_bucket, forget_buckets
from distcache.storage.faults import PERMANENT, is_transient
from distcache.storage.place import join_ranges, read_place, version_at
from distcache.storage.timeouts import limits
from distcache.storage.url import address_of
from tests.support.buckets import fresh_process_of_buckets
from tests.support.scripted_s3 import ScriptedS3

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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("403", AccessDenied, "AccessDenied.*AWS_ACCESS_KEY_ID of the environment"),
        ("403:RequestTimeTooSkewed", AccessDenied, "clock"),
        ("400", AccessDenied, "expired"),
        ("404", ObjectMissing, "no such object"),
        ("412", ObjectChanged, "another object"),
        ("301", StorageError, "region"),
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


ODD = {
    "whole": "non-partial",
    "short:10": "Requested",
    "other:10": "Requested",
    "gzip": "bytes, not|Requested",
    "star": "CONTENT_RANGE",
    "304": "304",
    "421": "status 421",
    "416": "status 416",
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", ODD)
def test_an_answer_to_another_request(server: ScriptedS3, fault: str) -> None:
    """A proxy may give it once: it is asked for again some times, and then named with a count."""
    version = version_at(URL)
    server.script(*[fault] * (ODD_ANSWERS - 1))
    assert read_place(URL, 100, 2000, version) == CONTENT[100:2000]
    assert len(server.requests) == ODD_ANSWERS
    server.script(always=fault)
    with pytest.raises(StorageError, match=rf"5 answers were not to .*({ODD[fault]})"):
        read_place(URL, 100, 2000, version)
    assert len(server.requests) == ODD_ANSWERS


@pytest.mark.slow
@pytest.mark.parametrize("faults", [["page"], ["page"] * 3])
def test_a_page_in_the_place_of_the_first_answer(server: ScriptedS3, faults: list[str]) -> None:
    """Of a proxy that wants a password: it is not taken for the object, which it would replace."""
    server.script(*faults)
    assert version_at(URL).size == len(CONTENT)
    server.script(always="page")
    with pytest.raises(StorageError, match=r"5 answers were not to the request, .*an ETag nor"):
        version_at(URL)


def test_a_key_that_speaks_of_certificates() -> None:
    """It is no refusal of one."""
    error = type("GenericError", (Exception,), {})
    gone = error("error sending request for url (http://h/lake/certificates/InvalidCertificate(x)")
    assert is_transient(gone)
    assert not is_transient(error("... invalid peer certificate: UnknownIssuer"))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["weak", "bare"])
def test_another_form_of_the_tag(server: ScriptedS3, form: str) -> None:
    """It is the same object."""
    version = version_at(URL)
    server.script(always=form)
    assert read_place(URL, 100, 2000, version) == CONTENT[100:2000]


@pytest.mark.slow
def test_credentials_that_cannot_be_read_once(
    server: ScriptedS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program that gives them is asked again."""
    program = tmp_path / "program"
    keys = {"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b"}
    program.write_text(
        f"#!/bin/sh\n[ -e {tmp_path}/asked ] || {{ touch {tmp_path}/asked; exit 1; }}\n"
        f"echo '{json.dumps(keys)}'\n"
    )
    program.chmod(0o755)
    (tmp_path / "config").write_text(f"[default]\ncredential_process = {program}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    forget_buckets()
    assert read_place(URL, 0, 10, version_at(URL)) == CONTENT[:10]
    assert (tmp_path / "asked").exists()


@pytest.mark.slow
def test_a_certificate_that_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named at once, with what to set; no request is sent."""
    for words in (
        "-subj /CN=authority -keyout ca.key -out ca.pem",
        "-subj /CN=localhost -keyout key.pem -out own.pem -CA ca.pem -CAkey ca.key "
        "-addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE",
    ):
        command = [
            "openssl",
            *["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"],
            *words.split(),
        ]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "own.pem", tmp_path / "key.pem")
    with ScriptedS3({"bucket/object": CONTENT}, tls=tls) as secure:
        with fresh_process_of_buckets(monkeypatch, secure.environment):
            begin = time.monotonic()
            with pytest.raises(StorageError, match=r"certificate of the store .* AWS_CA_BUNDLE"):
                version_at(URL)
            assert time.monotonic() - begin < limits().object_store / 4
            assert not secure.requests
        trusting = secure.environment | {"AWS_CA_BUNDLE": str(tmp_path / "ca.pem")}
        with fresh_process_of_buckets(monkeypatch, trusting):
            assert version_at(URL).size == len(CONTENT)


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_change_under_a_reset(server: ScriptedS3) -> None:
    """Never continues with the other object."""
    version = version_at(URL)
    server.script("reset:1000", "change")
    with pytest.raises((ObjectChanged, StorageError)):
        read_place(URL, 0, 100_000, version)
    assert len(server.requests) == 2


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["503", "500", "refuse"])
@pytest.mark.parametrize("number", range(5))
def test_parts_under_faults(number: int, fault: str, server: ScriptedS3, large: Path) -> None:
    """Of any of the requests: sent again, and the object is whole."""
    server.script(*number * [""], fault)
    find_bucket(address_of(URL)).put_parts("s3://bucket/parts", large)
    assert server.objects["bucket/parts"] == CONTENT
    assert len(server.requests) == 6  # it begins, three parts, it ends; and one again
    assert server.parts == {}


@pytest.mark.slow
def test_parts_that_are_refused(server: ScriptedS3, large: Path) -> None:
    """Leave no object."""
    server.script("", "", "403")
    with pytest.raises(AccessDenied, match="access is denied"):
        find_bucket(address_of(URL)).put_parts("s3://bucket/parts", large)
    assert "bucket/parts" not in server.objects


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_no_secret_is_told(server: ScriptedS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by errors, nor by what stands for a bucket; it cannot be pickled."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "MARKED-SECRET")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "MARKED-TOKEN")
    version = version_at(URL)
    bucket = find_bucket(address_of(URL))
    texts = [repr(bucket), repr(bucket._access)]
    for fault in ("403", "400", "404", "412", "301", "whole", "gzip"):
        server.script(always=fault)
        with pytest.raises(DistcacheError) as raised:
            read_place(URL, 0, 10, version)
        texts += [str(raised.value), repr(raised.value), repr(raised.value.__cause__)]
        assert raised.value.__suppress_context__
    assert "MARKED" not in "".join(texts)
    for secret in (bucket, bucket._access):
        with pytest.raises(TypeError, match="never pickled"):
            pickle.dumps(secret)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_client_that_panics(server: ScriptedS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error of its object, and no end of a thread."""

    class PanicException(BaseException):
        pass

    def panic(*_: object, **__: object) -> None:
        raise PanicException("in the client")

    monkeypatch.setattr(obstore, "head", panic)
    with pytest.raises(StorageError, match="the client failed"):
        version_at(URL)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("url", ["s3://", "s3:///key", "s3://b//k", "s3://b/../k", "s3://b/./k"])
def test_urls_that_name_nothing(url: str) -> None:
    """URLs that name nothing are refused."""
    with pytest.raises(ConfigError):
        address_of(url)


@pytest.mark.slow
def test_urls() -> None:
    """URLs have one spelling."""
    assert str(address_of("s3://bucket/a/b/")) == "s3://bucket/a/b"
    assert address_of("msc://profile/a b/c") == ("msc", "profile", "a b/c")
    assert str(address_of("s3://bucket")) == "s3://bucket"


class GenericError(Exception):
    """The client's error of a request, by its name."""


@pytest.mark.parametrize("word", PERMANENT)
def test_words_in_names(word: str) -> None:
    """Words in names are of the URL, and turn no retries off."""
    url = f"http://store:9000/lake/{word.replace(' ', '-')}-study/c.bin"
    sending = f"Generic S3 error: error sending request for url ({url}): connection reset"
    assert is_transient(GenericError(sending))
    assert not is_transient(GenericError(f"Generic S3 error: {word} of {url}"))


def test_credentials_that_cannot_be_read_for_a_moment() -> None:
    """Those that were right before remain; without any, the error is final."""
    found = [ConfigError("no keys"), {"access_key_id": "a"}, ConfigError("half written")]

    def read() -> dict[str, object]:
        answer = found.pop(0)
        if isinstance(answer, ConfigError):
            raise answer
        return answer

    bucket = Bucket(Access(bucket="lake", credentials=read))
    with pytest.raises(ConfigError, match="no keys"):
        bucket.read_credentials()
    assert bucket.read_credentials() == {"access_key_id": "a"}
    kept = bucket.read_credentials()
    assert kept["access_key_id"] == "a"
    assert "expires_at" in kept


RANGES = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 60)), max_size=30)


@given(RANGES, st.integers(0, 50), st.integers(1, 300))
def test_each_range_lies_in_one(ranges: list[tuple[int, int]], gap: int, most: int) -> None:
    """Of those that are not empty."""
    joined = join_ranges(ranges, gap, most)
    members = [member for group in joined for member in group.members]
    assert sorted(members) == [place for place, (_, size) in enumerate(ranges) if size]
    for group in joined:
        for member in group.members:
            begin, size = ranges[member]
            assert group.begin <= begin
            assert begin + size <= group.end


@given(RANGES, st.integers(0, 50), st.integers(1, 300))
def test_requests_are_bounded(ranges: list[tuple[int, int]], gap: int, most: int) -> None:
    """Unless one range alone is larger; they ascend, and what is close is joined."""
    joined = join_ranges(ranges, gap, most)
    for group in joined:
        assert group.end - group.begin <= most or len(group.members) == 1
    for one, other in itertools.pairwise(joined):
        assert one.begin <= other.begin
        begin, size = ranges[other.members[0]]
        assert begin > one.end + gap or max(one.end, begin + size) - one.begin > most


@given(RANGES)
def test_without_a_gap_no_byte_is_added(ranges: list[tuple[int, int]]) -> None:
    """Only ranges that touch or overlap are joined."""
    wanted = {byte for begin, size in ranges for byte in range(begin, begin + size)}
    joined = join_ranges(ranges, 0, 1 << 40)
    assert {byte for group in joined for byte in range(group.begin, group.end)} == wanted
