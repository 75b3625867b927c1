"""The contract of places: files and objects alike."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from distcache.errors import ObjectChanged
from distcache.storage.place import PIECE_BYTES, exists, open_place, read_place, version_at
from tests.support.buckets import fresh_process_of_buckets
from tests.support.scripted_s3 import ScriptedS3

CONTENT = bytes(np.random.default_rng(4).integers(0, 256, PIECE_BYTES + 12_345, dtype=np.uint8))
Write = Callable[[bytes], str]


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedS3]:
    """A server with one bucket."""
    with ScriptedS3({"bucket/some/object": CONTENT}) as s3:
        yield s3


class Contract:
    """What every kind of place does."""

    @pytest.fixture
    def path(self) -> str:
        """Where `CONTENT` is."""
        raise NotImplementedError

    @pytest.fixture
    def missing(self) -> str:
        """Where nothing is."""
        raise NotImplementedError

    def test_ranges_are_exact(self, path: str) -> None:
        """Ranges are exact at the begin, at the end, over several requests, and of no byte."""
        size = len(CONTENT)
        for begin, end in ((0, 1), (0, size), (7, PIECE_BYTES + 8), (size - 3, size), (9, 9)):
            assert read_place(path, begin, end) == CONTENT[begin:end]

    def test_any_range(self, path: str) -> None:
        """Any range has the bytes of the whole."""
        for begin, size in np.random.default_rng(5).integers(0, (len(CONTENT), 5000), (100, 2)):
            end = min(begin + size, len(CONTENT))
            assert read_place(path, int(begin), int(end)) == CONTENT[begin:end]

    def test_the_version_has_the_size(self, path: str) -> None:
        """It is the same as long as nobody writes, and that of the open place."""
        version = version_at(path)
        assert version.size == len(CONTENT)
        assert version == version_at(path)
        with open_place(path, version) as place:
            assert place.version == version

    def test_it_ends(self, path: str) -> None:
        """What lies behind the end is an error, and no short answer."""
        with pytest.raises(OSError, match=str(len(CONTENT))) as raised:
            read_place(path, len(CONTENT) - 3, len(CONTENT) + 1)
        assert raised.value.errno == errno.ENODATA

    def test_nothing_is_there(self, missing: str) -> None:
        """A file error, as Python's own."""
        assert not exists(missing)
        with pytest.raises(FileNotFoundError):
            version_at(missing)
        with pytest.raises(FileNotFoundError):
            read_place(missing, 0, 1)

    def test_something_is_there(self, path: str) -> None:
        """It exists."""
        assert exists(path)


class TestFile(Contract):
    """A file."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> str:
        """A file."""
        file = tmp_path / "file"
        file.write_bytes(CONTENT)
        return str(file)

    @pytest.fixture
    def missing(self, tmp_path: Path) -> str:
        """No file."""
        return str(tmp_path / "none")


class TestObject(Contract):
    """An object of S3."""

    @pytest.fixture(autouse=True)
    def environment(self, server: ScriptedS3, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Leads to the server."""
        server.script()
        with fresh_process_of_buckets(monkeypatch, server.environment):
            yield

    @pytest.fixture
    def path(self) -> str:
        """An object."""
        return "s3://bucket/some/object"

    @pytest.fixture
    def missing(self) -> str:
        """No object."""
        return "s3://bucket/some/other"

    def test_every_request_asks_for_the_version(self, path: str, server: ScriptedS3) -> None:
        """By If-Match."""
        read_place(path, 0, len(CONTENT))
        gets = [request for request in server.requests if request.method == "GET"]
        assert [request.if_match for request in gets] == 2 * [server.tag("bucket/some/object")]

    def test_a_changed_object(self, path: str, server: ScriptedS3) -> None:
        """A changed object is refused, between any two requests."""
        version = version_at(path)
        server.script("change")
        try:
            with pytest.raises(ObjectChanged, match=path):
                read_place(path, 0, 10, version)
        finally:
            server.put("bucket/some/object", CONTENT)


class TestDirectoryOfMsc(Contract):
    """A file, by a profile of the Multi-Storage Client."""

    @pytest.fixture(autouse=True)
    def environment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """A configuration with a profile of a directory."""
        config = tmp_path / "msc.yaml"
        config.write_text(
            "profiles:\n  mine:\n    storage_provider:\n      type: file\n      options:\n"
            "        base_path: ${WHERE}\n"
        )
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "file").write_bytes(CONTENT)
        with fresh_process_of_buckets(
            monkeypatch, {"MSC_CONFIG": str(config), "WHERE": str(tmp_path / "data")}
        ):
            yield

    @pytest.fixture
    def path(self) -> str:
        """A URL of the profile."""
        return "msc://mine/file"

    @pytest.fixture
    def missing(self) -> str:
        """No file."""
        return "msc://mine/none"
