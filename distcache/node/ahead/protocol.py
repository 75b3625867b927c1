"""Messages between clients and the fetcher: msgpack over a Unix socket, and descriptors.

Each message is its length in four bytes, then a struct. A `ReadRequest` comes with a descriptor for
each of its objects, into which the fetcher writes the ranges at their own offsets, so that a sparse
file in memory represents the object. Nothing is ever unpickled.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from distcache.errors import DistcacheError, error_from_exit_code
from distcache.storage.files import FileVersion, closing_fd, open_directory
from distcache.storage.space import space_at

LENGTH: Final = struct.Struct("<I")
MAX_MESSAGE_BYTES: Final = 1 << 28  # bytes of a message
MAX_DESCRIPTORS: Final = 250  # of a message; the kernel allows 253
SOCKET: Final = "socket"
MAX_DEFAULT_BUDGET: Final = 4 << 30  # bytes, unless a budget is given
SHARE_AHEAD: Final = 20  # at most the 20th part of what is free
MAX_WHOLE_BYTES: Final = 8 << 20  # bytes of an object that may be announced as a whole, at most
PEER: Final = struct.Struct("3i")  # process, user and group


class Source(msgspec.Struct, frozen=True, array_like=True):
    """An object, or a file, of one version; of a compressed shard, the bytes of the raw one."""

    path: str
    version: FileVersion
    codec: str = ""  # empty if it is not compressed
    raw_size: int = 0  # bytes of the raw shard
    digest: bytes = b""  # XXH3-128 of the raw shard; empty if it is not known

    @property
    def size(self) -> int:
        """Bytes that ranges may be of."""
        return self.raw_size if self.codec else self.version.size


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """What a client begins with: an identity of the endpoints and credentials that it would use.

    `session` has its temporary credentials by the names of their variables, if it has any. Only
    processes of one user can be at both ends of the socket.
    """

    identity: str
    session: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Hello({self.identity!r})"  # without secrets


class ReadRequest(msgspec.Struct, frozen=True, tag="read"):
    """Write ranges into the descriptors that come with this message, one for each source.

    `ranges` is int64 of shape (ranges, 3): source, first byte, bytes. `readings` is int64 of shape
    (readings, 2): stream, and number in it, of what is read by this.
    """

    sources: list[Source]
    ranges: bytes
    readings: bytes = b""


class AheadRequest(msgspec.Struct, frozen=True, tag="ahead"):
    """Readings of the connection's stream, in their order, after those of earlier messages.

    `ends` is int64 of shape (readings,): the number of ranges up to the end of each reading.
    `budget` is what all streams of the node may take on its disk, in bytes.
    """

    sources: list[Source]
    ranges: bytes
    ends: bytes
    budget: Annotated[int, msgspec.Meta(ge=0)]


class StatusRequest(msgspec.Struct, frozen=True, tag="status"):
    """Ask how the fetcher is."""


class Status(msgspec.Struct, frozen=True):
    """How a fetcher is."""

    process: int  # process id of the fetcher
    # connections, and those that have announced what they will read
    clients: int = 0
    streams: int = 0
    # bytes that may be ahead, and that are
    budget: int = 0
    held: int = 0
    # ranges that were announced and are not fetched yet, and those that are ahead
    queued: int = 0
    ahead: int = 0
    # ranges that were read ahead of their use, or were fetched when they were asked for
    hits: int = 0
    misses: int = 0
    cores: int = 0  # cores that its threads may use
    # bytes from stores, and bytes that were asked for
    fetched: int = 0
    used: int = 0
    # sent to stores
    requests: int = 0
    retries: int = 0
    note: str = ""  # last problem; empty if there was none


class Reply(msgspec.Struct, frozen=True):
    """The answer to any request: `problems` if it failed, and the exit code of the error.

    `ends` says that this fetcher makes room for another one; `stream` is the number of the
    connection's stream, if it has any.
    """

    problems: tuple[str, ...] = ()
    exit_code: int = 0
    status: Status | None = None
    ends: bool = False
    stream: int = 0

    def raise_error(self) -> None:
        """Raise the error, if there is one."""
        if self.problems:
            raise error_from_exit_code(self.exit_code, *self.problems)

    @classmethod
    def of(cls, error: DistcacheError | OSError) -> Reply:
        """Return the answer that carries an error."""
        if isinstance(error, DistcacheError):
            return cls(error.problems, error.exit_code)
        return cls((str(error),), DistcacheError.exit_code)


def default_budget(directory: Path) -> int:
    """Return the bytes that may be ahead, if nobody says how many."""
    return min(space_at(directory).free // SHARE_AHEAD, MAX_DEFAULT_BUDGET)


def encoded(numbers: Sequence[Any] | NDArray[np.int64]) -> bytes:
    """Return numbers as a message has them."""
    return np.asarray(numbers, "<i8").tobytes()


def decoded(content: bytes, columns: int) -> NDArray[np.int64]:
    """Return the numbers of a message, in rows.

    Raises
    ------
    ValueError
        If a row is not whole.
    """
    return np.frombuffer(content, "<i8").reshape(-1, columns).astype(np.int64, copy=False)


def _near(descriptor: int) -> str:
    """Return a short path of the socket in an open directory: addresses have few bytes."""
    return f"/proc/self/fd/{descriptor}/{SOCKET}"


def listen_at(directory: Path) -> socket.socket:
    """Return a socket that listens in a directory, instead of one that nobody listens to."""
    (directory / SOCKET).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with closing_fd(open_directory(directory)) as descriptor:
        listener.bind(_near(descriptor))
    listener.listen(1024)
    return listener


def connect_to(directory: Path, patience: float) -> socket.socket:
    """Connect to the fetcher of a directory.

    Raises
    ------
    OSError
        If there is none, or it is another user's.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with closing_fd(open_directory(directory)) as descriptor:
            connection.connect(_near(descriptor))
        if not peer_is_own(connection):
            raise PermissionError("the fetcher belongs to another user")
        connection.settimeout(patience)
    except BaseException:
        connection.close()
        raise
    return connection


