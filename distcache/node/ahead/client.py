"""The client of a node's fetcher, in training processes and their workers: no network is here."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from distcache.errors import DistcacheError, NotReady, ShardWaitWarning
from distcache.node.ahead.protocol import (
    AheadRequest,
    Hello,
    ReadRequest,
    Reply,
    Source,
    Status,
    StatusRequest,
    connect_to,
    encoded,
    receive,
    send,
)
from distcache.storage.access import identity_of, session_of
from distcache.storage.files import closing_fd
from distcache.storage.locks import try_lock
from distcache.storage.timeouts import limits

START: Final = "start.lock"
LOG: Final = "fetcher.out"
LOG_BEFORE: Final = "fetcher.out.1"
ANSWER_POLL: Final = 0.02  # seconds
FETCHER_ATTEMPTS: Final = 3  # with a fetcher that dies again and again
WAIT: Final = 0.1  # seconds of a reading, from which on it counts as a wait
LONG_WAIT: Final = 5.0  # seconds of a wait that is worth a warning
GONE: Final = (EOFError, ConnectionError, FileNotFoundError)


class FetchClient:
    """A process's connections to its node's fetcher, which is started if there is none.

    From any thread. After a fork, the child opens its own connections.

    Parameters
    ----------
    directory : Path
        Directory of the fetcher, in the node's store.

    Attributes
    ----------
    directory : Path
        Directory of the fetcher, as it was given.
    waits : int
        Number of readings that took longer than a tenth of a second.
    seconds : float
        Seconds of these readings.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.waits = 0
        self.seconds = 0.0
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._free: list[socket.socket] = []

    def __del__(self) -> None:
        for connection in self._free:
            connection.close()

    def __reduce__(self) -> Any:
        return FetchClient, (self.directory,)

    def read(
        self,
        sources: Sequence[Source],
        ranges: NDArray[np.int64],
        readings: Sequence[tuple[int, int]] = (),
    ) -> dict[Source, int]:
        """Read ranges of sources, all at once.

        Parameters
        ----------
        sources : sequence of Source
            Sources of the ranges, at most `MAX_DESCRIPTORS`.
        ranges : ndarray of int64, shape (ranges, 3)
            Number of the source, first byte, bytes.
        readings : sequence of (int, int)
            Stream, and number in it, of announced readings that are over.

        Returns
        -------
        dict of Source to int
            Descriptors of sparse files in memory, which have the ranges at their own offsets; the
            caller closes them.

        Raises
        ------
        DistcacheError
            If they cannot be read.
        """
        begin = time.monotonic()
        files = [os.memfd_create("distcache", os.MFD_CLOEXEC) for _ in sources]
        try:
            self._ask(ReadRequest(list(sources), encoded(ranges), encoded(readings)), files)
        except BaseException:
            for file in files:
                os.close(file)
            raise
        self._count_wait(time.monotonic() - begin, sources)
        return dict(zip(sources, files, strict=True))

    def _count_wait(self, seconds: float, sources: Sequence[Source]) -> None:
        if seconds < WAIT or not sources:
            return
        with self._lock:
            self.waits += 1
            self.seconds += seconds
        if seconds > LONG_WAIT:
            warnings.warn(
                f"waited {seconds:.0f} s for {sources[0].path}, and {len(sources) - 1} others, "
                "which were not ahead; see `distcache local fetcher`, and wrap the sampler in "
                "distcache.ReadAhead, with a larger budget",
                ShardWaitWarning,
                stacklevel=3,
            )

    def open_stream(self) -> FetchStream:
        """Return a stream, by which the caller announces what it will read."""
        return FetchStream(self.connect)

    def close(self) -> None:
        """Close all connections, but for those of streams."""
        self._require_process()
        self._forget()

    def status(self) -> Status:
        """Return how the fetcher is."""
        status = self._ask(StatusRequest()).status
        assert status is not None, "it was asked for"
        return status

    def _ask(self, request: Any, descriptors: Sequence[int] = ()) -> Reply:
        """Send a request and return the answer; again, if the fetcher died."""
        self._require_process()
        for _ in range(FETCHER_ATTEMPTS):
            connection = self._take()
            try:
                send(connection, request, descriptors)
                reply: Reply = receive(connection, Reply)[0]
            except GONE:
                connection.close()
                self._forget()
                continue
            except TimeoutError:
                connection.close()
                raise NotReady(
                    f"{self.directory}: the fetcher has not answered in {_patience():.0f} s; see "
                    f"{self.directory / LOG}, and end it, so that another is started"
                ) from None
            except BaseException:
                connection.close()
                raise
            with self._lock:
                self._free.append(connection)
            reply.raise_error()
            return reply
        raise DistcacheError(
            f"{self.directory}: the fetcher died {FETCHER_ATTEMPTS} times; see "
            f"{self.directory / LOG_BEFORE}, and {LOG} of the last one"
        )

    def _take(self) -> socket.socket:
        with self._lock:
            if self._free:
                return self._free.pop()
        return self.connect()

    def _forget(self) -> None:
        with self._lock:
            for connection in self._free:
                connection.close()
            self._free.clear()

    def _require_process(self) -> None:
        """After a fork, leave the parent's connections to the parent."""
        if self._process != os.getpid():
            self._process, self._lock = os.getpid(), threading.Lock()
            self._forget()  # which closes this process's own descriptors of them

    def connect(self) -> socket.socket:
        """Connect to the fetcher; start one, if there is none.

        Raises
        ------
        NotReady
            If it does not start.
        """
        end = time.monotonic() + limits().fetcher_start
        while True:
            try:
                connection = connect_to(self.directory, _patience())
                if _is_accepted(connection):
                    return connection
            except GONE:
                pass
            if time.monotonic() > end:
                raise NotReady(
                    f"{self.directory}: the fetcher does not start; see {self.directory / LOG}"
                )
            with self._starting() as mine:
                if mine:
                    self._start()
            time.sleep(ANSWER_POLL)

    @contextlib.contextmanager
    def _starting(self) -> Iterator[bool]:
        """Yield whether this process may start a fetcher: nobody else does, and there is none."""
        lock = try_lock(self.directory / START)
        if lock is None:
            yield False
            return
        with closing_fd(lock):
            try:
                connect_to(self.directory, _patience()).close()
            except GONE:
                yield True
                return
            yield False

    def _start(self) -> None:
        """Start a fetcher by exec, and wait until it answers."""
        # The log of the one before may say why it died.
        with contextlib.suppress(FileNotFoundError):
            os.replace(self.directory / LOG, self.directory / LOG_BEFORE)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with closing_fd(os.open(self.directory / LOG, flags, 0o600)) as output:
            started = subprocess.Popen(
                # -P: modules in the directory of training are none of the fetcher's.
                [sys.executable, "-P", "-m", "distcache.node.ahead", str(self.directory)],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        end = time.monotonic() + limits().fetcher_start
        while started.poll() is None and time.monotonic() < end:
            with contextlib.suppress(*GONE):
                connect_to(self.directory, _patience()).close()
                break
            time.sleep(ANSWER_POLL)
        threading.Thread(target=started.wait, daemon=True).start()  # it leaves no zombie


def _is_accepted(connection: socket.socket) -> bool:
    """Return whether the fetcher reaches stores as this process would; if not, it ends.

    Raises
    ------
    DistcacheError
        If it serves others, who reach them otherwise.
    """
    try:
        send(connection, Hello(identity_of(os.environ), session_of(os.environ)))
        reply: Reply = receive(connection, Reply)[0]
        reply.raise_error()
    except BaseException:
        connection.close()
        raise
    if reply.ends:
        connection.close()
    return not reply.ends


class FetchStream:
    """Announces to the fetcher what a process will read, in order; its end discards the rest.

    Parameters
    ----------
    connect : callable
        Returns a connection to the fetcher.

    Attributes
    ----------
    number : int
        Number of the stream, which a reading has to name; another fetcher gives another one.
    """

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self._process = os.getpid()
        self._connection: socket.socket | None = None
        self.number = 0

    def __del__(self) -> None:
        self.close()

    def announce(
        self,
        sources: Sequence[Source],
        ranges: NDArray[np.int64],
        ends: NDArray[np.int64],
        budget: int,
    ) -> bool:
        """Announce the next readings.

        Parameters
        ----------
        sources : sequence of Source
            Sources of the ranges.
        ranges : ndarray of int64, shape (ranges, 3)
            Number of the source, first byte, bytes.
        ends : ndarray of int64, shape (readings,)
            Number of ranges up to the end of each reading.
        budget : int
            Bytes that all streams of the node may take on its disk.

        Returns
        -------
        bool
            Whether the fetcher has them, and all that was announced before. If not, it has died:
            all that is still to come has to be announced again.

        Raises
        ------
        NotReady
            If no fetcher starts.
        """
        request = AheadRequest(list(sources), encoded(ranges), encoded(ends), budget)
        if self._connection is None:
            self._connection = self._connect()
        try:
            send(self._connection, request)
            reply: Reply = receive(self._connection, Reply)[0]
        except GONE:
            self._connection.close()
            self._connection, self.number = None, 0
            return False
        reply.raise_error()
        self.number = reply.stream
        return True

    def close(self) -> None:
        """End the stream. A process that was forked since does not keep it open."""
        if self._connection is None:
            return
        if self._process == os.getpid():
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
        self._connection = None


def _patience() -> float:
    """Return how long an answer may take: a little longer than a store is waited for."""
    return 2 * limits().object_store + limits().object_silence


def fetcher_status(directory: Path) -> Status | None:
    """Return the status of a node's fetcher; None if none runs. Starts none.

    Raises
    ------
    NotReady
        If it does not answer.
    """
    try:
        connection = connect_to(directory, 10.0)
    except OSError:
        return None
    with connection:
        try:
            send(connection, StatusRequest())
            reply: Reply = receive(connection, Reply)[0]
        except TimeoutError as error:
            raise NotReady(f"{directory}: the fetcher does not answer") from error
        except (OSError, EOFError, ValueError):
            return None
    return reply.status
