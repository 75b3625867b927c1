"""One listing tells the versions of many objects; what it does not tell is asked for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from distcache.errors import ObjectMissing
from distcache.storage.listing import listed, listed_version
from distcache.storage.place import version_at
from tests.support.buckets import fresh_process_of_buckets
from tests.support.scripted_s3 import ScriptedS3

NAMES = [f"run/c{number}.idx" for number in range(40)]
URLS = [f"s3://lake/{name}" for name in NAMES]


@pytest.fixture
def server(
    monkeypatch: pytest.MonkeyPatch, scale_time: Callable[[float], None]
) -> Iterator[ScriptedS3]:
    """A server with some objects."""
    scale_time(0.05)
    objects = {f"lake/{name}": name.encode() for name in NAMES}
    with ScriptedS3(objects) as s3, fresh_process_of_buckets(monkeypatch, s3.environment):
        yield s3


def test_a_listing_tells_what_requests_tell(server: ScriptedS3) -> None:
    """Sizes, times and ETags of all, by one request."""
    one_by_one = [version_at(url) for url in URLS]
    server.script()
    with listed(URLS):
        assert [listed_version(url) for url in URLS] == one_by_one
    assert (server.listings, len(server.requests)) == (1, 0)


def test_what_is_not_listed(server: ScriptedS3) -> None:
    """It is asked for, unless it may be missing: a store may list a new object late."""
    late, missing = "s3://lake/run/late.idx", "s3://lake/run/none.json"
    with listed([*URLS, late, missing]):
        server.put("lake/run/late.idx", b"now")
        server.script()
        assert listed_version(late).size == 3
        with pytest.raises(ObjectMissing):
            listed_version(missing, confirm_missing=False)
        assert len(server.requests) == 1


def test_a_change_is_noticed_by_the_next_listing(server: ScriptedS3) -> None:
    """Within a block it is the view of one moment; after it, each object is asked for."""
    with listed(URLS):
        before = listed_version(URLS[3])
        server.put(f"lake/{NAMES[3]}", b"other")
        assert listed_version(URLS[3]) == before
    assert listed_version(URLS[3]) != before
    with listed(URLS):
        assert listed_version(URLS[3]) == version_at(URLS[3]) != before


def test_blocks_that_overlap(server: ScriptedS3) -> None:
    """Those of two threads: a listing ends with its own block."""
    first, second = listed(URLS), listed(URLS)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    server.put(f"lake/{NAMES[3]}", b"other")
    assert listed_version(URLS[3]) == version_at(URLS[3])


@pytest.mark.parametrize("why", ["refused", "crowded", "few"])
def test_where_listing_is_refused_or_dear(server: ScriptedS3, why: str) -> None:
    """Each object is asked for."""
    server.may_list = why != "refused"
    if why == "crowded":
        for number in range(1000):
            server.put(f"lake/run/other{number}", b"")
    urls = URLS[:3] if why == "few" else URLS
    server.script()
    with listed(urls):
        versions = [listed_version(url) for url in urls]
    assert [version.size for version in versions] == [len(url) - 10 for url in urls]
    assert len(server.requests) == len(urls)
    assert bool(server.listings) == (why != "few")


def test_an_etag_that_is_not_to_be_trusted(
    server: ScriptedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for: the object is there, whatever it is called."""
    monkeypatch.setattr(server, "tag", lambda name: f'W/"{len(name)}"')
    with listed(URLS):
        assert [listed_version(url, confirm_missing=False).size for url in URLS] == [
            len(name) for name in NAMES
        ]
    assert len(server.requests) == len(URLS)


def test_blocks_within_one_another(server: ScriptedS3) -> None:
    """The inner one's end takes nothing from the outer one."""
    with listed(URLS):
        with listed(URLS[:20]):
            pass
        assert all(listed_version(url).size for url in URLS)
    assert (server.listings, len(server.requests)) == (2, 0)


def test_the_client_is_imported_by_the_thread_that_starts_others() -> None:
    """A signal would have to wait for an import of another thread."""
    program = (
        "import sys\n"
        "from distcache.storage.listing import listed\n"
        "with listed(['s3://lake/a.idx']):\n"
        "    assert 'distcache.storage.bucket' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
