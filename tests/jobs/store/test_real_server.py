"""What a real server answers: the contract of places, access, conditions, large objects."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from distcache.errors import AccessDenied, KeyMismatch, ObjectChanged, ObjectMissing
from distcache.ranks.sending import CLAIM, create_object
from distcache.storage.bucket import find_bucket, forget_buckets
from distcache.storage.listing import listed, listed_version
from distcache.storage.place import bucket_of, exists, open_place, read_place, version_at
from distcache.storage.url import address_of
from tests.storage.test_places import CONTENT, Contract
from tests.support.buckets import fresh_process_of_buckets
from tests.support.seaweed import READER, Seaweed

URL = "s3://lake/contract/object"


@pytest.fixture(autouse=True)
def environment(seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of somebody who may write."""
    with fresh_process_of_buckets(monkeypatch, seaweed.environment()):
        yield


class TestRealObject(Contract):
    """An object of SeaweedFS."""

    @pytest.fixture
    def path(self) -> str:
        """An object."""
        find_bucket(address_of(URL)).create(URL, CONTENT)
        return URL

    @pytest.fixture
    def missing(self) -> str:
        """No object."""
        return "s3://lake/contract/none"


def use(seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch, who: tuple[str, str]) -> None:
    """Go on as somebody else."""
    for name, value in seaweed.environment(who).items():
        monkeypatch.setenv(name, value)
    forget_buckets()


def test_who_may_what(seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong secret, and writing by one who may only read, are errors without the secret."""
    bucket_of(URL).create("s3://lake/access", b"content")
    use(seaweed, monkeypatch, READER)
    assert read_place("s3://lake/access", 0, 7) == b"content"
    with pytest.raises(AccessDenied, match="access is denied"):
        bucket_of(URL).create("s3://lake/denied", b"content")
    use(seaweed, monkeypatch, (READER[0], "MARKED-WRONG"))
    with pytest.raises(AccessDenied) as raised:
        version_at("s3://lake/access")
    assert "MARKED" not in str(raised.value)


def test_a_public_bucket(seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read without credentials, if one says so."""
    bucket_of("s3://public/x").create("s3://public/x", b"for all")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    forget_buckets()
    assert read_place("s3://public/x", 4, 7) == b"all"


def test_a_replaced_object() -> None:
    """It is refused by the server itself, which looks at If-Match."""
    url = "s3://lake/replaced"
    bucket_of(url).create(url, b"first")
    version = version_at(url)
    bucket_of(url).remove(url)
    bucket_of(url).create(url, b"other")
    with pytest.raises(ObjectChanged, match=url), open_place(url, version) as place:
        place.read_into(np.empty(3, np.uint8), 0)


def test_nothing_is_replaced(tmp_path: Path) -> None:
    """Neither a small object, nor a large one, which is written in parts."""
    large, small = tmp_path / "large", tmp_path / "small"
    large.write_bytes(os.urandom(100 << 20))
    small.write_bytes(b"small")
    for url, path in (("s3://lake/once/large", large), ("s3://lake/once/small", small)):
        assert create_object(url, path)
        before = version_at(url)
        assert before.size == path.stat().st_size
        assert not create_object(url, path)
        assert version_at(url) == before
        assert not exists(f"{url}{CLAIM}")
    assert (
        read_place("s3://lake/once/large", 70 << 20, (70 << 20) + 9)
        == large.read_bytes()[70 << 20 : (70 << 20) + 9]
    )


def test_a_claim(tmp_path: Path) -> None:
    """Of another file is respected; that of a killed upload of the same file is taken over."""
    large, url = tmp_path / "large", "s3://lake/claimed"
    large.write_bytes(bytes(65 << 20))
    bucket_of(url).create(f"{url}{CLAIM}", b"another file's")
    with pytest.raises(KeyMismatch, match="another file is being uploaded"):
        create_object(url, large)
    bucket_of(url).remove(f"{url}{CLAIM}")
    from distcache.ranks.sending import claim_token  # noqa: PLC0415

    bucket_of(url).create(f"{url}{CLAIM}", claim_token(large))
    assert create_object(url, large)
    assert not exists(f"{url}{CLAIM}")


def test_a_listing_tells_what_requests_tell() -> None:
    """Sizes, times and ETags, also of objects that are written in parts, and just now."""
    urls = [f"s3://lake/listed/object {number}" for number in range(20)]
    for number, url in enumerate(urls):
        bucket_of(url).create(url, bytes(number))
    bucket_of(urls[0]).remove(urls[0])
    with listed(urls):
        assert [listed_version(url) for url in urls[1:]] == [version_at(url) for url in urls[1:]]
        with pytest.raises(ObjectMissing):
            listed_version(urls[0], confirm_missing=False)
