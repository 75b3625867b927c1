"""What a file of another format is, by how it begins and ends."""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Mapping
from typing import Final

HEAD_BYTES: Final = 4096  # bytes that are looked at, where a file has so many
TAIL_BYTES: Final = 4
HDF5: Final = b"\x89HDF\r\n\x1a\n"
_POINTER: Final = "a pointer of {}: fetch the file that it stands for with `{}`"
# Patterns of what files begin with.
_SIGNATURES: Final = {
    rb"BZh[1-9](1AY&SY|\x17rE8P\x90)": "compressed by bzip2",
    rb"\xfd7zXZ\0": "compressed by xz",
    rb"\x5d\0\0.{2}\xff{8}": "compressed by lzma",
    rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18": "compressed by zstd or lz4",
    rb"\x04\x22\x4d\x18|\x02\x21\x4c\x18": "compressed by lz4",
    rb"\xff\x06\0\0sNaPpY": "compressed by snappy",
    rb"PK\x03\x04|PK\x05\x06": "a zip archive, as torch.save and np.savez write it",
    rb"7z\xbc\xaf\x27\x1c": "a 7z archive",
    rb".{257}ustar": "a tar archive",
    rb"ARROW1\0\0": "an Arrow file",
    rb"Obj\x01.{1,32}avro\.": "an Avro file",
    rb"SQLite format 3\0": "an SQLite database",
    rb"GGUF[\x01-\x0f]\0\0\0": "a GGUF model",
    rb"\x93NUMPY": "a NumPy array",
    rb"MMIDIDX\0\0": "an index of Megatron's (.idx)",
    rb"TNTIDX\0\0": "an index of fairseq's (.idx)",
    rb"\x80\x02\x8a\x0a": "a pickle, as torch.save wrote it",
}
_TEXTS: Final = {
    rb"version https://git-lfs\.": _POINTER.format("git-lfs", "git lfs pull"),
    rb"(../)*(\.git)?/annex/objects/": _POINTER.format("git-annex", "git annex get"),
    rb"\s*<": "a page in HTML or XML",
    rb"\s*[{\[]": "JSON",
    rb"": "a text",
}
_CONTROLS: Final = re.compile("[\0-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_LEAST_TEXT: Final = 16  # bytes; fewer may be token ids by chance
_LEAST_BYTES: Final = 6  # different ones


def other_format(head: bytes, size: int, tail: bytes = b"", *, texts: bool = True) -> str | None:
    """Return what a file of another format is, or None if it may be numbers alone.

    Parameters
    ----------
    head : bytes
        First `HEAD_BYTES` of the file, or fewer.
    size : int
        Bytes of the file.
    tail : bytes
        Last `TAIL_BYTES` of the file.
    texts : bool
        Whether a file that begins as a text is one, and no array of small numbers.
    """
    found = {
        "compressed by gzip": _is_gzip(head),
        "an HDF5 file": any(head[place:].startswith(HDF5) for place in (0, 512, 1024, 2048)),
        "a Parquet file": head[:4] == tail and head[:4] in (b"PAR1", b"PARE"),
        "an Arrow file": head[:4] == tail == b"FEA1",
        "an ORC file": head[:3] == tail[:3] == b"ORC",
        "a Lance file": tail == b"LANC",
        "a safetensors file": _is_safetensors(head, size),
        "an Arrow stream": _is_arrow_stream(head, size),
        "a pickle": _is_pickle(head, size, tail),
        "a TFRecord file": _is_tfrecord(head, size),
        "an MDS shard: see `distcache index`": _is_mds(head, size),
    }
    by_form = next((what for what, is_so in found.items() if is_so), None)
    as_text = _first_match(_TEXTS, head) if texts and _is_text(head, size) else None
    return _first_match(_SIGNATURES, head) or by_form or as_text


def _first_match(known: Mapping[bytes, str], head: bytes) -> str | None:
    return next((what for key, what in known.items() if re.match(key, head, re.DOTALL)), None)


def _masked_crc(content: bytes) -> bytes:
    """Return the sum of a record's length (TensorFlow, tsl/lib/hash/crc32c.h)."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 & -(crc & 1))
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")


def _is_safetensors(head: bytes, size: int) -> bool:
    """Return whether it has a length, and JSON of it, which blanks fill up."""
    length = int.from_bytes(head[:8], "little")
    shown = head[8 : 8 + length]
    is_json = shown[:1] == b"{" and shown.isascii() and shown.decode("ascii").isprintable()
    return 8 <= length <= size - 8 and length % 8 == 0 and is_json


def _is_arrow_stream(head: bytes, size: int) -> bool:
    """Return whether it has the length of a message, whose root table is near its begin."""
    mark, length, root = (int.from_bytes(head[n : n + 4], "little") for n in (0, 4, 8))
    bounded = 0 < length <= size - 8 and length < 1 << 24
    return mark == 0xFFFFFFFF and bounded and length % 8 == 0 and 4 <= root <= 64


def _is_tfrecord(head: bytes, size: int) -> bool:
    length = int.from_bytes(head[:8], "little")
    return 0 < length <= size - 16 and head[8:12] == _masked_crc(head[:8])


def _is_gzip(head: bytes) -> bool:
    """Return whether it begins as gzip, and can be unpacked as far as it is here."""
    try:
        zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, len(head))
    except zlib.error:
        return False
    return head.startswith(b"\x1f\x8b\x08")


def _is_pickle(head: bytes, size: int, tail: bytes) -> bool:
    if head[:1] != b"\x80" or not tail.endswith(b"."):
        return False
    if head[1:2] in (b"\x04", b"\x05"):
        return head[2:3] == b"\x95" and 0 < int.from_bytes(head[3:11], "little") <= size - 11
    return head[1:2] in (b"\x02", b"\x03") and head[2:3] in b"}](cXKUM\x8a"


def _is_mds(head: bytes, size: int) -> bool:
    """Return whether a file begins with the offsets of a shard (mosaicml-streaming, format/mds).

    Behind them JSON says what its columns are.
    """
    count = int.from_bytes(head[:4], "little")
    numbers = (int.from_bytes(head[n : n + 4], "little") for n in range(4, len(head) - 3, 4))
    offsets = list(itertools.islice(numbers, min(count, len(head)) + 1))
    columns = 4 * (count + 2)
    return (
        count > 0
        and len(offsets) > 1
        and 2 <= offsets[0] - columns < 1 << 16
        and head[columns : columns + 1] in (b"{", b"")
        and all(one <= other for one, other in itertools.pairwise(offsets))
        and (offsets[-1] == size if len(offsets) == count + 1 else offsets[-1] < size)
    )


def _is_text(head: bytes, size: int) -> bool:
    """Return whether it begins with printable text; the last character may be cut.

    Token ids that repeat have few different bytes.
    """
    if size < _LEAST_TEXT or len(set(head)) < _LEAST_BYTES:
        return False
    for cut in range(4):
        try:
            return not _CONTROLS.search(head[: len(head) - cut].decode("utf-8"))
        except UnicodeDecodeError:
            continue
    return False
