"""A small S3 on loopback that does what a test asks for, and records every request.

It checks no signatures, and knows GET, HEAD, PUT, parts, DELETE and lists; SeaweedFS is the real
server of the tests.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

from tests.support.secrets import MARK

CODES = {
    "301": "PermanentRedirect",
    "304": "NotModified",
    "400": "ExpiredToken",
    "401": "Unauthorized",
    "403": "AccessDenied",
    "404": "NoSuchKey",
    "412": "PreconditionFailed",
    "416": "InvalidRange",
    "421": "MisdirectedRequest",
    "429": "TooManyRequests",
    "500": "InternalError",
    "503": "SlowDown",
}


PAGE = b"<html>log in</html>"


class Request(NamedTuple):
    """A request that was answered: the bytes are those that its range asked for."""

    method: str
    name: str
    begin: int
    end: int
    if_match: str | None
    token: str | None = None  # of its session

    @property
    def size(self) -> int:
        """Bytes that were asked for."""
        return self.end - self.begin


class ScriptedS3:
    """A server; a context manager.

    Faults, one for each request: a status as in `CODES` or "403:RequestTimeTooSkewed", "truncate:N"
    (N bytes of the body, then an orderly end), "reset:N" (N bytes, then a reset), "refuse" (a reset
    before any answer), "stall:N:S" (N bytes, S seconds of silence, then the rest), "whole" (status
    200 and the whole object in spite of a range), "short:N" (N bytes fewer, and saying so),
    "other:N" (another range of the same length), "ignore" (an answer in spite of If-Match), "flip"
    (one bit of the body), "weak" and "bare" (another form of the ETag), "star" (a Content-Range
    without a length), "gzip" (the body, packed), "change" (from now on the object has other
    bytes), "page" (status 200 with a page of a proxy, whatever was asked for), "" (none).

    Parameters
    ----------
    objects : dict of str to bytes
        By ``bucket/key``.
    latency : float
        Seconds before every answer.
    tls : ssl.SSLContext or None
        A certificate of ``localhost``, for a server of https.

    Attributes
    ----------
    on_request : callable or None
        Called with every request before it is answered; returns its fault, or None for the
        scripted one.
    """

    def __init__(
        self,
        objects: Mapping[str, bytes] = {},
        latency: float = 0.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.objects = dict(objects)
        self.modified = dict.fromkeys(objects, time.time())
        self.latency = latency
        self.on_request: Callable[[Request], str | None] | None = None
        self.requests: list[Request] = []
        self.most_at_once = 0
        self._going = 0
        self.listings = 0
        self.may_list = True
        self._faults: list[str] = []
        self._tags: dict[str, tuple[bytes, str]] = {}
        self.parts: dict[str, dict[int, bytes]] = {}  # of objects that are being written
        self._always = ""
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.owner = self
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
            self.endpoint = f"https://localhost:{self._server.server_address[1]}"

    def __enter__(self) -> ScriptedS3:
        serve = self._server.serve_forever
        threading.Thread(target=serve, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        """What leads a client here."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": f"{MARK}-KEY",
            "AWS_SECRET_ACCESS_KEY": f"{MARK}-SECRET",
            "AWS_SESSION_TOKEN": f"{MARK}-TOKEN",
            "AWS_REGION": "us-east-1",
        }

    def put(self, name: str, data: bytes) -> None:
        """Create or replace an object."""
        with self._lock:
            self.objects[name], self.modified[name] = data, time.time()

    def script(self, *faults: str, always: str = "") -> None:
        """Set the faults of the next requests, and of all after them; forget earlier requests."""
        with self._lock:
            self._faults[:], self._always = faults, always
            self.requests.clear()

    def tag(self, name: str) -> str:
        """Return the ETag of an object."""
        data = self.objects[name]
        if name not in self._tags or self._tags[name][0] is not data:
            self._tags[name] = (data, f'"{hashlib.md5(data).hexdigest()}"')
        return self._tags[name][1]

    def bytes_of(self, suffix: str = "") -> int:
        """Return the bytes that GET requests asked for, of objects with a suffix."""
        wanted = (r for r in self.requests if r.method == "GET" and r.name.endswith(suffix))
        return sum(request.size for request in wanted)

    def begin(self, handler: BaseHTTPRequestHandler) -> tuple[str, str]:
        """Record a request; return the object's name, and the fault."""
        name = unquote(urlsplit(handler.path).path).lstrip("/")
        with self._lock:
            size = len(self.objects.get(name, b""))
            begin, end = _range_of(handler.headers.get("Range"), size)
            if_match = handler.headers.get("If-Match")
            token = handler.headers.get("x-amz-security-token")
            request = Request(handler.command, name, begin, end, if_match, token)
            self.requests.append(request)
            fault = self._faults.pop(0) if self._faults else self._always
            if fault == "change":
                self.objects[name] = bytes(byte ^ 255 for byte in self.objects[name])
                fault = ""
            self._going += 1
            self.most_at_once = max(self.most_at_once, self._going)
        chosen = self.on_request(request) if self.on_request else None
        return name, fault if chosen is None else chosen

    def end(self) -> None:
        """Note that a request has been answered."""
        with self._lock:
            self._going -= 1


