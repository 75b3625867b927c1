"""The `.idx` file (MMIDIDX, version 1), read through a memory map.

The format is that of Megatron-Core's ``indexed_dataset``: a header of 34 bytes, then the length of
every sequence in tokens (int32), its offset in the `.bin` in bytes (int64), the document
boundaries as sequence numbers (int64), and for multimodal data a mode per sequence (int8).
"""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from distcache.errors import ConfigError, CorpusError, NotReady
from distcache.kernels import Mapping
from distcache.storage.files import FileVersion, open_regular, version_of
from distcache.storage.place import copy_of
from distcache.storage.url import is_url

MAGIC: Final = b"MMIDIDX\x00\x00"
LEGACY_MAGIC: Final = b"TNTIDX\x00\x00"
LFS_POINTER: Final = b"version https://git-lfs"
POINTER: Final = 64  # bytes that identify one
HEADER: Final = struct.Struct("<9sQBQQ")
HEADER_SIZE: Final = HEADER.size
ITEM_TYPES: Final[dict[int, np.dtype[Any]]] = {
    1: np.dtype("u1"),
    2: np.dtype("i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    8: np.dtype("<u2"),
}
NAMES: Final = {"u8": "u1", "u16": "<u2", "i32": "<i4", "i64": "<i8"}
MEGATRON_NARROW: Final = 65_500  # below it, Megatron's preprocessing writes 16 bits, else 32


def idx_path(prefix: str) -> str:
    """Return the path of the `.idx` file of a corpus."""
    return prefix + ".idx"


def unused_name(prefix: str, used: set[str], more: str = "") -> str:
    """Return the last component of a prefix, with a number if it is in use already, and use it."""
    stem = name = (prefix.rstrip("/").rpartition("/")[2] or "corpus") + more
    number = 2
    while name in used:
        name, number = f"{stem}-{number}", number + 1
    used.add(name)
    return name


def bin_path(prefix: str) -> str:
    """Return the path of the `.bin` file of a corpus."""
    return prefix + ".bin"


@dataclass(frozen=True, eq=False)
class Idx:
    """An open `.idx` file whose header and length agree."""

    path: str  # path under which it was opened
    # version of the file when it was opened, or of the object that it is a copy of
    file_version: FileVersion
    type_code: int  # the token type's code in the header, a key of `ITEM_TYPES`
    map: Mapping
    # tokens per sequence; unaligned and read-only, as are the other arrays
    lengths: NDArray[np.int32]
    offsets: NDArray[np.int64]  # bytes from the start of the `.bin`
    # sequence numbers at which documents start, then the number of sequences
    bounds: NDArray[np.int64]
    modes: NDArray[np.int8] | None  # modes of multimodal sequences

    @property
    def size(self) -> int:
        """The file's length in bytes."""
        return len(self.map)

    @property
    def item_size(self) -> int:
        """Bytes per token."""
        return ITEM_TYPES[self.type_code].itemsize

    def require_intact(self) -> None:
        """Refuse a file if parts of its mapping could not be read, and are zeros.

        Raises
        ------
        CorpusError
            If it has been cut short since it was opened, or its filesystem has failed.
        """
        if not self.map.intact:
            raise CorpusError(
                f"{self.path}: could not be read to its end: it was cut short while it was read, "
                "or its filesystem failed; run again when it is whole"
            )

    def release_lengths(self, begin: int, end: int) -> None:
        """Drop the mapped pages of the lengths of sequences [begin, end)."""
        self.release(HEADER_SIZE + 4 * begin, HEADER_SIZE + 4 * end)

    def release(self, begin: int, end: int) -> None:
        """Drop the mapped pages of bytes [begin, end) from this process; the page cache keeps them.

        Without it a scan of the whole file would count as resident memory of the process.
        """
        self.map.release(begin, end)


def open_idx(prefix: str) -> Idx:
    """Map the `.idx` file of a corpus and take views of its arrays; nothing is copied.

    Parameters
    ----------
    prefix : str
        The corpus's path without suffix; or its URL, if its objects were fetched.

    Returns
    -------
    Idx
        Index whose header and length are checked; its contents are not.

    Raises
    ------
    NotReady
        If the file does not exist.
    CorpusError
        If it is not an `.idx` file, or not as long as its header says.
    """
    path = idx_path(prefix)
    copy = copy_of(path)
    if copy is None and is_url(path):
        raise NotReady(f"{path}: no such object")
    try:
        descriptor = open_regular(path if copy is None else copy.path)
    except FileNotFoundError as error:
        raise NotReady(f"{path}: no such file") from error
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        raise CorpusError(f"{path}: cannot be opened: {error.strerror}") from error
    try:
        file_version = version_of(os.fstat(descriptor)) if copy is None else copy.version
        size = os.fstat(descriptor).st_size
        header = os.pread(descriptor, HEADER_SIZE, 0)
        type_code, sequences, entries = _parse_header(path, header)
        has_modes = _has_modes(path, size, sequences, entries)
        mapped = Mapping(descriptor, size)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        raise CorpusError(f"{path}: cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    offsets_begin = HEADER_SIZE + 4 * sequences
    bounds_begin = offsets_begin + 8 * sequences
    modes_begin = bounds_begin + 8 * entries
    view = memoryview(mapped)
    return Idx(
        path=path,
        file_version=file_version,
        type_code=type_code,
        map=mapped,
        lengths=np.frombuffer(view, "<i4", sequences, HEADER_SIZE),
        offsets=np.frombuffer(view, "<i8", sequences, offsets_begin),
        bounds=np.frombuffer(view, "<i8", entries, bounds_begin),
        modes=np.frombuffer(view, "i1", sequences, modes_begin) if has_modes else None,
    )


def _parse_header(path: str, header: bytes) -> tuple[int, int, int]:
    if header.startswith(LEGACY_MAGIC):
        raise CorpusError(
            f"{path}: is a TNTIDX file of fairseq or an early Megatron, which is not read; "
            "tokenize again, or rewrite it with the release of Megatron that wrote it"
        )
    require_no_pointer(path, header)
    if len(header) < HEADER_SIZE:
        raise CorpusError(
            f"{path}: has {len(header)} bytes, fewer than the {HEADER_SIZE} of a header"
        )
    magic, version, type_code, sequences, entries = HEADER.unpack(header)
    if magic != MAGIC:
        raise CorpusError(f"{path}: magic is {magic!r}, expected {MAGIC!r}")
    if version != 1:
        raise CorpusError(f"{path}: version is {version}, expected 1")
    if type_code not in ITEM_TYPES:
        floats = " (floating point)" if type_code in (6, 7) else ""
        raise CorpusError(
            f"{path}: token type code is {type_code}{floats}, expected one of integers, 1 to 5 or 8"
        )
    return type_code, sequences, entries


def require_no_pointer(path: str, content: bytes) -> None:
    """Refuse what git-lfs leaves instead of a file that was not fetched.

    Raises
    ------
    CorpusError
        If it is one.
    """
    if content.startswith(LFS_POINTER):
        raise CorpusError(f"{path}: is a pointer of git-lfs, not the file: run `git lfs pull`")


def _has_modes(path: str, size: int, sequences: int, entries: int) -> bool:
    plain = HEADER_SIZE + 12 * sequences + 8 * entries
    if size not in (plain, plain + sequences):
        raise CorpusError(
            f"{path}: has {size} bytes, expected {plain} (or {plain + sequences} with modes) "
            f"for {sequences} sequences and {entries} document entries"
        )
    return sequences > 0 and size == plain + sequences


def code_of(dtype: DTypeLike) -> int:
    """Return the code that the header of an `.idx` has for a token type.

    Raises
    ------
    CorpusError
        If there is none.
    """
    wanted = np.dtype(dtype)
    code = next((code for code, known in ITEM_TYPES.items() if known == wanted), None)
    if code is None:
        raise CorpusError(f"token type {wanted} has no code in an .idx file")
    return code


def smallest_type(vocabulary: int) -> np.dtype[Any]:
    """Return the smallest token type that holds the ids below a vocabulary's size."""
    if vocabulary <= 1 << 8:
        return np.dtype("u1")
    if vocabulary <= 1 << 16:
        return np.dtype("<u2")
    return np.dtype("<i4") if vocabulary <= 1 << 31 else np.dtype("<i8")


def named_type(name: str, vocabulary: int | None) -> np.dtype[Any]:
    """Return the token type that an option asks for.

    Parameters
    ----------
    name : str
        A key of `NAMES`; ``auto`` for the smallest, and ``megatron`` for the one that Megatron's
        preprocessing takes (``DType.optimal_dtype``).
    vocabulary : int or None
        Size of the vocabulary; None if it is not known, which 32 bits are treated as.

    Raises
    ------
    ConfigError
        If there is no such type, or it does not hold the vocabulary.
    """
    if name == "auto":
        return np.dtype("<i4") if vocabulary is None else smallest_type(vocabulary)
    if name == "megatron":
        narrow = vocabulary is not None and vocabulary < MEGATRON_NARROW
        found = np.dtype("<u2" if narrow else "<i4")
    elif name in NAMES:
        found = np.dtype(NAMES[name])
    else:
        raise ConfigError(f"--token-type {name}: expected auto, megatron, {', '.join(NAMES)}")
    if vocabulary is not None and vocabulary > limit_of(found):
        raise ConfigError(f"--token-type {name}: does not hold a vocabulary of {vocabulary} tokens")
    return found


def limit_of(dtype: np.dtype[Any], vocabulary: int | None = None) -> int:
    """Return the number that token ids must be below: that of the type, or of the vocabulary."""
    most = int(np.iinfo(dtype).max) + 1
    return most if vocabulary is None else min(most, vocabulary)
