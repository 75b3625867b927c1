"""The loop of requests with any server: right bytes, or the threads' turn, within a bound."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from distcache.kernels import PrefetchBuffer, RequestLoop
from distcache.storage.curl_library import curl_libraries
from distcache.storage.files import open_unnamed
from tests.support.waiting import wait_until

SIZE = 100_000
DATA = (np.arange(SIZE) % 251).astype(np.uint8).tobytes()
TAG = '"tag"'
COPIED, MISSING = 0, 1
RANGES = [(begin, 700) for begin in range(0, 50_000, 7_000)]
Answer = Callable[[socket.socket, int, int], bool]


def head(begin: int, end: int, *, status: str = "206 Partial Content", more: str = "") -> bytes:
    """Return the head of an answer, as a store sends it."""
    return (
        f"HTTP/1.1 {status}\r\nContent-Length: {end - begin}\r\nETag: {TAG}\r\n"
        f"Content-Range: bytes {begin}-{end - 1}/{SIZE}\r\n{more}\r\n"
    ).encode()


class Server:
    """Answers ranges over plain connections or TLS; `answer` says whether one stays open."""

    def __init__(self, answer: Answer, context: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self.requests: list[str] = []
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        scheme = "https" if context else "http"
        self.origin = f"{scheme}://localhost:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_side=True)
            with connection:
                self._serve_requests(connection)

    def _serve_requests(self, connection: socket.socket) -> None:
        stays, received = True, b""
        while stays:
            while b"\r\n\r\n" not in received:
                piece = connection.recv(65536)
                if not piece:
                    return
                received += piece
            request, _, received = received.partition(b"\r\n\r\n")
            self.requests.append(request.decode())
            line = next(x for x in request.split(b"\r\n") if x.startswith(b"Range: bytes="))
            first, _, last = line[len(b"Range: bytes=") :].partition(b"-")
            stays = self.answer(connection, int(first), int(last) + 1)

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.close()


class Reader:
    """A buffer with a loop, and a source of it."""

    def __init__(
        self,
        directory: Path,
        origin: str,
        certificates: bytes = b"",
        libraries: Sequence[str] = (),
    ) -> None:
        self.buffer = PrefetchBuffer(open_unnamed(directory))
        self.loop = RequestLoop(self.buffer, list(libraries) or curl_libraries(), 0.5)
        self.source = self.buffer.add_source("loop", 0)
        self.aim(origin, certificates)

    def aim(self, origin: str, certificates: bytes = b"", seconds: float = 60.0) -> None:
        """Say where the source is."""
        self.loop.set_target(
            self.source, origin, "/lake/c.bin?signature=1", TAG, SIZE, seconds, certificates
        )

    def announce(self) -> None:
        """Announce all ranges, each as a reading."""
        ranges = np.array([(self.source, *own) for own in RANGES], np.int64)
        stream = self.buffer.open_stream()
        self.buffer.announce(stream, ranges, np.arange(1, len(RANGES) + 1), 1 << 20)

    def read(self, begin: int, size: int) -> int:
        """Read a range, compare its bytes, and return what became of it."""
        file = os.memfd_create("target")
        try:
            ranges = np.array([(self.source, begin, size)], np.int64)
            (outcome,) = self.buffer.fetch(ranges, np.array([file], np.int32), 30.0)
            if outcome == COPIED:
                assert os.pread(file, size, begin) == DATA[begin : begin + size]
            return outcome
        finally:
            os.close(file)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[Answer], tuple[Server, Reader]]]:
    """Starts a server, and what reads from it."""
    made: list[tuple[Server, Reader]] = []

    def start(answer: Answer) -> tuple[Server, Reader]:
        server = Server(answer)
        made.append((server, Reader(tmp_path, server.origin)))
        return made[-1]

    yield start
    for server, reader in made:
        reader.loop.close()
        server.close()


def usual(connection: socket.socket, begin: int, end: int) -> bool:
    """Answer as a store does."""
    connection.sendall(head(begin, end) + DATA[begin:end])
    return True


def in_bytes(connection: socket.socket, begin: int, end: int) -> bool:
    """Answer byte by byte."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in head(begin, end) + DATA[begin:end]:
        connection.sendall(bytes([byte]))
    return True