def _range_of(header: str | None, size: int) -> tuple[int, int]:
    if not header:
        return 0, size
    first, _, last = header.removeprefix("bytes=").partition("-")
    return int(first), min(int(last) + 1 if last else size, size)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    owner: ScriptedS3

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that go away are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        if "list-type=2" in urlsplit(self.path).query:
            self._list()
        else:
            self._answer()

    def _list(self) -> None:
        """Answer with all names below a prefix, on one page, unless nobody may list."""
        owner = self.server.owner
        owner.listings += 1
        time.sleep(owner.latency)
        if not owner.may_list:
            self._fail("403")
            return
        parts = urlsplit(self.path)
        bucket = parts.path.strip("/")
        prefix = parse_qs(parts.query).get("prefix", [""])[0]
        start = f"{bucket}/{prefix}"
        entries = "".join(
            f"<Contents><Key>{escape(name.removeprefix(bucket + '/'))}</Key>"
            f"<Size>{len(data)}</Size>"
            f"<LastModified>{self._moment(name)}</LastModified>"
            f"<ETag>{self.server.owner.tag(name)}</ETag></Contents>"
            for name, data in sorted(self.server.owner.objects.items())
            if name.startswith(start)
        )
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
        self._head(200, len(body.encode()), {"Content-Type": "application/xml"})
        self.wfile.write(body.encode())

    def _moment(self, name: str) -> str:
        """Return when an object was made, with a fraction that other answers do not have."""
        made = datetime.fromtimestamp(int(self.server.owner.modified[name]), UTC)
        return made.strftime("%Y-%m-%dT%H:%M:%S.250Z")

    def do_PUT(self) -> None:
        data = self._body()
        part = parse_qs(urlsplit(self.path).query).get("partNumber")
        self._write(lambda name: self._put_part(name, int(part[0]), data) if part else
                    self._put(name, data))  # fmt: skip

    def do_POST(self) -> None:
        """Begin to write an object in parts, put these together, or delete objects."""
        body = self._body()
        if urlsplit(self.path).query == "delete":
            self._delete_all(body)
            return
        begins = "uploadId" not in urlsplit(self.path).query
        self._write(self._begin_parts if begins else self._join_parts)

    def _delete_all(self, body: bytes) -> None:
        bucket = urlsplit(self.path).path.strip("/")
        keys = re.findall(r"<Key>(.*?)</Key>", body.decode())
        for key in keys:
            self.server.owner.objects.pop(f"{bucket}/{unescape(key)}", None)
        deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        answer = f"<DeleteResult>{deleted}</DeleteResult>".encode()
        self._head(200, len(answer), {"Content-Type": "application/xml"})
        self.wfile.write(answer)

    def do_DELETE(self) -> None:
        """Remove an object, or the parts of one."""
        owner, parts = self.server.owner, "uploadId" in urlsplit(self.path).query
        name, _ = owner.begin(self)
        (owner.parts if parts else owner.objects).pop(name, None)
        self._head(204, 0, {})
        owner.end()

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _write(self, answer: Callable[[str], None]) -> None:
        name, fault = self.server.owner.begin(self)
        try:
            if fault == "refuse":
                self._reset()
            elif fault.partition(":")[0] in CODES:
                self._fail(fault)
            else:
                answer(name)
        finally:
            self.server.owner.end()

    def _put(self, name: str, data: bytes) -> None:
        owner = self.server.owner
        if self.headers.get("If-None-Match") == "*" and name in owner.objects:
            self._fail("412")
            return
        owner.put(name, data)
        self._head(200, 0, {"ETag": owner.tag(name)})

    def _begin_parts(self, name: str) -> None:
        self.server.owner.parts[name] = {}
        self._tell("<UploadId>1</UploadId>", "Initiate")

    def _put_part(self, name: str, number: int, data: bytes) -> None:
        self.server.owner.parts[name][number] = data
        self._head(200, 0, {"ETag": f'"{hashlib.md5(data).hexdigest()}"'})

    def _join_parts(self, name: str) -> None:
        parts = self.server.owner.parts.pop(name)
        self.server.owner.put(name, b"".join(parts[number] for number in sorted(parts)))
        self._tell(f"<ETag>{self.server.owner.tag(name)}</ETag>", "Complete")

    def _tell(self, words: str, what: str) -> None:
        root = f"{what}MultipartUploadResult"
        body = f"<{root}>{words}</{root}>".encode()
        self._head(200, len(body), {"Content-Type": "application/xml"})
        self.wfile.write(body)

    def _answer(self) -> None:
        owner = self.server.owner
        name, fault = owner.begin(self)
        try:
            if owner.latency:
                time.sleep(owner.latency)
            self._send(name, fault)
        except OSError:
            self.close_connection = True
        finally:
            owner.end()

    def _send(self, name: str, fault: str) -> None:
        owner = self.server.owner
        if fault == "refuse":
            self._reset()
            return
        if fault.partition(":")[0] in CODES:
            self._fail(fault)
            return
        if fault == "page":
            self._head(200, len(PAGE), {"Content-Type": "text/html"})
            if self.command != "HEAD":
                self.wfile.write(PAGE)
            return
        data = owner.objects.get(name)
        if data is None:
            self._fail("404")
            return
        tag = owner.tag(name)
        if self.headers.get("If-Match") not in (None, tag) and fault != "ignore":
            self._fail("412")
            return
        self._send_part(data, tag, owner.modified[name], fault)

    def _send_part(self, data: bytes, tag: str, modified: float, fault: str) -> None:
        kind, *numbers = fault.split(":")
        header = None if kind == "whole" else self.headers.get("Range")
        begin, end = _range_of(header, len(data))
        if begin >= len(data) > 0:
            self._fail("416")
            return
        end -= int(numbers[0]) if kind == "short" else 0
        if kind == "other":
            begin, end = begin + int(numbers[0]), end + int(numbers[0])
        part = data[begin:end]
        if kind == "flip":
            part = bytes([part[0] ^ 1]) + part[1:]
        fields = {"Last-Modified": formatdate(modified, usegmt=True)}
        forms = {"weak": f"W/{tag}", "bare": tag.strip('"')}
        fields |= {"ETag": forms.get(kind, tag)} if tag else {}
        if kind == "gzip":
            part = gzip.compress(part)
            fields["Content-Encoding"] = "gzip"
        if header:
            whole = "*" if kind == "star" else len(data)
            fields["Content-Range"] = f"bytes {begin}-{end - 1}/{whole}"
        self._head(206 if header else 200, len(part), fields)
        if self.command != "HEAD":
            self._send_body(part, kind, numbers)

    def _send_body(self, part: bytes, kind: str, numbers: list[str]) -> None:
        if kind not in ("truncate", "reset", "stall"):
            self.wfile.write(part)
            return
        first = int(numbers[0])
        self.wfile.write(part[:first])
        self.wfile.flush()
        if kind == "truncate":
            self.close_connection = True
        elif kind == "reset":
            time.sleep(0.05)
            self._reset()
        else:
            time.sleep(float(numbers[1]))
            self.wfile.write(part[first:])

    def _head(self, status: int, size: int, fields: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(size), **fields}.items():
            self.send_header(name, value)
        self.end_headers()

    def _fail(self, fault: str) -> None:
        status, _, code = fault.partition(":")
        words = f"<Error><Code>{code or CODES[status]}</Code><Message>as asked</Message></Error>"
        body = words.encode()
        self._head(int(status), len(body), {"Content-Type": "application/xml"})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()
