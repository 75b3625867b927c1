"""Objects of a bucket, by obstore's synchronous interface; retries and pace are here.

A process that forks after it has used obstore must not use it in the child, where it would hang
(its runtime's threads are gone): that is noticed and refused.
"""

from __future__ import annotations

import errno
import os
import random
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar

import numpy as np
import obstore
from numpy.typing import NDArray
from obstore.store import AzureStore, GCSStore, LocalStore, S3Store

from distcache.errors import (
    AccessDenied,
    ConfigError,
    DistcacheError,
    ObjectChanged,
    StorageError,
    StoreWaitWarning,
)
from distcache.storage.access import Access, Credentials, environment_access, session_of
from distcache.storage.faults import (
    OddAnswer,
    has_no_reason,
    is_odd,
    is_slow_down,
    is_transient,
    short_text,
    to_storage_error,
)
from distcache.storage.files import FileVersion
from distcache.storage.msc import profile_access
from distcache.storage.pace import Pace, Window
from distcache.storage.place import PIECE_BYTES
from distcache.storage.timeouts import limits
from distcache.storage.url import Address, address_of
from distcache.storage.watchdog import tick

OBSTORE: Final = {
    "AWS_ACCESS_KEY_ID": "access_key_id",
    "AWS_SECRET_ACCESS_KEY": "secret_access_key",
    "AWS_SESSION_TOKEN": "session_token",
}
ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
RETRIES: Final = 3  # of the client's own, which continue a cut answer where it ended
FIRST_PAUSE: Final = 0.2  # seconds, between our own attempts; each is twice the last
MAX_PAUSE: Final = 10.0
CREDENTIAL_RETRY: Final = timedelta(
    seconds=10
)  # until credentials that cannot be read are read again
CREDENTIAL_ATTEMPTS: Final = 3  # a program that gives them may fail once
ODD_ANSWERS: Final = 5
WARN_AFTER: Final = 10.0  # seconds without an answer, after which it is said
WARN_EVERY: Final = 60.0  # seconds until it is said again
MAX_PARTS: Final = 9_000  # of a multipart upload; stores allow 10,000
Result = TypeVar("Result")

_buckets: dict[tuple[str, str], Bucket] = {}
_lock = threading.Lock()
_process = 0


def find_bucket(address: Address) -> Bucket:
    """Return a bucket, with this process's connections to it.

    Raises
    ------
    StorageError
        In a process that was forked from one that had used it.
    ConfigError
        If its configuration is wrong.
    """
    global _process  # noqa: PLW0603  of the process
    with _lock:
        if _process not in (0, os.getpid()):
            raise StorageError(
                str(address),
                "this process was forked after its parent had read objects, which the client does "
                "not survive; start it by spawn or forkserver",
            )
        _process = os.getpid()
        key = (address.scheme, address.root)
        if key not in _buckets:
            access = profile_access if address.scheme == "msc" else environment_access
            _buckets[key] = Bucket(access(address))
        return _buckets[key]


def forget_buckets(variables: Mapping[str, str | None] = {}) -> None:
    """Forget this process's connections, so that the environment is read again.

    Parameters
    ----------
    variables : mapping of str to str or None
        Variables that are set before, or unset: no bucket has some of before and some of after.
    """
    with _lock:
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _buckets.clear()


def _make_store(access: Access, credentials: Credentials, session: Mapping[str, str]) -> Any:
    retry: Any = {
        "max_retries": RETRIES,
        "retry_timeout": timedelta(seconds=limits().object_store),
        "backoff": {"init_backoff": timedelta(milliseconds=100)},
    }
    client: Any = {
        "timeout": timedelta(seconds=limits().object_store),
        "read_timeout": timedelta(seconds=limits().object_silence),
        "connect_timeout": timedelta(seconds=limits().object_silence),
        "allow_http": (access.endpoint or "").startswith("http://"),
    }
    if access.certificates is not None:
        client["root_certificate"] = access.certificates
    if access.kind == "file":
        return LocalStore(access.bucket)
    if access.kind == "gcs":
        return GCSStore(access.bucket, client_options=client, retry_config=retry)
    if access.kind == "azure":
        return AzureStore(access.bucket, client_options=client, retry_config=retry)
    for name in ENDPOINTS:
        if os.environ.get(name) == "":  # not set, but the client takes it for a URL
            os.environ.pop(name, None)
    settings: dict[str, Any] = {"region": access.region or "us-east-1"}
    if access.endpoint is not None:
        settings["endpoint"] = access.endpoint
    if access.unsigned:
        settings["skip_signature"] = True
    if access.credentials is not None:
        settings["credential_provider"] = credentials
    settings |= session
    return S3Store(access.bucket, client_options=client, retry_config=retry, **settings)