def closing(connection: socket.socket, begin: int, end: int) -> bool:
    """Answer, say that the connection ends, and end it."""
    connection.sendall(head(begin, end, more="Connection: close\r\n") + DATA[begin:end])
    return False


def closing_silently(connection: socket.socket, begin: int, end: int) -> bool:
    """Answer, and end the connection without a word."""
    usual(connection, begin, end)
    return False


@pytest.mark.parametrize("answer", [usual, in_bytes, closing, closing_silently])
def test_ranges_are_read_ahead_and_on_demand(
    answer: Answer, serve: Callable[[Answer], tuple[Server, Reader]]
) -> None:
    """However an answer arrives, and whether or not its connection stays."""
    server, reader = serve(answer)
    reader.announce()
    wait_until(lambda: reader.buffer.status()["held"] == len(RANGES), "what is read ahead")
    assert all(reader.read(*own) == COPIED for own in RANGES)
    assert [reader.read(begin, 33) for begin in (99_967, 1)] == [COPIED, COPIED]
    request = server.requests[0].split("\r\n")
    assert request[0] == "GET /lake/c.bin?signature=1 HTTP/1.1"
    assert f"If-Match: {TAG}" in request
    assert f"Host: {server.origin.removeprefix('http://')}" in request


def sending(content: Callable[[int, int], bytes]) -> Answer:
    """Return what sends an answer, and leaves the connection open."""

    def answer(connection: socket.socket, begin: int, end: int) -> bool:
        connection.sendall(content(begin, end))
        return True

    return answer


