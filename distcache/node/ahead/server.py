"""The fetcher's process: it answers clients.

It ends when its last client is gone. It holds the only connections to stores, and so the
credentials, of a node's training.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from distcache.errors import DistcacheError
from distcache.node.ahead import LOCK
from distcache.node.ahead.fetcher import PAUSE, Fetcher
from distcache.node.ahead.protocol import (
    AheadRequest,
    Hello,
    ReadRequest,
    Reply,
    StatusRequest,
    listen_at,
    peer_is_own,
    peer_of,
    receive,
    send,
)
from distcache.storage.access import identity_of
from distcache.storage.locks import try_lock
from distcache.storage.timeouts import limits

Request = AheadRequest | Hello | ReadRequest | StatusRequest


class _Server:
    """Answers the clients of a fetcher, each in its own thread."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._lock = threading.Lock()
        self._identity = identity_of(os.environ)
        self._clients = 0
        self._readers: set[socket.socket] = set()  # of these: others only ask how it is
        self._last = time.monotonic()
        self._ends = False

    def run(self, listener: socket.socket) -> None:
        """Serve until there has been no client for a while."""
        listener.settimeout(0.5)
        while not self._is_idle():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:  # too many descriptors are open: those of others are closed soon
                time.sleep(PAUSE / 50)
                continue
            if not peer_is_own(connection):
                connection.close()
                continue
            with self._lock:
                self._clients += 1
            try:
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            except RuntimeError:  # the node has no more threads: the client asks again
                connection.close()
                with self._lock:
                    self._clients -= 1

    def _is_idle(self) -> bool:
        with self._lock:
            idle = time.monotonic() - self._last > limits().fetcher_idle
            return self._ends or (not self._clients and idle)

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        stream = 0
        try:
            with (
                contextlib.suppress(EOFError, OSError, ValueError),
                connection,
                _end_of(connection) as ended,
            ):
                while not _has_ended(connection, ended):
                    request, descriptors = receive(connection, Request)
                    if isinstance(request, AheadRequest) and not stream:
                        stream = self._fetcher.buffer.open_stream()
                    send(connection, self._answer(connection, request, descriptors, stream))
        finally:
            if stream:
                self._fetcher.buffer.close_stream(stream)
            with self._lock:
                self._clients -= 1
                self._readers.discard(connection)
                self._last = time.monotonic()

    def _answer(
        self,
        connection: socket.socket,
        request: Request,
        descriptors: list[int],
        stream: int,
    ) -> Reply:
        """Return the answer to a request."""
        reply = Reply(stream=stream)
        try:
            if isinstance(request, ReadRequest):
                self._fetcher.read(request, descriptors)
            elif isinstance(request, Hello):
                reply = self._greet(connection, request)
            elif isinstance(request, AheadRequest):
                self._fetcher.announce(stream, request)
            else:
                reply = Reply(status=self._fetcher.status(self._clients))
        except (DistcacheError, OSError) as error:
            reply = Reply.of(error)
        except ValueError as error:
            reply = Reply((f"the fetcher was asked for what is not possible: {error}",), 1)
        except Exception as error:  # noqa: BLE001  without an answer, it would be taken for dead
            reply = Reply((f"the fetcher failed: {type(error).__name__}: {error}",), 1)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return reply

    def _greet(self, connection: socket.socket, request: Hello) -> Reply:
        """Accept a client that reaches stores as this process does; for others make room."""
        with self._lock:
            if request.identity == self._identity:
                self._readers.add(connection)
                self._fetcher.sessions.offer(request.session)
                return Reply()
            if self._readers:
                return Reply(
                    ("the fetcher of this node serves a job with other credentials or endpoints; "
                     "give each of these jobs its own directory (localize --store)",),
                    DistcacheError.exit_code,
                )  # fmt: skip
            self._ends = True
            return Reply(ends=True)


@contextlib.contextmanager
def _end_of(connection: socket.socket) -> Iterator[int | None]:
    """Open a descriptor that shows when the client's process has ended, or None where nothing can.

    A child that it has forked may keep the connection for long.
    """
    process = peer_of(connection)[0]
    try:
        descriptor = os.pidfd_open(process) if process else None
    except OSError:  # an old kernel
        descriptor = None
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _has_ended(connection: socket.socket, ended: int | None) -> bool:
    """Wait for a request; return whether the client's process ended without one."""
    if ended is None:
        return False
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.register(ended, select.POLLIN)
    return connection.fileno() not in dict(poll.poll())


def serve(directory: Path) -> None:
    """Be the fetcher of a directory, unless another process is."""
    lock = try_lock(directory / LOCK)
    if lock is None:
        return
    listener = listen_at(directory)
    fetcher = Fetcher(directory)
    try:
        _Server(fetcher).run(listener)
    finally:
        listener.close()
        fetcher.close()
        os.close(lock)
