"""Messages and descriptors, and what is no message."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from distcache.errors import CorpusError
from distcache.node.ahead.protocol import (
    LENGTH,
    MAX_DESCRIPTORS,
    MAX_MESSAGE_BYTES,
    ReadRequest,
    Reply,
    Source,
    connect_to,
    encoded,
    listen_at,
    peer_is_own,
    receive,
    send,
)
from distcache.storage.files import FileVersion

SOURCE = Source("s3://lake/c.bin", FileVersion(10, 1, 0, '"tag"'))


def test_messages_and_descriptors_arrive() -> None:
    """Also the largest number of descriptors."""
    ours, theirs = socket.socketpair()
    files = [os.memfd_create("f") for _ in range(MAX_DESCRIPTORS)]
    request = ReadRequest([SOURCE], encoded([(0, 5, 3)]))
    with ours, theirs:
        sender = threading.Thread(target=send, args=(ours, request, files))
        sender.start()
        found, descriptors = receive(theirs, ReadRequest)
        sender.join()
    assert found == request
    assert len(descriptors) == MAX_DESCRIPTORS
    os.pwrite(descriptors[-1], b"hello", 0)
    assert os.pread(files[-1], 5, 0) == b"hello"
    for descriptor in [*files, *descriptors]:
        os.close(descriptor)


@pytest.mark.parametrize("sent", [b"", b"\x01", LENGTH.pack(10), LENGTH.pack(3) + b"ab"])
def test_the_other_end_is_gone(sent: bytes) -> None:
    """The other end may be gone before the end of a message."""
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(sent)
        with pytest.raises(EOFError):
            receive(theirs, Reply)


@pytest.mark.parametrize("sent", [LENGTH.pack(MAX_MESSAGE_BYTES + 1), LENGTH.pack(2) + b"\xc1\xc1"])
def test_what_is_no_message(sent: bytes) -> None:
    """It is refused, without being waited for or allocated."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(sent)
        with pytest.raises(ValueError, match=r"message|malformed"):
            receive(theirs, Reply)


def test_an_error_arrives_as_itself() -> None:
    """By its exit code."""
    with pytest.raises(CorpusError, match="is another object"):
        Reply.of(CorpusError("it is another object")).raise_error()


def test_a_directory_with_a_long_name(tmp_path: Path) -> None:
    """Addresses of sockets have few bytes, and are given by the directory's descriptor."""
    directory = tmp_path / ("long-" * 30)
    directory.mkdir()
    with listen_at(directory) as listener, connect_to(directory, 1.0) as connection:
        accepted, _ = listener.accept()
        with accepted:
            assert peer_is_own(accepted)
            assert peer_is_own(connection)
    with pytest.raises(ConnectionRefusedError):
        connect_to(directory, 1.0)
    with listen_at(directory), connect_to(directory, 1.0):
        pass