class Bucket:
    """A bucket; from any thread.

    Parameters
    ----------
    access : Access
        Endpoint and credentials.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        own = session_of(os.environ)  # of now, whatever the environment has when the client is made
        self._session = {OBSTORE[name]: value for name, value in own.items() if name in OBSTORE}
        self._store: Any = None
        self._made = threading.Lock()
        self._unreadable: ConfigError | None = None
        self._known: dict[str, Any] | None = None  # credentials that were read last
        self._warned_at = float("-inf")
        self._refusal = ""  # words of the last error that may pass, until an answer comes
        self._pace = Pace(Window())
        self.requests = 0
        self.retries = 0

    def __repr__(self) -> str:
        return f"<bucket {self._access.bucket!r}>"

    def __reduce__(self) -> Any:
        raise TypeError("a bucket holds credentials, and is never pickled")

    @property
    def pace(self) -> int:
        """Requests at a time, now."""
        return self._pace.size

    def open(self, url: str, version: FileVersion | None) -> ObjectPlace:
        """Return an object; by default of the version that is there now."""
        return ObjectPlace(self, url, self.version(url) if version is None else version)

    def version(self, url: str) -> FileVersion:
        """Return what identifies an object.

        Raises
        ------
        ObjectMissing, StorageError
            If there is none, or the store does not say.
        """
        key = self._key(url)

        def look(store: Any) -> Any:
            try:
                found = obstore.head(store, key)
            except Exception as error:
                if has_no_reason(error):
                    self.requests += 1
                    obstore.get(store, key, options={"range": (0, 1)})  # whose refusal says why
                raise
            if not found["e_tag"] and not found["last_modified"].timestamp():
                raise OddAnswer("neither an ETag nor a time of modification")
            return found

        return _version_of(self._try(url, look))

    def read(self, url: str, begin: int, end: int, version: FileVersion) -> memoryview:
        """Return bytes [begin, end) of an object, at most `PIECE_BYTES`, of one version.

        Raises
        ------
        ObjectChanged
            If it is another one.
        StorageError
            If it cannot be read.
        """
        key = self._key(url)
        options: Any = {"range": (begin, end)}
        # A weak ETag cannot be a condition.
        if version.tag.startswith('"'):
            options["if_match"] = version.tag

        def get(store: Any) -> memoryview:
            answer = obstore.get(store, key, options=options)
            found = _version_of(answer.meta)
            if found.size != version.size and found.tag and found.tag == version.tag:
                raise OddAnswer(f"an object of {found.size} bytes, not {version.size}")
            if not _is_same(found, version):
                raise ObjectChanged(url)
            if tuple(answer.range) != (begin, end):
                raise OddAnswer(f"bytes {answer.range}, not {begin} to {end}")
            data = memoryview(answer.bytes())
            if len(data) != end - begin:
                raise OddAnswer(f"{len(data)} bytes, not {end - begin}")
            return data

        return self._try(url, get)

    def objects_below(
        self, url: str, wanted: Callable[[str], bool] = lambda _: True
    ) -> dict[str, FileVersion]:
        """Return the URLs and versions of objects below a directory, ordered by their names.

        Parameters
        ----------
        url : str
            The directory.
        wanted : callable
            Whether an object is, by its name below the directory; by default all are.

        Raises
        ------
        StorageError
            If the store does not say, or one of them has a name that is not supported.
        """
        found, above = self._list(url) or {}, str(address_of(url))
        parents = {str(parent) for name in found for parent in PurePosixPath(name).parents}
        urls = {}
        for name, version in found.items():
            is_marker = not version.size and name in parents  # consoles make them for directories
            if not is_marker and wanted(name):
                try:
                    urls[str(address_of(f"{above}/{name}"))] = version
                except ConfigError:
                    why = f"has an object with a name that is not supported: {name!r}"
                    raise StorageError(url, why, errno.EINVAL) from None
        return urls

    def versions_below(self, url: str, most: int) -> dict[str, FileVersion] | None:
        """Return the versions of all objects below a directory by their URLs; None if too many.

        Not every store lists ETags as its other answers have them: those that do are quoted.

        Raises
        ------
        StorageError
            If the store does not say.
        """
        found = self._list(url, most)
        if found is None:
            return None
        return {f"{url}/{name}": version for name, version in found.items()}

    def _list(self, url: str, most: int | None = None) -> dict[str, FileVersion] | None:
        """List a directory: names below it, in order, and versions; None if more than `most`."""
        start = f"{self._key(url)}/".lstrip("/")

        def look(store: Any) -> list[Any] | None:
            entries: list[Any] = []
            for page in obstore.list(store, prefix=start):
                entries += page
                if most is not None and len(entries) > most:
                    return None
            return entries

        entries = self._try(url, look)
        if entries is None:
            return None
        return {
            entry["path"].removeprefix(start): _version_of(entry)
            for entry in sorted(entries, key=lambda entry: entry["path"])
            if entry["path"].startswith(start)
        }

    def create(self, url: str, content: Path | bytes) -> str | None:
        """Send a file, or bytes, in one request; return its ETag, or None if the name is taken.

        Raises
        ------
        StorageError
            If it cannot be written.
        """
        key = self._key(url)
        try:
            made = self._try(url, lambda store: obstore.put(store, key, content, mode="create"))
        except _Exists:
            return None
        return str(made["e_tag"] or "")

    def put_parts(self, url: str, path: Path) -> None:
        """Send a file in parts; the object appears when the last one is there.

        Raises
        ------
        StorageError
            If it cannot be written.
        """
        key = self._key(url)
        part = max(PIECE_BYTES, -(-path.stat().st_size // MAX_PARTS))
        self._try(url, lambda store: obstore.put(store, key, path, chunk_size=part))

    def remove(self, url: str) -> None:
        """Remove an object that this job has made."""
        key = self._key(url)
        self._try(url, lambda store: obstore.delete(store, key))

    def _key(self, url: str) -> str:
        key = address_of(url).key
        return f"{self._access.prefix}/{key}" if self._access.prefix else key

    def _client(self, *, again: bool = False) -> Any:
        with self._made:
            if self._store is None or again:
                self._store = _make_store(self._access, self.read_credentials, self._session)
            return self._store

    def read_credentials(self) -> dict[str, Any]:
        """Read the credentials and keep the error, which obstore would hide."""
        assert self._access.credentials is not None, "else the client finds them"
        self._unreadable = None
        try:
            self._known = self._access.credentials()
        except ConfigError as error:
            if self._known is None:
                self._unreadable = error
                raise
            # A file that is being rewritten, or a program that fails once: what was right remains.
            return {**self._known, "expires_at": datetime.now(UTC) + CREDENTIAL_RETRY}
        return self._known

    def _try(self, url: str, action: Callable[[Any], Result]) -> Result:
        """Send a request, again after what may pass, until `limits().object_store` are over."""
        begin, pause, renewed = time.monotonic(), FIRST_PAUSE, self._access.credentials is None
        tries = _Tries(url, begin)
        while True:
            failed: Exception | None = None
            try:
                with self._pace.request(begin + limits().object_store):
                    self.requests += 1
                    result = action(self._client())
            except DistcacheError:
                raise
            except TimeoutError:
                late = time.monotonic() - begin
                said = self._refusal or "none to any request"
                raise StorageError(url, f"no answer in {late:.0f} s: {said}") from None
            except Exception as error:  # noqa: BLE001  the client's own, mapped below
                failed = error
            except BaseException as error:
                if type(error).__name__ != "PanicException":
                    raise
                raise StorageError(url, "the client failed", errno.EPROTO) from None
            if failed is None:
                self._pace.succeeded()
                self._refusal = ""
                tick()
                return result
            ours = self._classify(failed, tries)
            if ours is not None and renewed:
                raise ours from None  # the client's own words hold the request
            if ours is not None:
                renewed = True
                self._client(again=True)  # whose credentials are read again
            self.retries += 1
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
            pause = min(2 * pause, MAX_PAUSE)

    def _classify(self, error: Exception, tries: _Tries) -> AccessDenied | None:
        """Raise an error of ours, unless another attempt may succeed.

        Returns
        -------
        AccessDenied or None
            If other credentials may be allowed what these are not; None if the error may pass.
        """
        url = tries.url
        if type(error).__name__ == "AlreadyExistsError":
            raise _Exists(url) from None
        if is_slow_down(error):
            self._pace.slow_down()
        late = time.monotonic() - tries.begin
        if self._may_be_once(error, tries):
            return None
        ours = to_storage_error(error, url, self._access.source)
        if isinstance(ours, AccessDenied):
            return ours
        if not is_transient(error):
            raise ours from None
        self._refusal = short_text(error)
        if late > limits().object_store:
            self._pace.away()
            raise StorageError(url, f"no answer in {late:.0f} s: {self._refusal}") from None
        if late > WARN_AFTER and time.monotonic() - self._warned_at > WARN_EVERY:
            self._warned_at = time.monotonic()
            warnings.warn(
                f"{url}: the store has not answered for {late:.0f} s ({short_text(error)}); it is "
                f"asked for {limits().object_store:.0f} s",
                StoreWaitWarning,
                stacklevel=4,
            )
        return None

    def _may_be_once(self, error: Exception, tries: _Tries) -> bool:
        """Return whether another attempt decides; raise what has come too often."""
        if self._unreadable is not None:
            tries.unreadable += 1
            if tries.unreadable >= CREDENTIAL_ATTEMPTS:
                raise self._unreadable from None
        elif is_odd(error):
            tries.odd += 1
            if tries.odd >= ODD_ANSWERS:
                said = short_text(error)
                words = f"{tries.odd} answers were not to the request, the last one: {said}"
                raise StorageError(tries.url, words, errno.EPROTO) from None
        else:
            return False
        return True


@dataclass
class _Tries:
    """What a request has met so far."""

    url: str
    begin: float  # time of the first attempt
    odd: int = 0  # answers that were not to it
    unreadable: int = 0  # times that credentials could not be read


class _Exists(DistcacheError):
    """An object has the name."""


class ObjectPlace:
    """An object of one version.

    Parameters
    ----------
    bucket : Bucket
        Bucket of the object.
    url : str
        URL of the object.
    version : FileVersion
        Any other is refused.
    """

    def __init__(self, bucket: Bucket, url: str, version: FileVersion) -> None:
        self._bucket = bucket
        self._url = url
        self.version = version

    def read_into(self, out: NDArray[np.uint8], begin: int) -> None:
        """Fill an array, by requests of at most `PIECE_BYTES`, one after the other.

        Raises
        ------
        OSError
            With ENODATA if it ends before; `StorageError` if it cannot be read.
        ObjectChanged
            If it is another object.
        """
        if begin + out.size > self.version.size:
            raise StorageError(
                self._url,
                f"it has {self.version.size} bytes, expected {begin + out.size}",
                number=errno.ENODATA,
            )
        for first in range(0, out.size, PIECE_BYTES):
            last = min(first + PIECE_BYTES, out.size)
            data = self._bucket.read(self._url, begin + first, begin + last, self.version)
            out[first:last] = np.frombuffer(data, np.uint8)


def _version_of(meta: Any) -> FileVersion:
    # Listings of some stores have fractions of the seconds that other answers have.
    modified = int(meta["last_modified"].timestamp()) * 1_000_000_000
    return FileVersion(meta["size"], modified, 0, meta["e_tag"] or "")


def _is_same(found: FileVersion, wanted: FileVersion) -> bool:
    """Return whether an answer is of a version: by its ETag, or else by size and time."""
    if found.tag and wanted.tag:
        # Proxies make tags weak, or lose their quotes.
        tags = {tag.removeprefix("W/").strip('"') for tag in (found.tag, wanted.tag)}
        return len(tags) == 1 and found.size == wanted.size
    return (found.size, found.modified) == (wanted.size, wanted.modified)