WRONG: dict[str, Answer] = {
    "refused": sending(lambda b, e: head(0, 0, status="403 Forbidden")),
    "missing": sending(lambda b, e: head(0, 5, status="404 Not Found") + b"where"),
    "changed": sending(lambda b, e: head(0, 0, status="412 Precondition Failed")),
    "slow down": sending(lambda b, e: head(0, 0, status="503 Slow Down")),
    "whole": sending(lambda b, e: head(0, SIZE, status="200 OK") + DATA),
    "other tag": sending(lambda b, e: head(b, e).replace(b'"tag"', b'"gat"') + DATA[b:e]),
    "no tag": sending(lambda b, e: head(b, e).replace(b"ETag", b"Etat") + DATA[b:e]),
    "other range": sending(lambda b, e: head(b + 1, e + 1) + DATA[b + 1 : e + 1]),
    "other total": sending(lambda b, e: head(b, e).replace(b"/1000", b"/2000") + DATA[b:e]),
    "short": sending(lambda b, e: head(b, e - 1) + DATA[b : e - 1]),
    "long": sending(lambda b, e: head(b, e + 1) + DATA[b : e + 1]),
    "more than said": sending(lambda b, e: head(b, e) + DATA[b : e + 9]),
    "chunked": sending(lambda b, e: b"HTTP/1.1 206 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"),
    "no answer": sending(lambda b, e: b""),
    "half a head": sending(lambda b, e: head(b, e)[:20]),
    "half a body": sending(lambda b, e: head(b, e) + DATA[b : b + 9]),
    "no HTTP": sending(lambda b, e: b"SSH-2.0-OpenSSH\r\n"),
    "hung up": lambda connection, begin, end: False,
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_success_is_left_to_the_threads(
    wrong: str, serve: Callable[[Answer], tuple[Server, Reader]]
) -> None:
    """Soon, and for readers and for what is read ahead; nothing is used of such an answer."""
    _, reader = serve(WRONG[wrong])
    assert reader.read(10, 100) == MISSING
    reader.announce()
    taken: list[int] = []

    def all_taken() -> bool:
        taken.extend(begin for _, _, begin, _ in reader.buffer.take(0.0))
        return len(taken) >= len(RANGES)

    wait_until(all_taken, "what is left to the threads")
    assert sorted(taken) == [begin for begin, _ in RANGES]
    assert reader.buffer.status()["held"] == 0
    assert reader.loop.counts()[1] == 0


def test_a_refused_source_is_not_asked_until_it_is_set_again(
    serve: Callable[[Answer], tuple[Server, Reader]],
) -> None:
    """So that a refusal does not become thousands of requests."""
    server, reader = serve(WRONG["refused"])
    assert reader.read(0, 10) == MISSING
    assert not reader.loop.has_target(reader.source)
    asked = len(server.requests)
    assert [reader.read(begin, 10) for begin in range(10, 100)] == [MISSING] * 90
    assert len(server.requests) == asked
    server.answer = usual
    reader.aim(server.origin)
    assert reader.read(0, 10) == COPIED
    reader.aim(server.origin, seconds=0.0)
    assert not reader.loop.has_target(reader.source)
    assert reader.read(0, 10) == MISSING


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    """A reader learns it at once, and so does one of an address that is none."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for origin in (f"http://127.0.0.1:{port}", "http://no-such-host.invalid", "ftp://localhost"):
        reader = Reader(tmp_path, origin)
        begin = time.monotonic()
        assert reader.read(0, 10) == MISSING
        assert time.monotonic() - begin < 10
        reader.loop.close()


def test_a_host_that_does_not_answer_holds_up_no_other(
    serve: Callable[[Answer], tuple[Server, Reader]],
) -> None:
    """Neither one that is silent, nor one that refuses connections."""
    server, reader = serve(WRONG["no answer"])
    other = Server(usual)
    good = reader.buffer.add_source("loop", 0)
    reader.loop.set_target(good, other.origin, "/lake/c.bin", TAG, SIZE, 60.0, b"")
    reader.announce()
    wait_until(lambda: len(server.requests) > 0, "a request to the silent host")
    file = os.memfd_create("target")
    for begin in range(0, 1000, 100):
        started = time.monotonic()
        ranges = np.array([(good, begin, 100)], np.int64)
        assert reader.buffer.fetch(ranges, np.array([file], np.int32), 30.0) == [COPIED]
        assert time.monotonic() - started < 5
    os.close(file)
    other.close()


def test_refusals_for_a_while_do_not_become_thousands_of_requests(
    serve: Callable[[Answer], tuple[Server, Reader]],
) -> None:
    """A store that asks for fewer requests is left alone by the loop for a while."""
    server, reader = serve(WRONG["slow down"])
    ranges = np.array([(reader.source, begin, 10) for begin in range(0, 90_000, 30)], np.int64)
    stream = reader.buffer.open_stream()
    reader.buffer.announce(stream, ranges, np.arange(1, len(ranges) + 1), 1 << 30)
    time.sleep(1.0)
    assert 0 < len(server.requests) < 300


def test_closing_passes_on_what_was_taken(serve: Callable[[Answer], tuple[Server, Reader]]) -> None:
    """A reader that waits is not left alone."""
    _, reader = serve(WRONG["no answer"])
    outcome: list[int] = []
    waiting = threading.Thread(target=lambda: outcome.append(reader.read(0, 10)))
    waiting.start()
    time.sleep(0.1)
    reader.loop.close()
    reader.loop.close()
    waiting.join(10)
    assert outcome == [MISSING]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of localhost that is its own authority, and its key, in one file."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", path, "-out",
         f"{path}.cert"],
        check=True,
        capture_output=True,
    )  # fmt: skip
    path.write_bytes(path.read_bytes() + Path(f"{path}.cert").read_bytes())
    return path


@pytest.mark.parametrize("of", ["the system", "pycurl"])
def test_tls_with_an_authority_of_its_own(of: str, authority: Path, tmp_path: Path) -> None:
    """Certificates are verified: without the authority, no request is sent."""
    carried = [library for library in curl_libraries() if "pycurl.libs" in library]
    libraries = carried if of == "pycurl" else curl_libraries()
    assert libraries
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority)
    server = Server(usual, context)
    reader = Reader(tmp_path, server.origin, Path(f"{authority}.cert").read_bytes(), libraries)
    reader.announce()
    wait_until(lambda: reader.buffer.status()["held"] == len(RANGES), "what is read ahead")
    assert reader.read(0, SIZE) == COPIED
    reader.loop.close()
    asked = len(server.requests)
    stranger = Reader(tmp_path, server.origin, libraries=libraries)
    assert stranger.read(0, 10) == MISSING
    stranger.loop.close()
    assert len(server.requests) == asked
    server.close()