def peer_is_own(connection: socket.socket) -> bool:
    """Return whether a socket's other end is a process of this user."""
    return peer_of(connection)[1] == os.geteuid()


def peer_of(connection: socket.socket) -> tuple[int, int, int]:
    """Return the process, user and group that connected; process 0 is of another PID namespace."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
    process, user, group = PEER.unpack(found)
    return process, user, group


def send(connection: socket.socket, message: Any, descriptors: Sequence[int] = ()) -> None:
    """Send a message, and descriptors with it.

    Raises
    ------
    OSError
        If the other end is gone, or does not take it in time.
    """
    content = msgspec.msgpack.encode(message)
    head = LENGTH.pack(len(content))
    assert len(descriptors) <= MAX_DESCRIPTORS, "the caller reads fewer files at a time"
    sent = socket.send_fds(connection, [head], descriptors)
    connection.sendall(head[sent:] + content)


def receive(connection: socket.socket, kind: Any) -> tuple[Any, list[int]]:
    """Receive a message and the descriptors that came with it, which are the caller's.

    Raises
    ------
    EOFError
        If the other end is gone.
    OSError, ValueError
        If it does not answer in time, or says what is no message.
    """
    head, descriptors, _, _ = socket.recv_fds(
        connection, LENGTH.size, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
    )
    try:
        head += _exactly(connection, LENGTH.size - len(head))
        length = LENGTH.unpack(head)[0]
        if length > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {length} bytes")
        return msgspec.msgpack.decode(_exactly(connection, length), type=kind), descriptors
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise


def _exactly(connection: socket.socket, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        piece = connection.recv(min(size - len(content), 1 << 20))
        if not piece:
            raise EOFError("the other end is gone")
        content += piece
    return bytes(content)
