"""The fetcher by itself, without clients."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import tracemalloc
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from distcache.errors import AccessDenied, NoSpace
from distcache.node.ahead.fetcher import Fetcher, OpenSources
from distcache.node.ahead.protocol import (
    AheadRequest,
    ReadRequest,
    Source,
    encoded,
    listen_at,
)
from distcache.node.ahead.server import _Server
from distcache.storage.files import version_of
from tests.support.waiting import wait_until

RANGES = [(0, begin, 1000) for begin in range(0, 10_000, 1000)]
ENDS = range(1, 11)
SIZE = 4 << 20


def test_a_reader_that_cannot_be_given_its_ranges(tmp_path: Path) -> None:
    """It gets an error, and keeps nothing of what is ahead."""
    path = tmp_path / "c.bin"
    path.write_bytes(os.urandom(10_000))
    source = Source(str(path), version_of(path.stat()))
    (tmp_path / "ahead").mkdir()
    fetcher = Fetcher(tmp_path / "ahead")
    stream = fetcher.buffer.open_stream()
    fetcher.announce(stream, AheadRequest([source], encoded(RANGES), encoded(ENDS), 1 << 20))
    wait_until(lambda: fetcher.buffer.status()["held"] == len(RANGES), "what is read ahead")
    target = os.open(path, os.O_RDONLY)
    with pytest.raises(OSError, match="cannot be handed over"):
        fetcher.read(ReadRequest([source], encoded(RANGES)), [target])
    os.close(target)
    fetcher.buffer.close_stream(stream)
    assert fetcher.buffer.status()["used"] == 0
    fetcher.close()


def test_threads_that_wait_hold_little(tmp_path: Path) -> None:
    """What a large range was received in is given back: dozens of threads wait for the next one."""
    path = tmp_path / "c.bin"
    path.write_bytes(bytes(SIZE * 16))
    source = Source(str(path), version_of(path.stat()))
    (tmp_path / "ahead").mkdir()
    fetcher = Fetcher(tmp_path / "ahead")
    stream = fetcher.buffer.open_stream()
    ranges = [(0, begin, SIZE) for begin in range(0, 16 * SIZE, SIZE)]
    tracemalloc.start()
    request = AheadRequest([source], encoded(ranges), encoded(range(1, 17)), 32 * SIZE)
    fetcher.announce(stream, request)
    wait_until(lambda: fetcher.buffer.status()["held"] == len(ranges), "what is read ahead")
    wait_until(lambda: tracemalloc.get_traced_memory()[0] < SIZE, "less than one range")
    assert tracemalloc.get_traced_memory()[1] >= SIZE  # it sees what is received
    tracemalloc.stop()
    fetcher.close()


def test_a_question_while_the_client_of_stores_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question while the client of stores is imported by another thread, is answered."""
    half_imported = types.ModuleType("distcache.storage.bucket")
    monkeypatch.setitem(sys.modules, half_imported.__name__, half_imported)
    fetcher = Fetcher(tmp_path)
    assert fetcher.status(1).requests == 0
    fetcher.close()


def source_of(path: Path) -> Source:
    """Write a file, and return it as a source."""
    path.write_bytes(os.urandom(10_000))
    return Source(str(path), version_of(path.stat()))


def test_refusals_pause_what_is_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: Callable[..., None]
) -> None:
    """Few requests ask; who waits gets the refusal, and a later reader what is there then."""
    source = source_of(tmp_path / "c.bin")
    (tmp_path / "ahead").mkdir()
    limit("distcache.node.ahead.fetcher", PAUSE=0.2)
    original, asked, refused = OpenSources.read_into, [0], [True]

    def read_into(sources: OpenSources, out: np.ndarray, source: Source, begin: int) -> None:
        asked[0] += 1
        if refused[0]:
            raise AccessDenied(source.path, "access is denied")
        original(sources, out, source, begin)

    monkeypatch.setattr(OpenSources, "read_into", read_into)
    fetcher = Fetcher(tmp_path / "ahead")
    stream = fetcher.buffer.open_stream()
    fetcher.announce(stream, AheadRequest([source], encoded(RANGES), encoded(ENDS), 1 << 20))
    wait_until(lambda: asked[0] > 0, "a refusal")
    target = os.open(tmp_path / "target", os.O_RDWR | os.O_CREAT, 0o600)
    with pytest.raises(AccessDenied):
        fetcher.read(ReadRequest([source], encoded(RANGES[:1])), [target])
    refused[0] = False
    fetcher.read(ReadRequest([source], encoded(RANGES)), [target])
    assert os.pread(target, 10_000, 0) == (tmp_path / "c.bin").read_bytes()
    os.close(target)
    assert asked[0] < 10 * len(RANGES)
    fetcher.close()


@pytest.mark.parametrize(("most", "expected"), [(1000, 64), (30, 30), (18, 18), (17, None)])
def test_a_node_that_is_out_of_threads(
    most: int, expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All threads run before they are needed, or fewer, or none."""
    begun: list[threading.Thread] = []
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if len(begun) >= most:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", limited)
        if expected is None:
            with pytest.raises(NoSpace, match="allow more"):
                Fetcher(tmp_path)
            return
        fetcher = Fetcher(tmp_path)
    assert len(begun) == expected
    fetcher.close()


def test_an_error_that_nobody_expects_is_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one, a client would take the fetcher for dead."""
    fetcher = Fetcher(tmp_path)

    def fail(*_: object) -> None:
        raise MemoryError("8 TiB")

    monkeypatch.setattr(fetcher, "read", fail)
    ours, theirs = socket.socketpair()
    request = ReadRequest([], encoded([]))
    reply = _Server(fetcher)._answer(theirs, request, [], 0)
    assert "MemoryError: 8 TiB" in reply.problems[0]
    ours.close()
    theirs.close()
    fetcher.close()


def test_a_client_that_leaves_a_child(tmp_path: Path) -> None:
    """The child has the connection still, and the client counts as gone."""
    listener = listen_at(tmp_path)
    fetcher = Fetcher(tmp_path)
    serving = _Server(fetcher)
    thread = threading.Thread(target=serving.run, args=(listener,), daemon=True)
    thread.start()
    code = (
        "import os, socket, sys, time\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "s.connect(sys.argv[1])\n"
        "if os.fork() == 0:\n    time.sleep(30)\n    os._exit(0)\n"
        "time.sleep(0.5)\n"
        "os._exit(0)\n"
    )
    client = subprocess.Popen([sys.executable, "-c", code, "socket"], cwd=tmp_path)
    wait_until(lambda: serving._clients == 1, "the client")
    client.wait()
    wait_until(lambda: serving._clients == 0, "its end")
    serving._ends = True
    thread.join(60)
    listener.close()
    fetcher.close()
