"""The ready record: without it a copy does not count."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from distcache.cache.export import Exported
from distcache.files import open_regular, read_range, write_whole
from distcache.node.store import Store

__all__ = ["LocalCorpus", "Ready", "read_record", "read_records", "withdraw", "write_record"]

VERSION: Final = 1
LARGEST: Final = 1 << 30  # bytes of a record that is read


class LocalCorpus(msgspec.Struct, frozen=True):
    """A corpus of a localized cache.

    Attributes
    ----------
    shared : str
        Its absolute path on the shared filesystem, without suffix.
    stem : str
        Its name in the store.
    idx_size : int
        Bytes of its index.
    """

    shared: str
    stem: str
    idx_size: int


class Ready(msgspec.Struct, frozen=True):
    """That a copy is complete, and what it is.

    Attributes
    ----------
    name : str
        Of the cache in the store.
    key : str
        The cache's identity.
    source : str
        Absolute path of the shared cache.
    size : int
        Bytes of the cache.
    corpora : tuple of LocalCorpus
        In the order of the cache's sources.
    linked : bool
        Whether the store has links to the `.bin` files.
    megatron : Exported or None
        Megatron's files and options.
    tokenizer : dict or None
        What their names were made with, where it is not the cache's own.
    when, host, distcache : str
        Time (ISO 8601, UTC), node and version of the agent.
    version : int
        Of this record.
    modified : int
        When the cache was last written, in nanoseconds; 0 of an agent that did not say.
    """

    name: str
    key: str
    source: str
    size: int
    corpora: tuple[LocalCorpus, ...]
    linked: bool
    megatron: Exported | None
    tokenizer: dict[str, Any] | None
    when: str
    host: str
    distcache: str
    version: int = VERSION
    modified: int = 0


def write_record(store: Store, record: Ready) -> None:
    """Declare a copy complete. Everything that it names has been synced."""
    with write_whole(store.ready(record.name)) as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(record), indent=1))


def read_record(store: Store, name: str) -> Ready | None:
    """Return the record of a copy; None if there is none of this version that names it."""
    try:
        descriptor = open_regular(store.ready(name), follow=False)
    except OSError:
        return None
    try:
        size = os.fstat(descriptor).st_size
        text = read_range(descriptor, 0, size) if size <= LARGEST else b""
        record = msgspec.json.decode(text, type=Ready)
    except (OSError, EOFError, ValueError, RecursionError):
        return None
    finally:
        os.close(descriptor)
    sound = record.version == VERSION and record.name == name
    sound &= not any("/" in corpus.stem or "\0" in corpus.stem for corpus in record.corpora)
    return record if sound else None


def read_records(store: Store) -> Iterator[Ready]:
    """Yield the records of a store, in the order of their names."""
    try:
        names = sorted(os.listdir(store.caches))
    except OSError:
        return
    for name in names:
        if name.endswith(".json") and not name.startswith("."):
            record = read_record(store, name.removesuffix(".json"))
            if record is not None:
                yield record


def withdraw(store: Store, name: str) -> None:
    """Declare a copy incomplete."""
    with contextlib.suppress(FileNotFoundError):
        store.ready(name).unlink()
